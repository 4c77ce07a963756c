"""DLCP (arXiv 2008.08445, later MLT, NSDI '24): bounded loss, any order, little congestion control.

What the papers are known to say [notes]: data goes out of order straight to its place; the receiver counts bytes per
tensor and sends *Stop* once at least (1 - p) of them are there; a sender that has sent everything sends *Probe*, the
receiver answers *Bitmap* (or Stop), the sender retransmits exactly what is missing, until Stop. Control goes over a
reliable channel. Rate control is minimal: DCTCP-like AIMD (DLCP) or delay based (MLT).

Our choices, where they are silent:

* the reliable channel is the probe timer: Probe, Stop and Bitmap are never dropped by choice, and if one is lost all
  the same, the probe is repeated after max(3 srtt, `probe_timeout`), twice as long each time, but not longer than
  max(24 base round trips, `probe_timeout`): one packet in that time is no load to back off from, and what is measured
  under load says nothing about when to ask again. Data is never resent blindly;
* a repeated probe keeps its number, and any answer to that number will do, so an answer that is late is none the worse
  for a repetition. The receiver answers a number with what was there when it first heard it (nothing that it asks for
  has been sent since), and at most once per base round trip;
* a Bitmap of more than 8192 packets comes in parts. What comes of an answer is kept: after a time-out the sender asks
  for the parts that are still missing, one probe each, and for all at once only if none has come. Every part that comes
  puts the time-out off, since on a slow line the parts of one answer take longer than that. It sends again when it has
  them all. The receiver answers each such question at most once per base round trip;
* the probe travels in the class of the data, so that it queues behind what it asks about; answers use the control
  class;
* the probe is sent when all is sent and nothing has come back for half a smoothed round trip (before anything has
  been measured, the base round trip), because packets on other paths may still be late. Sent at once instead, on a
  leaf-spine of 16 hosts and 4 spines with random spraying (256 messages without loss), it asks again for 33 of 33 181
  packets of messages to 1 MB, for 178 of 663 of messages to 16 KB, and for 3603 of 33 181 where one spine has 40 % of
  the rate; the rule leaves 0, 0 and 3438, and 31, 12 and 598 probes instead of 251, 327 and 793. Waiting a whole round
  trip leaves 2485 of the 3438, and messages there take 5 % longer. The rule costs where packets are dropped (0.5
  droppable, 200 KB buffers): mean completion is 1.5 % later for messages to 1 MB, 9 % for messages to 128 KiB;
* `stop_policy = "eager"` stops at (1 - p) at once; `"on_probe"` delivers with losses only when the sender has sent
  everything, and so spends less of the allowance;
* `important_must_arrive`: a message is not complete before its important packets are there. Retransmissions are
  always important;
* rate: starts at line rate, never below line / 64. `"dctcp"`: as DCTCP with a rate for a window: down by alpha / 2 on
  the first mark of a round trip, up by one packet per round trip after one without marks. A round trip is over when a
  packet is acknowledged that was sent after it began; packets go out by their numbers, and so do those that one Bitmap
  asks for, whose first acknowledgement begins another. Drops alone do not slow it down. `"delay"`:
  TIMELY (SIGCOMM '15) with its published parameters [recalled; alpha is the weight of the new difference]. Its lower
  threshold, 50 us, is more than a 500 KB buffer can delay at 100 Gbps: on fast links with shallow buffers the rate
  then never falls, unless `t_low` and `t_high` are set to suit;
* one packet at a time is timed, also one that is sent again: its original was asked about when nothing had come back
  for a while, so an acknowledgement that is taken for the other's is rare, and without it delay control would hear
  nothing while packets are sent again.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    ACK,
    BITMAP,
    BLOCKED,
    PULL_PROBE,
    R_ALLOWED,
    R_BITS,
    R_BYTES,
    R_DONE,
    R_GOT,
    R_IMPORTANT,
    R_PACKETS,
    R_TAGS,
    R_USER,
    R_WORDS,
    S_BITS,
    S_DONE,
    S_GAP,
    S_LINE,
    S_PACKETS,
    S_PEER,
    S_TIMER,
    S_USER,
    S_WORDS,
    STOP,
)
from gradwire.components.transports.base import MUST, ONE, Context, bit, clear_bit, fraction, reply, set_bit
from gradwire.scenarios.schema.base import Count, Flag, refuse
from gradwire.scenarios.schema.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, Rate, format_time
from gradwire.scenarios.wire import DLCP_ACK_BYTES, TCP_OVERHEAD, UDP_OVERHEAD

# a sender's own words
NEW = S_USER  # the next packet that was never sent
AGAIN = S_USER + 1  # packets to send again (bitmap)
NEXT = S_USER + 2  # where this pass over the message has come to: all of it first, then what a Bitmap asked for
RATE = S_USER + 3  # share of the line rate, 20 bits fixed point
ALPHA = S_USER + 4
ACKED = S_USER + 5  # acknowledgements in this round trip
MARKED = S_USER + 6
ROUND_END = S_USER + 7  # the round trip ends when this packet, or one after it, is acknowledged
SRTT = S_USER + 8
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
PROBE = S_USER + 11  # number of the last probe
PROBING = S_USER + 12  # parts of its answer still awaited (without a timer: overdue), or IDLE, QUIET, DUE
WAIT = S_USER + 13  # until the last probe is overdue
LAST_RTT = S_USER + 14  # TIMELY
SLOPE = S_USER + 15  # TIMELY: smoothed difference of round trips
CALM = S_USER + 16  # TIMELY: round trips in a row that did not grow
REDUCED = S_USER + 17  # no lower rate for marks before this packet, or one after it, is acknowledged
PROBES = S_USER + 18  # probes sent, with repetitions
ASKING = S_USER + 19  # a repetition is under way: the part that the next probe may ask for, 0 = it has ended
# a receiver's own words
WANTED = R_USER  # important packets that arrived
ANSWERED = R_USER + 1  # number of the last probe that was answered with a Bitmap
PERIOD = R_USER + 2  # when the base round trip began in which each question is answered once

K_POLICY, K_CONTROL, K_GAIN, K_FLOOR, K_PROBE, K_IMPORTANT, K_RTT, K_PACKET = 0, 1, 2, 3, 4, 5, 6, 7
K_LOW, K_HIGH, K_BETA, K_EWMA, K_STEP = 8, 9, 10, 11, 12
EAGER, ON_PROBE = 0, 1
BY_MARKS, BY_DELAY = 0, 1

ANSWER_WORDS = 256  # bitmap words in one Bitmap packet: 8192 packets in 1 KiB
# what probes and Bitmaps carry: the number of the probe, modulo 4096, and above it the part that is asked for, counted
# from 1, or EVERYTHING
NUMBER_BITS = 12
NUMBERS = (1 << NUMBER_BITS) - 1
EVERYTHING = 0
LONGEST = 24  # base round trips before a probe is repeated, at most
HYPERACTIVE = 5
IDLE = 0
QUIET = -1  # everything is sent: a probe follows when nothing has come back for a while
DUE = -2  # send it


@njit
def start(M, k, f, now):
    """Line rate from the first packet."""
    M[f + RATE] = ONE
    M[f + S_GAP] = M[f + S_LINE]
    M[f + ALPHA] = ONE
    M[f + SRTT] = M[k + K_RTT]
    M[f + TIMED] = -1


@njit
def _silence(M, f):
    """How long it has to be quiet before a probe is worth sending."""
    return M[f + SRTT] >> 1 if M[f + LAST_RTT] else M[f + SRTT]


@njit
def _send(M, f, sequence, now):
    """A packet leaves; one at a time is timed."""
    M[f + NEXT] = sequence + 1
    if M[f + TIMED] < 0:
        M[f + TIMED] = sequence
        M[f + TIMED_AT] = now


@njit
def _parts(words):
    """Into how many parts a Bitmap is cut."""
    return (words + ANSWER_WORDS - 1) // ANSWER_WORDS


@njit
def _question(M, f, part):
    """A probe that asks for a part, or for everything."""
    M[f + PROBES] += 1
    return PULL_PROBE + (part << NUMBER_BITS | (M[f + PROBE] & NUMBERS))


@njit
def _wait(M, k, f, wait, now):
    """What has been asked is asked again after `wait`, or the longest time that is worth waiting."""
    M[f + WAIT] = min(wait, max(LONGEST * M[k + K_RTT], M[k + K_PROBE]))
    M[f + S_TIMER] = now + M[f + WAIT]


@njit
def _ask(M, k, f, now):
    """The first probe of its number: for everything."""
    words = M[f + S_WORDS]
    parts = _parts(words)
    awaited = M[f + S_BITS] + words
    M[f + PROBE] += 1
    M[f + PROBING] = parts
    for part in range(parts):
        set_bit(M, awaited, part)
    _wait(M, k, f, max(3 * M[f + SRTT], M[k + K_PROBE]), now)
    return _question(M, f, EVERYTHING)


@njit
def _ask_again(M, k, f, now):
    """The answer, or some of it, is overdue: a probe for everything, or for the next part that has not come."""
    parts = _parts(M[f + S_WORDS])
    if M[f + ASKING] == 0:
        if M[f + PROBING] == parts:
            _wait(M, k, f, 2 * M[f + WAIT], now)
            return _question(M, f, EVERYTHING)
        M[f + ASKING] = 1
    awaited = M[f + S_BITS] + M[f + S_WORDS]
    part = M[f + ASKING]
    while part <= parts and bit(M, awaited, part - 1) == 0:
        part += 1
    if part > parts:
        M[f + ASKING] = 0
        _wait(M, k, f, 2 * M[f + WAIT], now)
        return BLOCKED
    M[f + ASKING] = part + 1
    return _question(M, f, part)


@njit
def pull(M, k, f, now):
    """What the last Bitmap asked for, then new packets, then, when it has been quiet, a Probe."""
    if M[f + AGAIN] > 0 and M[f + PROBING] == IDLE:
        bits = M[f + S_BITS]
        sequence = M[f + NEXT]
        while bit(M, bits, sequence) == 0:
            sequence += 1
        clear_bit(M, bits, sequence)
        M[f + AGAIN] -= 1
        _send(M, f, sequence, now)
        return sequence | MUST
    sequence = M[f + NEW]
    if sequence < M[f + S_PACKETS]:
        M[f + NEW] = sequence + 1
        _send(M, f, sequence, now)
        return sequence
    state = M[f + PROBING]
    if state == IDLE:
        M[f + PROBING] = QUIET
        M[f + S_TIMER] = now + _silence(M, f)
    elif state == DUE:
        return _ask(M, k, f, now)
    elif state > 0 and M[f + S_TIMER] == 0:
        return _ask_again(M, k, f, now)
    return BLOCKED


@njit
def on_timer(M, k, f, now):
    """It has been quiet for long enough: probe. (The timer of a probe has done its work by being over.)"""
    if M[f + PROBING] == QUIET:
        M[f + PROBING] = DUE


@njit
def _missing(M, f, part):
    """Take one Bitmap packet: every packet it shows as missing is to be sent again."""
    bits = M[f + S_BITS]
    words = M[f + S_WORDS]
    got = M[f + S_PEER] + words  # the receiver's snapshot, its second bitmap
    packets = M[f + S_PACKETS]
    first = part * ANSWER_WORDS
    for word in range(first, min(first + ANSWER_WORDS, words)):
        valid = min(packets - (word << 5), 32)
        absent = ~M[got + word] & ((1 << valid) - 1) & ~M[bits + word]
        if absent == 0:
            continue
        M[bits + word] |= absent
        while absent:
            absent &= absent - 1
            M[f + AGAIN] += 1


@njit
def _set_rate(M, k, f, rate):
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def _by_marks(M, k, f, sequence, echo):
    """As DCTCP, with a rate for a window: the first mark of a round trip lowers it by alpha / 2, a round trip without
    marks raises it by one packet per round trip, and alpha follows the share of marks."""
    if echo and sequence >= M[f + REDUCED]:
        _set_rate(M, k, f, M[f + RATE] - (M[f + RATE] * M[f + ALPHA] >> 21))
        M[f + REDUCED] = M[f + NEXT]
    if sequence >= M[f + ROUND_END]:
        share = M[f + MARKED] * ONE // M[f + ACKED]
        M[f + ALPHA] += (share - M[f + ALPHA]) * M[k + K_GAIN] >> 20
        if M[f + MARKED] == 0 and M[f + RATE] < ONE:
            packet_time = M[k + K_PACKET] * M[f + S_LINE] >> 16
            _set_rate(M, k, f, M[f + RATE] + ONE * packet_time // M[f + SRTT])
        M[f + ACKED] = 0
        M[f + MARKED] = 0
        M[f + ROUND_END] = M[f + NEXT]


@njit
def _by_delay(M, k, f, rtt):
    """TIMELY: additive increase below T_low or while delay does not grow (five times as fast after five calm round
    trips), decrease by the slope, and by the distance to T_high above it."""
    change = rtt - M[f + LAST_RTT]
    M[f + LAST_RTT] = rtt
    M[f + SLOPE] += (change - M[f + SLOPE]) * M[k + K_EWMA] >> 20
    rate = M[f + RATE]
    if rtt < M[k + K_LOW]:
        _set_rate(M, k, f, rate + M[k + K_STEP])
    elif rtt > M[k + K_HIGH]:
        excess = ONE - M[k + K_HIGH] * ONE // rtt
        _set_rate(M, k, f, rate - (rate * (M[k + K_BETA] * excess >> 20) >> 20))
        M[f + CALM] = 0
    elif M[f + SLOPE] <= 0:
        M[f + CALM] += 1
        step = M[k + K_STEP]
        if M[f + CALM] >= HYPERACTIVE:
            step *= HYPERACTIVE
        _set_rate(M, k, f, rate + step)
    else:
        slope = min(M[f + SLOPE] * ONE // M[k + K_RTT], ONE)
        _set_rate(M, k, f, rate - (rate * (M[k + K_BETA] * slope >> 20) >> 20))
        M[f + CALM] = 0


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Stop ends the flow; Bitmap asks for packets again; acknowledgements steer the rate."""
    if kind == STOP:
        M[f + S_DONE] = 1
        M[f + S_TIMER] = 0
    elif kind == BITMAP:
        part = (argument >> NUMBER_BITS) - 1 if argument >> NUMBER_BITS else sequence
        awaited = M[f + S_BITS] + M[f + S_WORDS]
        if M[f + PROBING] > 0 and argument & NUMBERS == M[f + PROBE] & NUMBERS and bit(M, awaited, part):
            clear_bit(M, awaited, part)
            _missing(M, f, part)
            M[f + PROBING] -= 1
            if M[f + PROBING] == IDLE:
                # all of it: another pass, and nothing that is on its way is worth timing
                M[f + S_TIMER] = 0
                M[f + ASKING] = 0
                M[f + NEXT] = 0
                M[f + REDUCED] = 0
                M[f + ROUND_END] = 0
                M[f + TIMED] = -1
            elif M[f + ASKING] == 0:
                M[f + S_TIMER] = now + M[f + WAIT]
    else:
        timed = M[f + TIMED]
        if sequence == timed:
            rtt = max(now - M[f + TIMED_AT], 1)  # sockets may send a little ahead of their schedule
            M[f + TIMED] = -1
            if M[f + LAST_RTT] == 0:
                M[f + SRTT] = rtt
                M[f + LAST_RTT] = rtt
            M[f + SRTT] += (rtt - M[f + SRTT]) >> 3
            if M[k + K_CONTROL] == BY_DELAY:
                _by_delay(M, k, f, rtt)
        elif sequence > timed >= 0 and now - M[f + TIMED_AT] > 8 * M[f + SRTT]:
            # later ones have long come back: it is lost
            M[f + TIMED] = -1
        if M[f + PROBING] == QUIET:
            M[f + S_TIMER] = now + _silence(M, f)
        M[f + ACKED] += 1
        M[f + MARKED] += echo
        if M[k + K_CONTROL] == BY_MARKS:
            _by_marks(M, k, f, sequence, echo)


