"""State that messages of one transport share at one host, and their groups at its NIC.

As in the simulator (`gradwire.sim.engine.memory.pairs`), there are words shared by messages to one host, by messages
from one host, and by all incoming messages (see `gradwire.protocols.transports.base`). They are made with the first
message that needs them, start at zero and exist for the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.nic import FlowGroup
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.jit.layout import PAIR_USER

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.transport_base import Transport


class Pairs:
    """Shared state of the messages of transport `owner` at one host; `host`: the words of all incoming messages."""

    def __init__(self, owner: type[Transport]) -> None:
        self._owner = owner
        self._senders: dict[int, WordBlock] = {}
        self._peers: dict[int, WordBlock] = {}
        self._groups: dict[tuple[int, int], FlowGroup] = {}
        self.host = WordBlock(owner.host_words)

    def group(self, row: MessageRow) -> FlowGroup:
        """Return the group of a message sent from here; it has the words of its pair."""
        key = row.dst, row.priority
        if key not in self._groups:
            pair = self._senders.get(row.dst) or WordBlock(PAIR_USER + self._owner.pair_words)
            self._senders[row.dst] = pair
            self._groups[key] = FlowGroup(pair, row.priority)
        return self._groups[key]

    def peer(self, row: MessageRow) -> WordBlock:
        """Return the words of the pair of an incoming message."""
        if row.src not in self._peers:
            self._peers[row.src] = WordBlock(self._owner.peer_words)
        return self._peers[row.src]
