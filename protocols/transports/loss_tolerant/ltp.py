"""LTP (Chen et al., IWQoS '23, arXiv 2305.04279) closes messages early, by arrived fraction and time; gaps become
zeros.

Known from the paper: packets and their acknowledgements are out of order; *Early Close* ends the reception of a message
by the arrived fraction and the elapsed time; *bubble filling* puts zeros in place of missing packets [abstract]; loss
is allowed towards the parameter server only; there is a minimum fraction and a deadline; critical packets must arrive;
the rate is like BBR's [notes]. Normal packets are sent once, critical ones before them, and missing ones after them
[recalled].

Early Close measures time from the first arrival, in units of the message's unloaded transfer time over the slowest link
of its paths, with this rate control and its start-up (`unloaded_time`, at most 4 % too long), so that an idle network
loses nothing. Up to `threshold` the receiver waits for everything; from then on a message closes as soon as it has
`fraction` of its bytes, from `deadline` on as soon as its bound allows; and never before all critical packets have
arrived. The paper closes at the deadline whatever is missing [recalled]; here **no message is ever delivered with more
loss than its bound**, and a message with bound 0 (a pull) is delivered completely. The paper learns its threshold from
earlier rounds; connections here live for one message, so it is a parameter (ours).

Other choices of ours:

* the packets that the job tags as important are critical; untagged messages have none. The job fills in zeros;
* the receiver has no timer: it decides when a packet arrives. It repeats its Stop when a packet comes twice;
* all unacknowledged packets are retransmitted, never droppable, when everything has been sent and nothing has come back
  for half a smoothed round trip; if nothing came back at all, after max(3 srtt, `min_timeout`), twice as long each
  time;
* the rate follows BBR's, see `ltp_rate`.

The records are in `ltp_layout`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ACK, BLOCKED, STOP
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE, Context, bit, fixed_mul, reply, set_bit
from gradwire.protocols.transports.loss_tolerant.ltp_layout import (
    AGAIN,
    CRITICAL,
    NORMAL,
    STARTUP,
    LtpFlow,
    LtpParameters,
    LtpReceiver,
)
from gradwire.protocols.transports.loss_tolerant.ltp_rate import packet_time, set_rate, unloaded_time, update_rate
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.job.loss_bound import LOSSY
from gradwire.scenarios.schema.network.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_CHANNEL_BYTES, UDP_OVERHEAD

MAX_BACKOFF = 8
PERIOD = 8  # bits after the point of times in units of the ideal


@njit
def start(params: LtpParameters, flow: LtpFlow, now: int) -> None:
    """Start with the initial window spread over a round trip."""
    flow.pass_kind = CRITICAL if flow.tags > 1 else NORMAL
    flow.srtt = params.base_rtt
    flow.timed = -1
    flow.mode = STARTUP
    set_rate(params, flow, params.initial_window * packet_time(params, flow) * ONE // params.base_rtt)


@njit
def _silence(params: LtpParameters, flow: LtpFlow) -> int:
    """Return the time of silence before missing packets are retransmitted."""
    if flow.acks_in_pass:
        return flow.srtt >> 1
    return max(3 * flow.srtt, params.timeout) << flow.backoff


@njit
def pull(params: LtpParameters, flow: LtpFlow, now: int) -> int:
    """Return critical packets, then the others, then unacknowledged ones."""
    packets = flow.packets
    tags = flow.tags
    sequence = flow.cursor
    if flow.pass_kind == CRITICAL:
        while sequence < packets and bit(flow.tag_bits, sequence) == 0:
            sequence += 1
        if sequence == packets:
            flow.pass_kind = NORMAL
            sequence = 0
    if flow.pass_kind == NORMAL:
        while tags > 1 and sequence < packets and bit(flow.tag_bits, sequence):
            sequence += 1
    elif flow.pass_kind == AGAIN:
        acknowledged = flow.acknowledged
        while sequence < packets and bit(acknowledged, sequence):
            sequence += 1
    if sequence == packets:
        flow.cursor = packets
        if flow.timer == 0:
            flow.timer = now + _silence(params, flow)
        return BLOCKED
    flow.cursor = sequence + 1
    if flow.pass_kind == AGAIN:
        return sequence | IMPORTANT_FLAG
    flow.sent_once += 1
    if flow.timed < 0:
        flow.timed = sequence
        flow.timed_at = now
        flow.timed_acked = flow.acked
    return sequence


@njit
def on_timer(params: LtpParameters, flow: LtpFlow, now: int) -> None:
    """Begin a pass over the unacknowledged packets after a silence."""
    if flow.acks_in_pass:
        flow.backoff = 0
    else:
        flow.timeouts += 1
        set_rate(params, flow, flow.rate >> 1)
        if flow.backoff < MAX_BACKOFF:
            flow.backoff += 1
    acknowledged = flow.acknowledged
    first = flow.first_unacknowledged
    while first < flow.packets and bit(acknowledged, first):
        first += 1
    flow.first_unacknowledged = first
    flow.cursor = first
    flow.pass_kind = AGAIN
    flow.acks_in_pass = 0
    flow.timed = -1


@njit
def on_control(
    params: LtpParameters, flow: LtpFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """End the flow at Stop; adapt the rate to acknowledgements and postpone retransmissions."""
    if kind == STOP:
        flow.is_done = 1
        flow.timer = 0
        return
    flow.acks_in_pass += 1
    acknowledged = flow.acknowledged
    if bit(acknowledged, sequence) == 0:
        set_bit(acknowledged, sequence)
        flow.acked += 1
    if sequence == flow.timed:
        rtt = max(now - flow.timed_at, 1)  # sockets may send a little ahead of their schedule
        flow.timed = -1
        if flow.min_rtt == 0:
            # no packet was in flight before it, so only this one came back meanwhile: no sample of the rate
            flow.srtt = rtt
            flow.min_rtt = rtt
        else:
            flow.min_rtt = min(rtt, flow.min_rtt)
            flow.srtt += (rtt - flow.srtt) >> 3
            update_rate(params, flow, flow.acked - flow.timed_acked, rtt, now)
    elif flow.timed >= 0 and now - flow.timed_at > 4 * flow.srtt:
        flow.timed = -1  # lost, most likely
    if flow.timer:
        flow.timer = now + _silence(params, flow)


@njit
def _may_close(params: LtpParameters, receiver: LtpReceiver, now: int) -> bool:
    """Return True if Early Close may deliver the message with its present losses."""
    missing = receiver.nbytes - receiver.received_bytes
    if missing == 0:
        return True
    if missing > receiver.allowed_loss or (
        params.critical_only and receiver.critical_arrived < receiver.important_packets
    ):
        return False
    ideal = receiver.ideal_time
    elapsed = now - receiver.first_arrival
    if elapsed >= ideal * params.deadline >> PERIOD:
        return True
    if elapsed < ideal * params.loss_threshold >> PERIOD:
        return False
    return missing <= fixed_mul(receiver.nbytes, params.missing_share)


@njit
def on_data(params: LtpParameters, receiver: LtpReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, acknowledge it, and close the message once enough has arrived."""
    arrived = receiver.arrived_packets
    if receiver.is_done:
        # missing packets stay missing; but if the sender sends a packet twice, it has missed the Stop
        late = receiver.late_packets
        if bit(arrived, sequence) or bit(late, sequence):
            return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
        set_bit(late, sequence)
        return 0
    if receiver.first_arrival == 0:
        receiver.first_arrival = now
        receiver.ideal_time = unloaded_time(params, receiver.nbytes, receiver.packets)
    if bit(arrived, sequence) == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
        tags = receiver.tags
        if tags <= 1:
            receiver.critical_arrived += tags
        else:
            receiver.critical_arrived += bit(receiver.tag_bits, sequence)
    if _may_close(params, receiver, now):
        receiver.is_done = 1
        return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    return reply(ACK, ce, 0, 0, 1)


