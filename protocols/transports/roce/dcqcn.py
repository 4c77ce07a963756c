"""DCQCN (Zhu et al., SIGCOMM '15) controls the rate over RoCE by notifications that receivers send for marked packets.

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
from gradwire.jit.records import Word
from gradwire.jit.records.constants import ACK, BLOCKED
from gradwire.protocols.transports.base import ONE, Context, fixed_mul, fraction, reply
from gradwire.protocols.transports.roce.go_back_n import (
    SILENT,
    GoBackN,
    GoBackNFlow,
    GoBackNParameters,
    GoBackNReceiver,
    accept,
    on_probe,
    process_answer,
)
from gradwire.protocols.transports.roce.go_back_n import on_timer as time_out
from gradwire.protocols.transports.roce.go_back_n import pull as next_packet
from gradwire.scenarios.schema.network.transport_base import Gain
from gradwire.scenarios.units import Bps, Bytes, PositiveTime, Ps, Rate, Size
from gradwire.scenarios.wire import ROCE_ACK_BYTES, ROCE_OVERHEAD


class DcqcnFlow(GoBackNFlow):
    """The sender of DCQCN."""

    rate = Word("share of the line rate", "20-bit fraction")
    target_rate = Word("target of the rate's increases, as a share of the line rate", "20-bit fraction")
    alpha = Word("estimate of congestion: a notification lowers the rate by half of it", "20-bit fraction")
    ticks = Word("ticks of the time clock since the last notification")
    laps = Word("ticks of the byte clock since the last notification")
    ticked_at = Word("last tick of the time clock", "ps")
    bytes_sent = Word("bytes sent since the last tick of the byte clock", "bytes")
    notified_at = Word("time of the last notification, 0 = never", "ps")


class DcqcnReceiver(GoBackNReceiver):
    """The receiver of DCQCN."""

    notified = Word("1 + time of the last notification that it sent, 0 = never", "ps")


class DcqcnParameters(GoBackNParameters):
    """The parameters of DCQCN."""

    gain = Word("weight of a notification in alpha", "20-bit fraction")
    alpha_period = Word("alpha falls in every such period without a notification", "ps")
    timer_period = Word("period of the time clock", "ps")
    byte_period = Word("period of the byte clock", "bytes")
    cnp_interval = Word("smallest time between two notifications", "ps")
    additive_step = Word("additive increase, as a share of the line rate", "20-bit fraction")
    hyper_step = Word("hyper increase, as a share of the line rate", "20-bit fraction")
    rate_floor = Word("smallest rate, as a share of the line rate", "20-bit fraction")
    fast_recovery_steps = Word("ticks of a clock before the target rises")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")


@njit
def _set_rate(params: DcqcnParameters, flow: DcqcnFlow, rate: int) -> None:
    """Set the rate, within its limits, and the packet spacing."""
    rate = min(max(rate, params.rate_floor), ONE)
    flow.rate = rate
    flow.gap = flow.ps_per_byte * ONE // rate


@njit
def start(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> None:
    """Start at line rate."""
    flow.target_rate = ONE
    flow.alpha = ONE
    _set_rate(params, flow, ONE)


@njit
def _rise(params: DcqcnParameters, flow: DcqcnFlow) -> None:
    """Raise the rate after a tick of either clock."""
    slower = min(flow.ticks, flow.laps)
    faster = max(flow.ticks, flow.laps)
    if slower > params.fast_recovery_steps:
        flow.target_rate = min(flow.target_rate + (slower - params.fast_recovery_steps) * params.hyper_step, ONE)
    elif faster > params.fast_recovery_steps:
        flow.target_rate = min(flow.target_rate + params.additive_step, ONE)
    _set_rate(params, flow, (flow.rate + flow.target_rate + 1) >> 1)


@njit
def _catch_up(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> None:
    """Apply the ticks of the time clock until now; none at line rate."""
    while flow.rate < ONE and now - flow.ticked_at >= params.timer_period:
        flow.ticked_at += params.timer_period
        flow.ticks += 1
        _rise(params, flow)


@njit
def _process_notification(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> None:
    """Lower the rate by alpha / 2, raise alpha, and reset the clocks."""
    _catch_up(params, flow, now)
    alpha = flow.alpha
    if flow.notified_at:
        for _ in range((now - flow.notified_at) // params.alpha_period):
            decrease = fixed_mul(alpha, params.gain)
            if decrease == 0:
                break
            alpha -= decrease
    rate = flow.rate
    flow.target_rate = rate
    _set_rate(params, flow, rate - fixed_mul(rate, alpha) // 2)
    flow.alpha = alpha + fixed_mul(ONE - alpha, params.gain)
    flow.notified_at = now
    flow.ticked_at = now
    flow.ticks = 0
    flow.laps = 0
    flow.bytes_sent = 0


@njit
def _process_loss(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> None:
    """Process a loss as a notification, unless one came recently."""
    if flow.notified_at == 0 or now - flow.notified_at >= params.cnp_interval:
        _process_notification(params, flow, now)


@njit
def pull(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> int:
    """Return the next packet, and advance the clocks that raise the rate."""
    sequence = next_packet(params, flow, now)
    if sequence == BLOCKED or flow.rate == ONE:
        return sequence
    _catch_up(params, flow, now)
    flow.bytes_sent += params.packet_bytes
    if flow.bytes_sent >= params.byte_period:
        flow.bytes_sent = 0
        flow.laps += 1
        _rise(params, flow)
    return sequence


@njit
def on_control(
    params: DcqcnParameters, flow: DcqcnFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement, a NACK or a notification."""
    went_back = process_answer(params, flow, kind, argument, now)
    if flow.is_done:
        return
    if echo:
        _process_notification(params, flow, now)
    elif went_back:
        _process_loss(params, flow, now)


@njit
def on_timer(params: DcqcnParameters, flow: DcqcnFlow, now: int) -> None:
    """Go back after a time-out, which counts as a loss."""
    time_out(params, flow, now)
    _process_loss(params, flow, now)


@njit
def on_data(params: DcqcnParameters, receiver: DcqcnReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Accept the packet if it is in order; answer, with a notification if one is due."""
    kind = accept(receiver, sequence, size)
    notify = 0
    if ce and (receiver.notified == 0 or now + 1 - receiver.notified >= params.cnp_interval):
        receiver.notified = now + 1
        notify = 1
        if kind == SILENT:
            kind = ACK
    if kind == SILENT:
        return 0
    return reply(kind, notify, receiver.expected, 0, 1)


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
