"""Many messages at once, and what each of them waits for: a list of flows, or the program of a collective.

A collective such as a ring all-reduce is known beforehand but for its times: which message goes where, and after
which others. Written down as arrays it runs inside the fabric: the delivery of one message starts those that waited for
it, and Python hears of the last one only. The times are the same as if a process on the host had seen each delivery
and sent the next message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def _no_edges() -> Ints:
    return np.zeros((0, 2), dtype=np.int64)


def _no_joins() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Joined:
    """All messages of a join of a program have been delivered; `message` is the one that came last."""

    program: int
    join: int
    message: int
    time_ps: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The sender of a message knows that it has nothing more to send."""

    message: int
    time_ps: int


@dataclass(frozen=True, eq=False)
class Sends:
    """n messages, in an order in which each comes after those that it waits for.

    A message starts one software latency after the last of these: its `edges` (messages delivered to its own host) and
    its `gates` (see `Fabric.release`); never before `start_ps`. One without edges and gates starts at `start_ps`.

    Attributes
    ----------
    src, dst, nbytes : int64[n]. Host, host, bytes.
    transport, priority : int64[n], or one for all.
    bound : float64[n], or one for all: fraction of the bytes that may be missing at delivery.
    patterns, pattern : bool arrays (one flag per packet: important), and int64[n]: which of them a message has; -1 or
        no array: as `important` says.
    important : whether the packets of messages without a pattern are important; None: whatever their transport sends.
    start_ps : int64[n], or one for all. In rising order over the messages without edges and gates.
    edges : int64[m, 2]: messages (before, after), with dst[before] == src[after].
    gates : int64[n], or one for all: how many releases a message waits for.
    logged : whether their packets are noted, in a fabric that does so.
    join : int64[n]: number (from 0) of the join that its delivery counts towards, -1 for none; the messages of a join
        have one destination. Python hears when the last message of a join is delivered.
    """

    src: Ints
    dst: Ints
    nbytes: Ints
    transport: Any = 0
    priority: Any = 0
    bound: Any = 0.0
    patterns: Sequence[NDArray[np.bool_]] = ()
    pattern: Ints | None = None
    important: bool | None = None
    logged: bool = True
    start_ps: Any = 0
    edges: Ints = field(default_factory=_no_edges)
    gates: Any = 0
    join: Ints = field(default_factory=_no_joins)

    def __len__(self) -> int:
        return len(self.src)

    def check(self, hosts: int) -> None:
        """Raise ValueError if the arrays do not fit together."""
        n = len(self.src)
        if not n:
            raise ValueError("no messages")
        for name in ("dst", "nbytes"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} messages")
        ends = np.concatenate((self.src, self.dst))
        if ends.min() < 0 or ends.max() >= hosts:
            raise ValueError(f"hosts {ends.min()} to {ends.max()} where there are {hosts}")
        if (self.src == self.dst).any() or np.min(self.nbytes) <= 0:
            raise ValueError("a message of no bytes, or from a host to itself")
        if len(self.edges):
            before, after = self.edges.T
            if before.min() < 0 or after.max() >= n or (before >= after).any():
                raise ValueError("an edge must lead from an earlier message to a later one")
            if (self.dst[before] != self.src[after]).any():
                raise ValueError("a message can wait for messages to its own host only")
        if len(self.join):
            if len(self.join) != n:
                raise ValueError(f"join has {len(self.join)} entries for {n} messages")
            joined = self.join >= 0
            first = np.zeros(int(self.join.max()) + 1, dtype=np.int64)
            first[self.join[joined]] = self.dst[joined]
            if (first[self.join[joined]] != self.dst[joined]).any():
                raise ValueError("the messages of a join have more than one destination")
        begins = np.broadcast_to(self.start_ps, n)[self.roots()]
        if (np.diff(begins) < 0).any():
            raise ValueError("start_ps falls")

    def roots(self) -> NDArray[np.bool_]:
        """True for messages that wait for nothing but their time."""
        free = np.broadcast_to(self.gates, len(self)) == 0
        if len(self.edges):
            free = free.copy()
            free[self.edges[:, 1]] = False
        return free
