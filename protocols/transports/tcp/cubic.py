"""TCP CUBIC (RFC 9438; Ha, Rhee, Xu, SIGOPS OSR 42(5), 2008): the window follows a cubic curve of time.

Scoreboard, loss detection, timers and slow start are those of `window`; this module reduces and grows the window.

* After a loss, or an ECN echo with `ecn`, the window falls to beta times itself (section 4.6; the window, not the
  flight, as in Linux), and W_max is its previous value or, with fast convergence and a W_max that was not reached
  again, (1 + beta) / 2 of it (section 4.7).
* In congestion avoidance W_cubic(t) = C (t - K)^3 + W_max, K = cbrt((W_max - cwnd_epoch) / C); every acknowledgement
  moves the window by (target - cwnd) / cwnd, target = W_cubic(t + srtt) limited to cwnd .. 1.5 cwnd (4.2, 4.4, 4.5).
* Reno-friendly region: W_est grows by alpha_cubic = 3 (1 - beta) / (1 + beta) per window, by 1 once it has reached the
  window before the last reduction; while W_cubic(t) is below it, the window is W_est (4.3). At round trips of
  microseconds that is nearly always so: K is seconds.
* After a time-out, and if slow start ends without a loss, K = 0 and W_max is the window of that moment (4.8, 4.10).
* t stands still while the window does not limit the sender (section 4.2 on application-limited periods).

Our choices: no growth while the reduced window is in flight, as for the other windows here; the window never falls on
an acknowledgement, even if W_est is below it; no HyStart++ (section 4.10 recommends it) and no undo of spurious
reductions (4.9); one acknowledgement counts as at most 4096 packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_DONE
from gradwire.protocols.transports.base import Context, fraction
from gradwire.protocols.transports.common.cubic_curve import (
    CUBE_SHIFT,
    EPOCH,
    K_BETA,
    PRIOR,
    SEEN,
    TICK,
    W_MAX,
    avoid_congestion,
    record_peak,
    shift_epoch,
)
from gradwire.protocols.transports.common.delayed_acks import RECEIVER_AT_REST, on_data
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.common.recovery import begin, find_losses, keep_pace, pull, slow_down
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    CWND,
    FLIGHT,
    HIGHEST,
    MAX_WINDOW,
    MIN_WINDOW,
    NXT,
    RECOVER,
    REDUCED,
    SENDER_AT_REST,
    SHIFT,
    SSTHRESH,
    STATE,
    UNA,
    acknowledge,
    on_probe,
    reduce,
    start,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import resume as resume_window
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.effect_conditions import REACTS_TO_MARKS
from gradwire.scenarios.schema.network.tcp_rules import TcpRulesTable
from gradwire.scenarios.schema.network.transport_base import ConnectionTransport

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport


@njit
def _fall(M, k, f):
    record_peak(M, k, f)
    reduce(M, f, M[f + CWND] * M[k + K_BETA] >> 20)


@njit
def _grow(M, k, f, una, newly, now):
    """Grow the window: slow start, then the larger of the cubic curve and Reno's line."""
    since = M[f + SEEN]
    M[f + SEEN] = now
    if M[f + STATE] <= 0 and (una < M[f + RECOVER] or una < M[f + REDUCED]):
        return
    window = M[f + CWND]
    if window < M[f + SSTHRESH]:
        if window <= 2 * ((M[f + FLIGHT] + newly) << SHIFT):
            M[f + CWND] = min(window + (newly << SHIFT), MAX_WINDOW)
        return
    avoid_congestion(M, k, f, newly, now, since)


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    una = M[f + UNA]
    newly = acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if M[f + UNA] <= M[f + HIGHEST] and find_losses(M, f) > 0 and begin(M, f):
        if M[f + UNA] >= M[f + REDUCED]:
            record_peak(M, k, f)
        slow_down(M, k, f, M[f + CWND] * M[k + K_BETA] >> 20)
    keep_pace(M, f, newly)
    if echo and una >= M[f + REDUCED]:
        _fall(M, k, f)
    if M[f + UNA] > una:
        _grow(M, k, f, una, newly, now)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: slow start up to beta of the flight, then a stage with K = 0 (section 4.8)."""
    una = M[f + UNA]
    again = M[f + STATE] == una + 1
    window = min((M[f + NXT] - una) << SHIFT, M[f + CWND])
    if not again:
        M[f + PRIOR] = M[f + CWND]
    time_out(M, k, f, now)
    if not again:
        M[f + SSTHRESH] = max(window * M[k + K_BETA] >> 20, MIN_WINDOW)
    M[f + W_MAX] = 0
    M[f + EPOCH] = 0


@njit
def resume(M, k, f, now):
    """Resume as the window machinery does; the curve has stood still during the silence, as in Linux."""
    resume_window(M, k, f, now)
    shift_epoch(M, f, now)


class Cubic(Reliable, ConnectionTransport, TcpRulesTable):
    """TCP CUBIC (RFC 9438); by default its packets are not ECN-capable."""

    kernel_tcp = "cubic"

    forgets = True
    kind: Literal["cubic"]
    ecn: Annotated[Flag, REACTS_TO_MARKS] = False
    """Packets are ECN-capable; others are dropped above K if `selective_drop` is on."""
    beta: Annotated[float, Field(ge=0.1, lt=1, strict=True)] = 0.7
    """Factor of the window at a reduction [RFC 9438 section 4.6]."""
    c: Annotated[float, Field(ge=0.001, le=10, strict=True)] = 0.4
    """Steepness of the curve, packets per cubed second [RFC 9438 section 5.1]."""
    fast_convergence: Flag = True
    """Aim lower when the last peak was not reached again [RFC 9438 section 4.7]."""

    streams = True
    sender_at_rest = SENDER_AT_REST.union(PersistentState(times=(EPOCH, SEEN)))
    receiver_at_rest = RECEIVER_AT_REST
    sums = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)
    resume = staticmethod(resume)

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of NewReno; then beta and alpha_cubic, fast convergence, and the constants of the curve."""
        beta, c = settings["beta"], settings["c"]
        # packets << 16 per cubed tick, and its inverse, scaled below 2^24 in steps of 8
        per_cube = c * 65536 * (2**TICK / 1e12) ** 3
        root, shift = 1 / per_cube, 0
        while root >= 1 << 24:
            root, shift = root / 8, shift + 1
        return [
            *Reliable.parameters(settings, context),
            fraction(beta),
            fraction(3 * (1 - beta) / (1 + beta)),
            int(settings["fast_convergence"]),
            round(per_cube * 2 ** (24 + 2 * CUBE_SHIFT)),
            round(root),
            shift,
        ]

    @classmethod
    def variant(cls, settings: JsonView) -> type[Transport]:
        from gradwire.protocols.transports.linux_tcp.variants import linux_class

        return linux_class(cls, settings)
