"""The rate of a message of LTP's, after BBR (Cardwell et al., ACM Queue 14(5), 2016), and how long it would take alone.

The paper's rate is like BBR's [notes]; how, is our choice. One sample per round trip of what was acknowledged while a
timed packet was out; the rate is a gain times the largest sample of the last 10 to 20. The gain is 2.885 until three
round trips have brought less than a quarter more, then 1/2.885 for one, then the cycle 1.25, 0.75 and six times 1.
There is no window beside it: instead of a limit of two bandwidth-delay products the gain is 0.75 at most while a round
trip takes twice the smallest one.
"""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.components.layout import S_GAP, S_LINE
from gradwire.components.transports.base import ONE
from gradwire.components.transports.ltp_words import (
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
    MODE,
    RATE,
    ROUNDS,
    SMALLEST,
    STARTUP,
    STEADY,
)
from gradwire.scenarios.wire import UDP_OVERHEAD

CYCLE = 8
FILTER = 10  # round trips
GAIN_STARTUP = 3_025_126  # 2 / ln 2, 20-bit fixed point
GAIN_DRAIN = 363_461
GAIN_UP, GAIN_DOWN = ONE * 5 // 4, ONE * 3 // 4
# What a cycle loses: a quarter of one of its eight round trips, since gain 1.25 does not lead above the line rate. That
# is 8 / 7.75; rounding to whole packets adds up to half a percent
CYCLE_TIME, CYCLE_SENT = 27, 26


@njit
def set_rate(M, k, f, rate):
    """`rate` is a share of the line rate, 20-bit fixed point."""
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def packet_time(M, k, f):
    """Picoseconds of a full packet at line rate."""
    return M[k + K_PACKET] * M[f + S_LINE] >> 16


@njit
def steer(M, k, f, delivered, rtt, now):
    """The rate after a round trip of `rtt`, in which `delivered` packets were acknowledged."""
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
        # flows begin at different places of the cycle, never where it goes up
        mode = 1 + (now >> 10) % (CYCLE - 1) if mode == DRAIN else (mode + 1) % CYCLE
        M[f + MODE] = mode
        if mode == 0:
            gain = GAIN_UP
        elif mode == 1:
            gain = GAIN_DOWN
    if rtt > 2 * M[f + SMALLEST]:
        gain = min(gain, GAIN_DOWN)
    set_rate(M, k, f, best * gain >> 20)


@njit
def alone(M, k, nbytes, packets):
    """Picoseconds from a message's first packet to its last where nothing else is on the way: the rate control above,
    round trip by round trip. A sample is heard a round trip after it was sent, so the rate rises every other one. Where
    a link is slower than the sender's line, no more comes back than it carries; what queues before it is left out."""
    packet_time = M[k + K_PACKET] * M[k + K_SPEED] >> 8
    left = (nbytes + packets * UDP_OVERHEAD) * M[k + K_SPEED] >> 8
    share = min(max(M[k + K_INITIAL] * packet_time * ONE // M[k + K_RTT], M[k + K_FLOOR]), ONE)
    most = max((ONE << 10) // M[k + K_SLOWER], 8)  # a quarter of it is not nothing
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
        if steady == 3:  # that was the round trip of the drain
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
