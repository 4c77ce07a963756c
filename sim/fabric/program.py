"""Programs in the engine: the parts that jobs and traffic play, step by step (`gradwire.experiment.program`).

The engine plays the steps that are laid (`gradwire.sim.fabric.track`); Python lays the next step when the first process
has come to the last one that is known, and gives messages their flow records, as far as there is room, long before they
start. Where the player releases a message that has no record yet, or a process has come to the end of its course, the
engine stops in time: being late costs speed, never exactness.
"""

from __future__ import annotations

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.program import Part
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.fabric.events import Finished
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.laid import Laid
from gradwire.sim.fabric.track import Post, Take, Track

MOST_OPEN = 1 << 16  # messages of programs that may have records at once
BATCH = 1 << 12  # they are opened when there is room for so many, or for all that are left


class Programs:
    """The parts that one fabric plays."""

    def __init__(self, flows: Flows, start: Post, post: Post) -> None:
        """`start`: (host, time, base of a sender's record): have a message begin."""
        self.flows, self._start, self._post = flows, start, post
        self.take: Take | None = None  # steps that are over; without it they are kept
        self.tracks: list[Track] = []
        self._made = self._open = 0

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
        """Lay what is needed; open what there is room for, what starts now, and what has been released."""
        self._lay(now)
        for track, laid in self._live:
            if not laid.unopened:
                continue
            while laid.unopened and laid.soonest[laid.position] <= now:
                self._next(track, laid, BATCH)
            late = np.flatnonzero(~laid.opened & track.released(laid))
            if len(late):
                late = self._with_next(laid, late)
                track.open(laid, late, self._start)
                self._open += len(late)
            room, left = MOST_OPEN - self._open, len(laid.opened) - laid.position
            if left and room >= min(left, BATCH):
                self._next(track, laid, min(left, room))

    def _with_next(self, laid: Laid, late: Ints) -> Ints:
        """Messages that are late, and those right behind them: where several chains go on side by side, as buckets do
        that are reduced at once, these are the next ones to be late, and each time the engine stops."""
        ends = late[np.flatnonzero(np.diff(late, append=late[-1] + BATCH + 1) > BATCH)]
        if self._open > 2 * MOST_OPEN or len(ends) * BATCH > MOST_OPEN:
            return late
        more = np.unique((ends[:, None] + np.arange(1, BATCH + 1)).ravel())
        more = more[more < len(laid.opened)]
        return np.union1d(late, more[~laid.opened[more]])

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

    def _next(self, track: Track, laid: Laid, many: int) -> None:
        end = min(laid.position + many, len(laid.opened))
        those = laid.position + np.flatnonzero(~laid.opened[laid.position : end])
        if len(those):
            track.open(laid, those, self._start)
        self._open += len(those)
        laid.position = end

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

    def closed(self, numbers: Ints) -> None:
        """Note that records are free again."""
        if not len(numbers):
            return
        for _, laid in self._live:
            mine = (numbers >= laid.first) & (numbers < laid.first + len(laid.opened))
            count = int(mine.sum())
            laid.closed += count
            self._open -= count
        for track in self.tracks:
            track.sweep(self.take)
