"""Checks that a sweep's measures and plots refer only to existing measures, axes and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.sweep.condition import parse_condition
from gradwire.studies.sweep.measures import check_measures, sender_kind, split_measure
from gradwire.studies.sweep.points import AnyPlace, Point
from gradwire.studies.sweep.quantity import numbers_of
from gradwire.studies.sweep.schema import Axis, Plot, SweepFile

SENDER_LABELS = {"job": "jobs", "traffic": "traffic"}
"""Kinds of senders that a measure may require, and their labels."""


def check_sweep(sweep: SweepFile, points: Sequence[Point]) -> None:
    """Raise `ScenarioError` for a measure or plot of something that does not exist."""
    senders = list(dict.fromkeys(table.name for point in points for table in point.scenario.senders))
    check_measures(sweep.measures, senders, f"{sweep.name}: measures")
    _check_sorts(sweep.measures, points, f"{sweep.name}: measures")
    if len(set(sweep.measures)) != len(sweep.measures):
        raise ScenarioError("names a measure twice", f"{sweep.name}: measures", "distinct measures")
    taken = {f"{name}{more}" for name in sweep.measures for more in ("", "_low", "_high", "_count")}
    for axis in sweep.axis:
        if axis.column in taken:
            what = f"axis {axis.column} has the name of a measure's column"
            raise ScenarioError(what, sweep.name, "another name")
    for plot in sweep.plot:
        _check_plot(sweep, plot, points, senders)


def _check_sorts(names: Sequence[str], points: Sequence[Point], where: str) -> None:
    """Raise `ScenarioError` if at every point a measure of flows is requested for a job, or the other way round."""
    for name in names:
        sender, measure_name = split_measure(name)
        sort = sender_kind(measure_name)
        if not sort:
            continue
        able: dict[str, None] = {}
        requested: dict[str, None] = {}
        for point in points:
            scenario = point.scenario
            able.update(dict.fromkeys(table.name for table in getattr(scenario, sort)))
            requested.update(dict.fromkeys([sender] if sender else [table.name for table in scenario.senders[:1]]))
        if not requested.keys() & able.keys():
            what = f"measure {name!r} exists for {SENDER_LABELS[sort]} only: got {' and '.join(requested) or 'nothing'}"
            expected = (
                ", ".join(f"{sender_name}.{measure_name}" for sender_name in able)
                or f"a scenario with {SENDER_LABELS[sort]}"
            )
            raise ScenarioError(what, where, expected)


def _check_plot(sweep: SweepFile, plot: Plot, points: Sequence[Point], senders: Sequence[str]) -> None:
    where = f"{sweep.name}: plot {plot.name}"
    axes = {axis.column: axis for axis in sweep.axis}
    for key, name in _named_axes(plot):
        if name not in axes:
            expected = ", ".join(axes) + nearest(name, axes) if axes else "an axis: there are none"
            raise ScenarioError(f"{key} = {name!r} is not an axis", where, expected)
    named = {"lines": [plot.y], "pareto": [plot.x, plot.y]}.get(plot.kind, [plot.value] if plot.value else [])
    check_measures(named, senders, where)
    _check_sorts(named, points, where)
    if plot.of and plot.of not in senders:
        raise ScenarioError(f"of = {plot.of!r} is neither a job nor traffic", where, ", ".join(senders))
    chosen = shown_points(sweep, plot, points)
    if not chosen:
        raise ScenarioError("shows no points: its condition excludes all", where, "at least one point")
    _check_free(sweep, plot, chosen, where)
    known = dict.fromkeys(str(point.at[plot.by]) for point in chosen) if plot.kind == "gain" else {}
    for name in plot.gain_of:
        if name not in known:
            raise ScenarioError(f"gain_of = {name!r} is not a value of {plot.by} there", where, ", ".join(known))
    if known and len(set(plot.gain_of)) == len(known):
        raise ScenarioError(f"gain_of names all values of {plot.by}", where, "others to compare with")
    for key, scale in (("x", plot.x_scale), ("y", plot.y_scale)):
        name = getattr(plot, key)
        if scale == "log" and name in axes and numbers_of(point.at[name] for point in chosen) is None:
            raise ScenarioError(f"{key}_scale is log, but axis {name} is not numeric", where, "no scale")


def _named_axes(plot: Plot) -> Iterator[tuple[str, str]]:
    maps = {"heatmap": ("x", "y", "panels"), "gain": ("x", "y", "by", "panels")}
    keys = {"lines": ("x", "by", "panels"), **maps}.get(plot.kind, ("by", "panels"))
    for key in keys:
        if getattr(plot, key):
            yield key, getattr(plot, key)
    yield from (("best_of", name) for name in plot.best_of)


def _check_free(sweep: SweepFile, plot: Plot, points: Sequence[Point], where: str) -> None:
    """Raise `ScenarioError` if a plot of means would silently average over an axis with several values."""
    shown = {name for _, name in _named_axes(plot)}
    if plot.kind == "pareto":
        return  # every row of coordinates has its own dot
    for axis in sweep.axis:
        values = {point.at[axis.column] for point in points}
        if axis.column not in shown and len(values) > 1 and not _follows(axis, shown, points):
            other = {"heatmap": (), "gain": ("best_of",)}.get(plot.kind, ("by",))
            listed = " or ".join((*other, "panels"))
            one = f"{axis.column} == {points[0].at[axis.column]}"
            expected = f'{listed} = "{axis.column}", or a condition: where = "{one}"'
            what = f"does not use axis {axis.column}, which has {len(values)} values there"
            raise ScenarioError(what, where, expected)


def _follows(axis: Axis, shown: set[str], points: Sequence[Point]) -> bool:
    """Return True if the plot's axes determine the value of an axis, as for one zipped with another."""
    values_at: dict[tuple[object, ...], set[object]] = {}
    for point in points:
        values_at.setdefault(tuple(point.at[name] for name in sorted(shown)), set()).add(point.at[axis.column])
    return all(len(values) == 1 for values in values_at.values())


def shown_points(sweep: SweepFile, plot: Plot, points: Sequence[AnyPlace]) -> list[AnyPlace]:
    """Return the points that a plot's condition selects."""
    if not plot.where:
        return list(points)
    test = parse_condition(plot.where, [axis.column for axis in sweep.axis], f"{sweep.name}: plot {plot.name}: where")
    return [point for point in points if test(point.at)]
