"""Estimates the speed and remaining time of a simulation, or of many pieces of work, from their progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Protocol

from gradwire.scenarios.readable import three_digits, wall_text

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.progress import ProgressReport

RECENT_S = 5.0
"""Window of the speed estimate; the remaining time uses the whole run (our choice: the completed fraction grows in
jumps)."""
FIRST_GUESS_S = 2.0
"""Time before the first estimate of the remaining time."""
NOTICEABLE = 0.002
"""Fraction of work before the first estimate."""


class SpeedEstimate:
    """Speed and remaining time of one run, both from the first report on: what came before was preparation. `clock`
    counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first = (0.0, 0.0)  # when, and the share
        self._share = 0.0
        self._seen: deque[tuple[float, int]] = deque()  # (when, packet-hops so far)

    def note(self, share: float, packet_hops: int) -> None:
        """Note the progress so far."""
        now = self._clock()
        if not self._seen:
            self._first = (now, share)
        self._share = share
        self._seen.append((now, packet_hops))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RECENT_S:
            self._seen.popleft()

    @property
    def hops_per_s(self) -> float:
        """Packet-hops per second of late; 0 before the first report."""
        if not self._seen:
            return 0.0
        (before, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - before) if now > before else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end; None if it is too early to say."""
        begin, before = self._first
        spent = self._seen[-1][0] - begin if self._seen else 0.0
        if self._share - before < NOTICEABLE or spent < FIRST_GUESS_S:
            return None
        return spent * (1 - self._share) / (self._share - before)

    @property
    def parts(self) -> tuple[str, str]:
        """ "about 40 s left" and "12.3 M hops/s", each empty while unknown."""
        speed, left = self.hops_per_s, self.left_s
        rest = f"about {wall_text(left)} left" if left and self._share < 1 else ""
        return rest, f"{three_digits(speed / 1e6)} M hops/s" if speed else ""


class RemainingTime:
    """The time left of many pieces of work, from the time that finished ones took. The first piece is ignored: it waits
    for compilation. A few more may wait for theirs, which increases the mean but not the median; so both are shown if
    they are far apart. `clock` counts seconds."""

    PIECES, SHARE, APART = 3, 0.05, 1.5
    """Pieces after the first, and share of all, before anything is shown; and the ratio that is far apart. Our
    choice."""

    def __init__(self, pieces: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._pieces = clock, pieces
        self._last: float | None = None
        self._rates: list[float] = []  # seconds per unit of work, of each piece after the first
        self._seconds = self._work = 0.0

    def done(self, work: float) -> None:
        """Note a finished piece of `work`, in any unit."""
        now = self._clock()
        if self._last is not None and work > 0:
            self._rates.append((now - self._last) / work)
            self._seconds, self._work = self._seconds + now - self._last, self._work + work
        self._last = now

    def text(self, left: float) -> str:
        """Return the text for `left` units of work: "estimating", "about 40 s left", "40 s to 2 min left"."""
        if len(self._rates) < max(self.PIECES, self.SHARE * self._pieces) or not self._work:
            return "estimating"
        mean, middle = left * self._seconds / self._work, left * median(self._rates)
        low, high = wall_text(min(mean, middle)), wall_text(max(mean, middle))
        is_wide = max(mean, middle) > self.APART * min(mean, middle) and low != high
        return f"{low} to {high} left" if is_wide else f"about {wall_text(mean)} left"


class ValueChart(Protocol):
    """Draws points of named series."""

    def value(self, chart: str, series: str, x: float, y: float) -> None:
        """Add a point."""
        ...


def progress_text(
    on_progress: Callable[[float, str], object], scenario: Scenario, chart: ValueChart | None = None
) -> Callable[[ProgressReport], None]:
    """Return a progress callback for `simulate` that reports a fraction and a message. It draws the simulated time per
    iteration since the previous report, or the flows done, into a chart."""
    what, pace, last = ("iterations" if scenario.job else "flows"), SpeedEstimate(), (0, 0)

    def progressed(at: ProgressReport) -> None:
        nonlocal last
        done, now_ps = last
        if chart is not None and at.done > done:
            last = at.done, at.now_ps
            if scenario.job:
                chart.value(
                    "iteration time, ms", scenario.policy_name, at.done, (at.now_ps - now_ps) / (at.done - done) / 1e9
                )
            else:
                chart.value("flows done", scenario.policy_name, at.now_ps / 1e9, at.done)
        pace.note(at.share, at.packet_hops)
        left, speed = pace.parts
        parts = (f"{at.done}/{at.total} {what}", left, f"{at.now_ps / 1e9:.1f} ms simulated", speed)
        on_progress(at.share, ", ".join(filter(None, parts)))

    return progressed
