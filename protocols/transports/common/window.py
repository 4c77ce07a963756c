"""The window machinery of reliable transports: scoreboard, loss detection, retransmission, timer, growth.

Everything is counted in packets. Sources and choices:

* the receiver acknowledges every packet, with the cumulative point and the packet that caused the acknowledgement (the
  first SACK block of RFC 2018 reduced to its newest packet), unless it delays acknowledgements (`delayed_acks`);
* losses are detected and retransmitted as in `recovery`; packets are sent while fewer than the window are in flight
  (the "pipe" of RFC 6675);
* at most one reaction per window to losses and marks together (RFC 3168 section 6.1.2, RFC 8257 section 3.5), and no
  growth until that window has been acknowledged. A time-out counts as the reaction of its window (in RFC 3168,
  retransmissions could not be marked at all), but starts a new slow start at once;
* retransmission timer, RTT estimate and back-off as in RFC 6298, with one timed packet per round trip, never a
  retransmitted one (Karn). The minimum is a parameter, and also replaces the first second of RFC 6298, since a
  connection in a data centre has been measured before (our choice). The timer is off while nothing is in flight, for
  example while packets of a higher class keep the NIC busy. Back-off ends with a measurement and, after the first one,
  with the next progress: the header carries timestamps, so every acknowledgement of progress is a measurement (our
  choice);
* the window starts at 10 packets (RFC 6928) and grows as in RFC 5681 when the cumulative point moves (one packet per
  acknowledged packet below the threshold, one per window above), and only while the window limits the sender (RFC
  7661's concern; the rule is that of Linux: below the threshold while at least half of the window is in flight, above
  it while all is).
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    ACK,
    BLOCKED,
    R_BITS,
    R_BYTES,
    R_CUMULATIVE,
    R_DONE,
    R_GOT,
    R_PACKETS,
    R_WORDS,
    S_BITS,
    S_DONE,
    S_LAST_SENT,
    S_NXT,
    S_PACKETS,
    S_STREAM,
    S_TIMEOUTS,
    S_TIMER,
    S_UNA,
    S_USER,
    S_WORDS,
)
from gradwire.protocols.transports.base import ONE, bit, clear_bit, forget_bits, reply, set_bit
from gradwire.protocols.transports.common.lost_packets import LOST, LOST_AT, next_lost
from gradwire.protocols.transports.common.persistent_state import PersistentState

SHIFT = 16  # windows are packets << 16

# a sender's own words
UNA = S_UNA  # everything below has been acknowledged
NXT = S_NXT  # the next new packet
CWND = S_USER + 2
SSTHRESH = S_USER + 3
FLIGHT = S_USER + 4  # packets in flight, as far as the sender knows
# 5 and 6 are those of `lost_packets`
HIGHEST = S_USER + 7  # highest packet acknowledged
SCANNED = S_USER + 8  # every unacknowledged packet below has been declared lost
RECOVER = S_USER + 9  # recovering until everything below is acknowledged
TIMED = S_USER + 10  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 11
SRTT = S_USER + 12
RTTVAR = S_USER + 13
BACKOFF = S_USER + 14  # time-outs in a row
REDUCED = S_USER + 15  # no further reaction to marks until everything below is acknowledged
ALPHA = S_USER + 16  # DCTCP
ACKED = S_USER + 17  # DCTCP: packets acknowledged in this observation window
MARKED = S_USER + 18  # DCTCP: of these, marked
OBSERVED = S_USER + 19  # DCTCP: the observation window ends when this is acknowledged
STATE = S_USER + 20  # OPEN, URGENT, or after a time-out 1 + the first packet that was unacknowledged then
RESCUED = S_USER + 26  # RECOVER of the recovery in which the last packet was sent as a last resort
PRR_FLIGHT = S_USER + 27  # proportional rate reduction: packets in flight when it began, 0 = not in progress
DELIVERED = S_USER + 28  # packets that have arrived since
SENT_BEFORE = S_USER + 29  # packets sent until then
# a receiver's own word
CUMULATIVE = R_CUMULATIVE
# while a connection has nothing in flight, no packet number is ahead of those to come; their windows do not matter, nor
# do the counts of a recovery, which ends with the next acknowledgement
SENDER_AT_REST = PersistentState(
    idle=(UNA, NXT, LOST_AT, HIGHEST, SCANNED, RECOVER, TIMED_AT, REDUCED, RESCUED, DELIVERED, SENT_BEFORE)
)

# parameters
K_INITIAL = 0  # initial window, packets
K_MIN_RTO = 1
K_MAX_RTO = 2
K_PRR = 3  # proportional rate reduction
K_GAIN = 5  # DCTCP; 4 is for `delayed_acks`

MIN_WINDOW = 2 << SHIFT
MAX_WINDOW = 1 << (22 + SHIFT)
OPEN = 0
URGENT = -1  # fast retransmit: one lost packet may be sent whatever is in flight


@njit
def start(M, k, f, now):
    """Initialise a new flow: initial window, slow start without a threshold."""
    M[f + CWND] = M[k + K_INITIAL] << SHIFT
    M[f + SSTHRESH] = MAX_WINDOW
    M[f + HIGHEST] = -1
    M[f + TIMED] = -1


@njit
def timeout(M, k, f):
    rto = M[f + SRTT] + 4 * M[f + RTTVAR]
    rto = max(rto, M[k + K_MIN_RTO]) << M[f + BACKOFF]
    return min(rto, M[k + K_MAX_RTO])


@njit
def observe(M, k, f):
    """Move DCTCP's alpha towards the share of marked packets, once per window of data (RFC 8257, section 3.3)."""
    if M[f + UNA] >= M[f + OBSERVED] and M[f + ACKED] > 0:
        share = M[f + MARKED] * ONE // M[f + ACKED]
        M[f + ALPHA] += (share - M[f + ALPHA]) * M[k + K_GAIN] >> 20
        M[f + ACKED] = 0
        M[f + MARKED] = 0
        M[f + OBSERVED] = M[f + NXT]


