"""Where the time of programs and of Python's processes meets the network's.

A program (`gradwire.experiment.program`) is played by the engine itself, where the network is the packet engine; on
another network, and where somebody writes a job or a controller of their own, SimPy processes think in messages while
the network is compiled code that thinks in packets.  Both count the same integer picoseconds, and neither may run ahead
of what the other could still do to it:

* A process that sends at time s is heard by the network at s + h, where h is the host's software latency.  So if
  the next thing any process could do is at time P, the network may run up to P + h: nothing can enter it earlier.
* A message delivered at c is seen by its process at c, and may make it send, which enters at c + h or later.  So
  the network stops early after a delivery, having run no further than c + h.  It does so, too, when a sender has heard
  that it is done, if somebody waits for that, and when a part of a program has come to its end.

The loop alternates between the two rules.  It is exact, not an approximation with a step size: h is a delay
of the modelled host, and any h > 0 gives the same events as one global queue would.

What the network tells comes before anything else that happens at the same picosecond, in the order of message numbers,
so that nothing depends on where the network happened to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import simpy
from simpy.events import URGENT

from gradwire.experiment.program import Part
from gradwire.scenarios.errors import StallError
from gradwire.scenarios.units import Ps, format_time
from gradwire.sim.fabric.events import Event, Finished, Settled
from gradwire.sim.message import Message, unasked
from gradwire.sim.network_like import FabricLike, Track
from gradwire.sim.patience import LEAST_PS

BESIDE_TRAFFIC = 10
"""Where traffic goes on and on, nothing else would tell that a job waits in vain: one that waits for a delivery may go
without for so many times as long as a network may be silent (our choice)."""

SHOWN = 8
"""Messages and workers that a stall report lists one by one."""


class _Told(simpy.Event):
    """An event of the fabric's as a SimPy event at an absolute time, ahead of other events of that time."""

    def __init__(self, env: simpy.Environment, told: Event, handler: Callable[[Event], None]) -> None:
        super().__init__(env)
        assert self.callbacks is not None
        self.callbacks.append(lambda _: handler(told))
        self._ok = True
        self._value = told
        env.schedule(self, priority=URGENT, delay=told.time_ps - env.now)


