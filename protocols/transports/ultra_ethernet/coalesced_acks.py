"""Receivers of NSCC with coalesced acknowledgements and receiver credits.

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
from gradwire.jit.layout import (
    ACK,
    BITMAP,
    NACK,
    R_BITS,
    R_DONE,
    R_PACKETS,
    R_PULLED,
    R_PULLS,
    R_RIDER,
    R_TIMER,
    R_USER,
    S_BITS,
    S_PACKETS,
)
from gradwire.protocols.transports.base import bit, reply, with_pulls
from gradwire.protocols.transports.common.window import CUMULATIVE, NXT, UNA, acknowledge
from gradwire.protocols.transports.common.window import on_data as take

# a receiver's own words, after that of the window machinery
WAITING = R_USER + 1  # packets waiting for their answer
LOW = R_USER + 2  # the lowest of them
HIGH = R_USER + 3  # the highest
CUT = R_USER + 4  # trimmed headers of packets that it lacked

# parameters of NSCC
K_EVERY, K_PATIENCE, K_FIRST = 19, 20, 21

ROOM = 11  # packets that an acknowledgement reports
ALIGN = 3  # bits: they begin at a multiple of eight
PLACES = 1 << 10
MOST_WINDOW = PLACES << ALIGN - 1  # packets: answered packets are less than two windows behind the newest packet
LATE = 1 << ROOM  # flag of an answer sent after the delay


@njit
def _told(M, r, ce, late):
    """Return one acknowledgement of all waiting packets."""
    cumulative = M[r + CUMULATIVE]
    low = M[r + LOW]
    waiting = M[r + WAITING]
    M[r + WAITING] = 0
    M[r + R_TIMER] = 0
    if not late and (waiting == 0 or M[r + HIGH] < cumulative):
        return reply(ACK, ce, cumulative, 0, 1)
    bits = M[r + R_BITS]
    place = low >> ALIGN
    argument = (place & (PLACES - 1)) << (ROOM + 1) | late
    first = place << ALIGN
    for i in range(min(ROOM, M[r + R_PACKETS] - first)):
        argument |= bit(M, bits, first + i) << i
    return reply(BITMAP, ce, argument, 0, 1)


@njit
def _ask(M, k, r, answer):
    """Return the answer, with a pull if more is to be sent than has been requested."""
    if M[k + K_FIRST] and M[r + R_DONE] == 0:
        asked = M[r + R_PULLED] + M[r + R_PULLS]
        if M[k + K_FIRST] + asked < M[r + R_PACKETS] + M[r + CUT]:
            return with_pulls(answer, 1)
    return answer


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Acknowledge a data packet now, or let it wait."""
    again = bit(M, M[r + R_BITS], sequence)
    answer = take(M, k, r, sequence, size, ce, now)
    if M[r + R_DONE]:
        M[r + R_PULLS] = 0
    if M[k + K_EVERY] > 1:
        waiting = M[r + WAITING]
        low = sequence if waiting == 0 else min(sequence, M[r + LOW])
        high = sequence if waiting == 0 else max(sequence, M[r + HIGH])
        fits = high - (low >> ALIGN << ALIGN) < ROOM
        if ce or again or M[r + R_RIDER] or M[r + R_DONE] or not fits:
            answer = _told(M, r, ce, 0)
        else:
            M[r + LOW] = low
            M[r + HIGH] = high
            M[r + WAITING] = waiting + 1
            if waiting + 1 >= M[k + K_EVERY]:
                answer = _told(M, r, 0, 0)
            else:
                answer = 0
                if waiting == 0:
                    M[r + R_TIMER] = now + M[k + K_PATIENCE]
    return _ask(M, k, r, answer)


@njit
def on_late(M, k, r, now):
    """Acknowledge packets that have waited too long."""
    if M[r + WAITING] == 0:
        return 0
    return _told(M, r, 0, LATE)


@njit
def on_trimmed(M, k, r, sequence, now):
    """Report the missing packet of a trimmed header."""
    if bit(M, M[r + R_BITS], sequence):
        return _ask(M, k, r, reply(ACK, 0, M[r + CUMULATIVE], 0, 1))
    M[r + CUT] += 1
    return _ask(M, k, r, reply(NACK, 0, M[r + CUMULATIVE], 0, 1))


@njit
def process_bitmap(M, k, f, sequence, argument, now):
    """Update the sender's scoreboard with a coalesced acknowledgement; return the number of newly acknowledged
    packets."""
    newest = M[f + NXT] >> ALIGN
    first = newest - ((newest - (argument >> (ROOM + 1))) & (PLACES - 1)) << ALIGN
    newly = acknowledge(M, k, f, sequence, 0, now)
    for i in range(ROOM):
        if (argument >> i) & 1:
            newly += acknowledge(M, k, f, first + i, 0, now)
    bits = M[f + S_BITS]
    una = M[f + UNA]
    while una < M[f + S_PACKETS] and bit(M, bits, una):
        una += 1
    return newly + acknowledge(M, k, f, sequence, una, now)