@njit
def pull(M, k, f, now):
    """Return retransmissions first, then new packets, while fewer than the window are in flight."""
    if M[f + FLIGHT] >= M[f + CWND] >> SHIFT and (M[f + STATE] != URGENT or M[f + LOST] == 0):
        return BLOCKED
    if M[f + LOST] > 0:
        sequence = next_lost(M, f)
        set_bit(M, M[f + S_BITS] + 2 * M[f + S_WORDS], sequence)
        if M[f + STATE] == URGENT:
            M[f + STATE] = OPEN
    elif M[f + NXT] < M[f + S_PACKETS]:
        sequence = M[f + NXT]
        M[f + NXT] = sequence + 1
        if M[f + TIMED] < 0:
            M[f + TIMED] = sequence
            M[f + TIMED_AT] = now
    else:
        return BLOCKED
    M[f + FLIGHT] += 1
    if M[f + S_TIMER] == 0:
        M[f + S_TIMER] = now + timeout(M, k, f)
    return sequence


@njit
def _settle(M, f, sequence):
    """Record the first acknowledgement of a packet."""
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    set_bit(M, bits, sequence)
    if M[f + LOST] > 0 and bit(M, lost, sequence):
        clear_bit(M, lost, sequence)
        M[f + LOST] -= 1
    else:
        M[f + FLIGHT] -= 1


@njit
def acknowledge(M, k, f, sequence, cumulative, now):
    """Update the scoreboard with an acknowledgement; return the number of newly acknowledged packets."""
    una = M[f + UNA]
    bits = M[f + S_BITS]
    newly = 0
    if sequence >= una and bit(M, bits, sequence) == 0:
        _settle(M, f, sequence)
        newly = 1
        if sequence > M[f + HIGHEST]:
            M[f + HIGHEST] = sequence
    if M[f + TIMED] >= 0 and (sequence == M[f + TIMED] or cumulative > M[f + TIMED]):
        sample(M, f, max(now - M[f + TIMED_AT], 1))  # sockets may send a little ahead of their schedule
    if una < cumulative <= M[f + S_PACKETS]:  # answers on sockets may be invalid
        while una < cumulative:
            if bit(M, bits, una) == 0:
                _settle(M, f, una)
                newly += 1
            una += 1
        M[f + UNA] = cumulative
        if M[f + SRTT] > 0:
            M[f + BACKOFF] = 0
        if cumulative == M[f + S_PACKETS] and M[f + S_STREAM] == 0:
            M[f + S_DONE] = 1
        if cumulative == M[f + NXT]:
            M[f + S_TIMER] = 0
        else:
            M[f + S_TIMER] = now + timeout(M, k, f)
    return newly


@njit
def sample(M, f, rtt):
    """Update the estimate with a measured round trip (RFC 6298 section 2) and end the back-off."""
    M[f + TIMED] = -1
    M[f + BACKOFF] = 0
    if M[f + SRTT] == 0:
        M[f + SRTT] = rtt
        M[f + RTTVAR] = rtt >> 1
    else:
        error = rtt - M[f + SRTT]
        M[f + RTTVAR] += (abs(error) - M[f + RTTVAR]) >> 2
        M[f + SRTT] += error >> 3


@njit
def reduce(M, f, window):
    """Reduce the window, with no further reaction until the packets in flight have been acknowledged."""
    M[f + SSTHRESH] = max(window, MIN_WINDOW)
    M[f + CWND] = M[f + SSTHRESH]
    M[f + REDUCED] = M[f + NXT]
    if M[f + STATE] > 0:
        M[f + STATE] = OPEN


