"""Sets an LTP message's rate after BBR (Cardwell et al., ACM Queue 14(5), 2016) and computes its unloaded transfer
time.

The paper's rate is like BBR's [notes]; the details are our choice. There is one sample per round trip: the packets
acknowledged while a timed packet was in flight. The rate is a gain times the largest sample of the last 10 to 20. The
gain is 2.885 until three round trips have brought less than a quarter more, then 1/2.885 for one, then the cycle 1.25,
0.75 and six times 1. There is no window: instead of a limit of two bandwidth-delay products, the gain is at most 0.75
while a round trip takes twice the smallest one.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import ONE, fixed_mul
from gradwire.protocols.transports.loss_tolerant.ltp_layout import DRAIN, STARTUP, LtpFlow, LtpParameters
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
def set_rate(params: LtpParameters, flow: LtpFlow, rate: int) -> None:
    """Set the rate, a share of the line rate in 20-bit fixed point."""
    rate = min(max(rate, params.rate_floor), ONE)
    flow.rate = rate
    flow.gap = flow.ps_per_byte * ONE // rate


@njit
def packet_time(params: LtpParameters, flow: LtpFlow) -> int:
    """Return the picoseconds of a full packet at line rate."""
    return params.packet_bytes * flow.ps_per_byte >> 16


@njit
def update_rate(params: LtpParameters, flow: LtpFlow, delivered: int, rtt: int, now: int) -> None:
    """Set the rate after a round trip of `rtt` in which `delivered` packets were acknowledged."""
    busy = min(delivered * packet_time(params, flow), rtt)
    sample = (busy << 10) // max(rtt >> 10, 1)
    flow.filter_rounds += 1
    if flow.filter_rounds > FILTER:
        flow.filter_rounds = 1
        flow.previous_max = flow.max_sample
        flow.max_sample = 0
    flow.max_sample = max(flow.max_sample, sample)
    best = max(flow.max_sample, flow.previous_max)
    gain = ONE
    mode = flow.mode
    if mode == STARTUP:
        gain = GAIN_STARTUP
        if best >= flow.full_rate * 5 >> 2:
            flow.full_rate = best
            flow.steady_rounds = 0
        else:
            flow.steady_rounds += 1
            if flow.steady_rounds == 3:
                flow.mode = DRAIN
                gain = GAIN_DRAIN
    else:
        # flows start at different phases of the cycle, never at the increase
        mode = 1 + (now >> 10) % (CYCLE - 1) if mode == DRAIN else (mode + 1) % CYCLE
        flow.mode = mode
        if mode == 0:
            gain = GAIN_UP
        elif mode == 1:
            gain = GAIN_DOWN
    if rtt > 2 * flow.min_rtt:
        gain = min(gain, GAIN_DOWN)
    set_rate(params, flow, fixed_mul(best, gain))


@njit
def unloaded_time(params: LtpParameters, nbytes: int, packets: int) -> int:
    """Return the picoseconds from a message's first packet to its last on an unloaded network. This simulates the rate
    control above, round trip by round trip. A sample arrives a round trip after it was sent, so the rate rises every
    other one. If a link is slower than the sender's line, it limits the samples; the queue before it is left out."""
    packet_time = params.packet_bytes * params.ps_per_byte >> 8
    left = (nbytes + packets * UDP_OVERHEAD) * params.ps_per_byte >> 8
    share = min(max(params.initial_window * packet_time * ONE // params.base_rtt, params.rate_floor), ONE)
    most = max((ONE << 10) // params.line_over_slowest, 8)  # so that a quarter of it is not zero
    least = (left >> 10) * params.line_over_slowest
    before = full = best = steady = elapsed = 0
    while True:
        round_trip = params.base_rtt + packet_time * ONE // share  # the next timed packet waits for its turn
        carried = min(share, most)
        sent = (round_trip >> 10) * carried >> 10
        if sent >= left:
            return max(elapsed + left * ONE // carried, least)
        left -= sent
        elapsed += round_trip
        if steady == 3:  # the round trip of the drain is over
            return elapsed + (left >> 10) * params.line_over_slowest * CYCLE_TIME // CYCLE_SENT + (params.base_rtt >> 2)
        following = share
        if before:
            best = max(best, before)
            following = fixed_mul(best, GAIN_STARTUP)
            if best >= full * 5 >> 2:
                full = best
                steady = 0
            else:
                steady += 1
                if steady == 3:
                    following = fixed_mul(best, GAIN_DRAIN)
        before = carried
        share = min(max(following, params.rate_floor), ONE)
