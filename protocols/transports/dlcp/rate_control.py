"""Controls the rate of a DLCP pair of hosts by marks, delay or number of senders, which the receiver counts.

A worker and a server keep one connection, so the rate belongs to the pair. It starts at line rate, and again after a
silence (`IDLE_TRIPS`; ours). It is never below line / `floor`.

* `dctcp`: AIMD as in DCTCP, with a rate instead of a window [notes: "DCTCP-like"]: down by alpha / 2 on the first mark
  of a round trip, up by one packet per round trip after one without marks.
* `delay`: TIMELY (SIGCOMM '15) with its published parameters [recalled; alpha is the weight of the new difference]. Its
  lower threshold, 50 us, is more than a 500 KB buffer can delay at 100 Gbps: on fast links with shallow buffers the
  rate falls only on losses unless `t_low` and `t_high` are adapted.
* `receiver`: ours. Every acknowledgement reports the number of pairs that are sending to its host, and a pair sends at
  most its share of the slowest link, line / n; below that as `dctcp`, except that a round trip without marks returns a
  sixteenth of the line. With a dozen senders the fair share of each is two or three packets per round trip, and one
  more is a third more load: with marks alone they overload the receiver's link and retransmit its drops.

One packet per round trip is timed. If later packets are acknowledged but not this one, for eight smoothed round trips,
it counts as lost. With `dctcp` and `delay` three suffice, and the rate falls: by half, as TCP's, or as for a round trip
of that length (ours: TIMELY is for lossless networks). Otherwise an incast of 32 loses more than half of its packets. A
round trip below T_low raises the rate as usual, so that delay control withstands random losses without queues.

The receiver counts the pairs with a packet in this epoch or the last, and removes those whose messages are all
delivered. An epoch lasts as long as two packets of every pair take on its link, at least a base round trip. So a pair
that waits for the answer to a probe is no longer counted after a while, and its share goes to the others.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import ONE, fixed_mul
from gradwire.protocols.transports.dlcp.records import (
    BY_DELAY,
    BY_MARKS,
    BY_RECEIVER,
    DlcpFlow,
    DlcpPair,
    DlcpParameters,
    DlcpReceiver,
)

HYPERACTIVE = 5  # calm round trips before, and steps at once in, hyperactive increase
IDLE_TRIPS = 8  # smoothed round trips of silence after which a pair's state is stale
LATE_TRIPS, LOST_TRIPS = 8, 3  # smoothed round trips after which a timed packet without an acknowledgement is lost
RECOVERY = 4  # a round trip without marks returns 1 / 2**RECOVERY of the line


@njit
def begin(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Begin a message of the pair, at line rate unless its state is recent."""
    pair = flow.pair
    if pair.rate and now - pair.last_ack_at < IDLE_TRIPS * pair.srtt:
        return
    if pair.rate == 0:
        pair.srtt = params.base_rtt
        pair.alpha = 0 if params.rate_control == BY_RECEIVER else ONE
    pair.senders = 0
    pair.last_ack_at = now
    _set_rate(params, flow, pair, ONE)


@njit
def smoothed(flow: DlcpFlow) -> int:
    """Return the pair's smoothed round trip."""
    return flow.pair.srtt


@njit
def silence(flow: DlcpFlow) -> int:
    """Return the time of silence after which a probe is sent."""
    pair = flow.pair
    return pair.srtt >> 1 if pair.last_rtt else pair.srtt


@njit
def _set_rate(params: DlcpParameters, flow: DlcpFlow, pair: DlcpPair, rate: int) -> None:
    """Set the rate, and the pair's packet spacing by its rate and its share."""
    rate = min(max(rate, params.rate_floor), ONE)
    pair.rate = rate
    gap = flow.ps_per_byte * ONE // rate
    if params.rate_control == BY_RECEIVER:
        gap = max(gap, pair.senders * params.slowest_link)
    pair.gap = gap


