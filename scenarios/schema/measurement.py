"""Declares the scenario's table `[measure]`, the window of a run that traffic's figures cover, after a warm-up.

It does not affect the run, so it is not part of a scenario's digest; readers of a Result find it in the Result's
scenario.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.units import PositiveTime, Ps, Time, UnitError, format_time, parse_time


class Window(NamedTuple):
    """Window in picoseconds: flows count that begin at `after` or later, and before `until` (None: no limit)."""

    after: int = 0
    until: int | None = None

    @property
    def text(self) -> str:
        """Text such as "that begin from 1ms to 5ms"; empty for the whole run."""
        if self == Window():
            return ""
        begin = f"from {format_time(self.after)}" if self.after else "before"
        end = "" if self.until is None else f" {'to ' if self.after else ''}{format_time(self.until)}"
        return f"that begin {begin}{end}"


class Measure(ScenarioTable):
    """Window of flows that traffic's figures cover, by when flows begin. Flows outside of it are simulated too and load
    the network. Jobs are not affected: their figures cover their steady state."""

    after: Time = Ps(0)
    """Flows that begin earlier are warm-up."""
    until: PositiveTime | None = None
    """Flows that begin at this time or later do not count either; no limit if absent."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.until is not None and self.until <= self.after:
            what = "is not after the start of the window"
            yield Mistake("until", what, format_time(self.until), "after < until")


def window_of(tables: Mapping[str, Any]) -> Window:
    """Return the window of a scenario's tables; the whole run if it is absent or invalid."""
    table = tables.get("measure")
    if not isinstance(table, Mapping):
        return Window()
    until = table.get("until")
    try:
        return Window(int(parse_time(table.get("after", "0ps"))), None if until is None else int(parse_time(until)))
    except UnitError:
        return Window()
