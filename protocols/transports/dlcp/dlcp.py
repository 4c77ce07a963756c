"""Declares the transport DLCP (arXiv 2008.08445, later MLT, NSDI '24) and implements its receiver, which sends Stop and
Bitmap. Loss is bounded, data arrive in any order, and congestion control is minimal.

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

The states and the order of packets are in `sender`, the rate in `rate_control`, the loss budget in `records`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import ACK, BITMAP, STOP
from gradwire.jit.records.flows import Pair
from gradwire.protocols.transports.base import ONE, Context, bit, fraction, reply, set_bit
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.dlcp.rate_control import count_sender, on_delivery
from gradwire.protocols.transports.dlcp.records import (
    BY_DELAY,
    BY_MARKS,
    BY_RECEIVER,
    EAGER,
    EARLY,
    IMPORTANT_FIRST,
    ON_PROBE,
    RANDOM,
    SEQUENTIAL,
    DlcpFlow,
    DlcpHost,
    DlcpPair,
    DlcpParameters,
    DlcpPeer,
    DlcpReceiver,
    is_affordable,
    spend,
)
from gradwire.protocols.transports.dlcp.sender import (
    ANSWER_WORDS,
    NUMBER_BITS,
    NUMBERS,
    on_control,
    on_timer,
    parts_of,
    pull,
    start,
)
from gradwire.scenarios.schema.base import Count, Flag
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.schema.job.loss_bound import LOSSY
from gradwire.scenarios.schema.network.transport_base import Gain, Transport
from gradwire.scenarios.units import Bps, PositiveTime, Ps, Rate
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_CHANNEL_BYTES, UDP_OVERHEAD

ORDERS = {"important_first": IMPORTANT_FIRST, "sequential": SEQUENTIAL, "random": RANDOM}


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
        for word in range((parts_of(words) >> 5) + 1):
            answered[word] = 0
    if bit(answered, part):
        return 0  # already answered in this period
    set_bit(answered, part)
    size = SIDE_CHANNEL_BYTES + min((receiver.packets + 7) >> 3, 4 * ANSWER_WORDS)
    return reply(BITMAP, 0, argument & 0x3FFFFF, size, 1 if part else parts_of(words))


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
    by marks; dctcp: by marks (DLCP); delay: as TIMELY (MLT). The last two also fall for losses (ours)."""
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

    must_be_below = ("t_low", "t_high")

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
