"""The rate of an LTP message, after BBR (Cardwell et al., ACM Queue 14(5), 2016), and its unloaded transfer time.

The paper's rate is like BBR's [notes]; the details are our choice. There is one sample per round trip: the packets
acknowledged while a timed packet was in flight. The rate is a gain times the largest sample of the last 10 to 20. The
gain is 2.885 until three round trips have brought less than a quarter more, then 1/2.885 for one, then the cycle 1.25,
0.75 and six times 1. There is no window: instead of a limit of two bandwidth-delay products, the gain is at most 0.75
while a round trip takes twice the smallest one.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.layout import S_GAP, S_LINE
from gradwire.protocols.transports.base import ONE
from gradwire.protocols.transports.loss_tolerant.ltp_layout import (
    BEFORE,
    BEST,
    DRAIN,
    FULL,
    K_FLOOR,
    K_INITIAL,
    K_PACKET,
    K_RTT,
    K_SLOWER,
    K_SPEED,
    MIN_RTT,
    MODE,
    RATE,
    ROUNDS,
    STARTUP,
    STEADY,
)
from gradwire.scenarios.wire import UDP_OVERHEAD

CYCLE = 8
FILTER = 10  # round trips
GAIN_STARTUP = 3_025_126  # 2 / ln 2, 20-bit fixed point
GAIN_DRAIN = 363_461
GAIN_UP, GAIN_DOWN = ONE * 5 // 4, ONE * 3 // 4
# Loss of a cycle: a quarter of one of its eight round trips, since gain 1.25 cannot exceed the line rate. That is
# 8 / 7.75; rounding to whole packets adds up to half a percent
CYCLE_TIME, CYCLE_SENT = 27, 26


@njit
def set_rate(M, k, f, rate):
    """Set the rate, a share of the line rate in 20-bit fixed point."""
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def packet_time(M, k, f):
    """Return the picoseconds of a full packet at line rate."""
    return M[k + K_PACKET] * M[f + S_LINE] >> 16


@njit
def update_rate(M, k, f, delivered, rtt, now):
    """Set the rate after a round trip of `rtt` in which `delivered` packets were acknowledged."""
    busy = min(delivered * packet_time(M, k, f), rtt)
    sample = (busy << 10) // max(rtt >> 10, 1)
    M[f + ROUNDS] += 1
    if M[f + ROUNDS] > FILTER:
        M[f + ROUNDS] = 1
        M[f + BEFORE] = M[f + BEST]
        M[f + BEST] = 0
    M[f + BEST] = max(M[f + BEST], sample)
    best = max(M[f + BEST], M[f + BEFORE])
    gain = ONE
    mode = M[f + MODE]
    if mode == STARTUP:
        gain = GAIN_STARTUP
        if best >= M[f + FULL] * 5 >> 2:
            M[f + FULL] = best
            M[f + STEADY] = 0
        else:
            M[f + STEADY] += 1
            if M[f + STEADY] == 3:
                M[f + MODE] = DRAIN
                gain = GAIN_DRAIN
    else:
        # flows start at different phases of the cycle, never at the increase
        mode = 1 + (now >> 10) % (CYCLE - 1) if mode == DRAIN else (mode + 1) % CYCLE
        M[f + MODE] = mode
        if mode == 0:
            gain = GAIN_UP
        elif mode == 1:
            gain = GAIN_DOWN
    if rtt > 2 * M[f + MIN_RTT]:
        gain = min(gain, GAIN_DOWN)
    set_rate(M, k, f, best * gain >> 20)


@njit
def unloaded_time(M, k, nbytes, packets):
    """Return the picoseconds from a message's first packet to its last on an unloaded network. This simulates the rate
    control above, round trip by round trip. A sample arrives a round trip after it was sent, so the rate rises every
    other one. If a link is slower than the sender's line, it limits the samples; the queue before it is left out."""
    packet_time = M[k + K_PACKET] * M[k + K_SPEED] >> 8
    left = (nbytes + packets * UDP_OVERHEAD) * M[k + K_SPEED] >> 8
    share = min(max(M[k + K_INITIAL] * packet_time * ONE // M[k + K_RTT], M[k + K_FLOOR]), ONE)
    most = max((ONE << 10) // M[k + K_SLOWER], 8)  # so that a quarter of it is not zero
    least = (left >> 10) * M[k + K_SLOWER]
    before = full = best = steady = elapsed = 0
    while True:
        round_trip = M[k + K_RTT] + packet_time * ONE // share  # the next timed packet waits for its turn
        carried = min(share, most)
        sent = (round_trip >> 10) * carried >> 10
        if sent >= left:
            return max(elapsed + left * ONE // carried, least)
        left -= sent
        elapsed += round_trip
        if steady == 3:  # the round trip of the drain is over
            return elapsed + (left >> 10) * M[k + K_SLOWER] * CYCLE_TIME // CYCLE_SENT + (M[k + K_RTT] >> 2)
        following = share
        if before:
            best = max(best, before)
            following = best * GAIN_STARTUP >> 20
            if best >= full * 5 >> 2:
                full = best
                steady = 0
            else:
                steady += 1
                if steady == 3:
                    following = best * GAIN_DRAIN >> 20
        before = carried
        share = min(max(following, M[k + K_FLOOR]), ONE)
