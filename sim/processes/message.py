"""`Message` declares a message as SimPy processes see it, with its contents, callbacks and outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.inner_units import Bytes, Ps

Importance = Flags | bool | None
"""Important packets of a message: one bool per packet, one for all, or None for the transport's default."""


def ignore_sent(message: Message, at_ps: Ps) -> None:
    """Ignore the call: default of `Message.sent`."""


@dataclass(slots=True, eq=False)
class Message:
    """One tensor partition or ring segment from one host to another. The sender fills in the fields up to `arrived`;
    the others are filled in on the way."""

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
    """called when the sender knows that it is done; a scheduler gets its credit back then"""
    start_ps: Ps = Ps(-1)
    """when its host had it ready, before the scheduler and the software latency"""
    released_ps: Ps = Ps(-1)
    """when it enters its host's NIC, after the scheduler's wait and the software latency"""
    end_ps: Ps = Ps(-1)
    number: int = -1
    """the fabric's number of the message"""
    fan: tuple[int, int] | None = None
    """an aggregation group of the fabric, and the message's position in it"""
    transport: int = 0
    """the fabric's number of the transport"""
    received_bytes: Bytes = Bytes(0)
    lost_bytes: Bytes = Bytes(0)
    sent: Callable[[Message, Ps], None] = ignore_sent
    """called when the message has its number, with the time at which it enters its host's NIC"""
    share: float | None = None
    """share of a loss budget; `pool` is the budget's number, for `turn` see `gradwire.workload.program.Messages`"""
    pool: int = 0
    turn: int | None = None
    since: Ps = Ps(0)
    """origin of time for breaking ties between simultaneous packets"""
