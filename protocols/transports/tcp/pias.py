"""PIAS (Bai et al., NSDI '15): DCTCP whose packets sink through the priorities as the flow sends.

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
from gradwire.jit.layout import A_PRIORITY, BLOCKED, S_DATA, S_GAP, S_LINE, S_SENT, S_USER
from gradwire.protocols.transports.base import Context
from gradwire.protocols.transports.common.delayed_acks import on_data_alike
from gradwire.protocols.transports.common.recovery import pull as next_packet
from gradwire.protocols.transports.common.window import on_probe, on_timer
from gradwire.protocols.transports.tcp.dctcp import MarkBased, on_control, start
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.network import Sizes
from gradwire.scenarios.units import format_size

LEVEL = S_USER + 21  # thresholds passed

# parameters, after those of DCTCP
K_PAYLOAD, K_LEVELS, K_FIRST = 6, 7, 8

LOWEST = 7
# A gap this much longer than the packet itself, in ps per byte << 16, makes the flow queue again, in its new class. It
# costs 1 to 152 ps.
LONGER = 1100


@njit
def pull(M, k, f, now):
    """Return the next packet as DCTCP does, after setting the priority by the bytes sent."""
    sequence = next_packet(M, k, f, now)
    if sequence == BLOCKED:
        return BLOCKED
    M[f + S_GAP] = 0
    level = M[f + LEVEL]
    sent = M[f + S_SENT] * M[k + K_PAYLOAD]
    while level < M[k + K_LEVELS] and sent >= M[k + K_FIRST + level]:
        level += 1
        priority = (M[f + S_DATA] >> A_PRIORITY) & 7
        if priority < LOWEST:
            M[f + S_DATA] += 1 << A_PRIORITY
            M[f + S_GAP] = M[f + S_LINE] + LONGER
    M[f + LEVEL] = level
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
