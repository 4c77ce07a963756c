"""HPCC (Li et al., SIGCOMM '19): a paced window by what the switches say about their ports, over RoCE.

Every packet collects a stamp at each switch it passes (in-band telemetry): the port, the bytes that waited behind it,
the bytes the port had sent before, the time, and the speed. The acknowledgement brings the stamps back. The rule
[recalled; checked against the authors' Internet draft and their ns-3 code [code]], with T the unloaded round trip:

* for each port on the way, compared with the stamps of the acknowledgement before: u = (rate at which it sent) /
  speed + (the smaller of the two queues) / (speed T). The largest u counts, and moves the estimate U by its share of T:
  U += (u - U) min(tau, T) / T, tau being the time between the two stamps of that port;
* W = Wc eta / U + W_AI if U >= eta, or when Wc has grown `max_stage` times in a row; else W = Wc + W_AI. Every
  acknowledgement sets W; Wc follows it only once per round trip, with the first acknowledgement of a packet that was
  sent after it followed last;
* the sender has less than W in flight when it sends a packet, and sends at W / T.

W starts at the bandwidth-delay product of the host's line, which it never exceeds [code]. eta = 0.95, five stages. W_AI
is (1 - eta) / `flows` of the first window: that many flows grow into the spare 5 % without a queue; 100 of them are
ours (the paper's 80 bytes are near it at 100 Gbps).

Choices: T is the unloaded round trip of the longest path, the same for all flows as the paper asks; a window counts
bytes on the wire; U starts at 1 [code]; no window below the first one over `floor` (ours; ns-3 has a smallest rate).
When the ports on the way are other ones than before, the new stamps are only kept to compare with (as the path number
of the paper's header is for), and so they are after 2 s of silence; stamps that have overtaken others say nothing.
Losses change no window [code].

The stamps of a packet are in a slot, whose number it carries. A slot must not be given away while its packet may be on
its way: they are used in turn, and when all have been used since the latest packet that was answered, packets go with
the last slot, which nobody reads. Slot 0 keeps the stamps to compare with.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    BLOCKED,
    S_DONE,
    S_GAP,
    S_LINE,
    S_RIDER,
    S_SLOTS,
    S_STAMPS,
    SLOT_FIRST,
    SLOT_HOPS,
    SLOT_WORDS,
    STAMP_BYTES,
    STAMP_MOST,
    STAMP_PORT,
    STAMP_QUEUE,
    STAMP_SPEED,
    STAMP_TIME,
    STAMP_WORDS,
)
from gradwire.components.transports.base import ONE, Context, fraction, reply, with_rider
from gradwire.components.transports.go_back_n import (
    EXPECTED,
    K_OWN,
    NXT,
    OWN,
    SILENT,
    UNA,
    GoBackN,
    hear,
    on_probe,
    on_timer,
    take,
)
from gradwire.components.transports.go_back_n import pull as next_packet
from gradwire.scenarios.schema.transport_base import Gain
from gradwire.scenarios.wire import HPCC_ACK_BYTES, HPCC_OVERHEAD

# a sender's own words; windows are bytes << 8
WINDOW = OWN
REFERENCE = OWN + 1  # Wc
STAGE = OWN + 2  # times Wc has grown in a row
LOAD = OWN + 3  # U, 20-bit fixed point
UPDATED = OWN + 4  # Wc follows again when more than this is acknowledged
NUMBERED = OWN + 5  # packets sent with a slot of their own
ANSWERED = OWN + 6  # all of these up to here are no longer on their way
LIMIT = OWN + 7  # the first window

# parameters, after those of go-back-N
K_ETA, K_STAGES, K_GROWTH = K_OWN, K_OWN + 1, K_OWN + 2
K_FLOOR, K_RTT, K_PACKET = K_OWN + 3, K_OWN + 4, K_OWN + 5

SHIFT = 8
LONGEST = 1 << 41  # 2.2 s: no longer time is measured, so that fractions of it in 20 bits fit a word
HIGHEST = 1 << 40  # of a load
MOST_SLOTS = 4096


@njit
def _set_window(M, k, f, window):
    window = min(max(window, M[f + LIMIT] // M[k + K_FLOOR], 1 << SHIFT), M[f + LIMIT])
    M[f + WINDOW] = window
    if window == M[f + LIMIT]:
        M[f + S_GAP] = M[f + S_LINE]
    else:
        M[f + S_GAP] = (M[k + K_RTT] << 16) // (window >> SHIFT)


@njit
def start(M, k, f, now):
    """What the line carries in a round trip, at line rate."""
    M[f + LIMIT] = min(max((M[k + K_RTT] << 16) // M[f + S_LINE], 1), 1 << 32) << SHIFT
    M[f + LOAD] = ONE
    _set_window(M, k, f, M[f + LIMIT])
    M[f + REFERENCE] = M[f + WINDOW]


@njit
def pull(M, k, f, now):
    """The next packet, while less than the window is in flight, and the slot for its stamps."""
    if (M[f + NXT] - M[f + UNA]) * M[k + K_PACKET] << SHIFT >= M[f + WINDOW]:
        return BLOCKED
    sequence = next_packet(M, k, f, now)
    if sequence != BLOCKED:
        turns = M[f + S_SLOTS] - 1
        if M[f + NUMBERED] - M[f + ANSWERED] < turns:
            M[f + S_RIDER] = 1 + M[f + NUMBERED] % turns
            M[f + NUMBERED] += 1
        else:
            M[f + S_RIDER] = M[f + S_SLOTS]
    return sequence


@njit
def _settle(M, f, slot):
    """The packet of this slot has been answered, and so none sent before is on its way."""
    turns = M[f + S_SLOTS] - 1
    latest = M[f + NUMBERED]
    M[f + ANSWERED] = max(M[f + ANSWERED], latest - (latest - slot) % turns)


@njit
def _keep(M, last, new, hops):
    M[last + SLOT_HOPS] = hops
    for word in range(SLOT_FIRST, SLOT_FIRST + hops * STAMP_WORDS):
        M[last + word] = M[new + word]


@njit
def _comparable(M, last, new, hops):
    """1 when two rows of stamps are of the same ports and the second is younger, -1 when it is older; 0 when they have
    nothing to do with each other."""
    if hops != M[last + SLOT_HOPS]:
        return 0
    verdict = 1
    for hop in range(hops):
        at = SLOT_FIRST + hop * STAMP_WORDS
        passed = M[new + at + STAMP_TIME] - M[last + at + STAMP_TIME]
        if M[new + at + STAMP_PORT] != M[last + at + STAMP_PORT] or passed > LONGEST:
            return 0
        if passed <= 0:
            verdict = -1
    return verdict


@njit
def _measure(M, k, f, slot):
    """Take the stamps of a slot into the estimate. Returns 1 if they say something; 0, or -1 if they are the first."""
    last = M[f + S_STAMPS]
    new = last + slot * SLOT_WORDS
    hops = min(M[new + SLOT_HOPS], STAMP_MOST)
    verdict = _comparable(M, last, new, hops)
    if verdict < 0:
        return 0
    if verdict == 0:
        _keep(M, last, new, hops)
        return -1
    highest = -1
    time = 0
    for hop in range(hops):
        a = last + SLOT_FIRST + hop * STAMP_WORDS
        b = new + SLOT_FIRST + hop * STAMP_WORDS
        speed = M[b + STAMP_SPEED]
        passed = M[b + STAMP_TIME] - M[a + STAMP_TIME]
        queue = min(M[a + STAMP_QUEUE], M[b + STAMP_QUEUE], (LONGEST << 16) // speed)
        busy = min((M[b + STAMP_BYTES] - M[a + STAMP_BYTES]) * speed >> 16, LONGEST)
        load = (queue * speed >> 16) * ONE // M[k + K_RTT] + busy * ONE // passed
        if load > highest:
            highest = load
            time = passed
    share = min(time, M[k + K_RTT]) * ONE // M[k + K_RTT]
    M[f + LOAD] += (min(highest, HIGHEST) - M[f + LOAD]) * share >> 20
    _keep(M, last, new, hops)
    return 1


@njit
def _steer(M, k, f, cumulative):
    """The window by the estimate."""
    window = M[f + REFERENCE] + (M[f + LIMIT] * M[k + K_GROWTH] >> 20)
    stage = M[f + STAGE] + 1
    if M[f + LOAD] >= M[k + K_ETA] or M[f + STAGE] >= M[k + K_STAGES]:
        window += M[f + REFERENCE] * M[k + K_ETA] // max(M[f + LOAD], 1) - M[f + REFERENCE]
        stage = 0
    _set_window(M, k, f, window)
    if cumulative > M[f + UPDATED]:
        M[f + REFERENCE] = M[f + WINDOW]
        M[f + STAGE] = stage
        M[f + UPDATED] = max(M[f + UPDATED], M[f + NXT])


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """An acknowledgement or a refusal; `sequence` is the slot of the packet that it answers."""
    hear(M, k, f, kind, argument, now)
    if M[f + S_DONE] or sequence == M[f + S_SLOTS]:
        return
    _settle(M, f, sequence)
    news = _measure(M, k, f, sequence)
    if news > 0:
        _steer(M, k, f, argument)
    elif news < 0:
        M[f + UPDATED] = max(M[f + UPDATED], M[f + NXT])


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Take the packet if it is its turn; the answer says which slot its stamps are in."""
    kind = take(M, r, sequence, size)
    if kind == SILENT:
        return 0
    return with_rider(reply(kind, 0, M[r + EXPECTED], 0, 1))