@njit
def _by_marks(params: DlcpParameters, flow: DlcpFlow, pair: DlcpPair, echo: int, now: int) -> None:
    """Adapt the rate and alpha to an acknowledgement, by its mark."""
    pair.acked += 1
    pair.marked += echo
    round_trip = max(pair.srtt, pair.last_rtt)
    if flow.timed >= 0:
        round_trip = max(round_trip, now - flow.timed_at)  # the timed packet is behind a longer queue, or lost
    rate = pair.rate
    if params.rate_control == BY_RECEIVER and pair.senders:
        rate = min(rate, flow.ps_per_byte * ONE // (pair.senders * params.slowest_link))
    if echo and now >= pair.no_reduction_until:
        rate -= fixed_mul(rate, pair.alpha) >> (2 if params.rate_control == BY_RECEIVER else 1)
        pair.no_reduction_until = now + round_trip
        _set_rate(params, flow, pair, rate)
    if now >= pair.round_end:
        share = pair.marked * ONE // pair.acked
        pair.alpha += fixed_mul(share - pair.alpha, params.gain)
        if pair.marked == 0:
            step = ONE >> RECOVERY
            if params.rate_control == BY_MARKS:
                step = ONE * (params.packet_bytes * flow.ps_per_byte >> 16) // pair.srtt
            _set_rate(params, flow, pair, pair.rate + step)
        pair.acked = 0
        pair.marked = 0
        pair.round_end = now + round_trip


@njit
def _by_delay(params: DlcpParameters, flow: DlcpFlow, pair: DlcpPair, rtt: int, change: int) -> None:
    """Adapt the rate as TIMELY does. It rises additively below T_low or while the delay does not grow (five times as
    fast after five calm round trips), and falls by the slope or, above T_high, by the distance to it."""
    pair.rtt_slope += fixed_mul(change - pair.rtt_slope, params.ewma)
    rate = pair.rate
    if rtt < params.t_low:
        rate += params.add_step
    elif rtt > params.t_high:
        excess = ONE - params.t_high * ONE // rtt
        rate -= fixed_mul(rate, fixed_mul(params.beta, excess))
        pair.calm_rounds = 0
    elif pair.rtt_slope <= 0:
        pair.calm_rounds += 1
        step = params.add_step
        if pair.calm_rounds >= HYPERACTIVE:
            step *= HYPERACTIVE
        rate += step
    else:
        slope = min(pair.rtt_slope * ONE // params.base_rtt, ONE)
        rate -= fixed_mul(rate, fixed_mul(params.beta, slope))
        pair.calm_rounds = 0
    _set_rate(params, flow, pair, rate)


@njit
def on_rtt_sample(params: DlcpParameters, flow: DlcpFlow, rtt: int) -> None:
    """Process a measured round trip of the pair."""
    pair = flow.pair
    if pair.last_rtt == 0:
        pair.srtt = rtt
        pair.last_rtt = rtt
    change = rtt - pair.last_rtt
    pair.last_rtt = rtt
    pair.srtt += (rtt - pair.srtt) >> 3
    if params.rate_control == BY_DELAY:
        _by_delay(params, flow, pair, rtt, change)


@njit
def detect_lost_sample(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Give up the timed packet, and lower the rate if it depends on losses, when another packet's acknowledgement comes
    too long after its departure."""
    pair = flow.pair
    trips = LATE_TRIPS if params.rate_control == BY_RECEIVER else LOST_TRIPS
    wait = now - flow.timed_at
    if wait <= trips * pair.srtt:
        return
    flow.timed = -1
    if params.rate_control == BY_DELAY:
        _by_delay(params, flow, pair, wait, wait - pair.last_rtt)
    elif params.rate_control == BY_MARKS:
        _set_rate(params, flow, pair, pair.rate >> 1)


@njit
def on_acknowledgement(params: DlcpParameters, flow: DlcpFlow, senders: int, echo: int, now: int) -> None:
    """Process an acknowledgement that reports `senders` pairs sending to the receiver."""
    pair = flow.pair
    pair.last_ack_at = now
    if params.rate_control == BY_DELAY:
        return
    if params.rate_control == BY_RECEIVER and senders != pair.senders:
        pair.senders = senders
        _set_rate(params, flow, pair, pair.rate)
    _by_marks(params, flow, pair, echo, now)


@njit
def count_sender(params: DlcpParameters, receiver: DlcpReceiver, now: int) -> int:
    """Count the pair of an arriving data packet; return the number of sending pairs."""
    host = receiver.host
    peer = receiver.pair
    if receiver.is_open == 0:
        receiver.is_open = 1
        peer.open_messages += 1
    if now >= host.epoch_end:
        if host.epoch == 0:
            host.epoch = 1  # 0 and 1 are never used
        length = max(params.base_rtt, 2 * max(host.senders, 1) * (params.packet_bytes * params.slowest_link >> 16))
        host.previous_senders = host.senders
        host.epoch += 1
        if now >= host.epoch_end + length:
            host.previous_senders = 0
            host.epoch += 1  # the epoch in between was empty
        host.senders = 0
        host.epoch_end = now + length
    epoch = host.epoch
    if peer.last_epoch != epoch:
        peer.previous_epoch = peer.last_epoch
        peer.last_epoch = epoch
        host.senders += 1
    return max(host.senders, host.previous_senders)


@njit
def on_delivery(receiver: DlcpReceiver) -> None:
    """Record a delivery; a pair without other messages in flight no longer counts as sending."""
    if receiver.is_open == 0:
        return
    receiver.is_open = 0
    peer = receiver.pair
    peer.open_messages -= 1
    if peer.open_messages:
        return
    host = receiver.host
    epoch = host.epoch
    if peer.last_epoch == epoch:
        host.senders -= 1
        if peer.previous_epoch == epoch - 1:
            host.previous_senders -= 1
    elif peer.last_epoch == epoch - 1:
        host.previous_senders -= 1
    peer.last_epoch = 0
    peer.previous_epoch = 0
