"""HPCC (Li et al., SIGCOMM '19): a paced window by in-band telemetry of the switches' ports, over RoCE.

Every packet collects a stamp at each switch it passes (in-band telemetry): the port, the bytes queued behind it, the
bytes the port had sent before, the time, and the speed. The acknowledgement returns the stamps. The rule [recalled;
checked against the authors' Internet draft and their ns-3 code [code]], with T the unloaded round trip:

* for each port on the path, compared with the stamps of the previous acknowledgement: u = (sending rate) / speed + (the
  smaller of the two queues) / (speed T). The largest u counts, and moves the estimate U by its share of T: U += (u - U)
  min(tau, T) / T, with tau the time between the two stamps of that port;
* W = Wc eta / U + W_AI if U >= eta, or after `max_stage` consecutive increases of Wc; else W = Wc + W_AI. Every
  acknowledgement sets W; Wc follows only once per round trip, with the first acknowledgement of a packet sent after the
  last update;
* the sender has less than W in flight when it sends a packet, and sends at W / T.

W starts at the bandwidth-delay product of the host's line, which it never exceeds [code]. eta = 0.95, five stages. W_AI
is (1 - eta) / `flows` of the first window: this number of flows grows into the spare 5 % without a queue; 100 flows are
our choice (the paper's 80 bytes are close to it at 100 Gbps).

Choices: T is the unloaded round trip of the longest path, the same for all flows as in the paper; a window counts bytes
on the wire; U starts at 1 [code]; no window below the first one over `floor` (ours; ns-3 has a smallest rate). If the
ports on the path have changed, the new stamps are only stored for comparison (the purpose of the path number in the
paper's header), as they are after 2 s of silence; stamps that have overtaken others are ignored. Losses change no
window [code].

The stamps of a packet are in a slot, whose number it carries. A slot must not be reused while its packet may be in
flight: slots are used in turn, and if all have been used since the latest answered packet, packets use the last slot,
which is never read. Slot 0 stores the stamps for comparison.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.layout import (
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
from gradwire.protocols.transports.base import ONE, Context, fraction, reply, with_piggyback
from gradwire.protocols.transports.roce.go_back_n import (
    EXPECTED,
    K_OWN,
    NXT,
    SENDER_WORDS_END,
    SILENT,
    UNA,
    GoBackN,
    accept,
    on_probe,
    on_timer,
    process_answer,
)
from gradwire.protocols.transports.roce.go_back_n import pull as next_packet
from gradwire.scenarios.schema.network.transport_base import Gain
from gradwire.scenarios.wire import HPCC_ACK_BYTES, HPCC_OVERHEAD

# a sender's own words; windows are bytes << 8
WINDOW = SENDER_WORDS_END
REFERENCE = SENDER_WORDS_END + 1  # Wc
STAGE = SENDER_WORDS_END + 2  # consecutive increases of Wc
LOAD = SENDER_WORDS_END + 3  # U, 20-bit fixed point
UPDATED = SENDER_WORDS_END + 4  # Wc follows again once more than this is acknowledged
NUMBERED = SENDER_WORDS_END + 5  # packets sent with a slot of their own
ANSWERED = SENDER_WORDS_END + 6  # all of these up to here are no longer in flight
LIMIT = SENDER_WORDS_END + 7  # the first window

# parameters, after those of go-back-N
K_ETA, K_STAGES, K_GROWTH = K_OWN, K_OWN + 1, K_OWN + 2
K_FLOOR, K_RTT, K_PACKET = K_OWN + 3, K_OWN + 4, K_OWN + 5

SHIFT = 8
LONGEST = 1 << 41  # 2.2 s: upper limit of measured times, so that fractions of them in 20 bits fit a word
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
    """Start at line rate, with a window of one round trip."""
    M[f + LIMIT] = min(max((M[k + K_RTT] << 16) // M[f + S_LINE], 1), 1 << 32) << SHIFT
    M[f + LOAD] = ONE
    _set_window(M, k, f, M[f + LIMIT])
    M[f + REFERENCE] = M[f + WINDOW]


@njit
def pull(M, k, f, now):
    """Return the next packet while less than the window is in flight, and assign a slot for its stamps."""
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
    """Release the slots up to that of an answered packet, as no earlier packet is in flight."""
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
    """Compare two rows of stamps: return 1 if the second is newer, -1 if older, 0 if they do not compare. They do not
    compare if their ports differ, or if too much time lies between them."""
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
    """Update the estimate with the stamps of a slot. Returns 1 if it changed, 0 if the stamps are old, -1 if they are
    the first."""
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
    """Set the window by the estimate."""
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
    """Process an acknowledgement or a NACK; `sequence` is the slot of the answered packet."""
    process_answer(M, k, f, kind, argument, now)
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
    """Accept the packet if it is in order; the answer carries the slot of its stamps."""
    kind = accept(M, r, sequence, size)
    if kind == SILENT:
        return 0
    return with_piggyback(reply(kind, 0, M[r + EXPECTED], 0, 1))


class Hpcc(GoBackN):
    """HPCC (Li et al., SIGCOMM 2019): a paced window by in-band telemetry of the switches' ports; over RoCE. [recalled]
    unless marked; the rule is that of the authors' ns-3 code and their Internet draft [code]."""

    switches_between = 6

    forgets = True
    kind: Literal["hpcc"]
    eta: Gain = 0.95
    """Target utilisation."""
    max_stage: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    """Consecutive round trips of additive increase before the window is set by the utilisation again."""
    flows: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 100
    """Flows that may share a link without a queue. A window grows by (1 - eta) / flows of the first window per step."""
    floor: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1000
    """The window is at least the first one over this. Ours."""

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
        """Return True: packets are never dropped selectively; marks are ignored."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of go-back-N; then fractions in 20-bit fixed point, round trip (ps), bytes of a full packet."""
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
        """Return the number of slots: a first window of packets, and the two special slots, the first and the last."""
        window = min(context.base_rtt, LONGEST) * (1 << 16) // context.speed
        packets = -(-window // (context.payload + HPCC_OVERHEAD)) + 4
        return min(1 << (packets - 1).bit_length(), MOST_SLOTS)
