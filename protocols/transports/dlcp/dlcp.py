"""DLCP (arXiv 2008.08445, later MLT, NSDI '24): bounded loss, any order, little congestion control.

Known from the papers [notes]: data is placed out of order; the receiver counts bytes per tensor and sends *Stop* once
at least (1 - p) of them have arrived; a sender that has sent everything sends *Probe*, the receiver answers *Bitmap*
(or Stop), and the sender retransmits exactly the missing packets, until Stop. Control uses a reliable channel. Rate
control is minimal: DCTCP-like AIMD (DLCP) or delay based (MLT).

Our choices, where they are silent:

* the reliable channel is the probe timer: Probe, Stop and Bitmap are never dropped selectively; if one is lost, the
  probe is repeated after max(3 srtt, `probe_timeout`), twice as long each time, but at most max(24 base round trips,
  `probe_timeout`): one packet in that time is no load to back off from, and delays under load are no guide to the next
  repetition. Data is never retransmitted blindly;
* a repeated probe keeps its number, and any answer to that number is valid, so a late answer is not invalidated by a
  repetition. The receiver answers a number with its state when the number first arrived (no packet requested by it has
  been sent since), and at most once per base round trip;
* a Bitmap of more than 8192 packets is split into parts. Parts are stored: after a time-out the sender requests
  the missing parts, with one probe each, or all at once only if none has arrived. Every part postpones the time-out,
  since on a slow line the parts of one answer take longer than that. The sender retransmits once it has all parts. The
  receiver answers each such query at most once per base round trip;
* the probe travels in the class of the data, so that it queues behind the packets it asks about; answers use the
  control class;
* in the middle of the first pass, after the important packets and before the droppable ones, the sender asks once for
  missing packets, and retransmits the important ones at once: losses of a burst at the start are repaired before the
  last packet, without an extra round trip at the end (8 senders of 1 MB to one host: p99 4 % earlier; 64 of 100 kB: 1.5
  % later);
* the probe is sent when all packets are sent and nothing has come back for half a smoothed round trip (before any
  measurement, the base round trip), because packets on other paths may be late. Sent at once instead, on a leaf-spine
  of 16 hosts and 4 spines with random spraying (256 messages without loss), it requests 33 of 33 181 packets needlessly
  for messages to 1 MB, 178 of 663 for messages to 16 KB, and 3603 of 33 181 if one spine has 40 % of the rate; the rule
  leaves 0, 0 and 3438, and 31, 12 and 598 probes instead of 251, 327 and 793. Waiting a whole round trip leaves 2485 of
  the 3438, and messages there take 5 % longer. The rule costs time if packets are dropped (0.5 droppable, 200 KB
  buffers): mean completion is 1.5 % later for messages to 1 MB, 9 % for messages to 128 KiB;
* `stop_policy = "eager"` stops at (1 - p) at once [notes]; with `"early"` the sender also sends no more than needed for
  that until it knows the losses; `"on_probe"` delivers with losses only after the sender has sent everything, and so
  spends less of the allowance;
* `important_must_arrive`: a message is complete only with all its important packets. Retransmissions are always
  important;
* one packet of a message at a time is timed, also a retransmission: it is sent after a silence, so an acknowledgement
  of the original is rarely mistaken for its own, and without it delay control would get no samples during
  retransmissions.

States of the sender, `probe_state` (n: the number of parts of the answer that are still to come):

| state | event | action | next state |
|---|---|---|---|
| IDLE | `pull` finds no packet left in the pass | set the timer to a silence | QUIET |
| IDLE | timer expires while midway WAITING | midway becomes ASKED | DUE |
| QUIET | acknowledgement | set the timer to a silence | QUIET |
| QUIET | timer expires | | DUE |
| DUE | `pull` | send a probe with a new number for everything; set the timer | n = all parts |
| n > 0 | awaited part of a Bitmap | store it; restart the timer, if no repetition is under way | n - 1 |
| n > 0 | `pull` after the timer expired | repeat the probe, or request each missing part; double the wait | n |
| 1 | last awaited part, midway ASKED | stop the timer; midway becomes ANSWERED_MIDWAY | IDLE |
| 1 | last awaited part, else | stop the timer; begin a pass over the missing packets | IDLE |
| any | Stop | stop the timer; the flow is done | |

The query about important packets in the middle of the first pass, `midway_state`:

| state | event | action | next state |
|---|---|---|---|
| NOT_YET | the first pass has sent its important packets (`important_first` with tags) | | REACHED |
| REACHED | `pull` returns the next packet | set the timer to a silence | WAITING |
| WAITING | timer expires while `probe_state` is IDLE | make a probe due | ASKED |
| WAITING | the pass ends first | the probe at its end replaces the query | WAITING |
| ASKED | last awaited part | retransmit the important packets it lacks, then resume the pass | ANSWERED_MIDWAY |

While ASKED, `pull` continues the pass between the probe and its answer.

The order and number of packets are in `packet_order`, the rate in `rate_control`, the budget that messages share in
`loss_budget`, and the records in `layout`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ACK, BITMAP, BLOCKED, PULL_PROBE, STOP
from gradwire.jit.records.flows import Pair
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE, Context, bit, clear_bit, fraction, reply, set_bit
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.dlcp.layout import (
    ANSWERED_MIDWAY,
    ASKED,
    BY_DELAY,
    BY_MARKS,
    BY_RECEIVER,
    EAGER,
    EARLY,
    IMPORTANT_FIRST,
    ON_PROBE,
    RANDOM,
    REACHED,
    SEQUENTIAL,
    WAITING,
    DlcpFlow,
    DlcpHost,
    DlcpPair,
    DlcpParameters,
    DlcpPeer,
    DlcpReceiver,
)
from gradwire.protocols.transports.dlcp.loss_budget import is_affordable, spend
from gradwire.protocols.transports.dlcp.packet_order import begin_resend_pass, first_pass, next_packet, ones
from gradwire.protocols.transports.dlcp.rate_control import (
    begin,
    count_sender,
    on_acknowledgement,
    on_delivery,
    on_rtt_sample,
    silence,
    smoothed,
)
from gradwire.scenarios.schema.base import Count, Flag, single_mistake
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.schema.job.loss_bound import LOSSY
from gradwire.scenarios.schema.network.transport_base import Gain, Transport
from gradwire.scenarios.units import Bps, PositiveTime, Ps, Rate, format_time
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_CHANNEL_BYTES, UDP_OVERHEAD

ANSWER_WORDS = 256  # bitmap words in one Bitmap packet: 8192 packets in 1 KiB
# The argument of probes and Bitmaps is the number of the probe, modulo 4096, and above it the requested part, counted
# from 1, or EVERYTHING.
NUMBER_BITS = 12
NUMBERS = (1 << NUMBER_BITS) - 1  # mask
EVERYTHING = 0
LONGEST = 24  # base round trips before a probe is repeated, at most
ORDERS = {"important_first": IMPORTANT_FIRST, "sequential": SEQUENTIAL, "random": RANDOM}
IDLE = 0
QUIET = -1  # everything is sent: a probe follows after a silence
DUE = -2  # a probe is to be sent now


@njit
def start(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Begin a message: its rate, and the order of its packets."""
    begin(params, flow, now)
    first_pass(params, flow)
    flow.timed = -1


