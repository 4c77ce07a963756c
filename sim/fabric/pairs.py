"""Pairs: what the messages of one transport from one host to another share, and their groups at the sender.

The words of a pair (see `gradwire.components.transports.base`), those of its receiving host, and the records of its
groups (see `gradwire.sim.fabric.core.group`) are made with the first message that needs them, and stay, since what a
transport has learnt of a path outlives a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.components import layout as at

if TYPE_CHECKING:
    from gradwire.sim.fabric.flows import Flows


class Pairs:
    """The pairs of one fabric."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self._senders: dict[tuple[int, int, int], int] = {}
        self._receivers: dict[tuple[int, int, int], int] = {}
        self._hosts: dict[tuple[int, int], int] = {}
        self._groups: dict[tuple[int, int, int, int], int] = {}

    def of(
        self, transport: int, src: NDArray[np.int64], dst: NDArray[np.int64], priority: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], ...]:
        """Messages of a transport get records: the bases of their pairs' words at the sender, of their groups'
        records, of
        their pairs' words at the receiver, and of its host's; int64[n] each."""
        keys, which = np.unique(np.stack((src, dst, priority), axis=1), axis=0, return_inverse=True)
        found = np.array([self._of(transport, *key) for key in keys.tolist()], dtype=np.int64)[which.reshape(-1)]
        return tuple(found.T)

    def _of(self, transport: int, src: int, dst: int, priority: int) -> tuple[int, int, int, int]:
        owner: Any = self._flows.transports[transport].owner
        pair = (transport, src, dst)
        if pair not in self._senders:
            self._senders[pair] = self._flows.words.take(at.PAIR_USER + owner.pair_words)
            self._receivers[pair] = self._flows.words.take(max(owner.peer_words, 1))
        host = (transport, dst)
        if host not in self._hosts:
            self._hosts[host] = self._flows.words.take(max(owner.host_words, 1))
        group = (*pair, priority)
        if group not in self._groups:
            self._groups[group] = self._begin(self._senders[pair], src, dst, priority)
        return self._senders[pair], self._groups[group], self._receivers[pair], self._hosts[host]

    def _begin(self, pair: int, src: int, dst: int, priority: int) -> int:
        """The record of a group: enough of one for the interface to list it as it lists a flow."""
        flows, M = self._flows, self._flows.memory.M
        g = int(flows.sender(flows.new_record(src, dst)))
        M[g + at.S_DATA] = dst | priority << at.A_PRIORITY
        M[g + at.S_NEXT] = -1
        M[g + at.S_PAIR] = pair
        M[g + at.S_GROUP] = g
        return g
