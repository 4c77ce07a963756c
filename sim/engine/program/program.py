"""`Programs` loads the next steps of jobs and traffic into the engine, and opens their messages, before they start.

The engine plays loaded steps (`gradwire.sim.engine.program.track`), and writes the flow records of messages as it
releases them. Python loads the next step when the first process has reached the last known one, and opens the messages
that begin by themselves, as far as there is room, before they start. At the end of a process's known operations the
engine stops in time: being late costs speed, never exactness.
"""

from __future__ import annotations

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State
from gradwire.jit.records.programs import Process, ProgramMessage
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.events import Finished
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.memory.record_retention import OPEN
from gradwire.sim.engine.program.loaded_step import LoadedStep
from gradwire.sim.engine.program.track import PostTimer, TakeStep, Track
from gradwire.workload.program import ProgramPart

MAX_OPEN = 1 << 16  # open messages up to which later ones are opened ahead of their start
BATCH = 1 << 12  # least number to open at once, unless fewer are left


class Programs:
    """The parts that one fabric plays."""

    def __init__(self, flows: Flows, post: PostTimer) -> None:
        self.flows, self._post = flows, post
        self.take: TakeStep | None = None  # takes completed steps; without it they are kept
        self.tracks: list[Track] = []
        self._part_count = 0

    def play(self, part: ProgramPart, now: Ps, logged: bool) -> Track:
        """Begin a part."""
        track = Track(part, self._part_count, self.flows, self._post, logged)
        self._part_count += 1
        self.tracks.append(track)
        while track.due <= now:
            track.load_next_step(now)
        return track

    def forget(self, track: Track) -> None:
        """Forget a part that has ended."""
        self.tracks.remove(track)

    @property
    def _live_programs(self) -> list[tuple[Track, LoadedStep]]:
        return [(track, step) for track in self.tracks for step in track.live]

    def fill(self, now: Ps) -> None:
        """Load the steps that are due; open the messages that start now, and those that there is room for."""
        self._load(now)
        for _, step in self._live_programs:
            while step.unopened_messages and step.soonest[step.position] <= now:
                self._open_next(step, BATCH)
            left, room = len(step.soonest) - step.position, MAX_OPEN - self.flows.records.open
            if left and room >= min(left, BATCH):
                self._open_next(step, min(left, room))

    def starved(self) -> bool:
        """Return True if everything waited for the next operations of a process, which it now has."""
        state = self.flows.memory.state
        if not state[State.starved_process.offset]:
            return False
        self._load(Ps(int(view(Process, state, state[State.starved_process.offset]).starved_at)))
        return True

    def _load(self, now: Ps) -> None:
        """Load the requested steps in the order of requests, which also numbers messages, wherever the engine stops."""
        while True:
            first = min(self.tracks, key=lambda track: (track.due, track.number), default=None)
            if first is None or first.due > now:
                break
            first.load_next_step(now)
        for track in self.tracks:
            track.feed(now)

    def _open_next(self, step: LoadedStep, count: int) -> None:
        count = min(count, len(step.soonest) - step.position)
        self.flows.records.keep(OPEN, step.messages + ProgramMessage.WORDS * step.position, count)
        self.flows.arena.check()
        step.position += count

    def next_python_time(self) -> Ps:
        """Return the next time at which Python has to load or open something."""
        opens = (int(step.soonest[step.position]) for _, step in self._live_programs if step.unopened_messages)
        lays = (track.due for track in self.tracks)
        return Ps(min((*opens, *lays), default=at.FOREVER))

    @property
    def timer(self) -> Ps:
        """Time of the next timer of a program."""
        return Ps(int(self.flows.memory.state[State.next_timer.offset]))

    def finished(self) -> list[Finished]:
        """Return the parts that have ended since the last call."""
        events = []
        for track in self.tracks:
            if track.done_ps < 0 and track.finished:
                track.done_ps = track.ended_ps
                events.append(Finished(track.number, Ps(track.done_ps)))
        return events

    def closed(self, many: int) -> None:
        """Record that `many` records are free again."""
        if many:
            for track in self.tracks:
                track.sweep(self.take)
