"""`Coupling` advances SimPy processes and a network on one clock, and passes messages and deliveries between them.

The packet engine plays programs (`gradwire.workload.program`) itself. On other networks, and for user-defined jobs and
controllers, SimPy processes exchange messages while compiled code moves packets. Both count the same integer
picoseconds, and neither may run past a point at which the other could still affect it:

* A message that a process sends at time s reaches the network at s + h, where h is the host's software latency. So if
  the next thing any process could do is at time P, the network may run up to P + h.
* A process sees a message at its delivery c and may react with one that enters the network at c + h or later. So the
  network stops soon after a delivery, no later than c + h. It also stops when a sender learns that it is done, if a
  process waits for that, and at the end of a part of a program.

The loop alternates between the two rules. It is exact, not an approximation with a step size: h is a delay of the
modelled host, and any h > 0 gives the same events as one global queue.

Events of the network come before all other events of the same picosecond, ordered by message number, so that nothing
depends on where the network stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import simpy
from simpy.events import URGENT

from gradwire.scenarios.errors import StallError
from gradwire.scenarios.units import Ps, format_time
from gradwire.sim.engine.events import Event, Finished, Settled
from gradwire.sim.processes.message import Message, ignore_sent
from gradwire.sim.processes.network_interface import FabricLike, Track
from gradwire.sim.stall_timeout import MIN_STALL_TIMEOUT
from gradwire.workload.program import ProgramPart

TRAFFIC_PATIENCE_FACTOR = 10
"""Multiple of the stall timeout that a job may wait for a delivery beside endless traffic, which would otherwise hide a
stalled job (our choice)."""

MAX_LISTED = 8
"""Messages and workers that a stall report lists."""


class _NetworkEvent(simpy.Event):
    """A network event as a SimPy event at an absolute time, ahead of other events of that time."""

    def __init__(self, env: simpy.Environment, event: Event, handler: Callable[[Event], None]) -> None:
        super().__init__(env)
        assert self.callbacks is not None
        self.callbacks.append(lambda _: handler(event))
        self._ok = True
        self._value = event
        env.schedule(self, priority=URGENT, delay=event.time_ps - env.now)


class Coupling:
    """One SimPy environment and one fabric, advanced together.

    Attributes
    ----------
    env : SimPy's environment; its clock counts integer picoseconds.
    messages : messages sent by processes other than players, in order of their numbers.
    tracks : parts that are played or have been.
    logged : names of the jobs and traffic whose packets are logged, or True for all.
    patience : picoseconds that the fabric runs alone before it is checked for a stall.
    """

    def __init__(
        self,
        fabric: FabricLike,
        host_latency_ps: Ps,
        names: Sequence[str],
        logged: bool | Sequence[str] = True,
        patience_ps: Ps = MIN_STALL_TIMEOUT,
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
        """Hand a message to its host's NIC, which it enters after the software latency or at `at_ps`."""
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
        if message.sent is ignore_sent:
            self.messages.append(message)
        self._under_way[number] = message
        if message.settled is not None:
            self._unsettled[number] = message

    def play(self, part: ProgramPart, begin: Ps | None = None) -> Track:
        """Start a part of a program, played by the network if it can, else by processes. `begin`: the start, if it lies
        slightly in the past; only for networks that play programs themselves."""
        if hasattr(self.fabric, "play"):
            track: Track = self.fabric.play(part, self._logged(part.table.name), begin)
        else:
            from gradwire.sim.processes.program_player import SimpyPlayer

            track = SimpyPlayer(part, self, len(self.tracks))
        self.tracks.append(track)
        return track

    def forget(self, track: Track) -> None:
        """Forget a part that has ended; it no longer appears in the tables."""
        self.tracks.remove(track)
        if hasattr(self.fabric, "forget"):
            self.fabric.forget(track)

    def at(self, time_ps: Ps, action: Callable[[Ps], None]) -> None:
        """Call `action` at a time, before all other events of that time."""
        if self._plays:
            self.fabric.agenda.add(time_ps, action)  # type: ignore[attr-defined]  # packet engine only
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
        """Advance both clocks until `finished()`; return True if it was reached, False at the time limit `until`.

        Parameters
        ----------
        waiting : returns lines for a stall report: who waits for what.
        tick : called with the time now and then.

        Raises
        ------
        StallError
            There are no pending events, though `finished()` is false.
        """
        env, fabric = self.env, self.fabric
        limit = math.inf if until is None else until
        last_progress, last_undelivered = fabric.now, 0
        while not finished():
            head = env.peek()
            if not (self._under_way or self._unsettled or self._is_playing()):
                # the network is idle until a process sends
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
            for event in sorted(events, key=_by_time):
                _NetworkEvent(env, event, self._handle)
            now = fabric.now
            while env.peek() < now:
                env.step()
            if tick is not None:
                tick(now)
            undelivered = self._undelivered_of_jobs()
            if not undelivered or undelivered != last_undelivered or not self._has_traffic():
                last_progress, last_undelivered = now, undelivered
            elif now - last_progress > TRAFFIC_PATIENCE_FACTOR * self.patience and now < limit:
                raise self._stall(f"jobs have received nothing since {format_time(last_progress)}", waiting())
            if alone and not events:
                if now >= limit:
                    return False
                if fabric.stalled or fabric.idle or now <= before:
                    reason = "no pending events" if fabric.idle else "simulated time does not advance"
                    raise self._stall(fabric.stalled or reason, waiting())
            elif now >= limit:
                return finished()
        return True

    def settle(self, end: Ps) -> None:
        """Advance the network to `end` at the end of a run, without reacting to deliveries. So its counters do not
        depend on where the engine rested meanwhile."""
        while self.fabric.now < end:
            before = self.fabric.now
            self.fabric.run(end)
            if self.fabric.now <= before:
                return

    @property
    def now(self) -> Ps:
        """The time of the processes."""
        return Ps(int(self.env.now))

    @property
    def undelivered(self) -> int:
        """Undelivered messages, without those of programs that the network plays."""
        return len(self._under_way)

    def describe(self, message: Message) -> str:
        """Return a description of a message."""
        tensor = f"tensor {message.tensor} part {message.part}" if message.tensor >= 0 else f"part {message.part}"
        return (
            f"message {message.number} of job {message.job}: {message.kind} of {tensor}, iteration "
            f"{message.iteration}, {self.names[message.src]} -> {self.names[message.dst]}, "
            f"{message.bytes} bytes, since {format_time(message.start_ps)}"
        )

    def _logged(self, job: str) -> bool:
        return self.logged if isinstance(self.logged, bool) else job in self.logged

    def _is_playing(self) -> bool:
        """Return True if the network plays a part that has not ended."""
        return self._plays and not all(track.finished for track in self.tracks)

    def _has_traffic(self) -> bool:
        return any(not len(track.part.hosts) for track in self.tracks)

    def _undelivered_of_jobs(self) -> int:
        """Return the known messages that jobs wait for; 0 while any of them computes."""
        return len(self._under_way) + int(getattr(self.fabric, "jobs_left", 0))

    def _handle(self, delivery: Event) -> None:
        if isinstance(delivery, Settled):
            message = self._unsettled.pop(delivery.message)
            assert message.settled is not None
            message.settled(message)
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
            [f"{self.describe(message)}: delivered, but its sender does not know" for message in late],
            "unconfirmed messages",
        )
        if hasattr(self.fabric, "describe_open"):
            lines += self.fabric.describe_open()
        return StallError("\n  ".join(lines))


def _by_time(event: Event) -> tuple[Ps, int, bool]:
    """Sort key: a sender that learns of the end in no time does so before anything reacts to the delivery."""
    return event.time_ps, event.message, not isinstance(event, Settled)


def _some(lines: list[str], name: str) -> list[str]:
    more = [f"... {len(lines) - MAX_LISTED} more {name}"] if len(lines) > MAX_LISTED else []
    return lines[:MAX_LISTED] + more
