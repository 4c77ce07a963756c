"""`[measure]`: which part of a run figures are of, where traffic has to warm up first.

It says nothing about the run itself, so it is no part of a scenario's digest; whoever reads a Result finds it in the
scenario that the Result holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import model_validator

from gradwire.scenarios.schema.base import Table, refuse
from gradwire.scenarios.units import PositiveTime, Ps, Time, UnitError, format_time, parse_time


class Window(NamedTuple):
    """Picoseconds: flows count that begin at `after` or later, and before `until` (None: whenever)."""

    after: int = 0
    until: int | None = None


    @property
    def words(self) -> str:
        """Such as "that begin from 1ms to 5ms"; empty for all of the run."""
        if self == Window():
            return ""
        begin = f"from {format_time(self.after)}" if self.after else "before"
        end = "" if self.until is None else f" {'to ' if self.after else ''}{format_time(self.until)}"
        return f"that begin {begin}{end}"


class Measure(Table):
    """What figures of traffic are of: flows that begin in a window of the run. Flows outside of it are simulated all
    the same, and load the network. Jobs are not concerned: theirs are of their steady state."""

    after: Time = Ps(0)
    """Flows that begin earlier are warm-up."""
    until: PositiveTime | None = None
    """Flows that begin at this time or later do not count either; all later ones count if absent."""

    @model_validator(mode="after")
    def _ordered(self) -> Measure:
        if self.until is not None and self.until <= self.after:
            raise refuse("until", "is not after the window's beginning", format_time(self.until), "after < until")
        return self


def window_of(tables: Mapping[str, Any]) -> Window:
    """The window of a scenario's tables; all of the run where they say nothing, or nothing that can be read."""
    found = tables.get("measure")
    if not isinstance(found, Mapping):
        return Window()
    until = found.get("until")
    try:
        return Window(int(parse_time(found.get("after", "0ps"))), None if until is None else int(parse_time(until)))
    except UnitError:
        return Window()
