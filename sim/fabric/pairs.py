"""Pairs: what the messages of one transport from one host to another share, and their groups at the sender.

The words of a pair (see `gradwire.components.transports.base`), those of its receiving host, and the records of its
groups (see `gradwire.sim.fabric.core.group`) are made with the first message that needs them, and stay, since what a
transport has learnt of a path outlives a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from gradwire.components import layout as at
from gradwire.components.transports.at_rest import AtRest, told_of
from gradwire.scenarios.arrays import Ints
from gradwire.sim.fabric.records import FlowRecords

PAIR_AT_REST = AtRest(ahead=(at.PAIR_NEXT,))
"""What is the engine's of a pair's words at its sender."""


def _at_rest(owner: type, what: str) -> AtRest:
    return cast("AtRest", getattr(owner, f"{what}_at_rest", AtRest()))


class Pairs:
    """The pairs of one fabric."""

    def __init__(self, records: FlowRecords) -> None:
        self._records = records
        self._senders: dict[tuple[int, int, int], int] = {}
        self._receivers: dict[tuple[int, int, int], int] = {}
        self._hosts: dict[tuple[int, int], int] = {}
        self._groups: dict[tuple[int, int, int, int], int] = {}

    def of(self, transport: int, src: Ints, dst: Ints, priority: Ints) -> Ints:
        """Those of messages of a transport: int64[n, 4], the bases of their pairs' words at the sender, of their
        groups' records, of their pairs' words at the receiver, and of its host's."""
        pairs = zip(src.tolist(), dst.tolist(), priority.tolist(), strict=True)
        return np.array([self._of(transport, *pair) for pair in pairs], dtype=np.int64).reshape(-1, 4)

    def _of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int, int, int]:
        owner = self._records.transports[transport].owner
        pair = (transport, src, dst)
        if pair not in self._senders:
            self._senders[pair] = self._records.arena.allocate(at.PAIR_USER + owner.pair_words)
            self._receivers[pair] = self._records.arena.allocate(max(owner.peer_words, 1))
        host = (transport, dst)
        if host not in self._hosts:
            self._hosts[host] = self._records.arena.allocate(max(owner.host_words, 1))
        group = (*pair, priority)
        if group not in self._groups:
            self._groups[group] = self._begin(transport, self._senders[pair], src, dst, priority)
        return self._senders[pair], self._groups[group], self._receivers[pair], self._hosts[host]

    def _words(self) -> Iterator[tuple[int, Ints, int, AtRest]]:
        """The words of pairs at senders and at receivers, and of hosts, of each transport: its number, bases, how many,
        and which of these are what."""
        for transport in sorted({pair[0] for pair in self._senders}):
            owner = self._records.transports[transport].owner
            for known, many, which in (
                (self._senders, at.PAIR_USER + owner.pair_words, PAIR_AT_REST.and_of(_at_rest(owner, "pair"))),
                (self._receivers, owner.peer_words, _at_rest(owner, "peer")),
                (self._hosts, owner.host_words, _at_rest(owner, "host")),
            ):
                bases = [base for key, base in sorted(known.items()) if key[0] == transport]
                yield transport, np.array(bases, dtype=np.int64), many, which

    def told(self, anchor: int) -> list[Ints]:
        """How they stand while nothing is under way (`told_of`)."""
        return told_of(self._words(), self._records.memory.M, anchor)

    def later(self, by: int) -> None:
        """What they know of times is so many picoseconds later; what their hosts' heaps had of them is over."""
        M = self._records.memory.M
        for _, bases, _, which in self._words():
            which.later(M, bases, by)
        for base in self._groups.values():
            M[base + at.S_ARMED] = 0

    def _begin(self, transport: int, pair: int, src: int, dst: int, priority: int) -> int:
        """Make the record of a group: enough of one for the NIC to list it as it lists a flow.

        The NIC asks the group's transport whether packets queue there, so it has to be the one of its messages.
        """
        records, M = self._records, self._records.memory.M
        g = int(records.sender(records.new(src, dst)))
        M[g + at.S_DATA] = dst | priority << at.A_PRIORITY
        M[g + at.S_NEXT] = -1
        M[g + at.S_KIND] = int(records.kinds(transport, np.array([src]), np.array([dst]))[0])
        M[g + at.S_PAIR] = pair
        M[g + at.S_GROUP] = g
        return g