@njit
def on_probe(params: LtpParameters, receiver: LtpReceiver, argument: int, now: int) -> int:
    """Return 0: the sender sends no probes."""
    return 0


class Ltp(Transport):
    """LTP (Chen et al., IWQoS 2023): messages close early, by fraction and time, within their bound; over UDP. Times
    are in units of the message's unloaded transfer time, start-up included. All values are ours."""

    kind: Literal["ltp"]
    threshold: Annotated[float, Field(ge=0, le=100, strict=True), LOSSY] = 1.0
    """Time until which the receiver waits for the whole message; from then on `fraction` of it is enough."""
    deadline: Annotated[float, Field(ge=0, le=100, strict=True), LOSSY] = 2.0
    """Time from which any loss within the message's bound is accepted."""
    fraction: Annotated[Gain, LOSSY] = 0.8
    """Share of the message's bytes; the bound applies as well."""
    critical_must_arrive: Annotated[Flag, LOSSY] = True
    """A message also waits for every important packet."""
    initial_window: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 10
    """Packets in the first round trip, evenly spaced."""
    min_timeout: PositiveTime = Ps(200_000_000)
    """If nothing came back at all, everything is retransmitted after the larger of this and three smoothed round
    trips."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate is at least line rate over this."""

    must_not_exceed = ("threshold", "deadline")

    wire = "udp"

    may_lose = True
    repeats_important = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 1
    receiver_bitmaps = 2
    fresh_word = LtpFlow.sent_once.offset
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def further_dependence(settings: dict) -> str:
        """Return the dependence of `update_rate` on the clock."""
        return "at which place of its cycle the rate of ltp begins goes by what time it is"

    @staticmethod
    def important(settings: dict) -> bool:
        """Return False: untagged messages have no critical packets."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the parameters in the order and the units of `LtpParameters`."""
        return [
            context.payload + UDP_OVERHEAD,
            context.base_rtt,
            settings["min_timeout"],
            settings["initial_window"],
            max(1, ONE // settings["floor"]),
            context.speed >> 8,
            round(settings["threshold"] * (1 << PERIOD)),
            round(settings["deadline"] * (1 << PERIOD)),
            math.ceil((1 - settings["fraction"]) * ONE),
            int(settings["critical_must_arrive"]),
            -(-(context.slowest << 10) // context.speed),
        ]
