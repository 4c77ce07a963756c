"""How fast a pair of hosts sends with DLCP: the three ways of `rate_control`, and what a receiver counts for them.

A worker and a server keep one connection, so the rate belongs to the pair. It begins at line rate, and does so again
when nothing has been heard of the pair for a while (`IDLE_TRIPS`; ours). Never below line / `floor`.

* `dctcp` - AIMD as DCTCP has it, with a rate for a window [notes: "DCTCP-like"]: down by alpha / 2 on the first mark of
  a round trip, up by one packet per round trip after one without marks. Drops alone do not slow it down.
* `delay` - TIMELY (SIGCOMM '15) with its published parameters [recalled; alpha is the weight of the new difference].
  Its lower threshold, 50 us, is more than a 500 KB buffer can delay at 100 Gbps: on fast links with shallow buffers the
  rate then never falls, unless `t_low` and `t_high` are set to suit.
* `receiver` - ours: every acknowledgement says how many pairs are sending to its host now, and a pair sends at most its
  share of the slowest link, line / n; below that as `dctcp`, except that a round trip without marks gives back a
  sixteenth of the line. With a dozen senders the fair share of each is two or three packets per round trip, and one
  more is a third more load: by marks alone they overload the receiver's link and send again what it drops.

The receiver counts the pairs of which a packet has come in this epoch or the last, and forgets those whose messages
are all delivered. An epoch lasts as long as two packets of every pair take on its link, at least a base round trip:
so a pair that waits for the answer to a probe, and does not send, is no longer counted after a while, and its share
goes to the others.
"""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.components.layout import PAIR_GAP, R_HOST, R_PAIR, S_LINE, S_PAIR
from gradwire.components.transports.base import ONE
from gradwire.components.transports.dlcp_words import (
    BY_DELAY,
    BY_MARKS,
    BY_RECEIVER,
    H_BEFORE,
    H_COUNT,
    H_ENDS,
    H_EPOCH,
    K_BETA,
    K_CONTROL,
    K_EWMA,
    K_FLOOR,
    K_GAIN,
    K_HIGH,
    K_LOW,
    K_PACKET,
    K_RTT,
    K_SLOWEST,
    K_STEP,
    OPEN,
    P_BEFORE,
    P_OPEN,
    P_SEEN,
    Q_ACKED,
    Q_ALPHA,
    Q_CALM,
    Q_HEARD,
    Q_LAST,
    Q_MARKED,
    Q_QUIET,
    Q_RATE,
    Q_ROUND,
    Q_SENDERS,
    Q_SLOPE,
    Q_SRTT,
    TIMED,
    TIMED_AT,
)

HYPERACTIVE = 5
IDLE_TRIPS = 8  # smoothed round trips without a word after which what is known of a pair is stale
RECOVERY = 4  # a round trip without marks gives back 1 / 2**RECOVERY of the line


@njit
def begin(M, k, f, now):
    """A message of the pair starts: line rate if nothing is known of it, or nothing recent."""
    q = M[f + S_PAIR]
    if M[q + Q_RATE] and now - M[q + Q_HEARD] < IDLE_TRIPS * M[q + Q_SRTT]:
        return
    if M[q + Q_RATE] == 0:
        M[q + Q_SRTT] = M[k + K_RTT]
        M[q + Q_ALPHA] = 0 if M[k + K_CONTROL] == BY_RECEIVER else ONE
    M[q + Q_SENDERS] = 0
    M[q + Q_HEARD] = now
    _set_rate(M, k, f, q, ONE)


@njit
def smoothed(M, f):
    """The smoothed round trip of the pair."""
    return M[M[f + S_PAIR] + Q_SRTT]


@njit
def silence(M, f):
    """How long it has to be quiet before a probe is worth sending."""
    q = M[f + S_PAIR]
    return M[q + Q_SRTT] >> 1 if M[q + Q_LAST] else M[q + Q_SRTT]


@njit
def _set_rate(M, k, f, q, rate):
    """A new rate; packets of the pair start as far apart as it says, and as its share says."""
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[q + Q_RATE] = rate
    gap = M[f + S_LINE] * ONE // rate
    if M[k + K_CONTROL] == BY_RECEIVER:
        gap = max(gap, M[q + Q_SENDERS] * M[k + K_SLOWEST])
    M[q + PAIR_GAP] = gap


