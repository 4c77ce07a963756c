"""Detects losses of window transports, reduces the window, and picks the next packet: retransmissions first, then new
ones.

* A packet is lost when three packets above it have been acknowledged (RFC 6675 IsLost, DupThresh 3). One lost packet is
  retransmitted at once, the others as the window allows. A lost retransmission is detected by the timer only, as in RFC
  6675.
* During recovery, if nothing is known to be lost and there is nothing new to send, a last resort avoids waiting for the
  timer at the end of a message (RFC 6675 NextSeg, rules 3 and 4): packets below the highest acknowledged one, even if
  fewer than three were above them; then, once per recovery, the highest unacknowledged packet, unless it was
  retransmitted in this recovery (our choice: the RFC would send it twice in a row). Such packets count in flight once,
  not twice (our choice).
* The window falls at once, and the sender is silent until enough packets have arrived or been lost (RFC 6675); or, with
  `recovery = "prr"`, in proportion to arrivals, so that sending continues evenly (proportional rate reduction with its
  slow start reduction bound, RFC 6937; also in Linux and ns-3). Arrivals reported by the acknowledgement that began the
  recovery count, as in Linux. Marks lower the window at once in either case.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import BLOCKED, S_BITS, S_SENT, S_WORDS
from gradwire.protocols.transports.base import bit, set_bit
from gradwire.protocols.transports.common.lost_packets import note_lost
from gradwire.protocols.transports.common.window import (
    CWND,
    DELIVERED,
    FLIGHT,
    HIGHEST,
    K_PRR,
    NXT,
    PRR_FLIGHT,
    RECOVER,
    REDUCED,
    RESCUED,
    SCANNED,
    SENT_BEFORE,
    SHIFT,
    SSTHRESH,
    STATE,
    TIMED,
    UNA,
    URGENT,
    reduce,
)
from gradwire.protocols.transports.common.window import pull as next_packet

DUPLICATES = 3


@njit
def find_losses(M, f):
    """Declare packets lost that three acknowledged packets have overtaken; return the number of new losses."""
    una = M[f + UNA]
    highest = M[f + HIGHEST]
    if highest < una + DUPLICATES:
        return 0
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    again = lost + M[f + S_WORDS]
    limit = highest + 1
    overtaken = 0
    while overtaken < DUPLICATES:
        limit -= 1
        if limit <= una:
            return 0
        overtaken += bit(M, bits, limit)
    found = 0
    for sequence in range(max(una, M[f + SCANNED]), limit):
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0 and bit(M, again, sequence) == 0:
            note_lost(M, f, sequence)
            M[f + FLIGHT] -= 1
            found += 1
            if sequence == M[f + TIMED]:
                M[f + TIMED] = -1
    if limit > M[f + SCANNED]:
        M[f + SCANNED] = limit
    return found


@njit
def begin(M, f):
    """Begin a recovery if none is in progress; return True if it begins now. It lasts until all packets in flight are
    acknowledged, and one lost packet may be sent at once (RFC 6675 section 5, step 4.3)."""
    if M[f + UNA] < M[f + RECOVER]:
        return False
    M[f + RECOVER] = M[f + NXT]
    M[f + STATE] = URGENT
    return True


@njit
def slow_down(M, k, f, window):
    """Reduce the window to `window` at the start of a recovery, unless it has fallen since the packets in flight were
    sent."""
    if M[f + UNA] < M[f + REDUCED]:
        return
    reduce(M, f, window)
    M[f + STATE] = URGENT
    if M[k + K_PRR]:
        M[f + PRR_FLIGHT] = M[f + NXT] - M[f + UNA]
        M[f + DELIVERED] = 0
        M[f + SENT_BEFORE] = M[f + S_SENT]


@njit
def recover(M, k, f):
    """Enter fast recovery after a loss, and halve the window once per window (RFC 5681, RFC 6582)."""
    if begin(M, f):
        slow_down(M, k, f, M[f + CWND] >> 1)


@njit
def keep_pace(M, f, newly):
    """Process an acknowledgement of `newly` packets during a proportional rate reduction (RFC 6937 section 3). The
    share of the flight that is sent equals the ratio of the new window to the old one; below that, growth is at most
    that of slow start. At the end the window is at its target."""
    if M[f + PRR_FLIGHT] == 0:
        return
    if M[f + UNA] >= M[f + RECOVER]:
        M[f + PRR_FLIGHT] = 0
        M[f + CWND] = M[f + SSTHRESH]
        return
    M[f + DELIVERED] += newly
    delivered = M[f + DELIVERED]
    sent = M[f + S_SENT] - M[f + SENT_BEFORE]
    flight = M[f + FLIGHT]
    target = M[f + SSTHRESH]
    if flight << SHIFT > target:
        whole = M[f + PRR_FLIGHT] << SHIFT
        more = (delivered * target + whole - 1) // whole - sent
    else:
        more = min((target >> SHIFT) - flight, max(delivered - sent, newly) + 1)
    M[f + CWND] = (flight + max(more, 0)) << SHIFT


@njit
def _last_resort(M, f):
    """Return a packet that may be lost, or BLOCKED (RFC 6675 NextSeg, rules 3 and 4)."""
    bits = M[f + S_BITS]
    again = bits + 2 * M[f + S_WORDS]
    found = BLOCKED
    for sequence in range(max(M[f + UNA], M[f + SCANNED]), M[f + HIGHEST]):
        if found == BLOCKED and bit(M, bits, sequence) == 0 and bit(M, again, sequence) == 0:
            found = sequence
            set_bit(M, again, sequence)
    if found == BLOCKED and M[f + RESCUED] != M[f + RECOVER]:
        M[f + RESCUED] = M[f + RECOVER]
        found = M[f + NXT] - 1
        while bit(M, bits, found):
            found -= 1
        if bit(M, again, found):
            return BLOCKED
    if found >= 0 and found == M[f + TIMED]:
        M[f + TIMED] = -1
    return found


@njit
def pull(M, k, f, now):
    """Return retransmissions first, then new packets, then the last resort, while fewer than the window are in
    flight."""
    sequence = next_packet(M, k, f, now)
    if (
        sequence == BLOCKED
        and M[f + UNA] < M[f + RECOVER]
        and M[f + STATE] <= 0
        and M[f + FLIGHT] < M[f + CWND] >> SHIFT
    ):
        return _last_resort(M, f)
    return sequence
