"""HPCC (Li et al., SIGCOMM '19) sets a paced window over RoCE by the in-band telemetry of the switches' ports.

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
from gradwire.jit.records import Word
from gradwire.jit.records.constants import BLOCKED, STAMP_MOST
from gradwire.jit.records.flows import Stamp, Stamps, stamp_at
from gradwire.protocols.transports.base import ONE, Context, fixed_mul, fraction, reply, with_piggyback
from gradwire.protocols.transports.roce.go_back_n import (
    SILENT,
    GoBackN,
    GoBackNFlow,
    GoBackNParameters,
    GoBackNReceiver,
    accept,
    on_probe,
    on_timer,
    process_answer,
)
from gradwire.protocols.transports.roce.go_back_n import pull as next_packet
from gradwire.scenarios.schema.network.transport_base import Gain
from gradwire.scenarios.wire import HPCC_ACK_BYTES, HPCC_OVERHEAD


class HpccFlow(GoBackNFlow):
    """The sender of HPCC."""

    window = Word("W: window", "bytes << 8")
    reference_window = Word("Wc: reference window, which follows W once per round trip", "bytes << 8")
    stage = Word("consecutive increases of Wc")
    load = Word("U: estimated utilisation of the most loaded link", "20-bit fraction")
    round_end = Word("Wc follows W again once more packets than this are acknowledged")
    numbered = Word("packets sent that had a slot for their stamps", "packets")
    answered = Word("of the packets with slots, all up to this one have left the network", "packets")
    initial_window = Word("first and largest window", "bytes << 8")


class HpccParameters(GoBackNParameters):
    """The parameters of HPCC."""

    eta = Word("target utilisation", "20-bit fraction")
    max_stage = Word("consecutive increases before the window is set by the utilisation")
    additive_increase = Word("W_AI, as a share of the first window", "20-bit fraction")
    floor = Word("first window over the smallest one")
    base_rtt = Word("T: base round trip", "ps")
    packet_bytes = Word("bytes on the wire of a full packet", "bytes")


SHIFT = 8  # windows are bytes << SHIFT
LONGEST = 1 << 41  # 2.2 s: upper limit of measured times, so that fractions of them in 20 bits fit a word
HIGHEST = 1 << 40  # upper limit of a utilisation
MOST_SLOTS = 4096


@njit
def _set_window(params: HpccParameters, flow: HpccFlow, window: int) -> None:
    """Set the window, within its limits, and the packet spacing."""
    window = min(max(window, flow.initial_window // params.floor, 1 << SHIFT), flow.initial_window)
    flow.window = window
    if window == flow.initial_window:
        flow.gap = flow.ps_per_byte
    else:
        flow.gap = (params.base_rtt << 16) // (window >> SHIFT)


@njit
def start(params: HpccParameters, flow: HpccFlow, now: int) -> None:
    """Start at line rate, with a window of one round trip."""
    flow.initial_window = min(max((params.base_rtt << 16) // flow.ps_per_byte, 1), 1 << 32) << SHIFT
    flow.load = ONE
    _set_window(params, flow, flow.initial_window)
    flow.reference_window = flow.window


@njit
def pull(params: HpccParameters, flow: HpccFlow, now: int) -> int:
    """Return the next packet while less than the window is in flight, and assign a slot for its stamps."""
    if (flow.nxt - flow.una) * params.packet_bytes << SHIFT >= flow.window:
        return BLOCKED
    sequence = next_packet(params, flow, now)
    if sequence != BLOCKED:
        slots = flow.stamp_mask - 1
        if flow.numbered - flow.answered < slots:
            flow.piggyback = 1 + flow.numbered % slots
            flow.numbered += 1
        else:
            flow.piggyback = flow.stamp_mask
    return sequence


@njit
def _settle(flow: HpccFlow, slot: int) -> None:
    """Release the slots up to that of an answered packet, as no earlier packet is in flight."""
    slots = flow.stamp_mask - 1
    latest = flow.numbered
    flow.answered = max(flow.answered, latest - (latest - slot) % slots)


@njit
def _store(last: Stamps, new: Stamps, hops: int) -> None:
    """Store the stamps of a packet for comparison with those of the next one."""
    last.hops = hops
    for word in range(hops * Stamp.WORDS):
        last.stamps[word] = new.stamps[word]


@njit
def _compare(last: Stamps, new: Stamps, hops: int) -> int:
    """Return 1 if the new stamps are newer, -1 if older, 0 if they cannot be compared.

    They cannot if their ports differ, or if too much time lies between them.
    """
    if hops != last.hops:
        return 0
    verdict = 1
    for hop in range(hops):
        before, after = stamp_at(last, hop), stamp_at(new, hop)
        elapsed = after.time - before.time
        if after.port != before.port or elapsed > LONGEST:
            return 0
        if elapsed <= 0:
            verdict = -1
    return verdict


@njit
def _measure(params: HpccParameters, flow: HpccFlow, slot: int) -> int:
    """Update the estimate with the stamps of a slot. Return 1 if it changed, 0 if the stamps are old, -1 if they were
    only stored."""
    last = Stamps(flow, flow.stamps)
    new = Stamps(flow, flow.stamps + slot * Stamps.WORDS)
    hops = min(new.hops, STAMP_MOST)
    verdict = _compare(last, new, hops)
    if verdict < 0:
        return 0
    if verdict == 0:
        _store(last, new, hops)
        return -1
    highest = -1
    interval = 0
    for hop in range(hops):
        before, after = stamp_at(last, hop), stamp_at(new, hop)
        elapsed = after.time - before.time
        queue = min(before.queue, after.queue, (LONGEST << 16) // after.ps_per_byte)
        busy = min((after.sent_bytes - before.sent_bytes) * after.ps_per_byte >> 16, LONGEST)
        load = (queue * after.ps_per_byte >> 16) * ONE // params.base_rtt + busy * ONE // elapsed
        if load > highest:
            highest = load
            interval = elapsed
    share = min(interval, params.base_rtt) * ONE // params.base_rtt
    flow.load += fixed_mul(min(highest, HIGHEST) - flow.load, share)
    _store(last, new, hops)
    return 1


@njit
def _steer(params: HpccParameters, flow: HpccFlow, cumulative: int) -> None:
    """Set the window by the estimate."""
    window = flow.reference_window + fixed_mul(flow.initial_window, params.additive_increase)
    stage = flow.stage + 1
    if flow.load >= params.eta or flow.stage >= params.max_stage:
        window += flow.reference_window * params.eta // max(flow.load, 1) - flow.reference_window
        stage = 0
    _set_window(params, flow, window)
    if cumulative > flow.round_end:
        flow.reference_window = flow.window
        flow.stage = stage
        flow.round_end = max(flow.round_end, flow.nxt)


@njit
def on_control(
    params: HpccParameters, flow: HpccFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement or a NACK; `sequence` is the slot of the answered packet."""
    process_answer(params, flow, kind, argument, now)
    if flow.is_done or sequence == flow.stamp_mask:
        return
    _settle(flow, sequence)
    outcome = _measure(params, flow, sequence)
    if outcome > 0:
        _steer(params, flow, argument)
    elif outcome < 0:
        flow.round_end = max(flow.round_end, flow.nxt)


@njit
def on_data(params: HpccParameters, receiver: GoBackNReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Accept the packet if it is in order; the answer carries the slot of its stamps."""
    kind = accept(receiver, sequence, size)
    if kind == SILENT:
        return 0
    return with_piggyback(reply(kind, 0, receiver.expected, 0, 1))


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
