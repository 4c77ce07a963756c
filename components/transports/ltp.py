"""LTP (Chen et al., IWQoS '23, arXiv 2305.04279): a message is closed early, by fraction and time; holes become zeros.

What is known: packets and their acknowledgements go out of order; *Early Close* ends the reception of a message on
what has arrived and how long it took; *bubble filling* puts zeros where packets are missing [abstract]; loss is
allowed on the way to the parameter server only; there is a minimum fraction and a deadline; critical packets must
arrive; the rate is like BBR's [notes]. Normal packets are sent once, critical ones before them, and what is missing
after them [recalled].

Early Close, times counted from the first packet that arrives, in units of what the message would take alone: over
the slowest link of its paths, with this very rate control from its start-up on (`alone`, within 4 % too much), so that
an idle network loses nothing. Up to `threshold` the receiver waits for everything; from then on a
message closes as soon as it has `fraction` of its bytes, from `deadline` on as soon as its bound allows; and never
before all critical packets are there. The paper closes at the deadline whatever is missing [recalled]; here **no
message is ever delivered with more loss than its bound**, and a message with bound 0 (a pull) is delivered whole. The
paper learns its threshold from earlier rounds; connections here live for one message, so it is a parameter (ours).

Our choices besides:

* critical are the packets that the job tags as important; untagged messages have none. Zeros are filled in by the
  job;
* the receiver has no clock of its own: it judges when a packet arrives. Its Stop is repeated when a packet comes
  twice;
* everything that was not acknowledged is sent again, never droppable, when all has been sent and nothing has come
  back for half a smoothed round trip; where nothing came back at all, after max(3 srtt, `min_timeout`), twice as long
  each time;
* rate, after BBR (Cardwell et al., ACM Queue 14(5), 2016): one sample per round trip of what was acknowledged while a
  timed packet was out; the rate is a gain times the largest sample of the last 10 to 20. The gain is 2.885 until
  three round trips have brought less than a quarter more, then 1/2.885 for one, then the cycle 1.25, 0.75 and six
  times 1. There is no window beside it: instead of a limit of two bandwidth-delay products the gain is 0.75 at most
  while a round trip takes twice the smallest one.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    ACK,
    BLOCKED,
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
    S_TAGS,
    S_TIMEOUTS,
    S_TIMER,
    S_USER,
    STOP,
)
from gradwire.components.transports.base import MUST, ONE, Context, bit, reply, set_bit
from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.scenarios.schema.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_BYTES, UDP_OVERHEAD

# a sender's own words
FRESH = S_USER  # packets sent for the first time
CURSOR = S_USER + 1  # no packet of this pass below
PASS = S_USER + 2  # CRITICAL, NORMAL or AGAIN
FIRST = S_USER + 3  # everything below has been acknowledged
ACKED = S_USER + 4
HEARD = S_USER + 5  # acknowledgements in this pass
BACKOFF = S_USER + 6  # passes in a row of which nothing came back
SRTT = S_USER + 7
SMALLEST = S_USER + 8  # smallest round trip, 0 = none measured
TIMED = S_USER + 9  # the packet whose round trip is measured, -1 = none
TIMED_AT = S_USER + 10
TIMED_ACKED = S_USER + 11  # ACKED when it was sent
RATE = S_USER + 12  # share of the line rate, 20-bit fixed point
BEST = S_USER + 13  # largest sample since the filter was last turned
BEFORE = S_USER + 14  # largest sample of the ten round trips before
ROUNDS = S_USER + 15  # samples since the filter was last turned
MODE = S_USER + 16  # STARTUP, DRAIN, or place in the cycle
FULL = S_USER + 17  # the rate to be passed by a quarter
STEADY = S_USER + 18  # round trips in a row that did not
# a receiver's own words
WANTED = R_USER  # critical packets that arrived
BEGAN = R_USER + 1  # when the first packet arrived, 0 = none has
IDEAL = R_USER + 2  # what the message would take alone

K_PACKET, K_RTT, K_TIMEOUT, K_INITIAL, K_FLOOR, K_SPEED = 0, 1, 2, 3, 4, 5
K_THRESHOLD, K_DEADLINE, K_MISSING, K_CRITICAL = 6, 7, 8, 9
K_SLOWER = 10  # how often the sender's line is faster than the slowest link of its paths, << 10

CRITICAL, NORMAL, AGAIN = 0, 1, 2
STARTUP, DRAIN = -2, -1
CYCLE = 8
FILTER = 10  # round trips
MAX_BACKOFF = 8
PERIOD = 8  # bits after the point of times in units of the ideal
GAIN_STARTUP = 3_025_126  # 2 / ln 2, 20-bit fixed point
GAIN_DRAIN = 363_461
GAIN_UP, GAIN_DOWN = ONE * 5 // 4, ONE * 3 // 4
# What a cycle loses: a quarter of one of its eight round trips, since gain 1.25 does not lead above the line rate. That
# is 8 / 7.75; rounding to whole packets adds up to half a percent
CYCLE_TIME, CYCLE_SENT = 27, 26


@njit
def _set_rate(M, k, f, rate):
    rate = min(max(rate, M[k + K_FLOOR]), ONE)
    M[f + RATE] = rate
    M[f + S_GAP] = M[f + S_LINE] * ONE // rate


@njit
def _packet_time(M, k, f):
    return M[k + K_PACKET] * M[f + S_LINE] >> 16


@njit
def start(M, k, f, now):
    """The first window's worth within a round trip."""
    M[f + PASS] = CRITICAL if M[f + S_TAGS] > 1 else NORMAL
    M[f + SRTT] = M[k + K_RTT]
    M[f + TIMED] = -1
    M[f + MODE] = STARTUP
    _set_rate(M, k, f, M[k + K_INITIAL] * _packet_time(M, k, f) * ONE // M[k + K_RTT])


@njit
def _silence(M, k, f):
    """How long it has to be quiet before what is missing is sent again."""
    if M[f + HEARD]:
        return M[f + SRTT] >> 1
    return max(3 * M[f + SRTT], M[k + K_TIMEOUT]) << M[f + BACKOFF]


@njit
def pull(M, k, f, now):
    """Critical packets, then the others, then what was not acknowledged."""
    packets = M[f + S_PACKETS]
    tags = M[f + S_TAGS]
    sequence = M[f + CURSOR]
    if M[f + PASS] == CRITICAL:
        while sequence < packets and bit(M, tags, sequence) == 0:
            sequence += 1
        if sequence == packets:
            M[f + PASS] = NORMAL
            sequence = 0
    if M[f + PASS] == NORMAL:
        while tags > 1 and sequence < packets and bit(M, tags, sequence):
            sequence += 1
    elif M[f + PASS] == AGAIN:
        bits = M[f + S_BITS]
        while sequence < packets and bit(M, bits, sequence):
            sequence += 1
    if sequence == packets:
        M[f + CURSOR] = packets
        if M[f + S_TIMER] == 0:
            M[f + S_TIMER] = now + _silence(M, k, f)
        return BLOCKED
    M[f + CURSOR] = sequence + 1
    if M[f + PASS] == AGAIN:
        return sequence | MUST
    M[f + FRESH] += 1
    if M[f + TIMED] < 0:
        M[f + TIMED] = sequence
        M[f + TIMED_AT] = now
        M[f + TIMED_ACKED] = M[f + ACKED]
    return sequence


@njit
def on_timer(M, k, f, now):
    """It has been quiet for long enough: send again what was not acknowledged."""
    if M[f + HEARD]:
        M[f + BACKOFF] = 0
    else:
        M[f + S_TIMEOUTS] += 1
        _set_rate(M, k, f, M[f + RATE] >> 1)
        if M[f + BACKOFF] < MAX_BACKOFF:
            M[f + BACKOFF] += 1
    bits = M[f + S_BITS]
    first = M[f + FIRST]
    while first < M[f + S_PACKETS] and bit(M, bits, first):
        first += 1
    M[f + FIRST] = first
    M[f + CURSOR] = first
    M[f + PASS] = AGAIN
    M[f + HEARD] = 0
    M[f + TIMED] = -1


@njit
def _steer(M, k, f, delivered, rtt, now):
    """The rate after a round trip of `rtt`, in which `delivered` packets were acknowledged."""
    busy = min(delivered * _packet_time(M, k, f), rtt)
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
    _set_rate(M, k, f, best * gain >> 20)


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Stop ends the flow; acknowledgements steer the rate and put off what is sent again."""
    if kind == STOP:
        M[f + S_DONE] = 1
        M[f + S_TIMER] = 0
        return
    M[f + HEARD] += 1
    bits = M[f + S_BITS]
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[f + ACKED] += 1
    if sequence == M[f + TIMED]:
        rtt = max(now - M[f + TIMED_AT], 1)  # sockets may send a little ahead of their schedule
        M[f + TIMED] = -1
        if M[f + SMALLEST] == 0:
            # nothing was out before it, so nothing but itself came back meanwhile: no sample of the rate
            M[f + SRTT] = rtt
            M[f + SMALLEST] = rtt
        else:
            M[f + SMALLEST] = min(rtt, M[f + SMALLEST])
            M[f + SRTT] += (rtt - M[f + SRTT]) >> 3
            _steer(M, k, f, M[f + ACKED] - M[f + TIMED_ACKED], rtt, now)
    elif M[f + TIMED] >= 0 and now - M[f + TIMED_AT] > 4 * M[f + SRTT]:
        M[f + TIMED] = -1  # lost, most likely
    if M[f + S_TIMER]:
        M[f + S_TIMER] = now + _silence(M, k, f)


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


@njit
def _enough(M, k, r, now):
    """Early Close: whether the message may be delivered as it is."""
    missing = M[r + R_BYTES] - M[r + R_GOT]
    if missing == 0:
        return True
    if missing > M[r + R_ALLOWED] or (M[k + K_CRITICAL] and M[r + WANTED] < M[r + R_IMPORTANT]):
        return False
    ideal = M[r + IDEAL]
    elapsed = now - M[r + BEGAN]
    if elapsed >= ideal * M[k + K_DEADLINE] >> PERIOD:
        return True
    if elapsed < ideal * M[k + K_THRESHOLD] >> PERIOD:
        return False
    return missing <= M[r + R_BYTES] * M[k + K_MISSING] >> 20


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Place the packet, acknowledge it, close when that is enough."""
    bits = M[r + R_BITS]
    if M[r + R_DONE]:
        # what has not arrived stays missing; but the sender, if it sends a packet twice, has not heard
        late = bits + M[r + R_WORDS]
        if bit(M, bits, sequence) or bit(M, late, sequence):
            return reply(STOP, 0, 0, SIDE_BYTES, 1)
        set_bit(M, late, sequence)
        return 0
    if M[r + BEGAN] == 0:
        M[r + BEGAN] = now
        M[r + IDEAL] = alone(M, k, M[r + R_BYTES], M[r + R_PACKETS])
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
        tags = M[r + R_TAGS]
        if tags <= 1:
            M[r + WANTED] += tags
        else:
            M[r + WANTED] += bit(M, tags, sequence)
    if _enough(M, k, r, now):
        M[r + R_DONE] = 1
        return reply(STOP, 0, 0, SIDE_BYTES, 1)
    return reply(ACK, ce, 0, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
    """No probes are sent."""
    return 0


class Ltp(Transport):
    """LTP (Chen et al., IWQoS 2023): messages are closed early, by fraction and time, within their bound; over UDP.

    Times are in units of what the message would take alone, its start-up included. All values are ours.
    """

    kind: Literal["ltp"]
    threshold: Annotated[float, Field(ge=0, le=100, strict=True)] = 1.0
    """Until then the receiver waits for the whole message; from then on `fraction` of it is enough."""
    deadline: Annotated[float, Field(ge=0, le=100, strict=True)] = 2.0
    """From then on whatever the message's bound allows is enough."""
    fraction: Gain = 0.8
    """Of the message's bytes; the bound holds as well."""
    critical_must_arrive: Flag = True
    """Whether a message also waits for every important packet."""
    initial_window: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 10
    """Packets in the first round trip, evenly spaced."""
    min_timeout: PositiveTime = Ps(200_000_000)
    """When nothing at all came back, all is sent again after the larger of this and three smoothed round trips."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The rate never falls below line rate over this."""

    @model_validator(mode="after")
    def _ordered(self) -> Ltp:
        if self.threshold > self.deadline:
            raise refuse("threshold", "is above deadline", self.threshold, "threshold <= deadline")
        return self

    wire = "udp"

    may_lose = True
    repeats_important = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 1
    receiver_bitmaps = 2
    fresh_word = FRESH
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def goes_by(settings: dict) -> str:
        """`_steer` looks at the clock."""
        return "at which place of its cycle the rate of ltp begins goes by what time it is"

    @staticmethod
    def important(settings: dict) -> bool:
        """Untagged messages have no critical packets."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """A full packet in bytes; times in picoseconds; the least rate and the part that may be missing in 20-bit fixed
        point; a byte's time << 8; times in units of the ideal << 8; and K_SLOWER."""
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
