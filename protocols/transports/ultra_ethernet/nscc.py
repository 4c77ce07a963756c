"""The transport `nscc` implements Ultra Ethernet's network-signalled congestion control (specification 1.0, section
3.6.13); `nscc_window` sets its window.

One window covers all paths of a message. Marks report early that a queue grows, delays report late how long it is; the
two distinguish four cases of an acknowledgement:

* not marked, delay below the target: proportional increase, by the distance to the target; or fast increase, after a
  whole window without delay;
* not marked, delay at the target or above: fair increase, the same for every flow;
* marked, delay below the target: nothing, as the load balancer may resolve it;
* marked, delay at the target or above: multiplicative decrease, by the average delay, once per round trip.

Increases are collected and applied every eight packets or round trip, and once per round trip the window grows by eta.
A trimmed packet's header reduces the window by the packet's size, and lets *quick adapt* set the window to the arrivals
of the last period (base round trip + target), if that was less than an eighth of the largest window; marks are then
ignored until the packets in flight have been answered. Missing packets are retransmitted as soon as the window allows.

The rules are those of the specification's pseudo-code (sections 3.6.12 and 3.6.13) and the values of its table 3-82, by
way of a public translation and of two public simulators that follow it [code]: largest and first window 1.5
bandwidth-delay products, gamma 0.8, a decrease by half at most; alpha 4, fi 5 and eta 0.15 packets, fi_scale 1/4, all
for 100 Gbps and 12 us and scaled with the bandwidth-delay product (alpha also with the target); target 0.75 base round
trips, 1 without trimming; smallest time-out 100 us [code: htsim's]. "No delay" is less than 1 us there [code].

States of increase, `packets_without_delay`: a count or FAST. The events are acknowledgements with a measured delay:

| state | event | action | next state |
|---|---|---|---|
| count | not marked, delay below NO_DELAY, count up to the window | proportional increase | count + packets |
| count | not marked, delay below NO_DELAY, count above the window | fast increase | FAST |
| FAST | not marked, delay below NO_DELAY | fast increase | FAST |
| any | not marked, delay from NO_DELAY to the target | proportional increase | count 0 |
| any | not marked, delay at the target or above | fair increase | same |
| any | marked, delay below the target | | same |
| any | marked, delay at the target or above | decrease per round trip if the average exceeds the target | count 0 |

States of quick adapt, `to_ignore`: packets in flight whose marks are ignored. It goes before the table above:

| state | event | action | next state |
|---|---|---|---|
| > 0 after the answer | marked acknowledgement, or NACK | only drop the increases | less those answered |
| any | period over, loss or long delay, few arrivals | window = arrivals; drop the increases | packets in flight |
| any | any other answer | as in the table above; a NACK shrinks the window by a packet | less those answered |

Our choices, some where the specification leaves them to the implementer:

* everything is counted in full packets. Acknowledgements are those of the window machinery, one per packet, unless they
  are coalesced: see `coalesced_acks`, also for receiver credits. Packets request an answer when nothing can follow them
  before one, and when they are retransmissions [code: htsim's];
* the average delay weights each sample by the time since the last one, in base round trips (as one of the simulators
  does), or as htsim does (`averaging`); a trimmed packet counts with the base round trip [spec];
* the base round trip is learnt from packets sent once, not from headers, which are faster than any packet;
* quick adapt by delay alone (`qa_threshold`) is for switches that do not trim and is enabled there only;
* a packet is declared lost when one sent 1.5 windows (at least five packets) later has been acknowledged [code: an
  option of htsim]; if more than the window is in flight, as after quick adapt, the flight counts instead. Also by a
  time-out as in the window machinery, which here reduces the window by the flight;
* data goes one class below the one of the message, as for NDP; headers and control packets have the first queue;
* with `control = "receiver"` only credit limits the sender, with "both" the window as well. Packets that time out or
  are overtaken return their credit; if nothing is in flight and no credit comes, one packet is sent unrequested;
* no receiver flow control (its penalty is always 0), and no probe for the base round trip. Paths are those of the load
  balancer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ACK, BITMAP, BLOCKED, MASK_SEQUENCE, NACK, PULL
from gradwire.protocols.transports.base import Context, bit, fraction
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.sent_times import BITMAPS, delay_of, stamp
from gradwire.protocols.transports.common.window import SHIFT, acknowledge, note_lost, on_probe, timeout
from gradwire.protocols.transports.common.window import pull as next_packet
from gradwire.protocols.transports.ndp import go_below
from gradwire.protocols.transports.ultra_ethernet.coalesced_acks import (
    LATE,
    MOST_WINDOW,
    on_data,
    on_late,
    on_trimmed,
    process_bitmap,
)
from gradwire.protocols.transports.ultra_ethernet.nscc_window import (
    WIDE,
    NsccFlow,
    NsccParameters,
    adapt,
    average,
    begin,
    shrink,
    update_window,
)
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.base import Count, Flag
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.schema.network.transport_base import Factor, Gain, Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

OVERTAKEN = 5  # smallest number of later packets after which a packet is lost
MOST_BACKOFF = 12
NEVER = 1 << 62
SAMPLE_WEIGHT = 0.0125  # of a delay in htsim's average
REFERENCE_BYTES, REFERENCE_RTT = 150_000, 12_000_000  # 100 Gbps for 12 us


@njit
def start(params: NsccParameters, flow: NsccFlow, now: int) -> None:
    """Start with the largest window and the first credit."""
    begin(params, flow, now)
    flow.credit = params.initial_credit
    flow.highest = -1
    flow.timed = -1
    if params.below:
        go_below(flow)


@njit
def pull(params: NsccParameters, flow: NsccFlow, now: int) -> int:
    """Return missing packets, then new ones, as the window and credit allow."""
    if params.initial_credit and flow.credit == 0:
        return BLOCKED
    sequence = next_packet(params, flow, now)
    if sequence != BLOCKED:
        stamp(flow, sequence, now)
        if params.initial_credit:
            flow.credit -= 1
        if params.ack_every > 1:
            flow.piggyback = _wants_answer(params, flow, sequence)
    return sequence


@njit
def _wants_answer(params: NsccParameters, flow: NsccFlow, sequence: int) -> int:
    """Return 1 if a packet that leaves now is to be answered at once."""
    is_retransmission = bit(flow.retransmitted, sequence)
    is_last = flow.lost_packets == 0 and flow.nxt == flow.packets
    is_window_full = flow.in_flight >= flow.cwnd >> SHIFT or (params.initial_credit and flow.credit == 0)
    return 1 if is_retransmission or is_last or is_window_full else 0


@njit
def _lose(flow: NsccFlow, sequence: int) -> None:
    """Queue the retransmission of a packet that was in flight."""
    note_lost(flow, sequence)
    flow.in_flight -= 1
    flow.to_ignore -= 1
    if sequence == flow.timed:
        flow.timed = -1


@njit
def _find_losses(params: NsccParameters, flow: NsccFlow) -> None:
    """Declare packets lost that much later packets have overtaken."""
    flight = max(flow.cwnd >> SHIFT if params.has_window else params.initial_credit, flow.in_flight)
    limit = flow.highest - max(flight + (flight >> 1), OVERTAKEN)
    acknowledged = flow.acknowledged
    lost = flow.lost
    retransmitted = flow.retransmitted
    for sequence in range(max(flow.una, flow.scanned), limit):
        if bit(acknowledged, sequence) == 0 and bit(lost, sequence) == 0 and bit(retransmitted, sequence) == 0:
            _lose(flow, sequence)
            flow.credit += 1
            shrink(params, flow, 1)
    flow.scanned = max(flow.scanned, limit)


@njit
def _process_nack(params: NsccParameters, flow: NsccFlow, sequence: int, now: int) -> None:
    """Process the NACK for a trimmed packet."""
    acknowledged = flow.acknowledged
    if bit(acknowledged, sequence) or bit(flow.lost, sequence):
        return
    _lose(flow, sequence)
    average(params, flow, params.base_rtt, True, now)
    flow.was_trimmed = 1
    if not adapt(params, flow, True, True, 0, now):
        shrink(params, flow, 1)
    flow.timer = now + timeout(params, flow)


@njit
def on_control(
    params: NsccParameters, flow: NsccFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement, the answer to a header, or a pull."""
    if kind == NACK:
        _process_nack(params, flow, sequence, now)
        return
    if kind == PULL:
        more = (argument - flow.pulls_received) & MASK_SEQUENCE
        if more <= MASK_SEQUENCE >> 1:  # else it has been overtaken
            flow.pulls_received += more
            flow.credit += more
        return
    late = kind == BITMAP and argument & LATE
    rtt = 0 if late else delay_of(flow, ACK, sequence, now)
    if kind == BITMAP:
        newly = process_bitmap(params, flow, sequence, argument, now)
    else:
        newly = acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    if params.initial_credit and flow.timer == 0:
        flow.timer = now + timeout(params, flow)  # in case no pull comes
    flow.to_ignore -= newly
    flow.received += newly
    flow.achieved += newly
    if rtt and params.has_window:
        flow.base_rtt = min(flow.base_rtt, rtt)
        delay = rtt - flow.base_rtt
        average(params, flow, delay, echo == 1, now)
        update_window(params, flow, newly, echo == 1, delay, now)
    _find_losses(params, flow)


