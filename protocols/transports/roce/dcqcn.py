"""DCQCN (Zhu et al., SIGCOMM '15): rate control over RoCE by notifications that receivers send.

[recalled] unless marked; [code] is htsim or the ns-3 of the HPCC paper.

Switch: marks at random between two thresholds. These are `switch.ecn_threshold` (Kmin), `ecn_ceiling` (Kmax) and
`ecn_probability` (Pmax); the paper has 5 KB, 200 KB and 1 % at 40 Gbps, the HPCC paper 100 KB, 400 KB and 20 % at 25
Gbps, and more in proportion to the line [code]. Without marks DCQCN does nothing.

Receiver: a marked packet makes it send a notification (CNP), unless it sent one for this flow in the last 50 us. Here
the notification is the mark on the next acknowledgement (ours, as in the ns-3 code), or a separate acknowledgement if
none is due; so it travels in the class of the acknowledgements.

Sender: starts at line rate. A notification sets the target rate to the current one, lowers the current one by alpha /
2, and moves alpha towards 1 by g = 1/256. Every 55 us without one, alpha falls by g. alpha is 1 at the first
notification [code]. The rate rises at the ticks of two clocks, both reset by a notification: every 55 us, and every 10
MB sent. With i ticks of the slower clock and j of the faster, a tick means

* fast recovery while j <= 5: halfway to the target. Five halvings, as in QCN and htsim [code];
* additive increase from then on: the target rises by `rate_ai`, then halfway to it;
* hyper increase when i > 5: the target rises by (i - 5) times `rate_hai`, then halfway to it.

40 Mbps for `rate_ai` at 40 Gbps; ten times that for `rate_hai`, the relation of the ns-3 code; both scaled with the
line, and no rate below line rate / `floor`: ours. The byte clock counts full packets (ours). There is no window.

The clocks need no timers: a tick matters only when the next packet leaves or the next notification comes, so earlier
ticks are caught up then, in their order.

Losses do not happen on the paper's network. Here a NACK or a time-out also counts as a notification, if there was none
for 50 us (ours; adapters have a slow restart for it).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.layout import ACK, BLOCKED, S_DONE, S_GAP, S_LINE
from gradwire.protocols.transports.base import ONE, Context, fraction, reply
from gradwire.protocols.transports.roce.go_back_n import (
    EXPECTED,
    K_OWN,
    R_OWN,
    SENDER_WORDS_END,
    SILENT,
    GoBackN,
    accept,
    on_probe,
    process_answer,
)
from gradwire.protocols.transports.roce.go_back_n import on_timer as time_out
from gradwire.protocols.transports.roce.go_back_n import pull as next_packet
from gradwire.scenarios.schema.network.transport_base import Gain
from gradwire.scenarios.units import Bps, Bytes, PositiveTime, Ps, Rate, Size
from gradwire.scenarios.wire import ROCE_ACK_BYTES, ROCE_OVERHEAD

# a sender's own words
RATE = SENDER_WORDS_END  # share of the line rate, 20-bit fixed point
TARGET = SENDER_WORDS_END + 1
ALPHA = SENDER_WORDS_END + 2
TICKS = SENDER_WORDS_END + 3  # of the time clock since the last notification
LAPS = SENDER_WORDS_END + 4  # of the byte clock
TICKED_AT = SENDER_WORDS_END + 5  # last tick of the time clock
BYTES = SENDER_WORDS_END + 6  # sent since the last tick of the byte clock
NOTIFIED_AT = SENDER_WORDS_END + 7  # 0 = never
# a receiver's own word
NOTIFIED = R_OWN  # when it sent the latest notification, plus one; 0 = never

# parameters, after those of go-back-N
K_G, K_PERIOD, K_TICK, K_LAP, K_CNP = K_OWN, K_OWN + 1, K_OWN + 2, K_OWN + 3, K_OWN + 4
K_STEP, K_LEAP, K_FLOOR, K_HALVINGS, K_PACKET = K_OWN + 5, K_OWN + 6, K_OWN + 7, K_OWN + 8, K_OWN + 9


@njit
def _set_rate(M, k, f, rate):
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def start(M, k, f, now):
    M[f + TARGET] = ONE
    M[f + ALPHA] = ONE
    _set_rate(M, k, f, ONE)


@njit
def _rise(M, k, f):
    slower = min(M[f + TICKS], M[f + LAPS])
    faster = max(M[f + TICKS], M[f + LAPS])
    if slower > M[k + K_HALVINGS]:
        M[f + TARGET] = min(M[f + TARGET] + (slower - M[k + K_HALVINGS]) * M[k + K_LEAP], ONE)
    elif faster > M[k + K_HALVINGS]:
        M[f + TARGET] = min(M[f + TARGET] + M[k + K_STEP], ONE)
    _set_rate(M, k, f, (M[f + RATE] + M[f + TARGET] + 1) >> 1)


@njit
def _catch_up(M, k, f, now):
    """Apply the ticks of the time clock until now; none at line rate."""
    while M[f + RATE] < ONE and now - M[f + TICKED_AT] >= M[k + K_TICK]:
        M[f + TICKED_AT] += M[k + K_TICK]
        M[f + TICKS] += 1
        _rise(M, k, f)


@njit
def _notified(M, k, f, now):
    _catch_up(M, k, f, now)
    alpha = M[f + ALPHA]
    if M[f + NOTIFIED_AT]:
        for _ in range((now - M[f + NOTIFIED_AT]) // M[k + K_PERIOD]):
            fall = alpha * M[k + K_G] >> 20
            if fall == 0:
                break
            alpha -= fall
    rate = M[f + RATE]
    M[f + TARGET] = rate
    _set_rate(M, k, f, rate - (rate * alpha >> 21))
    M[f + ALPHA] = alpha + ((ONE - alpha) * M[k + K_G] >> 20)
    M[f + NOTIFIED_AT] = now
    M[f + TICKED_AT] = now
    M[f + TICKS] = 0
    M[f + LAPS] = 0
    M[f + BYTES] = 0


@njit
def _lost(M, k, f, now):
    if M[f + NOTIFIED_AT] == 0 or now - M[f + NOTIFIED_AT] >= M[k + K_CNP]:
        _notified(M, k, f, now)


@njit
def pull(M, k, f, now):
    """Return the next packet, and advance the clocks that raise the rate."""
    sequence = next_packet(M, k, f, now)
    if sequence == BLOCKED or M[f + RATE] == ONE:
        return sequence
    _catch_up(M, k, f, now)
    M[f + BYTES] += M[k + K_PACKET]
    if M[f + BYTES] >= M[k + K_LAP]:
        M[f + BYTES] = 0
        M[f + LAPS] += 1
        _rise(M, k, f)
    return sequence


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an acknowledgement, a NACK or a notification."""
    went_back = process_answer(M, k, f, kind, argument, now)
    if M[f + S_DONE]:
        return
    if echo:
        _notified(M, k, f, now)
    elif went_back:
        _lost(M, k, f, now)


