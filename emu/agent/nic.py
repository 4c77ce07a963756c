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
Rules about time (pacing, round trips) see the time of the schedule, not that of the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from gradwire.components import layout as at
from gradwire.emu.agent.base import Loop, Timer
from gradwire.emu.system.sockets import Sender
from gradwire.scenarios.inner_units import Bps
from gradwire.scenarios.wire import speed_of

CLASSES = 8
AHEAD_NS = 1_200_000
"""How far ahead of the ideal schedule packets are sent on the wall clock; our choice. Half of that is left when more
are sent. A port of the kernel may take two frames at once, and agents are late by a few tenths of a millisecond."""
MAKE_UP_NS = 400_000
"""So much lateness a paced flow makes up for; our choice."""
UNLISTED, LISTED, PACED = range(3)


State = list[Any]
"""The words of a flow: integers, but for S_PAIR and its like, which are the lists that they stand for."""
RECORD = at.PARAM_WORDS
"""where a flow's record begins in its words, behind the parameters of its transport"""
PAIR_NEXT, PAIR_GAP = at.PAIR_NEXT, at.PAIR_GAP
GAP, TIMER, DONE, SENT = (RECORD + word for word in (at.S_GAP, at.S_TIMER, at.S_DONE, at.S_SENT))


class Flow(ABC):
    """The sender of one message, as the NIC sees it. Times in picoseconds.

    number, priority : of the message.
    state : the words of its transport, of which the NIC looks at four, which are properties, too:
    gap : picoseconds per byte << 16 between packet starts, 0: as fast as the line.
    timer : when `on_timer` is wanted, 0: never.
    done : there is nothing more to send.
    sent : packets so far.
    since : when it last came to have something to send.
    group : with which it takes its turns; None: it takes them alone.
    """

    __slots__ = ("armed", "group", "listed", "number", "pace", "priority", "since", "state")

    def __init__(
        self, number: int, priority: int, state: State | None = None, group: Group | None = None
    ) -> None:
        self.number, self.priority, self.group = number, priority, group
        self.state: State = [0] * (RECORD + at.SENDER_WORDS) if state is None else state
        self.pace = self.since = 0
        self.listed = UNLISTED
        self.armed: Timer | None = None

    gap = property(lambda self: self.state[GAP], lambda self, value: self.state.__setitem__(GAP, value))
    timer = property(lambda self: self.state[TIMER], lambda self, value: self.state.__setitem__(TIMER, value))
    done = property(lambda self: self.state[DONE] != 0, lambda self, value: self.state.__setitem__(DONE, int(value)))
    sent = property(lambda self: self.state[SENT], lambda self, value: self.state.__setitem__(SENT, value))

    @abstractmethod
    def pull(self, now: int) -> int:
        """What to send now: anything from 0 on, -1 for nothing."""

    @abstractmethod
    def on_timer(self, now: int) -> None:
        """The time of `timer` has come, which is 0 now."""


class SendingFlow(Flow):
    """A flow with a socket."""

    __slots__ = ()

    @abstractmethod
    def transmit(self, what: int) -> int:
        """Give what was pulled to the kernel. Returns the bytes that it occupies the line for."""


class Group:
    """The messages of one transport to one host in one class: they take their turns as one, at the pair's pace, and the
    oldest that has something to send sends.

    words : what the pair shares (`gradwire.components.layout`: PAIR_NEXT, PAIR_GAP and the transport's own). Groups of
        other classes have the same.
    members : those that may have something to send, oldest first.
    since : when it last came to have some.
    """

    __slots__ = ("listed", "members", "priority", "since", "words")

    def __init__(self, words: list[int], priority: int) -> None:
        self.words, self.priority = words, priority
        self.members: list[SendingFlow] = []
        self.listed, self.since = UNLISTED, 0

    number = property(lambda self: self.members[0].number)
    pace = property(
        lambda self: self.words[at.PAIR_NEXT], lambda self, value: self.words.__setitem__(at.PAIR_NEXT, value)
    )


def _age(flow: Flow) -> int:
    return flow.number


