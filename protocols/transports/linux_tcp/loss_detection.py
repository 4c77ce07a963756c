"""Loss detection of the Linux sender: RACK, round trips, and timers.

RACK (RFC 8985 section 6): a packet is lost when a packet sent later has arrived, and the newest round trip plus a
reordering window has passed. The window is zero in recovery, or once three packets above have arrived, unless
reordering has been seen; else a quarter of the smallest round trip, more after needless retransmissions, and at most
the smoothed one. A timer checks again for packets that may still arrive. Retransmissions are treated alike.

Our choice: an acknowledgement reports the packet that caused it, and no others above the cumulative point; the report
of a lost acknowledgement is recovered with the cumulative point only.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_BITS, S_DONE, S_PACKETS, S_STREAM, S_TIMER, S_WORDS
from gradwire.protocols.transports.base import bit, clear_bit, set_bit
from gradwire.protocols.transports.common.lost_packets import LOST, note_lost
from gradwire.protocols.transports.common.window import (
    BACKOFF,
    FLIGHT,
    HIGHEST,
    K_MAX_RTO,
    K_MIN_RTO,
    NXT,
    RECOVER,
    RTTVAR,
    SRTT,
    STATE,
    UNA,
)
from gradwire.protocols.transports.linux_tcp.layout import (
    CWR,
    DEVIATION,
    DEVIATION_MOST,
    K_LONE,
    K_RACK,
    K_SLACK,
    K_TAIL,
    K_TICK,
    LEAST_RTT,
    OPEN,
    PERSIST,
    RACK_AT,
    RACK_RTT,
    RACK_SEQUENCE,
    RECOVERY,
    REORDERED,
    REORDERING,
    ROUND_RTT,
    STEP_UNTIL,
    STEPS,
    TAIL,
    TIME_OUT,
    TIMER,
    due,
    extra_word,
    smoothed,
    stamp_of,
)

DUPLICATES = 3
FULL = (1 << 32) - 1
FIRST_PROBE = 10**12  # ps: a tail loss probe before any round trip is known (RFC 8985 section 7.2)

# contents of an acknowledgement
ADVANCED, SELECTED, ORIGINAL, NEEDLESS = 1, 2, 4, 8


@njit
def rto(M, k, f):
    """Return the retransmission time-out. With ticks it is the kernel's: at least `rto_min` above the round trip."""
    if M[k + K_TICK]:
        tick = M[k + K_TICK]
        wait = (M[f + SRTT] + max(M[f + RTTVAR], M[k + K_MIN_RTO]) + tick - 1) // tick * tick
    else:
        wait = max(M[f + SRTT] + 4 * M[f + RTTVAR], M[k + K_MIN_RTO])
    return min(wait << M[f + BACKOFF], M[k + K_MAX_RTO])


@njit
def arm(M, k, f, what, now, wait):
    M[f + TIMER] = what
    M[f + S_TIMER] = due(M, k, now, wait)


@njit
def rearm_rto(M, k, f, now):
    """Restart the time-out; after another kind of timer, count from the send time of the first packet."""
    if M[f + NXT] == M[f + UNA]:
        M[f + TIMER] = TIME_OUT
        M[f + S_TIMER] = 0
        return
    wait = rto(M, k, f)
    if M[f + TIMER] != TIME_OUT:
        wait = max(M[stamp_of(M, f, M[f + UNA])] + wait - now, 1)
    arm(M, k, f, TIME_OUT, now, wait)


@njit
def schedule_probe(M, k, f, now, progress):
    """Set the timer of a tail loss probe (RFC 8985 section 7.2) if one is allowed; return 1 if it was set. `progress`:
    the time-out restarts."""
    if M[k + K_TAIL] == 0 or M[f + NXT] == M[f + UNA] or (M[f + STATE] != OPEN and M[f + STATE] != CWR):
        return 0
    wait = FIRST_PROBE
    if M[f + SRTT]:
        wait = 2 * M[f + SRTT]
        wait += M[k + K_LONE] if M[f + NXT] - M[f + UNA] == 1 else M[k + K_SLACK]
    left = rto(M, k, f)
    if progress == 0:
        left += M[stamp_of(M, f, M[f + UNA])] - now
    if left > 0:
        wait = min(wait, left)
    arm(M, k, f, TAIL, now, wait)
    return 1


