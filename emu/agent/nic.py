"""The host's NIC, as the simulator has it: which of the host's UDP flows sends next, and when.

Strict classes; within a class the flows that have something to send take turns, one packet each; a paced flow is put
aside until its time. Messages that share a pace take their turns as one (`Group`). A packet occupies the line for its
bytes at the host's rate, so that no queue of data builds up in the host. Acknowledgements go out at once and only take
their time on the line.

Under virtual time every packet is handed to the kernel when its transmission begins. On the wall clock the schedule is
worked out up to `ahead_ns` beyond the present and sent in one call; the queue of the host's port evens it out, as long
as it does not run dry. Bursts of several into one port finish later, on average, where it does. Paced flows are not let
go early, since nothing would hold their packets back, but when late make up for some of it; not for time before they
had anything to send.
Where the kernel's TCP sends from the host as well, under virtual time, a packet is handed over when the one before has
left the card (`gradwire.emu.transports.shares_card`).
Rules about time (pacing, round trips) see the time of the schedule, not that of the call.

All of that is compiled (`gradwire.emu.agent.core.turns`). Here are its records, and what others may ask of it.
"""

from __future__ import annotations

from gradwire.components import layout as words_of
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.loop import BEGIN, HEARD, SERVE, TOOK, EpollLoop
from gradwire.emu.agent.words import Block
from gradwire.emu.system.sockets import Sender
from gradwire.scenarios.inner_units import Bps
from gradwire.scenarios.wire import speed_of

CLASSES = at.CLASSES
AHEAD_NS = 1_200_000
"""How far ahead of the ideal schedule packets are sent on the wall clock; our choice. Half of that is left when more
are sent. A port of the kernel may take two frames at once, and agents are late by a few tenths of a millisecond."""
MAKE_UP_NS = 400_000
"""So much lateness a paced flow makes up for; our choice."""
TURNS = 64
"""Room for flows and groups that are put aside, at first; our choice."""
RECORD = at.SENDER_RECORD
GAP, TIMER, DONE, SENT = (
    RECORD + word for word in (words_of.S_GAP, words_of.S_TIMER, words_of.S_DONE, words_of.S_SENT)
)


class Group:
    """The messages of one transport to one host in one class: they take their turns as one, at the pair's pace, and the
    oldest that has something to send sends.

    pair : the words of the pair (`gradwire.components.layout`: PAIR_NEXT, PAIR_GAP and the transport's own). Groups of
        other classes have the same.
    """

    __slots__ = ("block", "pair")

    def __init__(self, pair: Block, priority: int) -> None:
        self.pair, self.block = pair, Block(at.GROUP_WORDS)
        words = self.block.words
        words[at.F_IS_GROUP], words[at.F_PRIORITY], words[at.G_PAIR] = 1, priority, pair.index

    @property
    def index(self) -> int:
        """Where its record is."""
        return self.block.index

    @property
    def empty(self) -> bool:
        """Whether no member may have something to send."""
        return self.block.words[at.G_FIRST] == 0


class Flow:
    """The sender of one message, as the NIC sees it: the words that it keeps, and behind them the record of the
    message's transport and `more` words. Times in picoseconds.

    number, priority : of the message.
    group : with which it takes its turns; None: it takes them alone.
    """

    __slots__ = ("block", "group", "number", "priority")

    def __init__(self, number: int, priority: int, group: Group | None = None, more: int = 0) -> None:
        self.number, self.priority, self.group = number, priority, group
        self.block = Block(at.SENDER_BEYOND + more)
        words = self.block.words
        words[at.F_NUMBER], words[at.F_PRIORITY] = number, priority
        words[at.F_GROUP] = 0 if group is None else group.index

    @property
    def index(self) -> int:
        """Where its words are."""
        return self.block.index

    def word(self, offset: int) -> int:
        """A word of its transport's record."""
        return self.block.words[RECORD + offset]

    @property
    def gap(self) -> int:
        """Picoseconds per byte << 16 between packet starts, 0: as fast as the line."""
        return self.block.words[GAP]

    @property
    def timer(self) -> int:
        """When its rules want to be called, 0: never."""
        return self.block.words[TIMER]

    @property
    def done(self) -> bool:
        """There is nothing more to send."""
        return self.block.words[DONE] != 0

    @property
    def sent(self) -> int:
        """Packets so far."""
        return self.block.words[SENT]


class Nic:
    """The NIC of a host with a line of `rate` bit/s."""

    def __init__(
        self, loop: EpollLoop, rate: Bps, sender: Sender, *, classes: int = CLASSES, ahead_ns: int = 0
    ) -> None:
        self.rate, self.sender = rate, sender
        self.line = speed_of(rate)
        """picoseconds per byte << 16, rounded up"""
        self._loop, self._words = loop, loop.words
        self._turns: dict[int, Flow | Group] = {}
        words = self._words
        words[at.W_LINE], words[at.W_AHEAD] = self.line, ahead_ns * 1000
        words[at.W_MAKE_UP] = min(ahead_ns, MAKE_UP_NS) * 1000
        words[at.W_LAST_CLASS], words[at.W_OUT] = classes - 1, sender.index
        self._paced = Block(0)
        self._make_room(TURNS)

    def _make_room(self, turns: int) -> None:
        self._paced = self._paced.longer(turns * at.PACED_WORDS)
        self._words[at.W_PACED], self._words[at.W_PACED_ROOM] = self._paced.address, turns

    def restart(self) -> None:
        """The loop has another clock from now on, that of the run. Until when the line was taken before by the old one,
        such as by acknowledgements of the side channel, says nothing any more; it would be hours."""
        self._words[at.W_BUSY] = 0

    def begin(self, flow: Flow) -> None:
        """A flow has something to send, or may have."""
        self._know(flow)
        self._loop.enter(BEGIN, flow.index)

    def heard(self, flow: Flow) -> None:
        """News for a flow have changed its timer, or what it may send."""
        self._know(flow)
        self._loop.enter(HEARD, flow.index)

    def _know(self, flow: Flow) -> None:
        """Keep its words, and have room to put it aside."""
        turn = flow.group or flow
        self._turns[flow.index], self._turns[turn.index] = flow, turn
        if len(self._turns) > self._words[at.W_PACED_ROOM]:
            self._make_room(2 * len(self._turns))

    def took(self, nbytes: int) -> None:
        """Control packets go out, now or as soon as the line is free."""
        self._loop.enter(TOOK, nbytes)

    def time(self, nbytes: int) -> int:
        """Picoseconds that so many bytes take on the line."""
        return (nbytes * self.line + 0xFFFF) >> 16

    def serve(self) -> None:
        """Send what can be sent now, and see to it that the rest is."""
        self._loop.enter(SERVE)
