"""Expands a sweep's axes (grid, zipped, sampled, conditional) into the coordinates of its points, in a fixed order.

Axes form a grid; the first one changes slowest. Zipped axes count as one, at the position of the first of them; ranges
without a count are sampled together, as one axis at the position of the first. An axis with a condition applies where
the condition on earlier axes holds; elsewhere it is left out, and duplicates are removed.

Sampled values are the same on every machine: Python's generator is seeded by the sample's seed and the axis's name. A
longer random sample begins with the shorter one; a longer Latin hypercube does not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import Policy
from gradwire.studies.sweep.condition import Coordinates, Test, parse_condition
from gradwire.studies.sweep.quantity import Number, Scalar, number_of, text_of
from gradwire.studies.sweep.schema import MOST_POINTS, Axis, Range, Sample, SweepFile


@dataclass(frozen=True)
class Choice:
    """One value of an axis, and its changes to the scenario.

    shown : in tables and conditions. `label` : in plots.
    keys, value : a value for each key. `laid` : tables that overlay the scenario, as for a policy.
    """

    shown: Scalar
    label: str = ""
    keys: tuple[str, ...] = ()
    value: Any = None
    laid: Json = field(default_factory=dict)


AxisRow = dict[str, Choice]
"""Choices by column, for the axes so far."""


def choices_of(axis: Axis, policies: Sequence[Policy], where: str) -> list[Choice]:
    """Return all values of an axis that is not sampled. Raises `ScenarioError` for an unknown policy."""
    if axis.variant:
        return [Choice(variant.name, variant.label or variant.name, laid=variant.set) for variant in axis.variant]
    if axis.policies is not None:
        known = {policy.name: policy for policy in policies}
        names = list(known) if axis.policies == "all" else axis.policies
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            listed = ", ".join(known) or "none: the scenario has no policies"
            raise ScenarioError(f"no policy {', '.join(unknown)}", where, listed)
        return [Choice(name, known[name].label or name, laid=known[name].set) for name in names]
    values: Sequence[Any] = range_values(axis.range) if axis.range is not None else axis.values or ()
    labels = axis.labels or [None] * len(values)
    return [
        Choice(value if label is None else label, label or text_of_value(value), axis.key, value)
        for value, label in zip(values, labels, strict=True)
    ]


def range_values(value_range: Range) -> list[Scalar]:
    """Return the values of a range with a count: exact ends, whole numbers between whole ends, no duplicates."""
    assert value_range.count is not None
    inner = [value_at(value_range, step / (value_range.count - 1)) for step in range(1, value_range.count - 1)]
    return list(dict.fromkeys([value_range.low, *inner, value_range.high]))


def value_at(value_range: Range, share: float) -> Scalar:
    """Return the value at a share (0 to 1) of a range, on its scale; whole if both ends are."""
    low, high = number_of(value_range.low), number_of(value_range.high)
    assert low is not None and high is not None
    if value_range.scale == "log":
        value = math.exp(math.log(low.value) + share * (math.log(high.value) - math.log(low.value)))
    else:
        value = low.value + share * (high.value - low.value)
    if isinstance(value_range.low, int) and isinstance(value_range.high, int):
        return round(value)
    value = float(f"{value:.12g}")  # 0.3, not 0.30000000000000004; the same on every machine
    return text_of(Number(value, low.quantity))


def text_of_value(value: Scalar) -> str:
    """Return a value's default label in plots, numbers without needless digits."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def sample_values(axes: Sequence[Axis], sample: Sample) -> list[AxisRow]:
    """Return the sampled values of all axes that are sampled together."""
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
        columns.append([value_at(axis.range, share) for share in shares])
    return [
        {
            axis.column: Choice(value, text_of_value(value), axis.key, value)
            for axis, value in zip(axes, values, strict=True)
        }
        for values in zip(*columns, strict=True)
    ]


