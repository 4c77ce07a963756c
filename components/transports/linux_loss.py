"""How the sender of `linux_sender` learns what has arrived and what is lost: RACK, round trips, and its timers.

RACK (RFC 8985 section 6): a packet is lost when one that was sent later has arrived, and it has had the newest round
trip and a reordering window of time. The window is zero in recovery, or once three packets above have arrived, unless
packets have been seen out of order; else a quarter of the smallest round trip, more after needless retransmissions,
and at most the smoothed one. What may still come is looked for again by a timer. That holds for packets sent again as
well.

Our choice: an acknowledgement tells of the packet that caused it, and of no others above the cumulative point; what an
acknowledgement that was lost has told is heard with the cumulative point only.
"""

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    S_BITS,
    S_DONE,
    S_PACKETS,
    S_STREAM,
    S_TIMER,
    S_WORDS,
)
from gradwire.components.transports.base import bit, clear_bit, set_bit
from gradwire.components.transports.linux_words import (
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
    more,
    smoothed,
    stamp_of,
)
from gradwire.components.transports.lost import LOST, note_lost
from gradwire.components.transports.window import (
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

DUPLICATES = 3
FULL = (1 << 32) - 1
FIRST_PROBE = 10**12  # ps: a tail loss probe before any round trip is known (RFC 8985 section 7.2)

# what an acknowledgement has told
ADVANCED, SELECTED, ORIGINAL, NEEDLESS = 1, 2, 4, 8


@njit
def rto(M, k, f):
    """The retransmission time-out. By ticks it is the kernel's: at least `rto_min` more than the round trip."""
    if M[k + K_TICK]:
        tick = M[k + K_TICK]
        wait = (M[f + SRTT] + max(M[f + RTTVAR], M[k + K_MIN_RTO]) + tick - 1) // tick * tick
    else:
        wait = max(M[f + SRTT] + 4 * M[f + RTTVAR], M[k + K_MIN_RTO])
    return min(wait << M[f + BACKOFF], M[k + K_MAX_RTO])


@njit
def arm(M, k, f, what, now, wait):
    """Set the timer."""
    M[f + TIMER] = what
    M[f + S_TIMER] = due(M, k, now, wait)


@njit
def rearm_rto(M, k, f, now):
    """The time-out runs from now; if it was put off for something sooner, from when the first packet was sent."""
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
    """Set the timer of a tail loss probe (RFC 8985 section 7.2), if there may be one. `progress`: the time-out starts
    anew. Returns whether it was set."""
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
    """A round trip (RFC 6298), with ticks the deviation as the kernel has it: `tcp_rtt_estimator`,
    net/ipv4/tcp_input.c."""
    M[f + BACKOFF] = 0
    if M[k + K_TICK] == 0:
        if M[f + SRTT] == 0:
            M[f + RTTVAR] = rtt >> 1
        else:
            M[f + RTTVAR] += (abs(rtt - M[f + SRTT]) - M[f + RTTVAR]) >> 2
        smoothed(M, f, rtt)
        return
    deviation, most, until = more(M, f, DEVIATION), more(M, f, DEVIATION_MOST), more(M, f, ROUND_RTT)
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
    """A packet is acknowledged for the first time. Returns ORIGINAL if it was sent before the state began, and once."""
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
        M[more(M, f, REORDERED)] = 1
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
def absorb(M, k, f, sequence, cumulative, now):
    """Take an acknowledgement into the scoreboard. Returns what it has told, how many packets it acknowledges for the
    first time, and the round trip of the last of them that was sent once, 0 = of none."""
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
            if M[k + K_TICK]:  # time stamps go by ticks
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
def needless(M, f):
    """A packet was sent again for nothing: the reordering window grows, once per round trip (RFC 8985, section 6.2)."""
    if M[f + UNA] >= M[more(M, f, STEP_UNTIL)]:
        M[more(M, f, STEPS)] += 1
        M[more(M, f, STEP_UNTIL)] = M[f + NXT]
        M[more(M, f, PERSIST)] = 16


@njit
def recovered(M, f):
    """A recovery is over: after sixteen of them the reordering window is as it was."""
    left = more(M, f, PERSIST)
    if M[left] > 0:
        M[left] -= 1
        if M[left] == 0:
            M[more(M, f, STEPS)] = 0


@njit
def _window_of_reordering(M, f):
    if M[more(M, f, REORDERED)] == 0:
        arrived = M[f + NXT] - M[f + UNA] - M[f + FLIGHT] - M[f + LOST]
        if M[f + STATE] >= RECOVERY or arrived >= DUPLICATES:
            return 0
    return min((M[f + LEAST_RTT] >> 2) * (1 + M[more(M, f, STEPS)]), M[f + SRTT])


@njit
def lose(M, f, sequence):
    """A packet counts as lost and waits to be sent again."""
    note_lost(M, f, sequence)
    M[f + FLIGHT] -= 1


@njit
def find_by_time(M, f, now):
    """Declare lost what was sent before the last packet that has arrived, and has had its time. Returns how long to
    wait until the last of the others has, 0 = there are none, and whether one was lost that had been sent again."""
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
                    lose(M, f, sequence)
                else:
                    wait = max(wait, left)
            elif bit(M, again, sequence) == 0:
                break  # what follows was sent later still
        sequence += 1
    return wait, twice


@njit
def watch_reordering(M, k, f, now, wait):
    """Look again when packets that may still come have had their time."""
    arm(M, k, f, REORDERING, now, wait + M[k + K_SLACK])
