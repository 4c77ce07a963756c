"""Loss recovery of the window transports: what is lost, what is sent again, and how far the window falls meanwhile.

* A packet is lost when three packets above it have been acknowledged (RFC 6675 IsLost, DupThresh 3). One lost packet is
  sent again at once, the others as there is room in the window. A retransmission that is lost again is found by the
  timer alone, as in RFC 6675.
* While recovering, and where nothing is known lost and nothing new is to be sent, there is a last resort, so that the
  end of a message need not wait for the timer (RFC 6675 NextSeg, rules 3 and 4): packets below the highest that was
  acknowledged, though fewer than three were above them; then, once per recovery, the highest packet of all that has not
  been acknowledged, unless it was sent again in this recovery (our choice: the RFC would send it twice in a row). Such
  packets count in flight once, not twice (our choice).
* The window falls at once, and the sender is silent until enough is known to have arrived or been lost (RFC 6675); or,
  with `recovery = "prr"`, in proportion to what arrives, so that sending goes on evenly (proportional rate reduction
  with its slow start reduction bound, RFC 6937; Linux and ns-3 have it). What the acknowledgement that began the
  recovery says to have arrived counts, as in Linux. Marks lower the window at once all the same.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import BLOCKED, S_BITS, S_SENT, S_WORDS
from gradwire.components.transports.base import bit, set_bit
from gradwire.components.transports.lost import note_lost
from gradwire.components.transports.window import (
    CWND,
    DELIVERED,
    FLIGHT,
    HIGHEST,
    K_PRR,
    NXT,
    OUT_AT_FIRST,
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
from gradwire.components.transports.window import pull as next_packet

DUPLICATES = 3


@njit
def find_losses(M, f):
    """Declare lost what three acknowledged packets have overtaken. Returns how many are new."""
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
    """Losses were found. True if a recovery begins now: then it lasts until all that is out there is acknowledged, and
    one of the lost packets goes out at once (RFC 6675 section 5, step 4.3)."""
    if M[f + UNA] < M[f + RECOVER]:
        return False
    M[f + RECOVER] = M[f + NXT]
    M[f + STATE] = URGENT
    return True


@njit
def slow_down(M, k, f, window):
    """A recovery has begun: the window falls to `window`, unless it has fallen since what is out there was sent."""
    if M[f + UNA] < M[f + REDUCED]:
        return
    reduce(M, f, window)
    M[f + STATE] = URGENT
    if M[k + K_PRR]:
        M[f + OUT_AT_FIRST] = M[f + NXT] - M[f + UNA]
        M[f + DELIVERED] = 0
        M[f + SENT_BEFORE] = M[f + S_SENT]


@njit
def recover(M, k, f):
    """Losses were found: enter fast recovery, and halve once per window (RFC 5681, RFC 6582)."""
    if begin(M, f):
        slow_down(M, k, f, M[f + CWND] >> 1)


@njit
def keep_pace(M, f, newly):
    """An acknowledgement of `newly` packets, maybe while the window falls in proportion (RFC 6937 section 3): as much
    is sent, of what was out there, as the window is going to be of what it was; below that, no faster than slow start
    would. At the end the window is where it was to fall to."""
    if M[f + OUT_AT_FIRST] == 0:
        return
    if M[f + UNA] >= M[f + RECOVER]:
        M[f + OUT_AT_FIRST] = 0
        M[f + CWND] = M[f + SSTHRESH]
        return
    M[f + DELIVERED] += newly
    delivered = M[f + DELIVERED]
    sent = M[f + S_SENT] - M[f + SENT_BEFORE]
    flight = M[f + FLIGHT]
    target = M[f + SSTHRESH]
    if flight << SHIFT > target:
        whole = M[f + OUT_AT_FIRST] << SHIFT
        more = (delivered * target + whole - 1) // whole - sent
    else:
        more = min((target >> SHIFT) - flight, max(delivered - sent, newly) + 1)
    M[f + CWND] = (flight + max(more, 0)) << SHIFT


@njit
def _last_resort(M, f):
    """A packet of which nobody says that it is lost, or BLOCKED (RFC 6675 NextSeg, rules 3 and 4)."""
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
    """Retransmissions first, then new packets, then the last resort, while fewer than the window are in flight."""
    sequence = next_packet(M, k, f, now)
    if (
        sequence == BLOCKED
        and M[f + UNA] < M[f + RECOVER]
        and M[f + STATE] <= 0
        and M[f + FLIGHT] < M[f + CWND] >> SHIFT
    ):
        return _last_resort(M, f)
    return sequence
