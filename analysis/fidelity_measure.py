"""One figure of a simulated and an emulated run, and whether the two agree; see `gradwire.analysis.fidelity`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import chosen_text, rate_text, share_text, time_text

TIME, PACKETS, RATE, SHARE = "ps", "packets", "bps", "share"
"""Units of figures."""

SHOWN = 3
"""How many examples of something a line names."""


@dataclass(frozen=True)
class Measure:
    """One figure of both runs.

    what : "completion_mean", "completion_p50", "completion_p99", "iteration", "throughput", "drops", "marks" or "loss".
    where : of what, for people: a job and a kind, a cause, a port.
    unit : TIME, PACKETS, RATE or SHARE. sim, emu : the figures; -1: not counted.
    difference : relative to `sim` (of a SHARE: absolute); None where `sim` is 0 and `emu` is not, or one is unknown.
    tolerance : the largest absolute value of it that passes; None: not judged.
    slack : packets that `emu` may differ by in any case.
    note : what else there is to say.
    low, high : the smallest and the largest `sim` of simulations that differ by nanoseconds only; None: not known.
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

    @property
    def in_range(self) -> bool:
        """Whether simulations come out as far away themselves."""
        return self.low is not None and self.high is not None and self.low <= self.emu <= self.high

    @property
    def unknown(self) -> bool:
        """Whether a run has not counted it."""
        return self.sim < 0 or self.emu < 0

    @property
    def passed(self) -> bool | None:
        """Whether it is within its tolerance; None if it is not judged."""
        if self.tolerance is None or self.unknown:
            return None
        if self.in_range or (self.unit == PACKETS and abs(self.emu - self.sim) <= self.slack):
            return True
        return self.difference is not None and abs(self.difference) <= self.tolerance * (1 + 1e-9)

    @property
    def title(self) -> str:
        """What it is, for people."""
        words = self.what.replace("completion_", "completion, ").replace("iteration", "iteration time")
        return f"{words} of {self.where}"

    def text(self, value: float) -> str:
        """One of its figures for people."""
        if value < 0:
            return "unknown"
        if self.unit == TIME:
            return time_text(value)
        if self.unit == RATE:
            return rate_text(value)
        return share_text(value) if self.unit == SHARE else f"{value:,.0f}"

    def difference_text(self) -> str:
        """The difference for people."""
        if self.unknown:
            return "-"
        if self.difference is None:
            return "from none"
        sign = "" if self.what in ("throughput", "loss") else "+"
        return f"{100 * self.difference:{sign}.2f} %"

    def allowed_text(self) -> str:
        """The tolerance for people."""
        if self.tolerance is None:
            return "-"
        text = chosen_text(self.tolerance)
        return f"{text} or {self.slack}" if self.unit == PACKETS else text

    def range_text(self) -> str:
        """What simulations differ by among themselves, for people."""
        if self.low is None or self.high is None:
            return "-"
        return f"{self.text(self.low)} to {self.text(self.high)}"

    def verdict(self) -> str:
        """In one word."""
        if self.unknown:
            return "unknown"
        return {True: "ok", False: "MISSED", None: "not judged"}[self.passed]

    def as_dict(self) -> Json:
        """Plain values, for JSON."""
        names = ("what", "where", "unit", "sim", "emu", "difference", "tolerance", "slack", "note", "low", "high")
        return {name: getattr(self, name) for name in names} | {"passed": self.passed}


def relative(sim: float, emu: float) -> float | None:
    """The difference as a fraction of `sim`; None if there is none."""
    if sim == emu:
        return 0.0
    return (emu - sim) / sim if sim else None


def examples(keys: Sequence[tuple[object, ...]]) -> str:
    """Some of many messages or iterations, for people."""
    shown = ["/".join(map(str, key)) for key in keys[:SHOWN]]
    return ", ".join(shown) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