@njit
def on_timer(M, k, f, now):
    time_out(M, k, f, now)
    _lost(M, k, f, now)


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Accept the packet if it is in order; answer, with a notification if one is due."""
    kind = accept(M, r, sequence, size)
    notify = 0
    if ce and (M[r + NOTIFIED] == 0 or now + 1 - M[r + NOTIFIED] >= M[k + K_CNP]):
        M[r + NOTIFIED] = now + 1
        notify = 1
        if kind == SILENT:
            kind = ACK
    if kind == SILENT:
        return 0
    return reply(kind, notify, M[r + EXPECTED], 0, 1)


class Dcqcn(GoBackN):
    """DCQCN (Zhu et al., SIGCOMM 2015): rate control over RoCE by notifications about marks; starts at line rate. It
    needs marks: `ecn_threshold` (Kmin), `ecn_ceiling` (Kmax) and `ecn_probability` (Pmax) of the switch. The paper has
    5 KB, 200 KB and 0.01 at 40 Gbps [recalled]; the HPCC paper 4 KB and 16 KB per Gbps and 0.2 [code]."""

    wants_marks = True

    forgets = True
    kind: Literal["dcqcn"]
    g: Gain = 0.00390625
    """Weight of a notification in alpha, 1/256 [recalled], as are all values without a mark."""
    alpha_period: PositiveTime = Ps(55_000_000)
    """alpha falls by g in every such period without a notification."""
    rate_timer: PositiveTime = Ps(55_000_000)
    """The rate rises at each tick of this clock. Adapters have 300 us [code]."""
    byte_counter: Size = Bytes(10_000_000)
    """The rate also rises each time this amount has been sent."""
    cnp_interval: PositiveTime = Ps(50_000_000)
    """Minimum time between two notifications of the receiver."""
    fast_recovery: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    """Ticks of a clock that halve the distance to the target before the target rises."""
    rate_ai: Rate = Bps(40_000_000)
    """Additive increase on a 40 Gbps line; scaled with the line rate (the scaling is ours)."""
    rate_hai: Rate = Bps(400_000_000)
    """Hyper increase, once both clocks are beyond fast_recovery; scaled likewise. Ours: ten times rate_ai."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate is at least line rate over this. Ours."""

    control_bytes = ROCE_ACK_BYTES
    data_overhead = ROCE_OVERHEAD
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: every packet is ECN-capable."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of go-back-N; then fractions and rates in 20-bit fixed point, times in picoseconds, sizes in
        bytes."""
        return [
            *GoBackN.parameters(settings, context),
            fraction(settings["g"]),
            settings["alpha_period"],
            settings["rate_timer"],
            settings["byte_counter"],
            settings["cnp_interval"],
            max(1, settings["rate_ai"] * ONE // 40_000_000_000),
            max(1, settings["rate_hai"] * ONE // 40_000_000_000),
            max(1, ONE // settings["floor"]),
            settings["fast_recovery"],
            context.payload + ROCE_OVERHEAD,
        ]