@njit
def _send(flow: DlcpFlow, sequence: int, now: int) -> int:
    """Record a transmission; one packet at a time is timed. Return IMPORTANT_FLAG if it was sent before."""
    if flow.timed < 0:
        flow.timed = sequence
        flow.timed_at = now
    sent = flow.sent_packets
    if bit(sent, sequence):
        return IMPORTANT_FLAG
    set_bit(sent, sequence)
    flow.sent_once += 1
    return 0


@njit
def _parts(words: int) -> int:
    """Return the number of parts of a Bitmap of `words` bitmap words."""
    return (words + ANSWER_WORDS - 1) // ANSWER_WORDS


@njit
def _send_probe(flow: DlcpFlow, part: int) -> int:
    """Return a probe for one part or for everything."""
    flow.probes_sent += 1
    return PULL_PROBE + (part << NUMBER_BITS | (flow.probe_number & NUMBERS))


@njit
def _set_probe_timer(params: DlcpParameters, flow: DlcpFlow, wait: int, now: int) -> None:
    """Set the time until the probe is repeated, up to a maximum."""
    flow.probe_wait = min(wait, max(LONGEST * params.base_rtt, params.probe_timeout))
    flow.timer = now + flow.probe_wait


@njit
def _send_new_probe(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Return the first probe with a new number, for everything."""
    words = flow.bitmap_words
    parts = _parts(words)
    awaited = flow.awaited
    flow.probe_number += 1
    flow.probe_state = parts
    for part in range(parts):
        set_bit(awaited, part)
    _set_probe_timer(params, flow, max(3 * smoothed(flow), params.probe_timeout), now)
    return _send_probe(flow, EVERYTHING)


@njit
def _repeat_probe(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Repeat an overdue probe: for everything, or for the next missing part."""
    parts = _parts(flow.bitmap_words)
    if flow.next_query == 0:
        if flow.probe_state == parts:
            _set_probe_timer(params, flow, 2 * flow.probe_wait, now)
            return _send_probe(flow, EVERYTHING)
        flow.next_query = 1
    awaited = flow.awaited
    part = flow.next_query
    while part <= parts and bit(awaited, part - 1) == 0:
        part += 1
    if part > parts:
        flow.next_query = 0
        _set_probe_timer(params, flow, 2 * flow.probe_wait, now)
        return BLOCKED
    flow.next_query = part + 1
    return _send_probe(flow, part)


@njit
def _resend_midway(flow: DlcpFlow, now: int) -> int:
    """Return the next important packet reported missing in the middle of the pass."""
    resend = flow.resend
    sequence = flow.resend_from
    while bit(resend, sequence) == 0:
        sequence += 1
    flow.resend_from = sequence + 1
    flow.resends_left -= 1
    return sequence | _send(flow, sequence, now)


@njit
def pull(params: DlcpParameters, flow: DlcpFlow, now: int) -> int:
    """Return the packets of this pass, then, after a silence, a Probe."""
    state = flow.probe_state
    if state == DUE:
        return _send_new_probe(params, flow, now)
    if state > 0 and flow.timer == 0:
        probe = _repeat_probe(params, flow, now)
        if probe != BLOCKED:
            return probe
    if flow.resends_left:
        return _resend_midway(flow, now)
    if state == IDLE or flow.midway_state == ASKED:
        sequence = next_packet(params, flow)
        if sequence != BLOCKED:
            if flow.midway_state == REACHED:
                flow.midway_state = WAITING
                flow.timer = now + silence(flow)
            return sequence | _send(flow, sequence, now)
    if state == IDLE:
        flow.probe_state = QUIET
        flow.timer = now + silence(flow)
    return BLOCKED


@njit
def on_timer(params: DlcpParameters, flow: DlcpFlow, now: int) -> None:
    """Make a probe due after the silence. (A probe's own timer only has to expire.)"""
    if flow.probe_state == QUIET:
        flow.probe_state = DUE
    elif flow.probe_state == IDLE and flow.midway_state == WAITING:
        flow.probe_state = DUE
        flow.midway_state = ASKED


@njit
def _store_part(flow: DlcpFlow, part: int) -> None:
    """Record the missing packets of one part of a Bitmap for retransmission."""
    words = flow.bitmap_words
    resend = flow.resend
    peer_bitmaps = flow.peer_bitmaps  # the second one is the snapshot
    packets = flow.packets
    first = part * ANSWER_WORDS
    for word in range(first, min(first + ANSWER_WORDS, words)):
        valid = min(packets - (word << 5), 32)
        missing = ~peer_bitmaps[words + word] & ((1 << valid) - 1)
        if flow.midway_state == ASKED:
            missing &= flow.tag_bits[word]
            flow.resends_left += ones(missing)
        resend[word] = missing


@njit
def _process_bitmap(params: DlcpParameters, flow: DlcpFlow, sequence: int, argument: int, now: int) -> None:
    """Process a part of an answer; the last one begins another pass."""
    part = (argument >> NUMBER_BITS) - 1 if argument >> NUMBER_BITS else sequence
    awaited = flow.awaited
    if flow.probe_state <= 0 or argument & NUMBERS != flow.probe_number & NUMBERS or bit(awaited, part) == 0:
        return
    clear_bit(awaited, part)
    _store_part(flow, part)
    flow.probe_state -= 1
    if flow.probe_state == IDLE:
        # packets in flight are not worth timing
        flow.timer = 0
        flow.next_query = 0
        flow.timed = -1
        if flow.midway_state == ASKED:
            flow.midway_state = ANSWERED_MIDWAY
            flow.resend_from = 0
        else:
            begin_resend_pass(params, flow)
    elif flow.next_query == 0:
        flow.timer = now + flow.probe_wait


@njit
def on_control(
    params: DlcpParameters, flow: DlcpFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """End the flow at Stop, retransmit for a Bitmap, adapt the rate to acknowledgements."""
    if kind == STOP:
        flow.is_done = 1
        flow.timer = 0
    elif kind == BITMAP:
        _process_bitmap(params, flow, sequence, argument, now)
    else:
        timed = flow.timed
        if sequence == timed:
            flow.timed = -1
            rtt = max(now - flow.timed_at, 1)  # sockets may send a little ahead of their schedule
            on_rtt_sample(params, flow, rtt)
        elif timed >= 0 and now - flow.timed_at > 8 * smoothed(flow):
            flow.timed = -1  # later packets were acknowledged long ago: it is lost
        if flow.probe_state == QUIET:
            flow.timer = now + silence(flow)
        on_acknowledgement(params, flow, argument, echo, now)


@njit
def _within_bound(params: DlcpParameters, receiver: DlcpReceiver) -> bool:
    """Return True if the message may be delivered with its present losses."""
    if not is_affordable(receiver, receiver.nbytes - receiver.received_bytes):
        return False
    return params.important_must_arrive == 0 or receiver.important_arrived == receiver.important_packets


@njit
def _deliver(receiver: DlcpReceiver) -> None:
    """Deliver the message with its present losses."""
    receiver.is_done = 1
    spend(receiver, receiver.nbytes - receiver.received_bytes)
    on_delivery(receiver)


@njit
def on_data(params: DlcpParameters, receiver: DlcpReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet and count it; send Stop once enough has arrived."""
    if receiver.is_done:
        return 0
    senders = count_sender(params, receiver, now)
    arrived = receiver.arrived_packets
    if bit(arrived, sequence) == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
        tags = receiver.tags
        if tags <= 1:
            receiver.important_arrived += tags
        else:
            receiver.important_arrived += bit(receiver.tag_bits, sequence)
        if (
            params.stop_policy != ON_PROBE and _within_bound(params, receiver)
        ) or receiver.received_bytes == receiver.nbytes:
            _deliver(receiver)
            return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    return reply(ACK, ce, senders, 0, 1)


@njit
def on_probe(params: DlcpParameters, receiver: DlcpReceiver, argument: int, now: int) -> int:
    """Answer a probe with Stop, or with a Bitmap: a snapshot that the sender reads when the answer arrives."""
    if receiver.is_done == 0 and _within_bound(params, receiver):
        _deliver(receiver)
    if receiver.is_done:
        return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    words = receiver.bitmap_words
    answered = receiver.answered_queries  # the queries of this base round trip: parts, counted from 1, or everything
    part = argument >> NUMBER_BITS
    ahead = (argument - receiver.last_probe) & NUMBERS
    if ahead > NUMBERS >> 1:
        return 0  # overtaken by a later probe, whose snapshot the sender may be reading
    if ahead:
        receiver.last_probe += ahead
        for word in range(words):
            receiver.snapshot[word] = receiver.arrived_packets[word]
    if ahead or now >= receiver.answer_period + params.base_rtt:
        receiver.answer_period = now
        for word in range((_parts(words) >> 5) + 1):
            answered[word] = 0
    if bit(answered, part):
        return 0  # already answered in this period
    set_bit(answered, part)
    size = SIDE_CHANNEL_BYTES + min((receiver.packets + 7) >> 3, 4 * ANSWER_WORDS)
    return reply(BITMAP, 0, argument & 0x3FFFFF, size, 1 if part else _parts(words))


DELAY = Precondition(
    lambda at: at.table.rate_control == "delay", "the rate does not go by delay", 'rate_control = "delay"'
)
NOT_BY_DELAY = Precondition(
    lambda at: (
        at.table.rate_control != "delay" and (at.switch.ecn_threshold is not None or at.switch.policy is not None)
    ),
    "the rate does not go by marks",
    'switch.ecn_threshold, and no rate_control = "delay"',
)


class Dlcp(Transport):
    """DLCP: bounded loss over UDP with Stop, Probe and Bitmap [notes on arXiv 2008.08445]. Values marked "ours" are our
    choice, because those of the paper are not known to us."""

    kind: Literal["dlcp"]
    stop_policy: Annotated[Literal["early", "eager", "on_probe"], LOSSY] = "early"
    """Rule for ending a message early. eager: as soon as the bound allows, as in the paper; early (ours): the same,
    and no more is sent than needed for that until losses are known; on_probe (ours): only after everything has been
    sent."""
    send_order: Literal["important_first", "sequential", "random"] = "important_first"
    """Order of the packets. important_first: important ones, then the others, rotated by iteration so that each is last
    equally often; sequential: from the first to the last; random: drawn for every message. Ours."""
    rate_control: Literal["receiver", "dctcp", "delay"] = "receiver"
    """Rate of a pair of hosts. receiver (ours): by the number of senders that the receiver reports, line / n each, and
    by marks; dctcp: by marks alone (DLCP); delay: as TIMELY (MLT)."""
    g: Annotated[Gain, NOT_BY_DELAY] = 0.0625
    """Weight of the newest round trip in the estimate of the marked share."""
    floor: Count = 64
    """The rate is at least line rate over this. Ours."""
    probe_timeout: PositiveTime = Ps(200_000_000)
    """Base time-out of a probe. A probe is repeated after the larger of this and three smoothed round trips, twice as
    long each time, but within the larger of this and 24 base round trips; the first one follows half a smoothed round
    trip of silence. Ours."""
    important_must_arrive: Annotated[Flag, LOSSY] = True
    """Stop also waits for every important packet, beyond the bound. Ours."""
    t_low: Annotated[PositiveTime, DELAY] = Ps(50_000_000)
    """TIMELY's lower delay threshold [recalled], as are the next four values."""
    t_high: Annotated[PositiveTime, DELAY] = Ps(500_000_000)
    """TIMELY's upper delay threshold."""
    beta: Annotated[Gain, DELAY] = 0.8
    """TIMELY's multiplicative decrease."""
    ewma: Annotated[float, Field(ge=0, lt=1, strict=True), DELAY] = 0.875
    """Weight of the newest difference of round trips."""
    add_rate: Annotated[Rate, DELAY] = Bps(10_000_000)
    """Additive increase per update on a 10 Gbps line; scaled with the line rate (the scaling is ours)."""

    @model_validator(mode="after")
    def _check_order(self) -> Dlcp:
        if self.t_low >= self.t_high:
            raise single_mistake("t_low", "is not below t_high", format_time(self.t_low), "t_low < t_high")
        return self

    wire = "udp"

    may_lose = True
    keeps_important = property(lambda self: self.important_must_arrive)
    repeats_important = True

    shares_bound = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 3
    receiver_bitmaps = 3
    pair_words = DlcpPair.WORDS - Pair.WORDS
    peer_words = DlcpPeer.WORDS
    host_words = DlcpHost.WORDS
    pair_at_rest = PersistentState(
        times=(DlcpPair.last_ack_at,), ahead=(DlcpPair.round_end, DlcpPair.no_reduction_until)
    )
    host_at_rest = PersistentState(times=(DlcpHost.epoch_end,), idle=(DlcpHost.epoch,))
    fresh_word = DlcpFlow.sent_once.offset
    probe_word = DlcpFlow.probes_sent.offset
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def further_dependence(settings: dict) -> str:
        """Return the dependence of the packet order on the message's number."""
        order = settings["send_order"]
        if order == "sequential":
            return ""
        what = "changes from iteration to iteration" if order == "important_first" else "is drawn for every message"
        return f'the order of packets {what} (send_order = "{order}")'

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: all packets of untagged messages are important."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the parameters; times in picoseconds, fractions and rates in 20-bit fixed point."""
        return [
            {"early": EARLY, "eager": EAGER, "on_probe": ON_PROBE}[settings["stop_policy"]],
            {"receiver": BY_RECEIVER, "dctcp": BY_MARKS, "delay": BY_DELAY}[settings["rate_control"]],
            fraction(settings["g"]),
            ONE // settings["floor"],
            settings["probe_timeout"],
            int(settings["important_must_arrive"]),
            context.base_rtt,
            context.payload + UDP_OVERHEAD,
            settings["t_low"],
            settings["t_high"],
            fraction(settings["beta"]),
            fraction(settings["ewma"]),
            max(1, settings["add_rate"] * ONE // 10_000_000_000),
            ORDERS[settings["send_order"]],
            context.payload,
            context.slowest,
        ]