@njit
def measure(M, k, f, rtt):
    """Update the estimate with a round trip (RFC 6298). With ticks, the deviation is computed as in the kernel:
    `tcp_rtt_estimator`, net/ipv4/tcp_input.c."""
    M[f + BACKOFF] = 0
    if M[k + K_TICK] == 0:
        if M[f + SRTT] == 0:
            M[f + RTTVAR] = rtt >> 1
        else:
            M[f + RTTVAR] += (abs(rtt - M[f + SRTT]) - M[f + RTTVAR]) >> 2
        smoothed(M, f, rtt)
        return
    deviation, most, until = extra_word(M, f, DEVIATION), extra_word(M, f, DEVIATION_MOST), extra_word(M, f, ROUND_RTT)
    if M[f + SRTT] == 0:
        M[deviation] = rtt << 1
        M[f + RTTVAR] = max(M[deviation], M[k + K_MIN_RTO])
        M[most] = M[f + RTTVAR]
        M[until] = M[f + NXT]
        smoothed(M, f, rtt)
        return
    error = rtt - M[f + SRTT]
    smoothed(M, f, rtt)
    change = abs(error) - (M[deviation] >> 2)
    if error < 0 and change > 0:
        change >>= 3
    M[deviation] += change
    if M[deviation] > M[most]:
        M[most] = M[deviation]
        M[f + RTTVAR] = max(M[f + RTTVAR], M[most])
    if M[f + UNA] > M[until]:
        if M[most] < M[f + RTTVAR]:
            M[f + RTTVAR] -= (M[f + RTTVAR] - M[most]) >> 2
        M[until] = M[f + NXT]
        M[most] = M[k + K_MIN_RTO]


@njit
def _arrived(M, k, f, sequence, now):
    """Record the first acknowledgement of a packet; return ORIGINAL if it was sent once, before the state began."""
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    again = bit(M, lost + M[f + S_WORDS], sequence)
    set_bit(M, bits, sequence)
    if bit(M, lost, sequence):
        clear_bit(M, lost, sequence)
        M[f + LOST] -= 1
    else:
        M[f + FLIGHT] -= 1
    if again == 0 and sequence < M[f + HIGHEST]:
        M[extra_word(M, f, REORDERED)] = 1
    M[f + HIGHEST] = max(M[f + HIGHEST], sequence)
    sent = M[stamp_of(M, f, sequence)]
    rtt = max(now - sent, 1)
    if M[k + K_RACK] and (again == 0 or rtt >= M[f + LEAST_RTT]):  # else it answers an earlier sending
        M[f + RACK_RTT] = rtt
        if sent > M[f + RACK_AT] or (sent == M[f + RACK_AT] and sequence > M[f + RACK_SEQUENCE]):
            M[f + RACK_AT] = sent
            M[f + RACK_SEQUENCE] = sequence
    return ORIGINAL if again == 0 and sequence < M[f + RECOVER] else 0