@njit
def _by_marks(M, k, f, q, echo, now):
    """As DCTCP, with a rate for a window."""
    M[q + Q_ACKED] += 1
    M[q + Q_MARKED] += echo
    trip = max(M[q + Q_SRTT], M[q + Q_LAST])
    if M[f + TIMED] >= 0:
        trip = max(trip, now - M[f + TIMED_AT])  # it is on its way, behind a queue that has grown, or lost
    rate = M[q + Q_RATE]
    if M[k + K_CONTROL] == BY_RECEIVER and M[q + Q_SENDERS]:
        rate = min(rate, M[f + S_LINE] * ONE // (M[q + Q_SENDERS] * M[k + K_SLOWEST]))
    if echo and now >= M[q + Q_QUIET]:
        rate -= rate * M[q + Q_ALPHA] >> (22 if M[k + K_CONTROL] == BY_RECEIVER else 21)
        M[q + Q_QUIET] = now + trip
        _set_rate(M, k, f, q, rate)
    if now >= M[q + Q_ROUND]:
        share = M[q + Q_MARKED] * ONE // M[q + Q_ACKED]
        M[q + Q_ALPHA] += (share - M[q + Q_ALPHA]) * M[k + K_GAIN] >> 20
        if M[q + Q_MARKED] == 0:
            step = ONE >> RECOVERY
            if M[k + K_CONTROL] == BY_MARKS:
                step = ONE * (M[k + K_PACKET] * M[f + S_LINE] >> 16) // M[q + Q_SRTT]
            _set_rate(M, k, f, q, M[q + Q_RATE] + step)
        M[q + Q_ACKED] = 0
        M[q + Q_MARKED] = 0
        M[q + Q_ROUND] = now + trip


@njit
def _by_delay(M, k, f, q, rtt, change):
    """TIMELY: additive increase below T_low or while delay does not grow (five times as fast after five calm round
    trips), decrease by the slope, and by the distance to T_high above it."""
    M[q + Q_SLOPE] += (change - M[q + Q_SLOPE]) * M[k + K_EWMA] >> 20
    rate = M[q + Q_RATE]
    if rtt < M[k + K_LOW]:
        rate += M[k + K_STEP]
    elif rtt > M[k + K_HIGH]:
        excess = ONE - M[k + K_HIGH] * ONE // rtt
        rate -= rate * (M[k + K_BETA] * excess >> 20) >> 20
        M[q + Q_CALM] = 0
    elif M[q + Q_SLOPE] <= 0:
        M[q + Q_CALM] += 1
        step = M[k + K_STEP]
        if M[q + Q_CALM] >= HYPERACTIVE:
            step *= HYPERACTIVE
        rate += step
    else:
        slope = min(M[q + Q_SLOPE] * ONE // M[k + K_RTT], ONE)
        rate -= rate * (M[k + K_BETA] * slope >> 20) >> 20
        M[q + Q_CALM] = 0
    _set_rate(M, k, f, q, rate)


@njit
def measured(M, k, f, rtt):
    """A packet of the pair took so long there and back."""
    q = M[f + S_PAIR]
    if M[q + Q_LAST] == 0:
        M[q + Q_SRTT] = rtt
        M[q + Q_LAST] = rtt
    change = rtt - M[q + Q_LAST]
    M[q + Q_LAST] = rtt
    M[q + Q_SRTT] += (rtt - M[q + Q_SRTT]) >> 3
    if M[k + K_CONTROL] == BY_DELAY:
        _by_delay(M, k, f, q, rtt, change)


@njit
def acknowledged(M, k, f, senders, echo, now):
    """A packet of the pair has arrived, when so many pairs were sending to its receiver."""
    q = M[f + S_PAIR]
    M[q + Q_HEARD] = now
    if M[k + K_CONTROL] == BY_DELAY:
        return
    if M[k + K_CONTROL] == BY_RECEIVER and senders != M[q + Q_SENDERS]:
        M[q + Q_SENDERS] = senders
        _set_rate(M, k, f, q, M[q + Q_RATE])
    _by_marks(M, k, f, q, echo, now)


@njit
def coming(M, k, r, now):
    """A data packet arrives: count its pair. Returns how many are sending."""
    h = M[r + R_HOST]
    p = M[r + R_PAIR]
    if M[r + OPEN] == 0:
        M[r + OPEN] = 1
        M[p + P_OPEN] += 1
    if now >= M[h + H_ENDS]:
        if M[h + H_EPOCH] == 0:
            M[h + H_EPOCH] = 1  # 0 and 1 are nobody's
        length = max(M[k + K_RTT], 2 * max(M[h + H_COUNT], 1) * (M[k + K_PACKET] * M[k + K_SLOWEST] >> 16))
        M[h + H_BEFORE] = M[h + H_COUNT]
        M[h + H_EPOCH] += 1
        if now >= M[h + H_ENDS] + length:
            M[h + H_BEFORE] = 0
            M[h + H_EPOCH] += 1  # nothing has come in the one between
        M[h + H_COUNT] = 0
        M[h + H_ENDS] = now + length
    epoch = M[h + H_EPOCH]
    if M[p + P_SEEN] != epoch:
        M[p + P_BEFORE] = M[p + P_SEEN]
        M[p + P_SEEN] = epoch
        M[h + H_COUNT] += 1
    return max(M[h + H_COUNT], M[h + H_BEFORE])


@njit
def delivered(M, r):
    """A message is delivered; a pair that has no other one under way sends no more."""
    if M[r + OPEN] == 0:
        return
    M[r + OPEN] = 0
    p = M[r + R_PAIR]
    M[p + P_OPEN] -= 1
    if M[p + P_OPEN]:
        return
    h = M[r + R_HOST]
    epoch = M[h + H_EPOCH]
    if M[p + P_SEEN] == epoch:
        M[h + H_COUNT] -= 1
        if M[p + P_BEFORE] == epoch - 1:
            M[h + H_BEFORE] -= 1
    elif M[p + P_SEEN] == epoch - 1:
        M[h + H_BEFORE] -= 1
    M[p + P_SEEN] = 0
    M[p + P_BEFORE] = 0
