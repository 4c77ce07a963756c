"""A message as SimPy processes have it: what is to be sent, who is told of it, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.inner_units import Bytes, Ps

Importance = Flags | bool | None
"""Important packets of a message: one bool each, one for all, or None: whatever its transport sends."""


def unasked(message: Message, at_ps: Ps) -> None:
    """What `Message.sent` is where nobody wants to know."""


@dataclass(slots=True, eq=False)
class Message:
    """One tensor partition or ring segment from one host to another.

    Filled in by whoever sends it, up to `arrived`; the rest is filled in on the way.
    """

    job: str
    kind: str
    """push, pull, reduce_scatter, all_gather, flow"""
    iteration: int
    tensor: int
    """-1 for ring segments"""
    part: int
    src: int
    """node ids"""
    dst: int
    bytes: Bytes
    priority: int
    bound: float
    """fraction of the bytes that may be lost"""
    important: Importance
    arrived: Callable[[Message], None]
    """called at the time of delivery"""
    settled: Callable[[Message], None] | None = None
    """called when the sender knows that it is done: how a scheduler gets its credit back"""
    start_ps: Ps = Ps(-1)
    """when it was ready at its host (before the scheduler and the software latency)"""
    released_ps: Ps = Ps(-1)
    """when it enters its host's NIC, the scheduler's waiting and the software latency over"""
    end_ps: Ps = Ps(-1)
    number: int = -1
    """the fabric's message id"""
    fan: tuple[int, int] | None = None
    """one that the fabric has made, and the message's place in it"""
    transport: int = 0
    """the fabric's number of the transport"""
    received_bytes: Bytes = Bytes(0)
    lost_bytes: Bytes = Bytes(0)
    sent: Callable[[Message, Ps], None] = unasked
    """called when it has its number, with the time at which it enters its host's NIC"""
    share: float | None = None
    """its own part of a budget, and the number of that; `turn` as well: see `gradwire.experiment.program.Messages`"""
    pool: int = 0
    turn: int | None = None
    since: Ps = Ps(0)
    """from when on time counts where its packets arrive at the same time as others"""
