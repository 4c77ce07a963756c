"""From axes to coordinates: which value every point has on every axis, in a fixed order.

Axes make a grid: the first one changes slowest. Axes that are zipped count as one, which stands where the first of them
does; ranges without a count are drawn together, as one axis where the first of them stands. An axis with a condition
applies where it holds of the axes before it; elsewhere it is left out, and what would then be there several times is
there once.

Drawn values are exact repetitions on every machine: Python's generator, seeded by the sample's seed and the axis's
name. A longer random sample begins with the shorter one; that of a Latin hypercube is another one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.analysis.sweeps.condition import Coordinates, Test, condition
from gradwire.analysis.sweeps.quantity import Number, Scalar, number_of, text_of
from gradwire.analysis.sweeps.schema import MOST_POINTS, Axis, Range, Sample, SweepFile
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import Policy


@dataclass(frozen=True)
class Choice:
    """One value of an axis: what it is called, and what it changes in the scenario.

    Attributes
    ----------
    shown : in tables and conditions. `label` : in plots.
    keys, value : a value for each key. `laid` : tables to be laid over, as by a policy.
    """

    shown: Scalar
    label: str = ""
    keys: tuple[str, ...] = ()
    value: Any = None
    laid: Json = field(default_factory=dict)


Row = dict[str, Choice]
"""By column, for as many axes as are reached."""


def choices_of(axis: Axis, policies: Sequence[Policy], where: str) -> list[Choice]:
    """All values of an axis that does not have to be drawn. Raises `ScenarioError` for a policy that is not there."""
    if axis.variant:
        return [Choice(each.name, each.label or each.name, laid=each.set) for each in axis.variant]
    if axis.policies is not None:
        known = {each.name: each for each in policies}
        names = list(known) if axis.policies == "all" else axis.policies
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            listed = ", ".join(known) or "none: the scenario has no policies"
            raise ScenarioError(f"no policy {', '.join(unknown)}", where, listed)
        return [Choice(name, known[name].label or name, laid=known[name].set) for name in names]
    values: Sequence[Any] = spaced(axis.range) if axis.range is not None else axis.values or ()
    labels = axis.labels or [None] * len(values)
    return [
        Choice(value if label is None else label, label or text_of_value(value), axis.key, value)
        for value, label in zip(values, labels, strict=True)
    ]


def spaced(found: Range) -> list[Scalar]:
    """The values of a range with a count: its ends as they are given, whole numbers between whole ones, none twice."""
    assert found.count is not None
    inner = [at(found, step / (found.count - 1)) for step in range(1, found.count - 1)]
    return list(dict.fromkeys([found.low, *inner, found.high]))


def at(found: Range, share: float) -> Scalar:
    """What lies after a share (0 to 1) of a range, on its scale; whole if both ends are."""
    low, high = number_of(found.low), number_of(found.high)
    assert low is not None and high is not None
    if found.scale == "log":
        value = math.exp(math.log(low.value) + share * (math.log(high.value) - math.log(low.value)))
    else:
        value = low.value + share * (high.value - low.value)
    if isinstance(found.low, int) and isinstance(found.high, int):
        return round(value)
    value = float(f"{value:.12g}")  # 0.3 and not 0.30000000000000004, and on every machine alike
    return text_of(Number(value, low.quantity))


def text_of_value(value: Scalar) -> str:
    """What a value is called in plots: as it is written, numbers without needless digits."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def drawn(axes: Sequence[Axis], sample: Sample) -> list[Row]:
    """The values of all axes that are drawn together."""
    columns: list[list[Scalar]] = []
    for axis in axes:
        assert axis.range is not None
        rng = random.Random(f"{sample.seed}:{axis.column}")
        if sample.kind == "latin":
            parts = list(range(sample.count))
            rng.shuffle(parts)
            shares = [(part + rng.random()) / sample.count for part in parts]
        else:
            shares = [rng.random() for _ in range(sample.count)]
        columns.append([at(axis.range, share) for share in shares])
    return [
        {
            axis.column: Choice(value, text_of_value(value), axis.key, value)
            for axis, value in zip(axes, values, strict=True)
        }
        for values in zip(*columns, strict=True)
    ]


