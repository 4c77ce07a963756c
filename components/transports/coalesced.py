"""Receivers of NSCC that answer several packets at once, and that give their senders credit.

*Coalesced acknowledgements* (Ultra Ethernet 1.0, PDS; htsim has the same rules [code]): a packet waits until as many as
`ack_every` wait, and one acknowledgement tells of all of them. Nothing waits for long: at once answered, with all that
waits, are a marked packet, one that is there already, the last of a message, and one that its sender asks an answer
for, since it is sent again or nothing can follow it before something is heard.

An acknowledgement carries the number of the packet that caused it and has room for 22 bits. If everything that waited
lies below the cumulative point, that is what it tells, as ever; else (kind BITMAP) which of eleven packets have
arrived, from a multiple of eight on, whose number over eight is there modulo 1024: enough for windows of 4096 packets.
Real ones have a cumulative point and 64 bits of selective acknowledgements [recalled]. Our choices: a packet that does
not fit the eleven is answered at once, too; what waits is answered after one base round trip in any case, and no delay
is measured then.

*Receiver credits* (RCCC, the receiver's congestion control of Ultra Ethernet; EQDS, NSDI '22): a receiver shares out
the rate of its line among those that send to it, by pulls, each for a packet, as NDP's do. A sender begins with credit
for the largest window, and afterwards sends a packet per pull. Our choices are those of `ndp`: a receiver asks for no
more than is still to be sent, and what has timed out at the sender gives its credit back.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
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
from gradwire.components.transports.base import bit, reply, with_pulls
from gradwire.components.transports.window import CUMULATIVE, NXT, UNA, acknowledge
from gradwire.components.transports.window import on_data as take

# a receiver's own words, after that of the window machinery
WAITING = R_USER + 1  # packets that wait for their answer
LOW = R_USER + 2  # the lowest of them
HIGH = R_USER + 3  # the highest
CUT = R_USER + 4  # headers of packets that it lacked

# parameters of NSCC
K_EVERY, K_PATIENCE, K_FIRST = 19, 20, 21

ROOM = 11  # packets that an acknowledgement tells of
ALIGN = 3  # bits: they begin at a multiple of eight
PLACES = 1 << 10
MOST_WINDOW = PLACES << ALIGN - 1  # packets: what is answered is less than two windows behind the newest packet
LATE = 1 << ROOM  # nobody asked for this answer


@njit
def _told(M, r, ce, late):
    """One acknowledgement of all that waits."""
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
    """The same answer, with a pull if there is more to send than has been asked for."""
    if M[k + K_FIRST] and M[r + R_DONE] == 0:
        asked = M[r + R_PULLED] + M[r + R_PULLS]
        if M[k + K_FIRST] + asked < M[r + R_PACKETS] + M[r + CUT]:
            return with_pulls(answer, 1)
    return answer


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """A data packet: it is acknowledged, or waits."""
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
    """Packets have waited for too long."""
    if M[r + WAITING] == 0:
        return 0
    return _told(M, r, 0, LATE)


@njit
def on_trimmed(M, k, r, sequence, now):
    """A header: say which packet is missing."""
    if bit(M, M[r + R_BITS], sequence):
        return _ask(M, k, r, reply(ACK, 0, M[r + CUMULATIVE], 0, 1))
    M[r + CUT] += 1
    return _ask(M, k, r, reply(NACK, 0, M[r + CUMULATIVE], 0, 1))


@njit
def hear(M, k, f, sequence, argument, now):
    """At the sender: take an acknowledgement of several packets into the scoreboard. Returns how many it acknowledges
    for the first time."""
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