class Coupling:
    """One SimPy environment and one fabric, advanced together.

    Attributes
    ----------
    env : the jobs' clock, integer picoseconds.
    messages : every message that processes other than players have sent, in the order of its number.
    tracks : every part that is played, or has been.
    logged : jobs and traffic of which packets are to be noted, where the fabric does so; or all.
    patience : how far the fabric runs alone before it is asked whether it is stalled, picoseconds.
    """

    def __init__(
        self,
        fabric: FabricLike,
        host_latency_ps: Ps,
        names: Sequence[str],
        logged: bool | Sequence[str] = True,
        patience_ps: Ps = LEAST_PS,
    ) -> None:
        if host_latency_ps <= 0:
            raise ValueError("the software latency is the lookahead between jobs and fabric: it must be > 0")
        self.env = simpy.Environment(initial_time=0)
        self.fabric = fabric
        self.latency = host_latency_ps
        self.names = names
        self.logged = logged
        self.patience = patience_ps
        self.messages: list[Message] = []
        self.tracks: list[Track] = []
        self._plays = hasattr(fabric, "play")
        self._under_way: dict[int, Message] = {}
        self._unsettled: dict[int, Message] = {}

    def send(self, message: Message, at_ps: Ps | None = None) -> None:
        """Hand a message to its host's NIC: it gets there after the software latency, or at `at_ps`."""
        message.released_ps = Ps(int(self.env.now) + self.latency) if at_ps is None else at_ps
        number = self.fabric.send(
            message.released_ps,
            message.src,
            message.dst,
            message.bytes,
            transport=message.transport,
            priority=message.priority,
            bound=message.bound,
            important=message.important,
            settled=message.settled is not None,
            logged=self._logged(message.job),
            share=message.share,
            pool=message.pool,
            turn=message.turn,
            since=message.since,
            **({} if message.number < 0 else {"number": message.number}),
            **({} if message.fan is None else {"fan": message.fan}),
        )
        message.number = number
        if message.sent is unasked:
            self.messages.append(message)
        self._under_way[number] = message
        if message.settled is not None:
            self._unsettled[number] = message

    def play(self, part: Part, begin: Ps | None = None) -> Track:
        """Begin to play a part of a program: by the network itself, if it can, or by processes. `begin`: when, if that
        was a little before, and where the network itself plays."""
        if hasattr(self.fabric, "play"):
            track: Track = self.fabric.play(part, self._logged(part.table.name), begin)
        else:
            from gradwire.sim.player import Player

            track = Player(part, self, len(self.tracks))
        self.tracks.append(track)
        return track

    def forget(self, track: Track) -> None:
        """A part that has come to its end is asked no more, and not in the tables any more."""
        self.tracks.remove(track)
        if hasattr(self.fabric, "forget"):
            self.fabric.forget(track)

    def at(self, time_ps: Ps, action: Callable[[Ps], None]) -> None:
        """Have something done to what is played at a time, before anything else that happens then."""
        if self._plays:
            self.fabric.agenda.add(time_ps, action)  # type: ignore[attr-defined]  # the packet engine's
            return
        if time_ps <= self.env.now:
            action(time_ps)
            return
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action(time_ps))
        self.env.schedule(event, priority=URGENT, delay=time_ps - int(self.env.now))

    def run(
        self,
        finished: Callable[[], bool],
        *,
        until: Ps | None = None,
        waiting: Callable[[], list[str]] = list,
        tick: Callable[[Ps], None] | None = None,
    ) -> bool:
        """Advance both clocks until `finished()`; True if it was reached, False at the time limit `until`.

        Parameters
        ----------
        waiting : lines for the report of a stall: who waits for what.
        tick : called with the time now and then.

        Raises
        ------
        StallError
            Nothing can happen any more, though `finished()` is false.
        """
        env, fabric = self.env, self.fabric
        limit = math.inf if until is None else until
        heard, waited = fabric.now, 0
        while not finished():
            head = env.peek()
            if not (self._under_way or self._unsettled or self._playing()):
                # no event can come: the processes are alone until they send
                if head == math.inf and until is None:
                    raise self._stall("no message is under way", waiting())
                if head >= limit:
                    return False
                env.step()
                continue
            before = fabric.now
            alone = head == math.inf
            target = max(before, int(env.now)) + self.patience if alone else int(head) + self.latency
            events = fabric.run(Ps(int(min(target, limit))))
            if fabric.deadlock:
                raise self._stall(fabric.deadlock, waiting())
            for each in sorted(events, key=_by_time):
                _Told(env, each, self._hear)
            now = fabric.now
            while env.peek() < now:
                env.step()
            if tick is not None:
                tick(now)
            jobs = self._left_of_jobs()
            if not jobs or jobs != waited or not self._traffic():
                heard, waited = now, jobs
            elif now - heard > BESIDE_TRAFFIC * self.patience and now < limit:
                raise self._stall(f"jobs have heard nothing since {format_time(heard)}", waiting())
            if alone and not events:
                if now >= limit:
                    return False
                if fabric.stalled or fabric.idle or now <= before:
                    nothing = "no packet is on its way and no timer is set" if fabric.idle else "time stands still"
                    raise self._stall(fabric.stalled or nothing, waiting())
            elif now >= limit:
                return finished()
        return True

    def settle(self, end: Ps) -> None:
        """Bring the network to `end`, at the end of a run: what it has counted must not depend on where it has rested
        meanwhile, to be looked at or for other reasons. Nobody hears of deliveries any more."""
        while self.fabric.now < end:
            before = self.fabric.now
            self.fabric.run(end)
            if self.fabric.now <= before:
                return

    @property
    def now(self) -> Ps:
        """The jobs' time."""
        return Ps(int(self.env.now))

    @property
    def under_way(self) -> int:
        """Messages handed to the fabric and not delivered yet, those of programs that the network plays aside."""
        return len(self._under_way)

    def describe(self, message: Message) -> str:
        """A message in words."""
        what = (
            f"tensor {message.tensor} part {message.part}" if message.tensor >= 0 else f"part {message.part}"
        )
        return (
            f"message {message.number} of job {message.job}: {message.kind} of {what}, iteration "
            f"{message.iteration}, {self.names[message.src]} -> {self.names[message.dst]}, "
            f"{message.bytes} bytes, since {format_time(message.start_ps)}"
        )

    def _logged(self, job: str) -> bool:
        return self.logged if isinstance(self.logged, bool) else job in self.logged

    def _playing(self) -> bool:
        """Whether the network plays something that has not come to its end."""
        return self._plays and not all(track.finished for track in self.tracks)

    def _traffic(self) -> bool:
        return any(not len(track.part.hosts) for track in self.tracks)

    def _left_of_jobs(self) -> int:
        """Messages that jobs wait for, as far as they are known; 0 while any of them computes."""
        return len(self._under_way) + int(getattr(self.fabric, "jobs_left", 0))

    def _hear(self, delivery: Event) -> None:
        if isinstance(delivery, Settled):
            settled = self._unsettled.pop(delivery.message)
            assert settled.settled is not None
            settled.settled(settled)
            return
        if isinstance(delivery, Finished):
            return
        message = self._under_way.pop(delivery.message)
        message.end_ps = delivery.time_ps
        message.received_bytes = delivery.received_bytes
        message.lost_bytes = delivery.lost_bytes
        message.arrived(message)

    def _stall(self, why: str, waiting: list[str]) -> StallError:
        now = format_time(max(self.now, self.fabric.now))
        lines = [f"the simulation can make no progress at {now}: {why}"]
        lines += _some(waiting, "waiting workers")
        lines += _some([self.describe(message) for message in self._under_way.values()], "messages under way")
        late = [message for number, message in self._unsettled.items() if number not in self._under_way]
        lines += _some(
            [f"{self.describe(each)}: delivered, but its sender does not know" for each in late], "such messages"
        )
        if hasattr(self.fabric, "describe_open"):
            lines += self.fabric.describe_open()
        return StallError("\n  ".join(lines))


def _by_time(told: Event) -> tuple[Ps, int, bool]:
    """A sender that hears of the end in no time does so before anybody reacts to the delivery."""
    return told.time_ps, told.message, not isinstance(told, Settled)


def _some(lines: list[str], what: str) -> list[str]:
    more = [f"... {len(lines) - SHOWN} more {what}"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more
