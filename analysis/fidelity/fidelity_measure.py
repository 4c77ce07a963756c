"""`Measure` holds one figure of a simulated and an emulated run with its tolerance, and judges their agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import exact_percent_text, rate_text, share_text, time_text

TIME, PACKETS, RATE, SHARE = "ps", "packets", "bps", "share"
"""Units of figures."""

MOST_EXAMPLES = 3
"""Examples that a line names at most."""


@dataclass(frozen=True)
class Measure:
    """One figure of both runs.

    what : "completion_mean", "completion_p50", "completion_p99", "iteration", "throughput", "drops", "marks" or "loss".
    where : its subject: a job and a kind, a cause, a port.
    unit : TIME, PACKETS, RATE or SHARE. sim, emu : the figures; -1: not counted.
    difference : relative to `sim` (of a SHARE: absolute); None if `sim` is 0 and `emu` is not, or one is unknown.
    tolerance : the largest absolute difference that passes; None: not judged.
    slack : packets by which `emu` may differ in any case.
    note : a remark.
    low, high : range of `sim` over simulations that differ by nanoseconds only; None: unknown.
    """

    what: str
    where: str
    unit: str
    sim: float
    emu: float
    difference: float | None
    tolerance: float | None
    slack: int = 0
    note: str = ""
    low: float | None = None
    high: float | None = None

    @classmethod
    def relative(
        cls, what: str, where: str, unit: str, sim: float, emu: float, tolerance: float | None, note: str
    ) -> Measure:
        """Return a figure that both runs know, with its relative difference."""
        return cls(what, where, unit, sim, emu, relative(sim, emu), tolerance, note=note)

    @property
    def in_range(self) -> bool:
        """True if `emu` is within the range of the simulations."""
        return self.low is not None and self.high is not None and self.low <= self.emu <= self.high

    @property
    def unknown(self) -> bool:
        """True if a run did not count it."""
        return self.sim < 0 or self.emu < 0

    @property
    def is_within(self) -> bool | None:
        """True if it is within its tolerance; None if it is not judged."""
        if self.tolerance is None or self.unknown:
            return None
        if self.in_range or (self.unit == PACKETS and abs(self.emu - self.sim) <= self.slack):
            return True
        return self.difference is not None and abs(self.difference) <= self.tolerance * (1 + 1e-9)

    @property
    def title(self) -> str:
        """Label of the figure."""
        words = self.what.replace("completion_", "completion, ").replace("iteration", "iteration time")
        return f"{words} of {self.where}"

    def text(self, value: float) -> str:
        """Return one of its values as text."""
        if value < 0:
            return "unknown"
        if self.unit == TIME:
            return time_text(value)
        if self.unit == RATE:
            return rate_text(value)
        return share_text(value) if self.unit == SHARE else f"{value:,.0f}"

    def difference_text(self) -> str:
        """Return the difference as text."""
        if self.unknown:
            return "-"
        if self.difference is None:
            return "from none"
        sign = "" if self.what in ("throughput", "loss") else "+"
        return f"{100 * self.difference:{sign}.2f} %"

    def allowed_text(self) -> str:
        """Return the tolerance as text."""
        if self.tolerance is None:
            return "-"
        text = exact_percent_text(self.tolerance)
        return f"{text} or {self.slack}" if self.unit == PACKETS else text

    def range_text(self) -> str:
        """Return the range of the simulations as text."""
        if self.low is None or self.high is None:
            return "-"
        return f"{self.text(self.low)} to {self.text(self.high)}"

    def verdict(self) -> str:
        """Return the verdict in one word."""
        if self.unknown:
            return "unknown"
        return {True: "ok", False: "MISSED", None: "not judged"}[self.is_within]

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        return vars(self) | {"passed": self.is_within}


def relative(sim: float, emu: float) -> float | None:
    """Return the difference as a fraction of `sim`; None if `sim` is 0 and `emu` is not."""
    if sim == emu:
        return 0.0
    return (emu - sim) / sim if sim else None


def examples(keys: Sequence[tuple[object, ...]]) -> str:
    """Return the first few of many messages or iterations as text."""
    shown = ["/".join(map(str, key)) for key in keys[:MOST_EXAMPLES]]
    return ", ".join(shown) + (f" and {len(keys) - MOST_EXAMPLES} more" if len(keys) > MOST_EXAMPLES else "")


def only_in_one(
    things: str, keys: Sequence[Mapping[Any, Any]], named: Callable[[Any], tuple[object, ...]]
) -> Iterator[str]:
    """Yield a sentence for each run, simulated and emulated, with keys that the other run lacks."""
    for one, other, words in ((0, 1, "simulated"), (1, 0, "emulated")):
        if alone := [named(key) for key in keys[one] if key not in keys[other]]:
            yield f"{len(alone)} {things} were {words} only: {examples(alone)}"
