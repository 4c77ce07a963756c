"""What is wrong with a sweep as a whole: what its measures and plots name has to be there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.analysis.sweeps.condition import condition
from gradwire.analysis.sweeps.measures import check_measures, sort_of, whose
from gradwire.analysis.sweeps.points import AnyPlace, Point
from gradwire.analysis.sweeps.quantity import numbers_of
from gradwire.analysis.sweeps.schema import Axis, Plot, SweepFile
from gradwire.scenarios.errors import ScenarioError

SORTS = {"job": "jobs", "traffic": "traffic"}
"""Kinds of senders that a measure may be of, and what people call them."""


def check_sweep(sweep: SweepFile, points: Sequence[Point]) -> None:
    """Raise `ScenarioError` for a measure or plot of what there is none of."""
    senders = list(dict.fromkeys(table.name for point in points for table in point.scenario.senders))
    check_measures(sweep.measures, senders, f"{sweep.name}: measures")
    _check_sorts(sweep.measures, points, f"{sweep.name}: measures")
    if len(set(sweep.measures)) != len(sweep.measures):
        raise ScenarioError("names a measure twice", f"{sweep.name}: measures", "each once")
    taken = {f"{name}{more}" for name in sweep.measures for more in ("", "_low", "_high", "_count")}
    for axis in sweep.axis:
        if axis.column in taken:
            what = f"axis {axis.column} is called like a column of a measure"
            raise ScenarioError(what, sweep.name, "another name")
    for plot in sweep.plot:
        _check_plot(sweep, plot, points, senders)


def _check_sorts(names: Sequence[str], points: Sequence[Point], where: str) -> None:
    """Raise `ScenarioError` for a measure of flows that is asked of a job at every point, or the other way round."""
    for name in names:
        sender, measure_name = whose(name)
        sort = sort_of(measure_name)
        if not sort:
            continue
        able: dict[str, None] = {}
        asked: dict[str, None] = {}
        for point in points:
            scenario = point.scenario
            able.update(dict.fromkeys(each.name for each in getattr(scenario, sort)))
            asked.update(dict.fromkeys([sender] if sender else [each.name for each in scenario.senders[:1]]))
        if not asked.keys() & able.keys():
            what = f"measure {name!r} is of {SORTS[sort]} alone, and asked of {' and '.join(asked) or 'nothing'}"
            expected = ", ".join(f"{each}.{measure_name}" for each in able) or f"a scenario with {SORTS[sort]}"
            raise ScenarioError(what, where, expected)


def _check_plot(sweep: SweepFile, plot: Plot, points: Sequence[Point], senders: Sequence[str]) -> None:
    where = f"{sweep.name}: plot {plot.name}"
    axes = {axis.column: axis for axis in sweep.axis}
    for key, name in _named_axes(plot):
        if name not in axes:
            raise ScenarioError(f"{key} = {name!r} is no axis", where, ", ".join(axes) or "an axis: there are none")
    named = {"lines": [plot.y], "heatmap": [plot.value], "pareto": [plot.x, plot.y]}.get(plot.kind, [])
    check_measures(named, senders, where)
    _check_sorts(named, points, where)
    if plot.of and plot.of not in senders:
        raise ScenarioError(f"of = {plot.of!r} is neither a job nor traffic", where, ", ".join(senders))
    chosen = shown_points(sweep, plot, points)
    if not chosen:
        raise ScenarioError("shows no points: its condition leaves none", where, "one point or more")
    _check_free(sweep, plot, chosen, where)
    for key, scale in (("x", plot.x_scale), ("y", plot.y_scale)):
        name = getattr(plot, key)
        if scale == "log" and name in axes and numbers_of(point.at[name] for point in chosen) is None:
            raise ScenarioError(f"{key}_scale is log, but axis {name} is not of numbers", where, "no scale")


def _named_axes(plot: Plot) -> Iterator[tuple[str, str]]:
    keys = {"lines": ("x", "by", "panels"), "heatmap": ("x", "y", "panels")}.get(plot.kind, ("by", "panels"))
    for key in keys:
        if getattr(plot, key):
            yield key, getattr(plot, key)


def _check_free(sweep: SweepFile, plot: Plot, points: Sequence[Point], where: str) -> None:
    """Every axis has a place in a plot of means, or only one value there: nothing is averaged over unasked."""
    shown = {name for _, name in _named_axes(plot)}
    if plot.kind == "pareto":
        return  # every coordinates is a dot of its own
    for axis in sweep.axis:
        values = {point.at[axis.column] for point in points}
        if axis.column not in shown and len(values) > 1 and not _follows(axis, shown, points):
            listed = " or ".join(key for key in ("by", "panels") if key == "panels" or plot.kind != "heatmap")
            one = f"{axis.column} == {points[0].at[axis.column]}"
            expected = f'{listed} = "{axis.column}", or a condition: where = "{one}"'
            what = f"leaves axis {axis.column} open, which has {len(values)} values there"
            raise ScenarioError(what, where, expected)


def _follows(axis: Axis, shown: set[str], points: Sequence[Point]) -> bool:
    """Whether an axis has one value only for each place in the plot, as one that is zipped with another."""
    found: dict[tuple[object, ...], set[object]] = {}
    for point in points:
        found.setdefault(tuple(point.at[name] for name in sorted(shown)), set()).add(point.at[axis.column])
    return all(len(values) == 1 for values in found.values())


def shown_points(sweep: SweepFile, plot: Plot, points: Sequence[AnyPlace]) -> list[AnyPlace]:
    """The points that a plot's condition leaves."""
    if not plot.where:
        return list(points)
    test = condition(plot.where, [axis.column for axis in sweep.axis], f"{sweep.name}: plot {plot.name}: where")
    return [point for point in points if test(point.at)]
