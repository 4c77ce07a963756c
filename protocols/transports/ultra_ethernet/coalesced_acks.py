"""The receiver of NSCC (Ultra Ethernet) acknowledges several packets at once, and grants credit to senders by pulls
(RCCC).

*Coalesced acknowledgements* (Ultra Ethernet 1.0, PDS; htsim has the same rules [code]): packets wait until `ack_every`
of them have arrived, and one acknowledgement reports all of them. The following are answered at once, together with all
waiting packets: a marked packet, a duplicate, the last packet of a message, and a packet whose sender requests an
answer, because it is a retransmission or nothing can follow it before an answer.

An acknowledgement carries the number of the packet that caused it and has room for 22 bits. If all waiting packets are
below the cumulative point, it carries that point; else (kind BITMAP) it reports which of eleven packets have arrived,
from a multiple of eight on, whose number over eight is included modulo 1024: enough for windows of 4096 packets. Real
ones have a cumulative point and 64 bits of selective acknowledgements [recalled]. Our choices: a packet outside the
eleven is also answered at once; waiting packets are answered after one base round trip in any case, and no delay is
measured then.

*Receiver credits* (RCCC, the receiver's congestion control of Ultra Ethernet; EQDS, NSDI '22): a receiver divides the
rate of its line among its senders by pulls, one packet each, as in NDP. A sender begins with credit for the largest
window, and then sends a packet per pull. Our choices are those of `ndp`: a receiver requests no more than is still to
be sent, and packets that time out at the sender return their credit.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import ACK, BITMAP, NACK
from gradwire.jit.records.flows import Receiver
from gradwire.protocols.transports.base import bit, reply, with_pulls
from gradwire.protocols.transports.common.window import acknowledge
from gradwire.protocols.transports.common.window import on_data as acknowledge_at_once
from gradwire.protocols.transports.ultra_ethernet.nscc_window import NsccFlow, NsccParameters


class CoalescingReceiver(Receiver):
    """The receiver of coalesced acknowledgements."""

    cumulative = Word("first packet that has not arrived")
    unanswered = Word("packets that wait for their answer", "packets")
    lowest_unanswered = Word("lowest packet that waits for its answer")
    highest_unanswered = Word("highest packet that waits for its answer")
    trimmed_headers = Word("trimmed headers of packets that had not arrived")
    arrived_packets = Bitmap(0, "packets that have arrived")


ROOM = 11  # packets that an acknowledgement reports
ALIGN = 3  # they begin at a multiple of 2^ALIGN, a block
PLACES = 1 << 10  # blocks are numbered modulo this
MOST_WINDOW = PLACES << ALIGN - 1  # packets: answered packets are less than two windows behind the newest packet
LATE = 1 << ROOM  # flag of an answer sent after the delay


@njit
def _answer(receiver: CoalescingReceiver, ce: int, late: int) -> int:
    """Return one acknowledgement of all waiting packets. `late`: LATE if it comes after the delay, else 0."""
    cumulative = receiver.cumulative
    low = receiver.lowest_unanswered
    waiting = receiver.unanswered
    receiver.unanswered = 0
    receiver.timer = 0
    if not late and (waiting == 0 or receiver.highest_unanswered < cumulative):
        return reply(ACK, ce, cumulative, 0, 1)
    arrived = receiver.arrived_packets
    block = low >> ALIGN
    argument = (block & (PLACES - 1)) << (ROOM + 1) | late
    first = block << ALIGN
    for i in range(min(ROOM, receiver.packets - first)):
        argument |= bit(arrived, first + i) << i
    return reply(BITMAP, ce, argument, 0, 1)


@njit
def _with_credit(params: NsccParameters, receiver: CoalescingReceiver, answer: int) -> int:
    """Return the answer, with a pull if more is to be sent than has been requested."""
    if params.initial_credit and receiver.is_done == 0:
        requested = receiver.pulls_sent + receiver.queued_pulls
        if params.initial_credit + requested < receiver.packets + receiver.trimmed_headers:
            return with_pulls(answer, 1)
    return answer


@njit
def on_data(params: NsccParameters, receiver: CoalescingReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Acknowledge a data packet now, or let it wait."""
    is_duplicate = bit(receiver.arrived_packets, sequence)
    answer = acknowledge_at_once(params, receiver, sequence, size, ce, now)
    if receiver.is_done:
        receiver.queued_pulls = 0
    if params.ack_every > 1:
        waiting = receiver.unanswered
        low = sequence if waiting == 0 else min(sequence, receiver.lowest_unanswered)
        high = sequence if waiting == 0 else max(sequence, receiver.highest_unanswered)
        fits = high - (low >> ALIGN << ALIGN) < ROOM
        if ce or is_duplicate or receiver.last_piggyback or receiver.is_done or not fits:
            answer = _answer(receiver, ce, 0)
        else:
            receiver.lowest_unanswered = low
            receiver.highest_unanswered = high
            receiver.unanswered = waiting + 1
            if waiting + 1 >= params.ack_every:
                answer = _answer(receiver, 0, 0)
            else:
                answer = 0
                if waiting == 0:
                    receiver.timer = now + params.ack_patience
    return _with_credit(params, receiver, answer)


@njit
def on_late(params: NsccParameters, receiver: CoalescingReceiver, now: int) -> int:
    """Acknowledge packets that have waited too long."""
    if receiver.unanswered == 0:
        return 0
    return _answer(receiver, 0, LATE)


@njit
def on_trimmed(params: NsccParameters, receiver: CoalescingReceiver, sequence: int, now: int) -> int:
    """Report the missing packet of a trimmed header."""
    if bit(receiver.arrived_packets, sequence):
        return _with_credit(params, receiver, reply(ACK, 0, receiver.cumulative, 0, 1))
    receiver.trimmed_headers += 1
    return _with_credit(params, receiver, reply(NACK, 0, receiver.cumulative, 0, 1))


@njit
def process_bitmap(params: NsccParameters, flow: NsccFlow, sequence: int, argument: int, now: int) -> int:
    """Update the sender's scoreboard with a coalesced acknowledgement; return the number of newly acknowledged
    packets."""
    newest = flow.nxt >> ALIGN
    first = newest - ((newest - (argument >> (ROOM + 1))) & (PLACES - 1)) << ALIGN
    newly = acknowledge(params, flow, sequence, 0, now)
    for i in range(ROOM):
        if (argument >> i) & 1:
            newly += acknowledge(params, flow, first + i, 0, now)
    acknowledged = flow.acknowledged
    una = flow.una
    while una < flow.packets and bit(acknowledged, una):
        una += 1
    return newly + acknowledge(params, flow, sequence, una, now)