@njit
def update_scoreboard(M, k, f, sequence, cumulative, now):
    """Update the scoreboard with an acknowledgement. Returns its contents, the number of newly acknowledged packets,
    and the round trip of the last of them that was sent once, or 0."""
    una = M[f + UNA]
    bits = M[f + S_BITS]
    again = bits + 2 * M[f + S_WORDS]
    told = 0
    newly = 0
    first = 0  # the first round trip that is measured
    last = 0
    if sequence >= cumulative and sequence >= una and bit(M, bits, sequence) == 0:
        told |= SELECTED | _arrived(M, k, f, sequence, now)
        newly = 1
        if bit(M, again, sequence) == 0:
            last = max(now - M[stamp_of(M, f, sequence)], 1)
    elif sequence < una or bit(M, bits, sequence):
        told |= NEEDLESS
    if cumulative > una:
        told |= ADVANCED
        clean = True
        for each in range(una, cumulative):
            once = bit(M, again, each) == 0
            clean = clean and once
            if bit(M, bits, each) == 0:
                told |= _arrived(M, k, f, each, now)
                newly += 1
                if once:
                    trip = max(now - M[stamp_of(M, f, each)], 1)
                    first = trip if first == 0 else first
                    if told & SELECTED == 0:
                        last = trip
        if not clean:
            first = 0
        if first == 0 and told & SELECTED == 0:
            last = 0
            if M[k + K_TICK]:  # timestamps are in ticks
                tick = M[k + K_TICK]
                first = max(now // tick - M[stamp_of(M, f, una)] // tick, 1) * tick
                last = first
            elif M[f + SRTT]:
                M[f + BACKOFF] = 0
        M[f + UNA] = cumulative
        if cumulative == M[f + S_PACKETS] and M[f + S_STREAM] == 0:
            M[f + S_DONE] = 1
    if first or last:
        if last and (M[f + LEAST_RTT] == 0 or last < M[f + LEAST_RTT]):
            M[f + LEAST_RTT] = last
        measure(M, k, f, first if first else last)
    return told, newly, last


@njit
def grow_reordering_window(M, f):
    """Grow the reordering window after a needless retransmission, once per round trip (RFC 8985, section 6.2)."""
    if M[f + UNA] >= M[extra_word(M, f, STEP_UNTIL)]:
        M[extra_word(M, f, STEPS)] += 1
        M[extra_word(M, f, STEP_UNTIL)] = M[f + NXT]
        M[extra_word(M, f, PERSIST)] = 16


@njit
def end_recovery(M, f):
    """End a recovery; after sixteen of them the reordering window is reset."""
    left = extra_word(M, f, PERSIST)
    if M[left] > 0:
        M[left] -= 1
        if M[left] == 0:
            M[extra_word(M, f, STEPS)] = 0


@njit
def _window_of_reordering(M, f):
    if M[extra_word(M, f, REORDERED)] == 0:
        arrived = M[f + NXT] - M[f + UNA] - M[f + FLIGHT] - M[f + LOST]
        if M[f + STATE] >= RECOVERY or arrived >= DUPLICATES:
            return 0
    return min((M[f + LEAST_RTT] >> 2) * (1 + M[extra_word(M, f, STEPS)]), M[f + SRTT])


@njit
def declare_lost(M, f, sequence):
    """Declare a packet lost and queue its retransmission."""
    note_lost(M, f, sequence)
    M[f + FLIGHT] -= 1


@njit
def find_by_time(M, f, now):
    """Declare packets lost that were sent before the last arrived one and whose time has passed. Returns the time until
    the last of the others is due (0 = none), and True if a retransmission was lost."""
    una = M[f + UNA]
    bits = M[f + S_BITS]
    lost = bits + M[f + S_WORDS]
    again = lost + M[f + S_WORDS]
    patience = M[f + RACK_RTT] + _window_of_reordering(M, f)
    last = M[f + RACK_AT]
    wait = 0
    twice = False
    sequence = una
    end = M[f + NXT]
    while sequence < end:
        if sequence & 31 == 0 and M[bits + (sequence >> 5)] == FULL:
            sequence += 32
            continue
        if bit(M, bits, sequence) == 0 and bit(M, lost, sequence) == 0:
            sent = M[stamp_of(M, f, sequence)]
            before = sent < last or (sent == last and sequence < M[f + RACK_SEQUENCE])
            if before:
                left = sent + patience - now
                if left <= 0:
                    twice = twice or bit(M, again, sequence) != 0
                    declare_lost(M, f, sequence)
                else:
                    wait = max(wait, left)
            elif bit(M, again, sequence) == 0:
                break  # later packets were sent later still
        sequence += 1
    return wait, twice


@njit
def watch_reordering(M, k, f, now, wait):
    """Set the timer to check again when the remaining packets are due."""
    arm(M, k, f, REORDERING, now, wait + M[k + K_SLACK])
