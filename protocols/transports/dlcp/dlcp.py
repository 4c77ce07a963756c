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

The order and number of packets are in `packet_order`, the rate in `rate_control`, the budget that messages share in
`loss_budget`, and the words of the records in `layout`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
    ACK,
    BITMAP,
    BLOCKED,
    PULL_PROBE,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_GOT,
    R_IMPORTANT,
    R_PACKETS,
    R_TAGS,
    R_WORDS,
    S_BITS,
    S_DONE,
    S_PACKETS,
    S_PEER,
    S_TAGS,
    S_TIMER,
    S_WORDS,
    STOP,
)
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE, Context, bit, clear_bit, fraction, reply, set_bit
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.dlcp.layout import (
    ANSWERED,
    ANSWERED_MIDWAY,
    ASKED,
    AWAITED,
    BY_DELAY,
    BY_MARKS,
    BY_RECEIVER,
    EAGER,
    EARLY,
    H_ENDS,
    H_EPOCH,
    HOST_WORDS,
    IMPORTANT_ARRIVED,
    IMPORTANT_FIRST,
    K_IMPORTANT,
    K_POLICY,
    K_PROBE,
    K_RTT,
    MIDWAY,
    NEW,
    NEXT_QUERY,
    ON_PROBE,
    PAIR_WORDS,
    PEER_WORDS,
    PERIOD,
    PROBE,
    PROBES,
    PROBING,
    Q_HEARD,
    Q_QUIET,
    Q_ROUND,
    RANDOM,
    REACHED,
    RESEND,
    RESEND_FROM,
    RESENDS_LEFT,
    SENDER_BITMAPS,
    SENT,
    SEQUENTIAL,
    TIMED,
    TIMED_AT,
    WAIT,
    WAITING,
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
# argument of probes and Bitmaps: the number of the probe, modulo 4096, and above it the requested part, counted from 1,
# or EVERYTHING
NUMBER_BITS = 12
NUMBERS = (1 << NUMBER_BITS) - 1
EVERYTHING = 0
LONGEST = 24  # base round trips before a probe is repeated, at most
ORDERS = {"important_first": IMPORTANT_FIRST, "sequential": SEQUENTIAL, "random": RANDOM}
IDLE = 0
QUIET = -1  # everything is sent: a probe follows after a silence
DUE = -2  # a probe is to be sent now


@njit
def start(M, k, f, now):
    begin(M, k, f, now)
    first_pass(M, k, f)
    M[f + TIMED] = -1


@njit
def _send(M, f, sequence, now):
    """Record a transmission; one packet at a time is timed. Return MUST if it was sent before."""
    if M[f + TIMED] < 0:
        M[f + TIMED] = sequence
        M[f + TIMED_AT] = now
    sent = M[f + S_BITS] + SENT * M[f + S_WORDS]
    if bit(M, sent, sequence):
        return IMPORTANT_FLAG
    set_bit(M, sent, sequence)
    M[f + NEW] += 1
    return 0


@njit
def _parts(words):
    return (words + ANSWER_WORDS - 1) // ANSWER_WORDS


@njit
def _question(M, f, part):
    """Return a probe for one part or for everything."""
    M[f + PROBES] += 1
    return PULL_PROBE + (part << NUMBER_BITS | (M[f + PROBE] & NUMBERS))


@njit
def _wait(M, k, f, wait, now):
    """Set the time until the probe is repeated, up to a maximum."""
    M[f + WAIT] = min(wait, max(LONGEST * M[k + K_RTT], M[k + K_PROBE]))
    M[f + S_TIMER] = now + M[f + WAIT]


@njit
def _ask(M, k, f, now):
    """Return the first probe with a new number, for everything."""
    words = M[f + S_WORDS]
    parts = _parts(words)
    awaited = M[f + S_BITS] + AWAITED * words
    M[f + PROBE] += 1
    M[f + PROBING] = parts
    for part in range(parts):
        set_bit(M, awaited, part)
    _wait(M, k, f, max(3 * smoothed(M, f), M[k + K_PROBE]), now)
    return _question(M, f, EVERYTHING)


@njit
def _ask_again(M, k, f, now):
    """Repeat an overdue probe: for everything, or for the next missing part."""
    parts = _parts(M[f + S_WORDS])
    if M[f + NEXT_QUERY] == 0:
        if M[f + PROBING] == parts:
            _wait(M, k, f, 2 * M[f + WAIT], now)
            return _question(M, f, EVERYTHING)
        M[f + NEXT_QUERY] = 1
    awaited = M[f + S_BITS] + AWAITED * M[f + S_WORDS]
    part = M[f + NEXT_QUERY]
    while part <= parts and bit(M, awaited, part - 1) == 0:
        part += 1
    if part > parts:
        M[f + NEXT_QUERY] = 0
        _wait(M, k, f, 2 * M[f + WAIT], now)
        return BLOCKED
    M[f + NEXT_QUERY] = part + 1
    return _question(M, f, part)


@njit
def _repeat(M, f, now):
    """Return the next important packet reported missing in the middle of the pass."""
    resend = M[f + S_BITS] + RESEND * M[f + S_WORDS]
    sequence = M[f + RESEND_FROM]
    while bit(M, resend, sequence) == 0:
        sequence += 1
    M[f + RESEND_FROM] = sequence + 1
    M[f + RESENDS_LEFT] -= 1
    return sequence | _send(M, f, sequence, now)


@njit
def pull(M, k, f, now):
    """Return the packets of this pass, then, after a silence, a Probe."""
    state = M[f + PROBING]
    if state == DUE:
        return _ask(M, k, f, now)
    if state > 0 and M[f + S_TIMER] == 0:
        question = _ask_again(M, k, f, now)
        if question != BLOCKED:
            return question
    if M[f + RESENDS_LEFT]:
        return _repeat(M, f, now)
    if state == IDLE or M[f + MIDWAY] == ASKED:
        sequence = next_packet(M, k, f)
        if sequence != BLOCKED:
            if M[f + MIDWAY] == REACHED:
                M[f + MIDWAY] = WAITING
                M[f + S_TIMER] = now + silence(M, f)
            return sequence | _send(M, f, sequence, now)
    if state == IDLE:
        M[f + PROBING] = QUIET
        M[f + S_TIMER] = now + silence(M, f)
    return BLOCKED


@njit
def on_timer(M, k, f, now):
    """Make a probe due after the silence. (A probe's own timer only has to expire.)"""
    if M[f + PROBING] == QUIET:
        M[f + PROBING] = DUE
    elif M[f + PROBING] == IDLE and M[f + MIDWAY] == WAITING:
        M[f + PROBING] = DUE
        M[f + MIDWAY] = ASKED


@njit
def _missing(M, f, part):
    """Record the missing packets of one part of a Bitmap for retransmission."""
    words = M[f + S_WORDS]
    resend = M[f + S_BITS] + RESEND * words
    got = M[f + S_PEER] + words  # the receiver's snapshot, its second bitmap
    packets = M[f + S_PACKETS]
    first = part * ANSWER_WORDS
    for word in range(first, min(first + ANSWER_WORDS, words)):
        valid = min(packets - (word << 5), 32)
        missing = ~M[got + word] & ((1 << valid) - 1)
        if M[f + MIDWAY] == ASKED:
            missing &= M[M[f + S_TAGS] + word]
            M[f + RESENDS_LEFT] += ones(missing)
        M[resend + word] = missing


@njit
def _hear_bitmap(M, k, f, sequence, argument, now):
    """Process a part of an answer; the last one begins another pass."""
    part = (argument >> NUMBER_BITS) - 1 if argument >> NUMBER_BITS else sequence
    awaited = M[f + S_BITS] + AWAITED * M[f + S_WORDS]
    if M[f + PROBING] <= 0 or argument & NUMBERS != M[f + PROBE] & NUMBERS or bit(M, awaited, part) == 0:
        return
    clear_bit(M, awaited, part)
    _missing(M, f, part)
    M[f + PROBING] -= 1
    if M[f + PROBING] == IDLE:
        # packets in flight are not worth timing
        M[f + S_TIMER] = 0
        M[f + NEXT_QUERY] = 0
        M[f + TIMED] = -1
        if M[f + MIDWAY] == ASKED:
            M[f + MIDWAY] = ANSWERED_MIDWAY
            M[f + RESEND_FROM] = 0
        else:
            begin_resend_pass(M, k, f)
    elif M[f + NEXT_QUERY] == 0:
        M[f + S_TIMER] = now + M[f + WAIT]


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """End the flow at Stop, retransmit for a Bitmap, adapt the rate to acknowledgements."""
    if kind == STOP:
        M[f + S_DONE] = 1
        M[f + S_TIMER] = 0
    elif kind == BITMAP:
        _hear_bitmap(M, k, f, sequence, argument, now)
    else:
        timed = M[f + TIMED]
        if sequence == timed:
            M[f + TIMED] = -1
            on_rtt_sample(M, k, f, max(now - M[f + TIMED_AT], 1))  # sockets may send a little ahead of their schedule
        elif timed >= 0 and now - M[f + TIMED_AT] > 8 * smoothed(M, f):
            M[f + TIMED] = -1  # later packets were acknowledged long ago: it is lost
        if M[f + PROBING] == QUIET:
            M[f + S_TIMER] = now + silence(M, f)
        on_acknowledgement(M, k, f, argument, echo, now)


@njit
def _within_bound(M, k, r):
    """Return True if the message may be delivered with its present losses."""
    if not is_affordable(M, r, M[r + R_BYTES] - M[r + R_GOT]):
        return False
    return M[k + K_IMPORTANT] == 0 or M[r + IMPORTANT_ARRIVED] == M[r + R_IMPORTANT]


@njit
def _deliver(M, r):
    M[r + R_DONE] = 1
    spend(M, r, M[r + R_BYTES] - M[r + R_GOT])
    on_delivery(M, r)


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Place the packet and count it; send Stop once enough has arrived."""
    if M[r + R_DONE]:
        return 0
    senders = count_sender(M, k, r, now)
    bits = M[r + R_BITS]
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
        tags = M[r + R_TAGS]
        if tags <= 1:
            M[r + IMPORTANT_ARRIVED] += tags
        else:
            M[r + IMPORTANT_ARRIVED] += bit(M, tags, sequence)
        if (M[k + K_POLICY] != ON_PROBE and _within_bound(M, k, r)) or M[r + R_GOT] == M[r + R_BYTES]:
            _deliver(M, r)
            return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    return reply(ACK, ce, senders, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
    """Answer a probe with Stop, or with a Bitmap: a snapshot that the sender reads when the answer arrives."""
    if M[r + R_DONE] == 0 and _within_bound(M, k, r):
        _deliver(M, r)
    if M[r + R_DONE]:
        return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    words = M[r + R_WORDS]
    bits = M[r + R_BITS]
    answered = bits + 2 * words  # the queries of this base round trip: parts, counted from 1, or everything
    part = argument >> NUMBER_BITS
    ahead = (argument - M[r + ANSWERED]) & NUMBERS
    if ahead > NUMBERS >> 1:
        return 0  # overtaken by a later probe, whose snapshot the sender may be reading
    if ahead:
        M[r + ANSWERED] += ahead
        for word in range(words):
            M[bits + words + word] = M[bits + word]
    if ahead or now >= M[r + PERIOD] + M[k + K_RTT]:
        M[r + PERIOD] = now
        for word in range((_parts(words) >> 5) + 1):
            M[answered + word] = 0
    if bit(M, answered, part):
        return 0  # already answered in this period
    set_bit(M, answered, part)
    size = SIDE_CHANNEL_BYTES + min((M[r + R_PACKETS] + 7) >> 3, 4 * ANSWER_WORDS)
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
    sender_bitmaps = SENDER_BITMAPS
    receiver_bitmaps = 3
    pair_words = PAIR_WORDS
    peer_words = PEER_WORDS
    host_words = HOST_WORDS
    pair_at_rest = PersistentState(times=(Q_HEARD,), ahead=(Q_ROUND, Q_QUIET))
    host_at_rest = PersistentState(times=(H_ENDS,), idle=(H_EPOCH,))
    fresh_word = NEW
    probe_word = PROBES
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
