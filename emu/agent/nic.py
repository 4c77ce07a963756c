"""`Nic` registers a testbed host's flows and groups with its compiled NIC (`nic_schedule`), which orders and times
their packets.

Priority classes are strict. Within a class, flows with data take turns, one packet each; a paced flow is set aside
until its time. Messages with a common pace take one turn (`FlowGroup`). A packet occupies the line for its bytes at the
host's rate, so no queue of data builds up in the host. Acknowledgements go out at once and only take their time on the
line.

In virtual time every packet is passed to the kernel when its transmission begins. On the wall clock the schedule is
computed up to `ahead_ns` in advance and sent in one call; the queue of the host's port smooths it while it is not
empty. If it is, bursts of several flows into one port finish later on average. Paced flows are never early, since
nothing would hold their packets back, but make up for some lateness; not for time without data.
If the kernel's TCP shares the host, in virtual time, a packet is passed on when the previous one has left the NIC
(`gradwire.emu.transports.shares_nic`).
Rules about time (pacing, round trips) see the time of the schedule, not that of the call.

All of that is compiled (`gradwire.emu.agent.core.nic_schedule`). This module has its records and its Python interface.
"""

from __future__ import annotations

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.layout import NicFlow, NicGroup, PacedEntry
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.system import sockets
from gradwire.jit.records.flows import Sender
from gradwire.scenarios.inner_units import Bps
from gradwire.scenarios.wire import ps_per_byte

CLASSES = at.CLASSES
MAKE_UP_NS = 400_000
"""Maximum lateness that a paced flow makes up for; our choice."""
TURNS = 64
"""Initial capacity for flows and groups that are set aside; our choice."""


class FlowGroup:
    """The messages of one transport to one host in one class; the oldest with data sends.

    They take one turn together, at the pair's pace.

    pair : the words of the pair (`gradwire.jit.records.flows.Pair` and the transport's own), shared with the groups of
        other classes.
    record : its record at the NIC; `index` of that.
    """

    __slots__ = ("block", "index", "pair", "record")

    def __init__(self, pair: WordBlock, priority: int) -> None:
        self.pair, self.block = pair, WordBlock(NicGroup.WORDS)
        self.index = self.block.index
        self.record = NicGroup(self.block.words, 0)
        self.record.is_group, self.record.priority, self.record.pair = 1, priority, pair.index


class ScheduledFlow:
    """The sender of one message as seen by the NIC. Times in picoseconds.

    Its words are its record at the NIC, that of the message's transport, and `more` words.

    number, priority : of the message. index : of its words.
    nic_flow, record : the two records.
    group : shares its turns; None: it has turns of its own.
    """

    __slots__ = ("block", "group", "index", "nic_flow", "number", "priority", "record")

    def __init__(self, number: int, priority: int, group: FlowGroup | None = None, more: int = 0) -> None:
        self.number, self.priority, self.group = number, priority, group
        self.block = WordBlock(at.SENDER_WORDS + more)
        self.index = self.block.index
        self.nic_flow = nic_flow = NicFlow(self.block.words, 0)
        self.record = Sender(self.block.words, NicFlow.WORDS)
        nic_flow.number, nic_flow.priority = number, priority
        nic_flow.group = 0 if group is None else group.index

    @property
    def record_index(self) -> int:
        return self.index + self.record.base

    def word(self, offset: int) -> int:
        return self.block.words[self.record.base + offset]

    @property
    def gap(self) -> int:
        """Return picoseconds per byte << 16 between packet starts; 0: line rate."""
        return self.record.gap

    @property
    def timer(self) -> int:
        """Return the time at which its rules must be called; 0: never."""
        return self.record.timer

    @property
    def done(self) -> bool:
        return self.record.is_done != 0

    @property
    def sent(self) -> int:
        return self.record.sent


class Nic:
    """The NIC of a host with a line of `rate` bit/s."""

    def __init__(
        self, loop: EpollLoop, rate: Bps, sender: sockets.Sender, *, classes: int = CLASSES, ahead_ns: int = 0
    ) -> None:
        self.rate, self.sender = rate, sender
        self.line = ps_per_byte(rate)
        """picoseconds per byte << 16, rounded up"""
        self._loop, self._agent = loop, loop.agent
        self._turns: dict[int, ScheduledFlow | FlowGroup] = {}
        agent = self._agent
        agent.ps_per_byte, agent.ahead = self.line, ahead_ns * 1000
        agent.make_up = min(ahead_ns, MAKE_UP_NS) * 1000
        agent.last_class, agent.outgoing = classes - 1, sender.index
        self._paced = WordBlock(0)
        self._make_space(TURNS)

    def _make_space(self, turns: int) -> None:
        self._paced = self._paced.resized(turns * PacedEntry.WORDS)
        self._agent.paced, self._agent.paced_capacity = self._paced.index, turns

    def restart(self) -> None:
        """Reset the busy time of the line, because the loop changes to the run's clock. Otherwise packets sent before,
        such as acknowledgements of the side channel, would block the line for hours."""
        self._agent.busy_until = 0

    def begin(self, flow: ScheduledFlow) -> None:
        """Start a flow that has, or may have, data to send."""
        self._register(flow)
        self._loop.enter(at.BEGIN, flow.index)

    def update(self, flow: ScheduledFlow) -> None:
        """Update a flow after a change of its timer or its data to send."""
        self._register(flow)
        self._loop.enter(at.UPDATE, flow.index)

    def _register(self, flow: ScheduledFlow) -> None:
        """Keep the flow's words alive, and reserve space to set it aside."""
        turn = flow.group or flow
        self._turns[flow.index], self._turns[turn.index] = flow, turn
        if len(self._turns) > self._agent.paced_capacity:
            self._make_space(2 * len(self._turns))

    def add_control_bytes(self, nbytes: int) -> None:
        """Account for control packets, sent now or as soon as the line is free."""
        self._loop.enter(at.OCCUPY, nbytes)

    def serve(self) -> None:
        """Send all packets that are due, and schedule the rest."""
        self._loop.enter(at.SERVE)
