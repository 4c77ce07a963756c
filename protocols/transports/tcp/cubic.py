"""TCP CUBIC (RFC 9438; Ha, Rhee, Xu, SIGOPS OSR 42(5), 2008) grows its window along a cubic curve of time.

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
from gradwire.protocols.transports.base import Context, fixed_mul, fraction
from gradwire.protocols.transports.common.cubic_curve import (
    CUBE_SHIFT,
    TICK,
    CubicFlow,
    CubicParameters,
    avoid_congestion,
    record_peak,
    shift_epoch,
)
from gradwire.protocols.transports.common.delayed_acks import RECEIVER_AT_REST, on_data
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.common.recovery import begin, find_losses, keep_pace, pull, slow_down
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    MAX_WINDOW,
    MIN_WINDOW,
    SENDER_AT_REST,
    SHIFT,
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
def _fall(params: CubicParameters, flow: CubicFlow) -> None:
    """Reduce the window after a mark."""
    record_peak(params, flow)
    reduce(flow, fixed_mul(flow.cwnd, params.beta))


@njit
def _grow(params: CubicParameters, flow: CubicFlow, una: int, newly: int, now: int) -> None:
    """Grow the window: slow start, then the larger of the cubic curve and Reno's line."""
    since = flow.last_ack_at
    flow.last_ack_at = now
    if flow.loss_state <= 0 and (una < flow.recover or una < flow.reduction_end):
        return
    window = flow.cwnd
    if window < flow.ssthresh:
        if window <= 2 * ((flow.in_flight + newly) << SHIFT):
            flow.cwnd = min(window + (newly << SHIFT), MAX_WINDOW)
        return
    avoid_congestion(params, flow, newly, now, since)


@njit
def on_control(
    params: CubicParameters, flow: CubicFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, losses, reaction, growth."""
    una = flow.una
    newly = acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    if flow.una <= flow.highest and find_losses(flow) > 0 and begin(flow):
        if flow.una >= flow.reduction_end:
            record_peak(params, flow)
        slow_down(params, flow, fixed_mul(flow.cwnd, params.beta))
    keep_pace(flow, newly)
    if echo and una >= flow.reduction_end:
        _fall(params, flow)
    if flow.una > una:
        _grow(params, flow, una, newly, now)


@njit
def on_timer(params: CubicParameters, flow: CubicFlow, now: int) -> None:
    """Handle a time-out: slow start up to beta of the flight, then a stage with K = 0 (section 4.8)."""
    una = flow.una
    is_repeated = flow.loss_state == una + 1
    window = min((flow.nxt - una) << SHIFT, flow.cwnd)
    if not is_repeated:
        flow.prior_cwnd = flow.cwnd
    time_out(params, flow, now)
    if not is_repeated:
        flow.ssthresh = max(fixed_mul(window, params.beta), MIN_WINDOW)
    flow.w_max = 0
    flow.epoch = 0


@njit
def resume(params: CubicParameters, flow: CubicFlow, now: int) -> None:
    """Resume as the window machinery does; the curve has stood still during the silence, as in Linux."""
    resume_window(params, flow, now)
    shift_epoch(flow, now)


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
    sender_at_rest = SENDER_AT_REST.union(PersistentState(times=(CubicFlow.epoch, CubicFlow.last_ack_at)))
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
        """Return those of `Reliable`; then beta and alpha_cubic, fast convergence, and the constants of the curve."""
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
        """Return the class that carries out these settings: this one, or one over the Linux sender."""
        from gradwire.protocols.transports.linux_tcp.variants import linux_class

        return linux_class(cls, settings)