@njit
def _within_bound(M, k, r):
    """Whether the message may be delivered as it is."""
    if M[r + R_BYTES] - M[r + R_GOT] > M[r + R_ALLOWED]:
        return False
    return M[k + K_IMPORTANT] == 0 or M[r + WANTED] == M[r + R_IMPORTANT]


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Place the packet and count it; stop when enough is there."""
    if M[r + R_DONE]:
        return 0
    bits = M[r + R_BITS]
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
        tags = M[r + R_TAGS]
        if tags <= 1:
            M[r + WANTED] += tags
        else:
            M[r + WANTED] += bit(M, tags, sequence)
        if (M[k + K_POLICY] == EAGER and _within_bound(M, k, r)) or M[r + R_GOT] == M[r + R_BYTES]:
            M[r + R_DONE] = 1
            return reply(STOP, 0, 0, TCP_OVERHEAD, 1)
    return reply(ACK, ce, 0, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
    """Everything was sent: enough, or a Bitmap of what is there (a snapshot, which the sender reads when it hears)."""
    if M[r + R_DONE] == 0 and _within_bound(M, k, r):
        M[r + R_DONE] = 1
    if M[r + R_DONE]:
        return reply(STOP, 0, 0, TCP_OVERHEAD, 1)
    words = M[r + R_WORDS]
    bits = M[r + R_BITS]
    answered = bits + 2 * words  # the questions of this base round trip: which parts, counted from 1, or everything
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
        return 0  # one of a crowd
    set_bit(M, answered, part)
    size = TCP_OVERHEAD + min((M[r + R_PACKETS] + 7) >> 3, 4 * ANSWER_WORDS)
    return reply(BITMAP, 0, argument & 0x3FFFFF, size, 1 if part else _parts(words))


class Dlcp(Transport):
    """DLCP: bounded loss over UDP with Stop, Probe and Bitmap [notes on arXiv 2008.08445].

    Values marked "ours" are our choice, because those of the paper are not known to us.
    """

    kind: Literal["dlcp"]
    stop_policy: Literal["eager", "on_probe"] = "eager"
    """When the receiver says Stop: as soon as the bound allows (eager), or only when probed. Ours."""
    rate_control: Literal["dctcp", "delay"] = "dctcp"
    """Additive increase, multiplicative decrease on marks (DLCP), or by delay as in TIMELY (MLT)."""
    g: Gain = 0.0625
    """Weight of the newest round trip in the estimate of the marked share."""
    floor: Count = 64
    """The rate never falls below line rate over this. Ours."""
    probe_timeout: PositiveTime = 200_000_000
    """A probe is repeated after the larger of this and three smoothed round trips, twice as long each time, but within
    the larger of this and 24 base round trips; the first one follows half a smoothed round trip of silence. Ours."""
    important_must_arrive: Flag = True
    """Whether Stop also waits for every important packet, beyond the bound. Ours."""
    t_low: PositiveTime = 50_000_000
    """TIMELY's lower delay threshold [recalled], as are the next four."""
    t_high: PositiveTime = 500_000_000
    """TIMELY's upper delay threshold."""
    beta: Gain = 0.8
    """TIMELY's multiplicative decrease."""
    ewma: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.875
    """Weight of the newest difference of round trips."""
    add_rate: Rate = 10_000_000
    """Additive increase per update on a 10 Gbps line; scaled with the line rate (the scaling is ours)."""

    @model_validator(mode="after")
    def _ordered(self) -> Dlcp:
        if self.t_low >= self.t_high:
            raise refuse("t_low", "is not below t_high", format_time(self.t_low), "t_low < t_high")
        return self

    wire = "udp"

    may_lose = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 2
    receiver_bitmaps = 3
    fresh_word = NEW
    probe_word = PROBES
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Untagged messages are important throughout."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Numbers for the functions above; times in picoseconds, fractions and rates in 20-bit fixed point."""
        return [
            ON_PROBE if settings["stop_policy"] == "on_probe" else EAGER,
            BY_DELAY if settings["rate_control"] == "delay" else BY_MARKS,
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
        ]