class Nic:
    """The NIC of a host with a line of `rate` bit/s."""

    def __init__(
        self, loop: Loop, rate: Bps, sender: Sender, *, classes: int = CLASSES, ahead_ns: int = 0
    ) -> None:
        self.loop, self.rate, self.sender = loop, rate, sender
        self.line = speed_of(rate)
        """picoseconds per byte << 16, rounded up"""
        self._last = classes - 1
        self._ahead = ahead_ns * 1000
        self._make_up = min(ahead_ns, MAKE_UP_NS) * 1000
        self._ready: list[deque[SendingFlow | Group]] = [deque() for _ in range(classes)]
        self._paced: list[tuple[int, int, SendingFlow | Group]] = []
        self._busy = 0  # the line is taken until then
        self._wake: Timer | None = None
        self._wake_at = 0
        self._serving = False
        self._pulled = 0  # what the flow that was asked last wants to send

    def restart(self) -> None:
        """The loop has another clock from now on, that of the run. Until when the line was taken before by the old one,
        such as by acknowledgements of the side channel, says nothing any more; it would be hours."""
        self._busy = 0

    def begin(self, flow: SendingFlow) -> None:
        """A flow has something to send, or may have."""
        if flow.listed != UNLISTED or flow.done:
            return
        flow.since = self.loop.scheduled() * 1000
        group = flow.group
        if group is None:
            self._list(flow)
            return
        flow.listed = LISTED
        insort(group.members, flow, key=_age)
        if group.listed == UNLISTED:
            group.since = flow.since
            self._list(group)

    def _list(self, turn: SendingFlow | Group) -> None:
        turn.listed = LISTED
        self._ready[min(turn.priority, self._last)].append(turn)

    def heard(self, flow: SendingFlow) -> None:
        """News for a flow have changed its timer, or what it may send."""
        self.arm(flow)
        self.begin(flow)

    def took(self, nbytes: int, count: int = 1) -> None:
        """Control packets go out, now or as soon as the line is free."""
        self._busy = max(self._busy, self.loop.now() * 1000) + count * self.time(nbytes)

    def time(self, nbytes: int) -> int:
        """Picoseconds that so many bytes take on the line."""
        return (nbytes * self.line + 0xFFFF) >> 16

    def arm(self, flow: SendingFlow) -> None:
        """See to it that `on_timer` is called no later than the flow wants. A timer that is put off is not moved; when
        it goes off, it is set anew."""
        wanted = flow.state[TIMER]
        if not wanted:
            return
        if flow.armed is not None:
            if flow.armed.time * 1000 <= wanted + 999:
                return
            self.loop.cancel(flow.armed)
        flow.armed = self.loop.at(-(-wanted // 1000), self._timer_of(flow))

    def _timer_of(self, flow: SendingFlow) -> Callable[[], None]:
        def fire() -> None:
            flow.armed = None
            if flow.done or not flow.timer:
                return
            if flow.timer <= self.loop.now() * 1000:
                flow.timer = 0
                flow.on_timer(self.loop.now() * 1000)
                self.begin(flow)
                self.arm(flow)
                self.serve()
            else:
                self.arm(flow)

        return fire

    def serve(self) -> None:
        """Send what can be sent now, and see to it that the rest is."""
        if self._serving:  # a flow that was stopped while it was asked
            return
        self._serving = True
        try:
            self._send(self.loop.now() * 1000)
            self.sender.flush()
            wake = self._next()
            if wake:  # also where it is past: what has arrived meanwhile comes first
                self._wake_for(wake)
        finally:
            self._serving = False

    def _next(self) -> int:
        """When something can be sent again, 0: not before there is news."""
        free = max(self._busy - self._ahead // 2, 1)
        if any(self._ready):
            return free
        return max(free, self._paced[0][0]) if self._paced else 0

    def _wake_for(self, when: int) -> None:
        if self._wake is not None:
            if self._wake_at <= when:
                return
            self.loop.cancel(self._wake)
        self._wake_at = when
        self._wake = self.loop.at(-(-when // 1000), self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.serve()

    def _send(self, now: int) -> None:
        """All transmissions that begin up to now, or as far ahead as is allowed."""
        horizon = now + self._ahead
        paced = self._paced
        while True:
            # a timer cannot be more exact than a nanosecond: what was due just before now keeps its time
            slot = self._busy if self._busy + 1000 > now else now
            if slot > horizon:
                return
            while paced and paced[0][0] <= slot:
                self._list(heappop(paced)[2])
            for ready in self._ready:
                if ready:
                    break
            else:
                return
            turn = ready[0]
            group = turn if isinstance(turn, Group) else None
            pace = turn.pace if group is None else group.words[PAIR_NEXT]
            if pace > slot:
                ready.popleft()
                turn.listed = PACED
                heappush(paced, (pace, turn.number, turn))
                continue
            # likewise what was paced for just before now, or a nanosecond would be lost with every packet
            if slot - 1000 < pace:
                slot = max(pace, self._busy)
            flow = self._oldest(turn.members, slot) if isinstance(turn, Group) else self._ask(turn, slot)
            if flow is None:
                ready.popleft()
                turn.listed = UNLISTED
                continue
            ready.rotate(-1)
            state = flow.state
            state[SENT] += 1
            nbytes = flow.transmit(self._pulled)
            self._busy = slot + (nbytes * self.line + 0xFFFF >> 16)
            gap = state[GAP] if group is None else group.words[PAIR_GAP]
            if gap:
                # what was late on the wall clock is made up for, within bounds
                due = max(pace, turn.since, slot - self._make_up)
                turn.pace = min(due, slot) + ((nbytes * gap + 0xFFFF) >> 16)
            if state[TIMER]:
                self.arm(flow)

    def _ask(self, flow: SendingFlow, slot: int) -> SendingFlow | None:
        """The flow, if it has something to send now (`_pulled`)."""
        if flow.state[DONE]:
            return None
        self._pulled = flow.pull(slot)
        if self._pulled >= 0:
            return flow
        if flow.state[TIMER]:
            self.arm(flow)
        return None

    def _oldest(self, members: list[SendingFlow], slot: int) -> SendingFlow | None:
        """The first of a group that has something to send now; those before it leave the group."""
        while members:
            flow = members[0]
            if self._ask(flow, slot):
                return flow
            flow.listed = UNLISTED
            del members[0]
        return None
