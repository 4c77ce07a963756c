"""`Pairs` makes and finds the state that messages of one transport between two hosts share, and their groups' records.

The words of a pair (see `gradwire.protocols.transports.base`), those of its receiving host, and the records of its
groups (see `gradwire.sim.engine.core.nic`) are made with the first message that needs them, and stay, since what a
transport has learned about a path outlives a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from gradwire.jit.records import view
from gradwire.jit.records.flows import Pair, Sender
from gradwire.jit.records.packets import with_priority
from gradwire.protocols.transports.common.persistent_state import PersistentState, relevant_states
from gradwire.scenarios.arrays import Ints
from gradwire.sim.engine.memory.records import FlowRecords

PAIR_STATE = PersistentState(ahead=(Pair.next_start,))
"""The engine's own words of a pair at its sender."""


def _at_rest(owner: type, prefix: str) -> PersistentState:
    return cast("PersistentState", getattr(owner, f"{prefix}_at_rest", PersistentState()))


class Pairs:
    """The pairs of one fabric."""

    def __init__(self, records: FlowRecords) -> None:
        self._records = records
        self._senders: dict[tuple[int, int, int], int] = {}
        self._receivers: dict[tuple[int, int, int], int] = {}
        self._hosts: dict[tuple[int, int], int] = {}
        self._groups: dict[tuple[int, int, int, int], int] = {}

    def of(self, transport: int, src: Ints, dst: Ints, priority: Ints) -> Ints:
        """Return bases for messages of a transport: int64[n, 4]. These are the pair's words at the sender, its group's
        record, the pair's words at the receiver, and the receiving host's words."""
        pairs = zip(src.tolist(), dst.tolist(), priority.tolist(), strict=True)
        return np.array([self._number_of(transport, *pair) for pair in pairs], dtype=np.int64).reshape(-1, 4)

    def _number_of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int, int, int]:
        owner = self._records.transports[transport].owner
        pair = (transport, src, dst)
        if pair not in self._senders:
            self._senders[pair] = self._records.arena.allocate(Pair.WORDS + owner.pair_words)
            self._receivers[pair] = self._records.arena.allocate(max(owner.peer_words, 1))
        host = (transport, dst)
        if host not in self._hosts:
            self._hosts[host] = self._records.arena.allocate(max(owner.host_words, 1))
        group = (*pair, priority)
        if group not in self._groups:
            self._groups[group] = self._begin(transport, self._senders[pair], src, dst, priority)
        return self._senders[pair], self._groups[group], self._receivers[pair], self._hosts[host]

    def _all_records(self) -> Iterator[tuple[int, Ints, int, PersistentState]]:
        """Yield the words of pairs at senders and receivers, and of hosts, by transport. Each as transport number,
        bases, number of words, and their classification."""
        for transport in sorted({pair[0] for pair in self._senders}):
            owner = self._records.transports[transport].owner
            for bases_by_key, words, state in (
                (self._senders, Pair.WORDS + owner.pair_words, PAIR_STATE.union(_at_rest(owner, "pair"))),
                (self._receivers, owner.peer_words, _at_rest(owner, "peer")),
                (self._hosts, owner.host_words, _at_rest(owner, "host")),
            ):
                bases = [base for key, base in sorted(bases_by_key.items()) if key[0] == transport]
                yield transport, np.array(bases, dtype=np.int64), words, state

    def relevant_state(self, anchor: int) -> list[Ints]:
        """Return the state of all pairs while nothing is under way (`relevant_states`)."""
        return relevant_states(self._all_records(), self._records.memory.state, anchor)

    def shift_times(self, by: int) -> None:
        """Delay all times in the words by `by` picoseconds; entries in the hosts' heaps become invalid."""
        state = self._records.memory.state
        for _, bases, _, persistent in self._all_records():
            persistent.shift_times(state, bases, by)
        for base in self._groups.values():
            view(Sender, state, base).armed = 0

    def _begin(self, transport: int, pair: int, src: int, dst: int, priority: int) -> int:
        """Make the record of a group, with the words that the NIC needs to list it as a flow. The NIC asks the group's
        transport whether packets queue there, so it must be that of its messages."""
        records, state = self._records, self._records.memory.state
        g = int(records.sender(records.new(src, dst)))
        sender = view(Sender, state, g)
        sender.data_header = with_priority(dst, priority)
        sender.next_ready = -1
        sender.kind = int(records.kinds(transport, np.array([src]), np.array([dst]))[0])
        sender.pair = pair
        sender.group = g
        return g
