"""Rate control of DLCP: the three kinds of `rate_control`, and the receiver's counts for them.

A worker and a server keep one connection, so the rate belongs to the pair. It starts at line rate, and again after a
silence (`IDLE_TRIPS`; ours). It is never below line / `floor`.

* `dctcp`: AIMD as in DCTCP, with a rate instead of a window [notes: "DCTCP-like"]: down by alpha / 2 on the first mark
  of a round trip, up by one packet per round trip after one without marks. Drops alone do not slow it down.
* `delay`: TIMELY (SIGCOMM '15) with its published parameters [recalled; alpha is the weight of the new difference]. Its
  lower threshold, 50 us, is more than a 500 KB buffer can delay at 100 Gbps: on fast links with shallow buffers the
  rate never falls unless `t_low` and `t_high` are adapted.
* `receiver`: ours. Every acknowledgement reports the number of pairs that are sending to its host, and a pair sends at
  most its share of the slowest link, line / n; below that as `dctcp`, except that a round trip without marks returns a
  sixteenth of the line. With a dozen senders the fair share of each is two or three packets per round trip, and one
  more is a third more load: with marks alone they overload the receiver's link and retransmit its drops.

The receiver counts the pairs with a packet in this epoch or the last, and removes those whose messages are all
delivered. An epoch lasts as long as two packets of every pair take on its link, at least a base round trip. So a pair
that waits for the answer to a probe is no longer counted after a while, and its share goes to the others.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.layout import PAIR_GAP, R_HOST, R_PAIR, S_LINE, S_PAIR
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.dlcp.layout import (
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
IDLE_TRIPS = 8  # smoothed round trips of silence after which a pair's state is stale
RECOVERY = 4  # a round trip without marks returns 1 / 2**RECOVERY of the line


@njit
def begin(M, k, f, now):
    """Begin a message of the pair, at line rate unless its state is recent."""
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
    return M[M[f + S_PAIR] + Q_SRTT]


@njit
def silence(M, f):
    """Return the time of silence after which a probe is sent."""
    q = M[f + S_PAIR]
    return M[q + Q_SRTT] >> 1 if M[q + Q_LAST] else M[q + Q_SRTT]


@njit
def _set_rate(M, k, f, q, rate):
    """Set the rate, and the pair's packet spacing by its rate and its share."""
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[q + Q_RATE] = rate
    gap = M[f + S_LINE] * ONE // rate
    if M[k + K_CONTROL] == BY_RECEIVER:
        gap = max(gap, M[q + Q_SENDERS] * M[k + K_SLOWEST])
    M[q + PAIR_GAP] = gap


@njit
def _by_marks(M, k, f, q, echo, now):
    M[q + Q_ACKED] += 1
    M[q + Q_MARKED] += echo
    trip = max(M[q + Q_SRTT], M[q + Q_LAST])
    if M[f + TIMED] >= 0:
        trip = max(trip, now - M[f + TIMED_AT])  # the timed packet is behind a longer queue, or lost
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
    """Adapt the rate as TIMELY does. Additive increase below T_low or while delay does not grow (five times as fast
    after five calm round trips); decrease by the slope, and above T_high by the distance to it."""
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
def on_rtt_sample(M, k, f, rtt):
    """Process a measured round trip of the pair."""
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
def on_acknowledgement(M, k, f, senders, echo, now):
    """Process an acknowledgement that reports `senders` pairs sending to the receiver."""
    q = M[f + S_PAIR]
    M[q + Q_HEARD] = now
    if M[k + K_CONTROL] == BY_DELAY:
        return
    if M[k + K_CONTROL] == BY_RECEIVER and senders != M[q + Q_SENDERS]:
        M[q + Q_SENDERS] = senders
        _set_rate(M, k, f, q, M[q + Q_RATE])
    _by_marks(M, k, f, q, echo, now)


@njit
def count_sender(M, k, r, now):
    """Count the pair of an arriving data packet; return the number of sending pairs."""
    h = M[r + R_HOST]
    p = M[r + R_PAIR]
    if M[r + OPEN] == 0:
        M[r + OPEN] = 1
        M[p + P_OPEN] += 1
    if now >= M[h + H_ENDS]:
        if M[h + H_EPOCH] == 0:
            M[h + H_EPOCH] = 1  # 0 and 1 are never used
        length = max(M[k + K_RTT], 2 * max(M[h + H_COUNT], 1) * (M[k + K_PACKET] * M[k + K_SLOWEST] >> 16))
        M[h + H_BEFORE] = M[h + H_COUNT]
        M[h + H_EPOCH] += 1
        if now >= M[h + H_ENDS] + length:
            M[h + H_BEFORE] = 0
            M[h + H_EPOCH] += 1  # the epoch in between was empty
        M[h + H_COUNT] = 0
        M[h + H_ENDS] = now + length
    epoch = M[h + H_EPOCH]
    if M[p + P_SEEN] != epoch:
        M[p + P_BEFORE] = M[p + P_SEEN]
        M[p + P_SEEN] = epoch
        M[h + H_COUNT] += 1
    return max(M[h + H_COUNT], M[h + H_BEFORE])


@njit
def on_delivery(M, r):
    """Record a delivery; a pair without other messages in flight no longer counts as sending."""
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