@njit
def on_timer(params: NsccParameters, flow: NsccFlow, now: int) -> None:
    """Handle a time-out: the packets in flight are lost; if there were none, no credit has come."""
    flow.timeouts += 1
    acknowledged = flow.acknowledged
    lost = flow.lost
    if params.initial_credit:
        flow.credit = max(flow.credit + flow.in_flight, 1)
    shrink(params, flow, flow.in_flight)
    for sequence in range(flow.una, flow.nxt):
        if bit(acknowledged, sequence) == 0 and bit(lost, sequence) == 0:
            _lose(flow, sequence)
    flow.timed = -1
    if flow.backoff < MOST_BACKOFF:
        flow.backoff += 1


WINDOW = Precondition(
    lambda at: at.table.control != "receiver", "the sender has no window", 'control = "sender" or "both"'
)
ADAPTS = Precondition(lambda at: at.table.quick_adapt, "it does not adapt quickly", "quick_adapt = true")


class Nscc(Reliable, Transport):
    """NSCC, the sender's congestion control of Ultra Ethernet (specification 1.0, section 3.6.13); over UDP. With
    `control`, the receiver's as well or alone. The values are those of table 3-82, by way of public simulators [code],
    unless marked. Gains are for 100 Gbps and a round trip of 12 us, and are scaled with the bandwidth-delay product."""

    wants_marks = True

    forgets = True
    kind: Literal["nscc"]
    trimming: Flag = True
    """Switches trim packets; decides target_delay and qa_threshold."""
    control: Literal["sender", "receiver", "both"] = "sender"
    """Side that limits sending: the sender by its window (NSCC), the receiver by pulls (RCCC), or both. The receiver's
    pulls divide its line, as in EQDS and NDP."""
    ack_every: Annotated[int, Field(ge=1, le=256, strict=True)] = 1
    """Packets per acknowledgement. Marked packets, retransmissions, and packets that nothing can follow are answered at
    once. htsim has 16,384 bytes, 4 packets of 4 KiB [code]."""
    target_delay: Annotated[PositiveTime | None, WINDOW] = None
    """Target queueing delay; by default 0.75 unloaded round trips, 1 without trimming."""
    max_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] = 1.5
    """Largest window, in bandwidth-delay products."""
    initial_window: Annotated[float, Field(ge=0.01, le=1000, strict=True)] | None = None
    """Initial window, in bandwidth-delay products, and with receiver credits what is sent before the first pull; the
    largest window if absent."""
    averaging: Annotated[Literal["time", "samples"], WINDOW] = "time"
    """Average of delays: each weighs the time since the last one, in base round trips; or each weighs 0.0125, and a
    delay above the target without a mark counts as a quarter of the base round trip [code: htsim]."""
    alpha: Annotated[Factor, WINDOW] = 4.0
    """Proportional increase: packets per round trip without any delay; scaled with the target as well."""
    fi: Annotated[Factor, WINDOW] = 5.0
    """Fair increase: packets per round trip."""
    fi_scale: Annotated[Factor, WINDOW] = 0.25
    """Fast increase: packets per acknowledged packet."""
    eta: Annotated[Factor, WINDOW] = 0.15
    """Packets added every round trip in any case."""
    gamma: Annotated[Gain, WINDOW] = 0.8
    """The window falls by this times the share of the average delay above the target."""
    max_md_jump: Annotated[float, Field(ge=0, le=1, strict=True), WINDOW] = 0.5
    """A decrease leaves at least this share of the window."""
    adjust_packets: Annotated[Count, WINDOW] = 8
    """Increases are applied after more than this number of packets."""
    quick_adapt: Annotated[Flag, WINDOW] = True
    """Set the window to the arrivals after a trimmed header or a long delay."""
    qa_gate: Annotated[int, Field(ge=0, le=32, strict=True), WINDOW, ADAPTS] = 3
    """Quick adapt acts if less than the largest window over 2 to this power has arrived in its period."""
    qa_threshold: Annotated[PositiveTime | None, WINDOW, ADAPTS] = None
    """Delays above this are long; by default four times the target without trimming, and never with it."""
    min_rto: PositiveTime = Ps(100_000_000)
    """Smallest time-out [code: htsim]; at least three unloaded round trips."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""
    below_control: Flag = True
    """Data goes one queue below its usual one: headers and control packets go first. Ours."""

    must_not_exceed = ("min_rto", "max_rto")

    @property
    def wants_trimming(self) -> bool:  # type: ignore[override]
        """True with `trimming`."""
        return self.trimming

    wire = "udp"

    def classes_from(self, priority: int) -> range:
        """Return the classes of the data packets of a message with this priority."""
        return range(priority + self.below_control, priority + self.below_control + 1)

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = BITMAPS
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_late = staticmethod(on_late)
    on_trimmed = staticmethod(on_trimmed)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: every packet is ECT."""
        return True

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Return True: control packets are ECT."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return time-outs, base round trip and target (ps), the largest window, bytes of a packet, gains and counts.

        The largest window is in bandwidth-delay products, gains are in packets << 16, fractions in 20-bit fixed point.

        Raises
        ------
        ScenarioError
            If acknowledgements are coalesced and the window is larger than they can report.
        """
        rtt = context.base_rtt
        trimming = settings["trimming"]
        target = settings["target_delay"] or (3 * rtt // 4 if trimming else rtt)
        size = (rtt << 16) / context.speed / REFERENCE_BYTES
        min_rto = max(settings["min_rto"], 3 * rtt)
        packet = context.payload + UDP_OVERHEAD
        first = settings["initial_window"] or settings["max_window"]
        window = settings["max_window"] * (rtt << 16) / (packet * context.speed)
        every, control = settings["ack_every"], settings["control"]
        if every > 1 and window > MOST_WINDOW:
            raise ScenarioError(
                f"cannot report on {int(window)} packets, the max_window of the longest path",
                "transport.ack_every",
                f"1, or larger packets: at most {MOST_WINDOW} in a window",
            )
        return [
            0,
            min_rto,
            max(settings["max_rto"], min_rto),
            rtt,
            target,
            fraction(settings["max_window"]),
            packet,
            round(settings["alpha"] * size * target / REFERENCE_RTT * WIDE),
            round(settings["fi"] * size * WIDE),
            fraction(settings["fi_scale"] * size),
            round(settings["eta"] * size * WIDE),
            fraction(settings["gamma"]),
            fraction(1 - settings["max_md_jump"]),
            settings["qa_gate"],
            settings["qa_threshold"] or (NEVER if trimming else 4 * target),
            rtt,
            settings["adjust_packets"],
            int(settings["quick_adapt"]),
            int(settings["below_control"]),
            every,
            rtt,
            0 if control == "sender" else max(round(window * first / settings["max_window"]), 1),
            int(control != "receiver"),
            fraction(first),
            fraction(SAMPLE_WEIGHT) if settings["averaging"] == "samples" else 0,
        ]
