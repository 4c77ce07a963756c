"""LTP (Chen et al., IWQoS '23, arXiv 2305.04279): messages close early, by fraction and time; gaps become zeros.

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

The words of the records are in `ltp_layout`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
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
from gradwire.protocols.transports.base import IMPORTANT_FLAG, ONE, Context, bit, reply, set_bit
from gradwire.protocols.transports.loss_tolerant.ltp_layout import (
    ACKED,
    AGAIN,
    BACKOFF,
    BEGAN,
    CRITICAL,
    CRITICAL_ARRIVED,
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
    MIN_RTT,
    MODE,
    NORMAL,
    PASS,
    RATE,
    SRTT,
    STARTUP,
    TIMED,
    TIMED_ACKED,
    TIMED_AT,
)
from gradwire.protocols.transports.loss_tolerant.ltp_rate import packet_time, set_rate, unloaded_time, update_rate
from gradwire.scenarios.schema.base import Flag, single_mistake
from gradwire.scenarios.schema.job.loss_bound import LOSSY
from gradwire.scenarios.schema.network.transport_base import Gain, Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, SIDE_CHANNEL_BYTES, UDP_OVERHEAD

MAX_BACKOFF = 8
PERIOD = 8  # bits after the point of times in units of the ideal


@njit
def start(M, k, f, now):
    """Start with the initial window spread over a round trip."""
    M[f + PASS] = CRITICAL if M[f + S_TAGS] > 1 else NORMAL
    M[f + SRTT] = M[k + K_RTT]
    M[f + TIMED] = -1
    M[f + MODE] = STARTUP
    set_rate(M, k, f, M[k + K_INITIAL] * packet_time(M, k, f) * ONE // M[k + K_RTT])


@njit
def _silence(M, k, f):
    """Return the time of silence before missing packets are retransmitted."""
    if M[f + HEARD]:
        return M[f + SRTT] >> 1
    return max(3 * M[f + SRTT], M[k + K_TIMEOUT]) << M[f + BACKOFF]


@njit
def pull(M, k, f, now):
    """Return critical packets, then the others, then unacknowledged ones."""
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
        return sequence | IMPORTANT_FLAG
    M[f + FRESH] += 1
    if M[f + TIMED] < 0:
        M[f + TIMED] = sequence
        M[f + TIMED_AT] = now
        M[f + TIMED_ACKED] = M[f + ACKED]
    return sequence


@njit
def on_timer(M, k, f, now):
    """Begin a pass over the unacknowledged packets after a silence."""
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
    """End the flow at Stop; adapt the rate to acknowledgements and postpone retransmissions."""
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
        if M[f + MIN_RTT] == 0:
            # no packet was in flight before it, so only this one came back meanwhile: no sample of the rate
            M[f + SRTT] = rtt
            M[f + MIN_RTT] = rtt
        else:
            M[f + MIN_RTT] = min(rtt, M[f + MIN_RTT])
            M[f + SRTT] += (rtt - M[f + SRTT]) >> 3
            update_rate(M, k, f, M[f + ACKED] - M[f + TIMED_ACKED], rtt, now)
    elif M[f + TIMED] >= 0 and now - M[f + TIMED_AT] > 4 * M[f + SRTT]:
        M[f + TIMED] = -1  # lost, most likely
    if M[f + S_TIMER]:
        M[f + S_TIMER] = now + _silence(M, k, f)


@njit
def _enough(M, k, r, now):
    """Return True if Early Close may deliver the message with its present losses."""
    missing = M[r + R_BYTES] - M[r + R_GOT]
    if missing == 0:
        return True
    if missing > M[r + R_ALLOWED] or (M[k + K_CRITICAL] and M[r + CRITICAL_ARRIVED] < M[r + R_IMPORTANT]):
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
    """Place the packet, acknowledge it, and close the message once enough has arrived."""
    bits = M[r + R_BITS]
    if M[r + R_DONE]:
        # missing packets stay missing; but if the sender sends a packet twice, it has missed the Stop
        late = bits + M[r + R_WORDS]
        if bit(M, bits, sequence) or bit(M, late, sequence):
            return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
        set_bit(M, late, sequence)
        return 0
    if M[r + BEGAN] == 0:
        M[r + BEGAN] = now
        M[r + IDEAL] = unloaded_time(M, k, M[r + R_BYTES], M[r + R_PACKETS])
    if bit(M, bits, sequence) == 0:
        set_bit(M, bits, sequence)
        M[r + R_GOT] += size
        tags = M[r + R_TAGS]
        if tags <= 1:
            M[r + CRITICAL_ARRIVED] += tags
        else:
            M[r + CRITICAL_ARRIVED] += bit(M, tags, sequence)
    if _enough(M, k, r, now):
        M[r + R_DONE] = 1
        return reply(STOP, 0, 0, SIDE_CHANNEL_BYTES, 1)
    return reply(ACK, ce, 0, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
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

    @model_validator(mode="after")
    def _check_order(self) -> Ltp:
        if self.threshold > self.deadline:
            raise single_mistake("threshold", "is above deadline", self.threshold, "threshold <= deadline")
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
    def further_dependence(settings: dict) -> str:
        """Return the dependence of `update_rate` on the clock."""
        return "at which place of its cycle the rate of ltp begins goes by what time it is"

    @staticmethod
    def important(settings: dict) -> bool:
        """Return False: untagged messages have no critical packets."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the parameters: bytes of a full packet; times in picoseconds; the least rate and the share that may be
        missing. Shares are in 20-bit fixed point; a byte's time is << 8, times in units of the ideal are << 8; the last
        is K_SLOWER."""
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
