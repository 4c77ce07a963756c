"""TCP CUBIC (RFC 9438; Ha, Rhee, Xu, SIGOPS OSR 42(5), 2008): the window follows a cubic curve of time.

Scoreboard, loss detection, timers and slow start are those of `window`; this file is how the window falls and grows.

* After a loss, or an ECN echo where `ecn` is set, the window falls to beta of itself (section 4.6; the window, not
  the flight, as Linux does) and W_max is where it was - or, with fast convergence and a W_max that was not reached
  again, (1 + beta) / 2 of it (section 4.7).
* In congestion avoidance W_cubic(t) = C (t - K)^3 + W_max, K = cbrt((W_max - cwnd_epoch) / C); every acknowledgement
  moves the window by (target - cwnd) / cwnd, target = W_cubic(t + srtt) kept between cwnd and 1.5 cwnd (4.2, 4.4,
  4.5).
* Reno-friendly region: W_est grows by alpha_cubic = 3 (1 - beta) / (1 + beta) per window, by 1 once it has reached
  the window before the last reduction; while W_cubic(t) is below it, the window is W_est (4.3). At round trips of
  microseconds that is nearly always: K is seconds.
* After a time-out, and where slow start ends without a loss, K = 0 and W_max is the window of that moment (4.8,
  4.10).
* t stands still while something else than the window limits the sender (section 4.2 on application-limited periods).

Our choices: growth is held while the window that was reduced is under way, as for the other windows here; the window
never falls on an acknowledgement, even where W_est lies below it; no HyStart++ (section 4.10 recommends it) and no
undo of spurious reductions (4.9); one acknowledgement counts as 4096 packets at most.

Arithmetic: integers. Windows are packets << 16; time on the curve is counted in 2^20 ps (1.05 us), at most 2^27 of
them (140 s) from its inflection; what a division leaves over is kept, so that growth of far less than 2^-16 packets
per acknowledgement adds up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.components.compiled import njit
from gradwire.components.layout import S_DONE, S_USER
from gradwire.components.transports.acknowledgements import RECEIVER_AT_REST, on_data
from gradwire.components.transports.at_rest import AtRest
from gradwire.components.transports.base import ONE, Context, fraction
from gradwire.components.transports.recovery import begin, find_losses, keep_pace, pull, slow_down
from gradwire.components.transports.reliable import Reliable
from gradwire.components.transports.window import (
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
    SRTT,
    SSTHRESH,
    STATE,
    UNA,
    acknowledge,
    on_probe,
    reduce,
    start,
)
from gradwire.components.transports.window import on_timer as time_out
from gradwire.components.transports.window import resume as resume_window
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.effect_conditions import GOES_BY_MARKS
from gradwire.scenarios.schema.tcp_rules import Ruled
from gradwire.scenarios.schema.transport_base import Connected

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.transport_base import Transport

# a sender's own words, after those of the window machinery that CUBIC uses
W_MAX = S_USER + 16
EPOCH = S_USER + 17  # when this congestion avoidance stage began, 0 = it has not
K = S_USER + 18  # in ticks
W_EST = S_USER + 19
PRIOR = S_USER + 21  # the window when ssthresh was last set
REST = S_USER + 22  # what is left over of the growth of the window
REST_EST = S_USER + 23  # and of W_est
SEEN = S_USER + 24  # the last acknowledgement

# parameters, after those of the window machinery
K_BETA, K_ALPHA, K_CONVERGED, K_CUBE, K_ROOT, K_ROOT_SHIFT = 5, 6, 7, 8, 9, 10

TICK = 20  # time on the curve in 2^TICK ps
FARTHEST = 1 << 27  # ticks
MOST = 4096  # packets that one acknowledgement can grow the window for
CUBE_SHIFT = 20


@njit
def cube_root(x):
    """The integer cube root, rounded down, of 0 <= x < 2^63."""
    root = 0
    shift = 60
    while shift >= 0:
        root += root
        step = 3 * root * (root + 1) + 1
        if x >> shift >= step:
            x -= step << shift
            root += 1
        shift -= 3
    return root


@njit
def curve(M, k, f, ticks):
    """W_cubic at `ticks` after the beginning of the stage, packets << 16."""
    q = ticks - M[f + K]
    q = min(max(q, -FARTHEST), FARTHEST)
    cube = (q * q >> 24) * q >> CUBE_SHIFT
    return M[f + W_MAX] + (cube * M[k + K_CUBE] >> CUBE_SHIFT)


@njit
def _begin(M, k, f, now):
    """A congestion avoidance stage begins."""
    window = M[f + CWND]
    M[f + EPOCH] = now
    M[f + W_EST] = window
    M[f + REST] = 0
    M[f + REST_EST] = 0
    if M[f + W_MAX] <= window:
        M[f + W_MAX] = window
        M[f + K] = 0
    else:
        M[f + K] = cube_root((M[f + W_MAX] - window) * M[k + K_ROOT]) << M[k + K_ROOT_SHIFT]


@njit
def remember(M, k, f):
    """Congestion: where the window was, for the curve of the next stage."""
    window = M[f + CWND]
    if M[k + K_CONVERGED] and window < M[f + W_MAX]:
        M[f + W_MAX] = window * (ONE + M[k + K_BETA]) >> 21
    else:
        M[f + W_MAX] = window
    M[f + PRIOR] = window
    M[f + EPOCH] = 0


@njit
def _fall(M, k, f):
    remember(M, k, f)
    reduce(M, f, M[f + CWND] * M[k + K_BETA] >> 20)


@njit
def _grow(M, k, f, una, newly, now):
    """Slow start as everywhere; then the larger of the cubic curve and Reno's line."""
    since = M[f + SEEN]
    M[f + SEEN] = now
    if M[f + STATE] <= 0 and (una < M[f + RECOVER] or una < M[f + REDUCED]):
        return
    window = M[f + CWND]
    if window < M[f + SSTHRESH]:
        if window <= 2 * ((M[f + FLIGHT] + newly) << SHIFT):
            M[f + CWND] = min(window + (newly << SHIFT), MAX_WINDOW)
        return
    climb(M, k, f, newly, now, since)