def expand(sweep: SweepFile, policies: Sequence[Policy] = ()) -> list[Row]:
    """The coordinates of all points, without seeds, in their order.

    Parameters
    ----------
    policies : those of the scenario.

    Raises
    ------
    ScenarioError
        Zipped axes of unequal length, a condition that is none, no points or more than `MOST_POINTS`.
    """
    columns = [axis.column for axis in sweep.axis]
    kept = [condition(text, columns, f"{sweep.name}: when") for text in sweep.when]
    left_out = [condition(text, columns, f"{sweep.name}: skip") for text in sweep.skip]
    rows: list[Row] = [{}]
    for together in _blocks(sweep):
        rows = _crossed(rows, together, sweep, policies)
    found = []
    for row in rows:
        shown = coordinates(row, columns)
        if all(test(shown) for test in kept) and not any(test(shown) for test in left_out):
            found.append(row)
    if not found:
        raise ScenarioError("has no points: its conditions leave none", sweep.name, "one point or more")
    return found


def coordinates(row: Row, columns: Sequence[str]) -> dict[str, Scalar | None]:
    """What a row has in every column; None on an axis that does not apply."""
    return {column: row[column].shown if column in row else None for column in columns}


def _blocks(sweep: SweepFile) -> Iterator[list[Axis]]:
    """Axes that move together, in the order of the first of each."""
    seen: set[str] = set()
    for axis in sweep.axis:
        if axis.column in seen:
            continue
        if _is_drawn(axis):
            together = [each for each in sweep.axis if _is_drawn(each)]
        else:
            together = [each for each in sweep.axis if each is axis or (axis.zip and each.zip == axis.zip)]
        seen |= {each.column for each in together}
        yield together


def _is_drawn(axis: Axis) -> bool:
    return axis.range is not None and axis.range.count is None


def _crossed(rows: list[Row], axes: list[Axis], sweep: SweepFile, policies: Sequence[Policy]) -> list[Row]:
    """Every row with every value of axes that move together."""
    where = f"{sweep.name}: axis {axes[0].column}"
    if _is_drawn(axes[0]):
        assert sweep.sample is not None
        values = drawn(axes, sweep.sample)
    else:
        each = {axis.column: choices_of(axis, policies, f"{sweep.name}: axis {axis.column}") for axis in axes}
        if len({len(choices) for choices in each.values()}) > 1:
            lengths = ", ".join(f"{column} {len(choices)}" for column, choices in each.items())
            raise ScenarioError(f"is zipped with axes of other lengths ({lengths})", where, "as many values each")
        values = [dict(zip(each, choices, strict=True)) for choices in zip(*each.values(), strict=True)]
        _check_distinct(values, where)
    if len(rows) * len(values) > MOST_POINTS:
        raise ScenarioError(f"makes more than {MOST_POINTS:,} points", where, "fewer values")
    before = list(dict.fromkeys(column for row in rows for column in row))
    tests = {axis.column: condition(axis.when, before, f"{where}.when") for axis in axes if axis.when}
    return list(_applied(rows, values, tests, before))


def _check_distinct(values: Sequence[Row], where: str) -> None:
    """Raise `ScenarioError` for a value, or what is zipped with each other, that is there twice."""
    seen: set[tuple[tuple[type, Scalar], ...]] = set()
    for value in values:
        shown = [choice.shown for choice in value.values()]
        known = tuple((bool if isinstance(each, bool) else object, each) for each in shown)
        if known in seen:
            raise ScenarioError(f"has {', '.join(map(str, shown))} twice", where, "each value once")
        seen.add(known)


def _applied(rows: list[Row], values: list[Row], tests: dict[str, Test], before: list[str]) -> Iterator[Row]:
    for row in rows:
        shown: Coordinates = coordinates(row, before)
        absent = {column for column, test in tests.items() if not test(shown)}
        there: set[tuple[tuple[str, Scalar], ...]] = set()
        for value in values:
            new = {column: choice for column, choice in value.items() if column not in absent}
            known = tuple((column, choice.shown) for column, choice in new.items())
            if not absent or known not in there:
                there.add(known)
                yield {**row, **new}
