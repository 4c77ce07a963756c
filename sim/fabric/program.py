"""Programs in the engine: the parts that jobs and traffic play, step by step (`gradwire.experiment.program`).

The engine plays the steps that are laid (`gradwire.sim.fabric.track`), and gives messages their flow records as it
releases them; Python lays the next step when the first process has come to the last one that is known, and opens the
messages that begin by themselves, as far as there is room, before they start. Where a process has come to the end of
its course, the engine stops in time: being late costs speed, never exactness.
"""

from __future__ import annotations

from gradwire.components import layout as at
from gradwire.experiment.program import Part
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.events import Finished
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.keep import OPEN
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.track import Post, Take, Track

MOST_OPEN = 1 << 16  # messages that may have records before those that have not begun yet get theirs
BATCH = 1 << 12  # they are opened when there is room for so many, or for all that are left


class Programs:
    """The parts that one fabric plays."""

    def __init__(self, flows: Flows, post: Post) -> None:
        self.flows, self._post = flows, post
        self.take: Take | None = None  # steps that are over; without it they are kept
        self.tracks: list[Track] = []
        self._made = 0

    def play(self, part: Part, now: Ps, logged: bool) -> Track:
        """Begin a part."""
        track = Track(part, self._made, self.flows, self._post, logged)
        self._made += 1
        self.tracks.append(track)
        while track.due <= now:
            track.more(now)
        return track

    def forget(self, track: Track) -> None:
        """A part that has come to its end is not asked any more."""
        self.tracks.remove(track)

    @property
    def _live(self) -> list[tuple[Track, Laid]]:
        return [(track, laid) for track in self.tracks for laid in track.live]

    def fill(self, now: Ps) -> None:
        """Lay what is needed; open what starts now, and what there is room for."""
        self._lay(now)
        for _, laid in self._live:
            while laid.unopened and laid.soonest[laid.position] <= now:
                self._next(laid, BATCH)
            left, room = len(laid.soonest) - laid.position, MOST_OPEN - self.flows.records.open
            if left and room >= min(left, BATCH):
                self._next(laid, min(left, room))

    def starved(self) -> bool:
        """Whether everything waits for a process to be told how it goes on, which it is now."""
        M = self.flows.memory.M
        if not M[at.H_STARVED]:
            return False
        self._lay(Ps(int(M[M[at.H_STARVED] + at.W_ENDED])))
        return True

    def _lay(self, now: Ps) -> None:
        """Lay what has been asked for, in the order of asking: messages are numbered in it, wherever the engine
        stops."""
        while True:
            first = min(self.tracks, key=lambda track: (track.due, track.number), default=None)
            if first is None or first.due > now:
                break
            first.more(now)
        for track in self.tracks:
            track.feed(now)

    def _next(self, laid: Laid, many: int) -> None:
        many = min(many, len(laid.soonest) - laid.position)
        self.flows.records.keep(OPEN, laid.messages + at.MESSAGE_WORDS * laid.position, many)
        self.flows.arena.check()
        laid.position += many

    def soonest(self) -> Ps:
        """When something has to be laid or opened that only Python can."""
        opens = (int(laid.soonest[laid.position]) for _, laid in self._live if laid.unopened)
        lays = (track.due for track in self.tracks)
        return Ps(min((*opens, *lays), default=at.FOREVER))

    @property
    def timer(self) -> Ps:
        """When the next timer of a program is due."""
        return Ps(int(self.flows.memory.M[at.H_TIMER_NEXT]))

    def finished(self) -> list[Finished]:
        """The parts that have come to their end since the last time."""
        found = []
        for track in self.tracks:
            if track.done_ps < 0 and track.finished:
                track.done_ps = track.ended_ps
                found.append(Finished(track.number, Ps(track.done_ps)))
        return found

    def closed(self, many: int) -> None:
        """Note that so many records are free again."""
        if many:
            for track in self.tracks:
                track.sweep(self.take)
