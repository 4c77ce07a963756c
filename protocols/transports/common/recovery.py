"""Detects losses of window transports, reduces the window in fast recovery, and chooses the next packet to send.

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
from gradwire.jit.records.constants import BLOCKED
from gradwire.protocols.transports.base import bit, set_bit
from gradwire.protocols.transports.common.window import SHIFT, URGENT, WindowFlow, WindowParameters, note_lost, reduce
from gradwire.protocols.transports.common.window import pull as next_packet

DUPLICATES = 3


@njit
def find_losses(flow: WindowFlow) -> int:
    """Declare packets lost that three acknowledged packets have overtaken; return the number of new losses."""
    una = flow.una
    highest = flow.highest
    if highest < una + DUPLICATES:
        return 0
    acknowledged = flow.acknowledged
    lost = flow.lost
    retransmitted = flow.retransmitted
    limit = highest + 1
    overtaken = 0
    while overtaken < DUPLICATES:
        limit -= 1
        if limit <= una:
            return 0
        overtaken += bit(acknowledged, limit)
    losses = 0
    for sequence in range(max(una, flow.scanned), limit):
        if bit(acknowledged, sequence) == 0 and bit(lost, sequence) == 0 and bit(retransmitted, sequence) == 0:
            note_lost(flow, sequence)
            flow.in_flight -= 1
            losses += 1
            if sequence == flow.timed:
                flow.timed = -1
    if limit > flow.scanned:
        flow.scanned = limit
    return losses


@njit
def begin(flow: WindowFlow) -> bool:
    """Begin a recovery if none is in progress; return True if it begins now. It lasts until all packets in flight are
    acknowledged, and one lost packet may be sent at once (RFC 6675 section 5, step 4.3)."""
    if flow.una < flow.recover:
        return False
    flow.recover = flow.nxt
    flow.loss_state = URGENT
    return True


@njit
def slow_down(params: WindowParameters, flow: WindowFlow, window: int) -> None:
    """Reduce the window to `window` at the start of a recovery, at most once per window of data."""
    if flow.una < flow.reduction_end:
        return
    reduce(flow, window)
    flow.loss_state = URGENT
    if params.prr:
        flow.prr_flight = flow.nxt - flow.una
        flow.prr_delivered = 0
        flow.prr_sent_before = flow.sent


@njit
def recover(params: WindowParameters, flow: WindowFlow) -> None:
    """Enter fast recovery after a loss, and halve the window once per window (RFC 5681, RFC 6582)."""
    if begin(flow):
        slow_down(params, flow, flow.cwnd >> 1)


@njit
def keep_pace(flow: WindowFlow, newly: int) -> None:
    """Process an acknowledgement of `newly` packets during a proportional rate reduction (RFC 6937 section 3). The
    share of the flight that is sent equals the ratio of the new window to the old one; below that, growth is at most
    that of slow start. At the end the window is at its target."""
    if flow.prr_flight == 0:
        return
    if flow.una >= flow.recover:
        flow.prr_flight = 0
        flow.cwnd = flow.ssthresh
        return
    flow.prr_delivered += newly
    delivered = flow.prr_delivered
    sent = flow.sent - flow.prr_sent_before
    flight = flow.in_flight
    target = flow.ssthresh
    if flight << SHIFT > target:
        prior_flight = flow.prr_flight << SHIFT
        more = (delivered * target + prior_flight - 1) // prior_flight - sent
    else:
        more = min((target >> SHIFT) - flight, max(delivered - sent, newly) + 1)
    flow.cwnd = (flight + max(more, 0)) << SHIFT


@njit
def _last_resort(flow: WindowFlow) -> int:
    """Return a packet that may be lost, or BLOCKED (RFC 6675 NextSeg, rules 3 and 4)."""
    acknowledged = flow.acknowledged
    retransmitted = flow.retransmitted
    candidate = BLOCKED
    for sequence in range(max(flow.una, flow.scanned), flow.highest):
        if candidate == BLOCKED and bit(acknowledged, sequence) == 0 and bit(retransmitted, sequence) == 0:
            candidate = sequence
            set_bit(retransmitted, sequence)
    if candidate == BLOCKED and flow.rescued != flow.recover:
        flow.rescued = flow.recover
        candidate = flow.nxt - 1
        while bit(acknowledged, candidate):
            candidate -= 1
        if bit(retransmitted, candidate):
            return BLOCKED
    if candidate >= 0 and candidate == flow.timed:
        flow.timed = -1
    return candidate


@njit
def pull(params: WindowParameters, flow: WindowFlow, now: int) -> int:
    """Return the next retransmission, new packet or last resort, while fewer than the window are in flight."""
    sequence = next_packet(params, flow, now)
    if sequence == BLOCKED and flow.una < flow.recover and flow.loss_state <= 0 and flow.in_flight < flow.cwnd >> SHIFT:
        return _last_resort(flow)
    return sequence
