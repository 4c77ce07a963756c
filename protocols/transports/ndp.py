"""NDP (Handley et al., SIGCOMM '17) sends a first window, then by receivers' pulls, and retransmits packets that
switches trim.

Known from the paper: switches keep queues of eight packets and trim the packets that do not fit to their headers;
headers, acknowledgements and pulls precede data; a sender starts with a window of packets at line rate and then sends
only when pulled; a receiver answers a packet with an acknowledgement and a header with a negative one, at once, and
requests one more packet each time; the pulls of all its senders share one queue, which it serves at the rate of its
link, senders in turn; each pull carries the number of pulls so far, so that lost and overtaken ones do no harm;
retransmissions go first; when a message is complete its pulls are dropped; a sender has a time-out for packets without
any report, and its packets are sprayed over all paths [recalled; pull numbers, queue and rules of sending also in htsim
[code]]. The first window must be at least a bandwidth-delay product; htsim's is 15 packets [code].

Our choices:

* the first window is the unloaded bandwidth-delay product of the longest path, plus one packet;
* data goes one class below the one of the message, so that by default headers and control packets have the first queue
  of every switch to themselves. Queues are strict priority or round robin; the paper's ten headers per packet are left
  out;
* a receiver knows the size of the message, so it requests only packets that are still to be sent: the number of packets
  and of trimmed headers, less the first window. With the paper's one pull per arrival the pulls at the end of a message
  find nothing to send, and the receiver's link idles instead of serving other senders;
* acknowledgements also carry the number of pulls. A pull that finds nothing to send waits: the answer to a header, on
  another path, may come after it;
* the time-out is RFC 6298's over the smallest one, 1 ms; time counts per packet since it was sent. Packets that time
  out have left the network: as many may be sent at once. If nothing is in flight but no pulls come, one packet is sent
  unrequested;
* no packet is returned to its sender: a header that finds no room is lost. Paths are those of the load balancer.
"""

from __future__ import annotations

from typing import Literal

from gradwire.jit.compiled import njit
from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import ACK, BLOCKED, MASK_SEQUENCE, NACK
from gradwire.jit.records.flows import Receiver
from gradwire.jit.records.packets import priority_of, with_priority
from gradwire.protocols.transports.base import Context, bit, clear_bit, packets_of, reply, set_bit, with_pulls
from gradwire.protocols.transports.common.sent_times import BITMAPS, SCOREBOARD, stamp
from gradwire.protocols.transports.common.window import (
    WindowFlow,
    WindowParameters,
    next_lost,
    note_lost,
    on_probe,
    sample,
    timeout,
)
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.network.transport_base import Transport, Window
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD


class NdpFlow(WindowFlow):
    """The sender of NDP. It uses the timer and the retransmission queue of the window machinery."""

    credit = Word("packets that may be sent", "packets", at=21)
    packets_out = Word("packets in flight", "packets")
    pulls_received = Word("pulls received")
    last_control_at = Word("arrival time of the last control packet", "ps")
    outstanding = Bitmap(2, "packets in flight")


class NdpReceiver(Receiver):
    """The receiver of NDP."""

    trimmed_headers = Word("trimmed headers of packets that had not arrived")
    arrived_packets = Bitmap(0, "packets that have arrived")


class NdpParameters(WindowParameters):
    """The parameters of NDP."""

    below = Word("1: data goes one class below the one of its message", at=3)


LOWEST_PRIORITY = 7
MOST_BACKOFF = 12


@njit
def go_below(flow: NdpFlow) -> None:
    """Move data one class down, and leave the message's class to headers and control packets."""
    priority = priority_of(flow.data_header)
    if priority < LOWEST_PRIORITY:
        flow.data_header = with_priority(flow.data_header, priority + 1)


@njit
def start(params: NdpParameters, flow: NdpFlow, now: int) -> None:
    """Start with credit for the first window."""
    flow.credit = params.initial_window
    flow.timed = -1
    flow.last_control_at = now
    if params.below:
        go_below(flow)


@njit
def pull(params: NdpParameters, flow: NdpFlow, now: int) -> int:
    """Return retransmissions, then new packets, as far as pulled."""
    if flow.credit == 0:
        return BLOCKED
    if flow.lost_packets > 0:
        sequence = next_lost(flow)
    elif flow.nxt < flow.packets:
        sequence = flow.nxt
        flow.nxt = sequence + 1
        if flow.timed < 0:
            flow.timed = sequence
            flow.timed_at = now
    else:
        return BLOCKED
    flow.credit -= 1
    flow.packets_out += 1
    set_bit(flow.outstanding, sequence)
    stamp(flow, sequence, now)
    if flow.timer == 0:
        flow.timer = now + timeout(params, flow)
    return sequence


@njit
def _lose(flow: NdpFlow, sequence: int) -> None:
    """Record that a packet is no longer in flight, and queue its retransmission."""
    clear_bit(flow.outstanding, sequence)
    flow.packets_out -= 1
    note_lost(flow, sequence)
    if sequence == flow.timed:
        flow.timed = -1


