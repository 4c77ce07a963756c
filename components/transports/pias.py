"""PIAS (Bai et al., NSDI '15): DCTCP whose packets sink through the priorities as the flow sends.

A flow begins in the highest priority and is moved one lower each time the bytes it has sent pass the next threshold,
so that short flows go first without anybody knowing sizes beforehand; the congestion control is DCTCP's, unchanged.
The default thresholds are the seven for eight queues of the authors' scripts, 1059 to 2184 packets of 1460 bytes at
10 Gbps [code, by way of notes].

Our choices: bytes sent are payload, retransmissions among them, and every packet counts as a full one; the priority
that a message was given (by its layer, say) is where it begins; below priority 7 there is none. The host's NIC
knows the priorities as well: a flow that sinks leaves the line of its old class after that packet.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import model_validator

from gradwire.components.compiled import njit
from gradwire.components.layout import A_PRIORITY, BLOCKED, S_DATA, S_GAP, S_LINE, S_SENT, S_USER
from gradwire.components.transports.acknowledgements import on_data_alike
from gradwire.components.transports.base import Context
from gradwire.components.transports.dctcp import ByMarks, on_control, start
from gradwire.components.transports.recovery import pull as next_packet
from gradwire.components.transports.window import on_probe, on_timer
from gradwire.scenarios.schema.base import refuse
from gradwire.scenarios.schema.network import Thresholds
from gradwire.scenarios.units import format_size

LEVEL = S_USER + 21  # thresholds passed

# parameters, after those of DCTCP
K_PAYLOAD, K_LEVELS, K_FIRST = 6, 7, 8

LOWEST = 7
# A gap this much longer than the packet itself, in ps per byte << 16: the flow has to come back to the line of its
# class, which is another one from then on. It costs 1 to 152 ps.
LONGER = 1100


@njit
def pull(M, k, f, now):
    """As DCTCP; first the priority is that of what has been sent."""
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


class Pias(ByMarks):
    """PIAS (Bai et al., NSDI 2015): DCTCP whose packets sink through the priorities as the flow sends."""

    forgets = True
    kind: Literal["pias"]
    thresholds: Annotated[tuple[int, ...], Thresholds()] = tuple(
        packets * 1460 for packets in (1059, 1412, 1643, 1869, 2008, 2115, 2184)
    )
    """Bytes sent from which on a flow is one priority lower, then two, and so on: at most seven, rising. The default
    is for eight queues at 10 Gbps: packets of 1460 bytes [code]."""

    @model_validator(mode="after")
    def _rising(self) -> Pias:
        sizes = self.thresholds
        if len(sizes) > MOST_THRESHOLDS or any(a >= b for a, b in pairwise(sizes)):
            raise refuse(
                "thresholds", "are not rising, or too many", [format_size(size) for size in sizes],
                f"at most {MOST_THRESHOLDS} sizes, each above the one before",
            )  # fmt: skip
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
        """As DCTCP; then the payload of a packet, how many thresholds there are, and the thresholds, in bytes."""
        thresholds = settings["thresholds"]
        return [*ByMarks.parameters(settings, context), context.payload, len(thresholds), *thresholds]