class Hpcc(GoBackN):
    """HPCC (Li et al., SIGCOMM 2019): a paced window by what switches tell about their ports; over RoCE.

    [recalled] unless marked; the rule as the authors' ns-3 and their Internet draft have it [code].
    """

    switches_between = 6

    forgets = True
    kind: Literal["hpcc"]
    eta: Gain = 0.95
    """The utilisation it aims at."""
    max_stage: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    """So many round trips of additive increase follow each other before the window is set by the utilisation again."""
    flows: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 100
    """Flows that may share a link without a queue: a window grows by (1 - eta) / flows of the first window per step."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The window never falls below the first one over this. Ours."""

    control_bytes = HPCC_ACK_BYTES
    data_overhead = HPCC_OVERHEAD
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Packets are never dropped by choice; marks are not looked at."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """As go-back-N; then fractions in 20-bit fixed point, the round trip in picoseconds, a full packet in bytes."""
        eta = settings["eta"]
        return [
            *GoBackN.parameters(settings, context),
            fraction(eta),
            settings["max_stage"],
            max(1, fraction((1 - eta) / settings["flows"])),
            settings["floor"],
            min(context.base_rtt, LONGEST),
            context.payload + HPCC_OVERHEAD,
        ]

    @staticmethod
    def stamp_slots(settings: dict, context: Context) -> int:
        """A first window of packets, and those that have another use: the first slot and the last."""
        window = min(context.base_rtt, LONGEST) * (1 << 16) // context.speed
        packets = -(-window // (context.payload + HPCC_OVERHEAD)) + 4
        return min(1 << (packets - 1).bit_length(), MOST_SLOTS)
