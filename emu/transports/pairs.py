"""Pairs: what the messages of one transport share at one host, and the groups that they form at its NIC.

As in the simulator (`gradwire.sim.fabric.pairs`): words that messages to one other host share, words of those that come
from one other host, and words of all that come in (see `gradwire.components.transports.base`). They are made with the
first message that needs them, begin at zero and stay for the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.components.layout import PAIR_USER
from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.nic import Group
from gradwire.emu.agent.words import Block

if TYPE_CHECKING:
    from gradwire.scenarios.schema.transport_base import Transport


class Pairs:
    """What the messages of the transport `owner` share at one host. `host`: the words of all that come in."""

    def __init__(self, owner: type[Transport]) -> None:
        self._owner = owner
        self._senders: dict[int, Block] = {}
        self._peers: dict[int, Block] = {}
        self._groups: dict[tuple[int, int], Group] = {}
        self.host = Block(owner.host_words)

    def group(self, row: MessageRow) -> Group:
        """The group of a message that is sent from here; it has the words of its pair."""
        key = row.dst, row.priority
        if key not in self._groups:
            pair = self._senders.get(row.dst) or Block(PAIR_USER + self._owner.pair_words)
            self._senders[row.dst] = pair
            self._groups[key] = Group(pair, row.priority)
        return self._groups[key]

    def peer(self, row: MessageRow) -> Block:
        """The words of the pair of a message that comes in."""
        if row.src not in self._peers:
            self._peers[row.src] = Block(self._owner.peer_words)
        return self._peers[row.src]
