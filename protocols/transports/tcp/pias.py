"""PIAS (Bai et al., NSDI '15) runs DCTCP and lowers a flow's priority whenever its bytes sent pass a threshold.

A flow begins in the highest priority and is demoted by one each time its bytes sent pass the next threshold, so that
short flows go first without known sizes; the congestion control is DCTCP's, unchanged. The default thresholds are the
seven for eight queues of the authors' scripts, 1059 to 2184 packets of 1460 bytes at 10 Gbps [code, by way of notes].

Our choices: bytes sent are payload, retransmissions included, and every packet counts as a full one; a message starts
at its assigned priority (by its layer, for example); priority 7 is the lowest. The host's NIC uses the priorities as
well: a flow that sinks leaves the queue of its old class after that packet.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import model_validator

from gradwire.jit.compiled import njit
from gradwire.jit.records import Array, Word
from gradwire.jit.records.constants import BLOCKED
from gradwire.jit.records.packets import priority_of, with_priority
from gradwire.protocols.transports.base import Context
from gradwire.protocols.transports.common.delayed_acks import on_data_alike
from gradwire.protocols.transports.common.recovery import pull as next_packet
from gradwire.protocols.transports.common.window import WindowFlow, WindowParameters, on_probe, on_timer
from gradwire.protocols.transports.tcp.dctcp import MarkBased, on_control, start
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.network import Sizes
from gradwire.scenarios.units import format_size


class PiasFlow(WindowFlow):
    """The sender of PIAS."""

    level = Word("thresholds that the bytes sent have passed", at=21)


class PiasParameters(WindowParameters):
    """The parameters of PIAS."""

    payload = Word("payload of a full packet", "bytes")
    levels = Word("number of thresholds")
    thresholds = Array(7, "bytes sent from which on the priority is one lower each", "bytes")


LOWEST_PRIORITY = 7
# Pacing this much slower than the line (ps/B << 16) makes the flow queue again, in its new class. It costs 1 to 152 ps.
SLOWER = 1100


@njit
def pull(params: PiasParameters, flow: PiasFlow, now: int) -> int:
    """Return the next packet as DCTCP does, after setting the priority by the bytes sent."""
    sequence = next_packet(params, flow, now)
    if sequence == BLOCKED:
        return BLOCKED
    flow.gap = 0
    level = flow.level
    sent = flow.sent * params.payload
    while level < params.levels and sent >= params.thresholds[level]:
        level += 1
        priority = priority_of(flow.data_header)
        if priority < LOWEST_PRIORITY:
            flow.data_header = with_priority(flow.data_header, priority + 1)
            flow.gap = flow.ps_per_byte + SLOWER
    flow.level = level
    return sequence


MOST_THRESHOLDS = 7  # there are eight priorities


class Pias(MarkBased):
    """PIAS (Bai et al., NSDI 2015): DCTCP whose packets sink through the priorities as the flow sends."""

    forgets = True
    kind: Literal["pias"]
    thresholds: Sizes = tuple(packets * 1460 for packets in (1059, 1412, 1643, 1869, 2008, 2115, 2184))
    """Bytes sent from which on a flow is one priority lower, then two, and so on: at most seven, rising. The default is
    for eight queues at 10 Gbps: packets of 1460 bytes [code]."""

    @model_validator(mode="after")
    def _check_rising(self) -> Pias:
        sizes = self.thresholds
        if len(sizes) > MOST_THRESHOLDS or any(a >= b for a, b in pairwise(sizes)):
            raise single_mistake(
                "thresholds",
                "are not rising, or too many",
                [format_size(size) for size in sizes],
                f"at most {MOST_THRESHOLDS} sizes, each above the one before",
            )
        return self

    def classes_from(self, priority: int) -> range:
        """Return the classes of the packets of a message with this priority."""
        return range(priority, priority + len(self.thresholds) + 1)

    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data_alike)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of DCTCP; then the payload of a packet, the number of thresholds, and the thresholds in
        bytes."""
        thresholds = settings["thresholds"]
        return [*MarkBased.parameters(settings, context), context.payload, len(thresholds), *thresholds]