@njit
def grow(M, f, una, newly):
    """Grow the window by slow start or congestion avoidance. It does not grow in fast recovery, after a reduction, or
    if the window is not the limit. `una`: the first unacknowledged packet before this acknowledgement."""
    if M[f + STATE] <= 0 and (una < M[f + RECOVER] or una < M[f + REDUCED]):
        return
    window = M[f + CWND]
    used = (M[f + FLIGHT] + newly) << SHIFT
    if window < M[f + SSTHRESH]:
        if window <= 2 * used:
            M[f + CWND] = min(window + (newly << SHIFT), MAX_WINDOW)
    elif used + (1 << SHIFT) > window:
        M[f + CWND] = min(window + (newly << (2 * SHIFT)) // window, MAX_WINDOW)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: all packets in flight count as lost; restart with one packet (RFC 5681, RFC 6298 section
    5)."""
    M[f + S_TIMEOUTS] += 1
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    una = M[f + UNA]
    sent = M[f + NXT]
    if M[f + PRR_FLIGHT]:
        M[f + CWND] = M[f + SSTHRESH]  # the target of the reduction in progress
    if M[f + STATE] != una + 1:
        M[f + SSTHRESH] = max(min((sent - una) << SHIFT, M[f + CWND]) >> 1, MIN_WINDOW)
    count = 0
    for sequence in range(una, sent):
        if bit(M, bits, sequence) == 0:
            set_bit(M, lost, sequence)
            count += 1
    M[f + LOST] = count
    M[f + LOST_AT] = una
    M[f + FLIGHT] = 0
    M[f + CWND] = 1 << SHIFT
    M[f + RECOVER] = sent
    M[f + RESCUED] = sent
    M[f + REDUCED] = sent
    M[f + PRR_FLIGHT] = 0
    M[f + STATE] = una + 1
    M[f + TIMED] = -1
    if M[f + BACKOFF] < 12:
        M[f + BACKOFF] += 1


@njit
def resume(M, k, f, now):
    """Restart a stream that has more to send after all its packets were acknowledged. After a silence longer than the
    time-out, the window is halved for every time-out that has passed, down to the initial window, and slow start leads
    back to three quarters of it (RFC 5681 section 4.1 and RFC 2861, as in Linux)."""
    reduce_after_idle(M, k, f, now, timeout(M, k, f))


@njit
def reduce_after_idle(M, k, f, now, patience):
    """Reduce the window after a silence, with a time-out of `patience`."""
    silence = now - M[f + S_LAST_SENT]
    if silence <= patience:
        return
    window = M[f + CWND]
    M[f + SSTHRESH] = max(M[f + SSTHRESH], 3 * window >> 2)
    least = min(M[k + K_INITIAL] << SHIFT, window)
    while silence > patience and window > least:
        window >>= 1
        silence -= patience
    M[f + CWND] = max(window, least)


@njit
def forget(M, k, f, packets):
    """Renumber packets without the first `packets` of a stream: bitmaps and numbers move down. `packets` is a multiple
    of 32 and below the number of acknowledged packets."""
    words = M[f + S_WORDS]
    for bitmap in range(3):
        forget_bits(M, M[f + S_BITS] + bitmap * words, words, packets >> 5)
    M[f + UNA] -= packets
    M[f + NXT] -= packets
    M[f + LOST_AT] -= packets
    M[f + HIGHEST] -= packets
    M[f + SCANNED] -= packets
    M[f + RECOVER] -= packets
    M[f + RESCUED] -= packets
    M[f + REDUCED] -= packets
    if M[f + TIMED] >= 0:
        M[f + TIMED] -= packets
    if M[f + STATE] > 0:
        M[f + STATE] = max(M[f + STATE] - packets, 1)  # 1 stands for no remaining packet


@njit
def forget_received(M, k, r, packets):
    """Renumber packets at the receiver, below the number that arrived without a gap."""
    forget_bits(M, M[r + R_BITS], M[r + R_WORDS], packets >> 5)
    M[r + CUMULATIVE] -= packets


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Place the packet, move the cumulative point, acknowledge with the mark echoed."""
    bits = M[r + R_BITS]
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
    cumulative = M[r + CUMULATIVE]
    if sequence == cumulative:
        packets = M[r + R_PACKETS]
        cumulative += 1
        while cumulative < packets and bit(M, bits, cumulative):
            cumulative += 1
        M[r + CUMULATIVE] = cumulative
        if M[r + R_GOT] == M[r + R_BYTES]:
            M[r + R_DONE] = 1
    return reply(ACK, ce, cumulative, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
    return 0