def expand(sweep: SweepFile, policies: Sequence[Policy] = ()) -> list[AxisRow]:
    """Return the coordinates of all points, without seeds, in order.

    policies : of the scenario.

    Raises `ScenarioError` if zipped axes differ in length, a condition is invalid, or there are no points or more than
    `MOST_POINTS`.
    """
    columns = [axis.column for axis in sweep.axis]
    keep_tests = [parse_condition(text, columns, f"{sweep.name}: when") for text in sweep.when]
    skip_tests = [parse_condition(text, columns, f"{sweep.name}: skip") for text in sweep.skip]
    rows: list[AxisRow] = [{}]
    for together in _blocks(sweep):
        rows = _crossed(rows, together, sweep, policies)
    selected = []
    for row in rows:
        shown = coordinates(row, columns)
        if all(test(shown) for test in keep_tests) and not any(test(shown) for test in skip_tests):
            selected.append(row)
    if not selected:
        raise ScenarioError("has no points: its conditions exclude all", sweep.name, "at least one point")
    return selected


def coordinates(row: AxisRow, columns: Sequence[str]) -> dict[str, Scalar | None]:
    """Return a row's value in every column; None on an axis that does not apply."""
    return {column: row[column].shown if column in row else None for column in columns}


def _blocks(sweep: SweepFile) -> Iterator[list[Axis]]:
    """Yield groups of axes that move together, in the order of the first of each."""
    seen: set[str] = set()
    for axis in sweep.axis:
        if axis.column in seen:
            continue
        if _is_drawn(axis):
            together = [other for other in sweep.axis if _is_drawn(other)]
        else:
            together = [other for other in sweep.axis if other is axis or (axis.zip and other.zip == axis.zip)]
        seen |= {member.column for member in together}
        yield together


def _is_drawn(axis: Axis) -> bool:
    return axis.range is not None and axis.range.count is None


def _crossed(rows: list[AxisRow], axes: list[Axis], sweep: SweepFile, policies: Sequence[Policy]) -> list[AxisRow]:
    """Combine every row with every value of axes that move together."""
    where = f"{sweep.name}: axis {axes[0].column}"
    if _is_drawn(axes[0]):
        assert sweep.sample is not None
        values = sample_values(axes, sweep.sample)
    else:
        by_column = {axis.column: choices_of(axis, policies, f"{sweep.name}: axis {axis.column}") for axis in axes}
        if len({len(choices) for choices in by_column.values()}) > 1:
            lengths = ", ".join(f"{column} {len(choices)}" for column, choices in by_column.items())
            raise ScenarioError(f"is zipped with axes of other lengths ({lengths})", where, "equal numbers of values")
        values = [dict(zip(by_column, choices, strict=True)) for choices in zip(*by_column.values(), strict=True)]
        _check_distinct(values, where)
    if len(rows) * len(values) > MOST_POINTS:
        raise ScenarioError(f"makes more than {MOST_POINTS:,} points", where, "fewer values")
    before = list(dict.fromkeys(column for row in rows for column in row))
    tests = {axis.column: parse_condition(axis.when, before, f"{where}.when") for axis in axes if axis.when}
    return list(_applied(rows, values, tests, before))


def _check_distinct(values: Sequence[AxisRow], where: str) -> None:
    """Raise `ScenarioError` if a value, or a combination of zipped values, occurs twice."""
    seen: set[tuple[tuple[type, Scalar], ...]] = set()
    for value in values:
        shown = [choice.shown for choice in value.values()]
        known = tuple((bool if isinstance(item, bool) else object, item) for item in shown)
        if known in seen:
            raise ScenarioError(f"has {', '.join(map(str, shown))} twice", where, "distinct values")
        seen.add(known)


def _applied(
    rows: list[AxisRow], values: list[AxisRow], tests: dict[str, Test], before: list[str]
) -> Iterator[AxisRow]:
    for row in rows:
        shown: Coordinates = coordinates(row, before)
        absent = {column for column, test in tests.items() if not test(shown)}
        combinations: set[tuple[tuple[str, Scalar], ...]] = set()
        for value in values:
            new = {column: choice for column, choice in value.items() if column not in absent}
            combination = tuple((column, choice.shown) for column, choice in new.items())
            if not absent or combination not in combinations:
                combinations.add(combination)
                yield {**row, **new}
