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
* the rate follows BBR's, see `ltp_rate`.

The words of the records are in `ltp_words`.
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
    R_WORDS,
    S_BITS,
    S_DONE,
    S_PACKETS,
    S_TAGS,
    S_TIMEOUTS,
    S_TIMER,
    STOP,
)
from gradwire.components.transports.base import MUST, ONE, Context, bit, reply, set_bit
from gradwire.components.transports.ltp_rate import alone, packet_time, set_rate, steer
from gradwire.components.transports.ltp_words import (
    ACKED,
    AGAIN,
    BACKOFF,
    BEGAN,
    CRITICAL,
    CURSOR,
    FIRST,
    FRESH,
    HEARD,
    IDEAL,
    K_CRITICAL,
    K_DEADLINE,
    K_INITIAL,
    K_MISSING,
    K_RTT,
    K_THRESHOLD,
    K_TIMEOUT,
    MODE,
    NORMAL,
    PASS,
    RATE,
    SMALLEST,
    SRTT,
    STARTUP,
    TIMED,
    TIMED_ACKED,
    TIMED_AT,
    WANTED,
)
from gradwire.scenarios.schema.base import Flag, refuse
from gradwire.scenarios.schema.bound import LOSSY
from gradwire.scenarios.schema.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_BYTES, UDP_OVERHEAD

MAX_BACKOFF = 8
PERIOD = 8  # bits after the point of times in units of the ideal


@njit
def start(M, k, f, now):
    """The first window's worth within a round trip."""
    M[f + PASS] = CRITICAL if M[f + S_TAGS] > 1 else NORMAL
    M[f + SRTT] = M[k + K_RTT]
    M[f + TIMED] = -1
    M[f + MODE] = STARTUP
    set_rate(M, k, f, M[k + K_INITIAL] * packet_time(M, k, f) * ONE // M[k + K_RTT])


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
        set_rate(M, k, f, M[f + RATE] >> 1)
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
            steer(M, k, f, M[f + ACKED] - M[f + TIMED_ACKED], rtt, now)
    elif M[f + TIMED] >= 0 and now - M[f + TIMED_AT] > 4 * M[f + SRTT]:
        M[f + TIMED] = -1  # lost, most likely
    if M[f + S_TIMER]:
        M[f + S_TIMER] = now + _silence(M, k, f)


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
    threshold: Annotated[float, Field(ge=0, le=100, strict=True), LOSSY] = 1.0
    """Until then the receiver waits for the whole message; from then on `fraction` of it is enough."""
    deadline: Annotated[float, Field(ge=0, le=100, strict=True), LOSSY] = 2.0
    """From then on whatever the message's bound allows is enough."""
    fraction: Annotated[Gain, LOSSY] = 0.8
    """Of the message's bytes; the bound holds as well."""
    critical_must_arrive: Annotated[Flag, LOSSY] = True
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
        """`steer` looks at the clock."""
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