@njit
def _acknowledge(flow: NdpFlow, sequence: int, now: int) -> None:
    """Process the acknowledgement of a packet."""
    acknowledged = flow.acknowledged
    lost = flow.lost
    if bit(acknowledged, sequence):
        return
    set_bit(acknowledged, sequence)
    if bit(lost, sequence):
        clear_bit(lost, sequence)
        flow.lost_packets -= 1
    else:
        clear_bit(flow.outstanding, sequence)
        flow.packets_out -= 1
    if flow.srtt > 0:
        flow.backoff = 0
    if sequence == flow.timed:
        sample(flow, now - flow.timed_at)
    una = flow.una
    while una < flow.packets and bit(acknowledged, una):
        una += 1
    flow.una = una
    if una == flow.packets:
        flow.is_done = 1
        flow.timer = 0


@njit
def on_control(
    params: NdpParameters, flow: NdpFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an answer or a pull; each carries the number of pulls."""
    more = (argument - flow.pulls_received) & MASK_SEQUENCE
    if more <= MASK_SEQUENCE >> 1:
        flow.pulls_received += more
        flow.credit += more
    flow.last_control_at = now
    if kind == ACK:
        _acknowledge(flow, sequence, now)
    elif kind == NACK and bit(flow.outstanding, sequence):
        _lose(flow, sequence)


@njit
def on_timer(params: NdpParameters, flow: NdpFlow, now: int) -> None:
    """Retransmit packets that have been in flight too long; if there are none, send one packet unrequested."""
    wait = timeout(params, flow)
    times = SCOREBOARD * flow.bitmap_words
    outstanding = flow.outstanding
    late = 0
    earliest = now + wait
    for sequence in range(flow.una, flow.nxt):
        if bit(outstanding, sequence):
            due = flow.bitmaps[times + sequence] + wait
            if due <= now:
                _lose(flow, sequence)
                late += 1
            elif due < earliest:
                earliest = due
    if late == 0 and flow.packets_out == 0 and flow.credit == 0:
        if flow.last_control_at + wait <= now:
            late = 1
        else:
            earliest = flow.last_control_at + wait
    if late:
        flow.timeouts += 1
        flow.credit += late
        flow.timed = -1
        if flow.backoff < MOST_BACKOFF:
            flow.backoff += 1
    flow.timer = earliest


@njit
def _answer(params: NdpParameters, receiver: NdpReceiver, kind: int, ce: int) -> int:
    """Return the answer to an arrival, with a pull if more is to be sent than has been requested."""
    requested = receiver.pulls_sent + receiver.queued_pulls
    answer = reply(kind, ce, receiver.pulls_sent & MASK_SEQUENCE, 0, 1)
    if receiver.is_done == 0 and params.initial_window + requested < receiver.packets + receiver.trimmed_headers:
        answer = with_pulls(answer, 1)
    return answer


@njit
def on_data(params: NdpParameters, receiver: NdpReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, acknowledge it, request one more."""
    arrived = receiver.arrived_packets
    if bit(arrived, sequence) == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
        if receiver.received_bytes == receiver.nbytes:
            receiver.is_done = 1
            receiver.queued_pulls = 0
    return _answer(params, receiver, ACK, ce)


@njit
def on_trimmed(params: NdpParameters, receiver: NdpReceiver, sequence: int, now: int) -> int:
    """Report the missing packet of a header, and request one more."""
    if bit(receiver.arrived_packets, sequence):
        return _answer(params, receiver, ACK, 0)
    receiver.trimmed_headers += 1
    return _answer(params, receiver, NACK, 0)


class Ndp(Transport):
    """NDP (Handley et al., SIGCOMM 2017): trimmed packets and pulling receivers; over UDP. It needs spraying, and
    `switch.trim_threshold`, which is eight full packets in the paper."""

    wants_trimming = True
    needs_drops = True

    forgets = True
    kind: Literal["ndp"]
    initial_window: Window | None = None
    """Packets sent before the first pull; by default one more than the unloaded bandwidth-delay product of the longest
    path (ours). htsim: 15 [code]."""
    min_rto: PositiveTime = Ps(1_000_000_000)
    """Smallest time-out, for packets without any report; at least three unloaded round trips. Ours."""
    max_rto: PositiveTime = Ps(1_000_000_000_000)
    """Largest time-out."""
    below_control: Flag = True
    """Data goes one queue below its usual one: headers and control packets go first. Ours."""

    must_not_exceed = ("min_rto", "max_rto")

    wire = "udp"

    def classes_from(self, priority: int) -> range:
        """Return the classes of the data packets of a message with this priority."""
        return range(priority + self.below_control, priority + self.below_control + 1)

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = BITMAPS
    receiver_bitmaps = 1
    fresh_word = WindowFlow.nxt.offset
    probe_word = 0
    pulls = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_trimmed = staticmethod(on_trimmed)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: packets are never dropped selectively; marks are ignored."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the first window (packets), smallest and largest time-out (ps), and 1 if data goes below control."""
        window = settings["initial_window"] or packets_of(context, UDP_OVERHEAD) + 1
        min_rto = max(settings["min_rto"], 3 * context.base_rtt)
        return [window, min_rto, max(settings["max_rto"], min_rto), int(settings["below_control"])]