@njit
def climb(M, k, f, newly, now, since):
    """Congestion avoidance. `since`: when the acknowledgement before this one came."""
    window = M[f + CWND]
    used = (M[f + FLIGHT] + newly) << SHIFT
    if M[f + EPOCH] == 0:
        _begin(M, k, f, now)
    if used + (1 << SHIFT) <= window:
        M[f + EPOCH] += now - max(since, M[f + EPOCH])
        return
    newly = min(newly, MOST)
    divisor = window >> 8
    alpha = ONE if M[f + W_EST] >= M[f + PRIOR] else M[k + K_ALPHA]
    rest = M[f + REST_EST] + (newly * alpha << 4)
    M[f + W_EST] += rest // divisor
    M[f + REST_EST] = rest % divisor
    elapsed = now - M[f + EPOCH]
    if curve(M, k, f, elapsed >> TICK) < M[f + W_EST]:
        M[f + CWND] = min(max(window, M[f + W_EST]), MAX_WINDOW)
        return
    target = curve(M, k, f, (elapsed + M[f + SRTT]) >> TICK)
    target = min(max(target, window), window + (window >> 1))
    rest = M[f + REST] + ((target - window) * newly << 8)
    M[f + CWND] = min(window + rest // divisor, MAX_WINDOW)
    M[f + REST] = rest % divisor


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """An acknowledgement: scoreboard, losses, the reaction, growth."""
    una = M[f + UNA]
    newly = acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if M[f + UNA] <= M[f + HIGHEST] and find_losses(M, f) > 0 and begin(M, f):
        if M[f + UNA] >= M[f + REDUCED]:
            remember(M, k, f)
        slow_down(M, k, f, M[f + CWND] * M[k + K_BETA] >> 20)
    keep_pace(M, f, newly)
    if echo and una >= M[f + REDUCED]:
        _fall(M, k, f)
    if M[f + UNA] > una:
        _grow(M, k, f, una, newly, now)


@njit
def on_timer(M, k, f, now):
    """Time-out: slow start up to beta of what was out there, then a stage with K = 0 (section 4.8)."""
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
def stand_still(M, f, now):
    """Nothing was to be sent since the last acknowledgement: the curve has waited."""
    if M[f + EPOCH] > 0:
        M[f + EPOCH] += now - max(M[f + SEEN], M[f + EPOCH])
    M[f + SEEN] = now


@njit
def resume(M, k, f, now):
    """As the window machinery; the curve has stood still during the silence, as in Linux."""
    resume_window(M, k, f, now)
    stand_still(M, f, now)


class Cubic(Reliable, Connected, Ruled):
    """TCP CUBIC (RFC 9438); by default its packets are not ECN-capable."""

    kernel_tcp = "cubic"

    forgets = True
    kind: Literal["cubic"]
    ecn: Annotated[Flag, GOES_BY_MARKS] = False
    """Whether packets are ECN-capable; others are dropped above K where `selective_drop` is on."""
    beta: Annotated[float, Field(ge=0.1, lt=1, strict=True)] = 0.7
    """What a reduction leaves of the window [RFC 9438 section 4.6]."""
    c: Annotated[float, Field(ge=0.001, le=10, strict=True)] = 0.4
    """Steepness of the curve, packets per cubed second [RFC 9438 section 5.1]."""
    fast_convergence: Flag = True
    """Aim lower when the last peak was not reached again [RFC 9438 section 4.7]."""

    streams = True
    sender_at_rest = SENDER_AT_REST.and_of(AtRest(times=(EPOCH, SEEN)))
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
        """As NewReno; then beta and alpha_cubic, whether to converge fast, and the constants of the curve."""
        beta, c = settings["beta"], settings["c"]
        # packets << 16 per cubed tick, and its inverse, which is kept below 2^24 in steps of 8
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
        """As NewReno."""
        from gradwire.components.transports.linux_kinds import linux

        return linux(cls, settings)
