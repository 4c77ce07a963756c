"""Measures, tables and plots of sweeps from records that are written by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.analysis.figure_files import save_figure
from gradwire.analysis.report.charts import pareto_front
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.sweep.checks import check_sweep
from gradwire.studies.sweep.measures import MEASURES, MOST_VALUES, JobFigures, ValueCounts, figures_by_job
from gradwire.studies.sweep.plots.plot_data import DisplayScale, is_log
from gradwire.studies.sweep.plots.sweep_plots import WIDTHS, figures
from gradwire.studies.sweep.point_store import PointStore, Record
from gradwire.studies.sweep.points import Point, points_of
from gradwire.studies.sweep.schema import build_sweep
from gradwire.studies.sweep.sweep_tables import grid_of, point_lines, summary_lines, table_of
from tests.support.analysis_cases import small_result
from tests.support.sweep_cases import sweep_tables


def records_of(points: Sequence[Point]) -> dict[str, Record]:
    """A mean of 100 load x seed, and delays of 1, 2, ..., 10 us times that."""
    found = {}
    for point in points:
        value = 100 * float(point.at["load"] or 0) * point.seed
        values = ValueCounts.of(np.arange(1, 11) * value * 1e6)
        figures = {
            "slowdown_p99": value,
            "all_mean_ps": value * 1e6,
            "lost_share": 1 / value,
            "broken": 0.0,
            "dropped": 0.0,
        }
        found[point.key] = Record("done", {"web": JobFigures(figures, {"completion": values, "slowdown": values})})
    return found


def made(**changes: Any) -> tuple[Any, list[Point], dict[str, Record]]:
    sweep = build_sweep(sweep_tables(**changes))
    points = points_of(sweep, Path.cwd())
    return sweep, points, records_of(points)


def test_means_and_intervals_match_hand_computed_values() -> None:
    """Seeds 1 to 3 give 20, 40, 60: mean 40, s = 20, half width 4.303 x 20 / sqrt(3). Without the first seed the mean
    is over two."""
    _, points, records = made(seeds=3)
    lines = summary_lines(points, records, ["slowdown_p99"])
    half = 4.303 * 20 / 3**0.5
    assert lines[0] == pytest.approx({
        "load": 0.2, "buffer": "128KiB", "runs": 3, "failed": 0, "slowdown_p99": 40, "slowdown_p99_low": 40 - half,
        "slowdown_p99_high": 40 + half, "slowdown_p99_count": 3,
    })  # fmt: skip
    records[points[0].key] = Record("failed", why="no")
    line = summary_lines(points, records, ["slowdown_p99"])[0]
    assert (line["runs"], line["failed"], line["slowdown_p99"], line["slowdown_p99_count"]) == (2, 1, 50, 2)
    del records[points[1].key], records[points[2].key]
    line = summary_lines(points, records, ["slowdown_p99"])[0]
    assert (line["runs"], line["slowdown_p99"], line["slowdown_p99_low"]) == (0, None, None)


def test_single_seed_has_no_interval() -> None:
    _, points, records = made(seeds=1)
    line = summary_lines(points, records, ["slowdown_p99"])[0]
    assert line["slowdown_p99"] == 20 and line["slowdown_p99_low"] is line["slowdown_p99_high"] is None


def test_sweep_table_columns_are_typed() -> None:
    """Numeric axes give numbers, others text, and an axis that does not apply gives null."""
    axes = [{"key": "traffic.load", "values": [0.2, 1]}, {"key": "switch.queues", "values": [1, 2], "when": "load == 1"},
            {"key": "switch.buffer", "values": ["128KiB"]}]  # fmt: skip
    sweep, points, records = made(axis=axes, seeds=1)
    table = table_of(point_lines(points, records, ["all_mean_ps"]), [axis.column for axis in sweep.axis])
    assert [str(field.type) for field in table.schema][:4] == ["double", "int64", "string", "int64"]
    assert table["queues"].to_pylist() == [None, 1, 2]


def test_figures_of_a_result_are_listed_as_measures() -> None:
    """The values are those of a hand-worked Result."""
    (found,) = figures_by_job(small_result()).values()
    assert set(found.figures) <= set(MEASURES)
    assert (
        found.figures["all_mean_ps"] == 25 and found.figures["retransmitted"] == 3 and found.figures["under_way"] == 1
    )
    assert found.figures["dropped"] == 19 and "all_p99_ps" not in found.figures and "slowdown_mean" not in found.figures
    assert found.distributions["completion"] == ValueCounts([10, 20, 30, 40], [1, 1, 1, 1])


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=3000))
def test_stored_distribution_approximates_all_values(values: list[int]) -> None:
    """Ends are exact, counts add up, and a stored value represents those between it and its predecessor."""
    found = ValueCounts.of(np.array(values))
    ordered = sorted(values)
    assert sum(found.counts) == len(values) and len(found.values) <= MOST_VALUES
    assert found.values[0] == pytest.approx(ordered[0]) and found.values[-1] == pytest.approx(ordered[-1])
    for value, rank in zip(found.values, np.cumsum(found.counts), strict=True):
        assert value == pytest.approx(ordered[rank - 1])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_pareto_front_holds_undominated_points(dots: list[tuple[int, int]]) -> None:
    """A point dominates another if no coordinate is larger and one is smaller."""
    best = {dots[place] for place in pareto_front(dots)}
    better = [any(o != d and o[0] <= d[0] and o[1] <= d[1] for o in dots) for d in dots]
    assert best == {dot for dot, is_worse in zip(dots, better, strict=True) if not is_worse}


def test_point_store_returns_written_records_and_states(tmp_path: Path) -> None:
    _, points, records = made(seeds=1)
    store = PointStore(tmp_path)
    store.make()
    store.begin(points[0].key)
    counts = dict.fromkeys(("done", "failed", "running", "interrupted", "waiting"), 0)
    assert store.states([points[0].key], {}) == {**counts, "interrupted": 1}
    code = "from gradwire.studies.sweep.point_store import PointStore; from pathlib import Path; import sys\n"
    code += f"PointStore(Path({str(tmp_path)!r})).begin({points[0].key!r}); print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline()
    assert store.states([points[0].key], {}) == {**counts, "running": 1}
    other.communicate()
    assert store.states([points[0].key], {}) == {**counts, "interrupted": 1}
    store.write(points[0].key, records[points[0].key])
    assert store.read(points[0].key) == records[points[0].key] and not store.was_begun(points[0].key)


PLOTS = [
    {"name": "lines", "kind": "lines", "x": "load", "y": "slowdown_p99", "by": "buffer"},
    {
        "name": "panels",
        "kind": "lines",
        "x": "buffer",
        "y": "all_mean_ps",
        "panels": "load",
        "columns": 2,
        "y_scale": "log",
    },
    {"name": "map", "kind": "heatmap", "x": "load", "y": "buffer", "value": "slowdown_p99"},
    {"name": "cdf", "kind": "cdf", "by": "load", "where": "buffer == 1MiB"},
    {"name": "tail", "kind": "tail", "x": "slowdown", "by": "load", "panels": "buffer", "font": "serif"},
    {"name": "pareto", "kind": "pareto", "x": "slowdown_p99", "y": "lost_share", "by": "buffer", "title": "Front"},
]


def draw() -> dict[str, Any]:
    sweep, points, records = made(plot=PLOTS, seeds=3, axis=[
        {"key": "traffic.load", "values": [0.6, 0.2, 0.4], "label": "offered load"},
        {"key": "switch.buffer", "values": ["128KiB", "1MiB"]},
    ])  # fmt: skip
    return figures(sweep, points, records)


@pytest.fixture
def drawn() -> dict[str, Any]:
    return draw()


GAIN = {
    "name": "gain", "kind": "gain", "x": "load", "y": "buffer", "value": "slowdown_p99", "by": "queues", "gain_of": "2",
    "best_of": "priority",
}  # fmt: skip


def gains(plot: dict[str, Any]) -> tuple[Any, list[Point], dict[str, Record]]:
    """Slowdowns are 100 * load with 2 queues and 200 * load with 4 or 8, and a quarter of that with priority 1, but
    with 8 queues half of it more."""
    sweep, points, _ = made(plot=[plot], axis=[
        {"key": "traffic.load", "values": [0.2, 0.4]},
        {"key": "switch.buffer", "values": ["128KiB", "1MiB"]},
        {"key": "switch.queues", "values": [2, 4, 8]},
        {"key": "traffic.priority", "values": [0, 1]},
    ])  # fmt: skip
    found = {}
    for point in points:
        factor = {2: 100, 4: 200, 8: 300}[point.at["queues"]] / (4 if point.at["priority"] else 1)
        found[point.key] = Record("done", {"web": JobFigures({"slowdown_p99": factor * point.at["load"]}, {})})
    return sweep, points, found


def test_gain_map_compares_one_value_with_best_of_others() -> None:
    """Each side has its best priority: 25 and 50 times the load, a gain of 100 %."""
    sweep, points, records = gains(GAIN)
    (figure,) = figures(sweep, points, records).values()
    assert np.allclose(figure.axes[0].images[0].get_array(), [[100, 100]] * 2)
    for point in points:
        if point.at == {"load": 0.4, "buffer": "1MiB", "queues": 8, "priority": 1}:
            records[point.key] = Record("done", {"web": JobFigures({"slowdown_p99": 5.0}, {})})
    (figure,) = figures(sweep, points, records).values()
    assert np.allclose(figure.axes[0].images[0].get_array(), [[100, 100], [100, -50]])
    missing = next(point for point in points if point.at["load"] == 0.2 and point.at["queues"] == 8)
    records.pop(missing.key)  # a cell stays empty until all of its points are done
    (figure,) = figures(sweep, points, records).values()
    cells = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    assert np.isnan(cells).tolist() == [[missing.at["buffer"] == size, False] for size in ("128KiB", "1MiB")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"best_of": ()}, "does not use axis priority"),
        ({"gain_of": "3"}, "gain_of = '3' is not a value of queues there"),
        ({"gain_of": ["2", "4", "8"]}, "gain_of names all values of queues"),
        ({"best_of": "nothing"}, "best_of = 'nothing' is not an axis"),
        ({"gain_of": ()}, "gain_of: is missing"),
        ({"kind": "heatmap", "by": ""}, "gain_of: has no effect on a plot of kind heatmap"),
    ],
)
def test_incomplete_gain_map_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        sweep, points, _ = gains(GAIN | changes)
        check_sweep(sweep, points)


def test_sweep_plots_show_the_means(drawn: dict[str, Any]) -> None:
    """Loads are sorted whatever their order in the file; means are 40, 80 and 120."""
    (axes,) = drawn["lines"].axes
    for line in axes.lines:
        assert line.get_xdata().tolist() == [0.2, 0.4, 0.6] and line.get_ydata() == pytest.approx([40, 80, 120])
    assert len(axes.collections) == 2 and axes.get_xlabel() == "offered load"
    image = drawn["map"].axes[0].images[0]
    assert np.allclose(image.get_array(), [[40, 80, 120]] * 2)
    left, right, last = drawn["panels"].axes
    assert [each.get_title() for each in (left, right, last)] == [
        "offered load = 0.2",
        "offered load = 0.4",
        "offered load = 0.6",
    ]
    assert left.get_yscale() == "log" and left.get_ylabel().endswith("(us)")


def test_panels_of_a_map_share_labels_and_scale() -> None:
    """Only the first panel names the rows, only the last has the scale, and each has its own columns."""
    plot = {"name": "m", "kind": "heatmap", "x": "load", "y": "load", "value": "slowdown_p99", "panels": "buffer"}
    sweep, points, records = made(plot=[plot | {"columns": 2}])
    few = {point.key for point in points if point.at == {"load": 0.2, "buffer": "128KiB"}}
    shown = [point for point in points if point.at["buffer"] == "1MiB" or point.key in few]
    (figure,) = figures(sweep, shown, records).values()
    first, second, scale = figure.axes
    assert first.get_ylabel() and not second.get_ylabel() and scale.get_ylabel()
    assert [bool(axes.yaxis.get_tick_params()["labelleft"]) for axes in (first, second)] == [True, False]
    assert [axes.images[0].get_array().shape[1] for axes in (first, second)] == [1, 2]
    assert first.images[0].get_clim() == second.images[0].get_clim() == pytest.approx((30, 90))


def test_distribution_plots_pool_the_seeds(drawn: dict[str, Any]) -> None:
    """At load 0.2, 1/30 of 30 values is 20 us and none exceeds 600 us."""
    (axes,) = drawn["cdf"].axes
    line = axes.lines[0]
    assert line.get_xdata()[0] == 20 and line.get_ydata()[0] == pytest.approx(1 / 30)
    assert line.get_xdata()[-1] == 600 and line.get_ydata()[-1] == 1
    late = drawn["tail"].axes[0].lines[0]
    assert late.get_ydata()[0] == 1 and late.get_ydata()[-1] == pytest.approx(1 / 30)


def test_pareto_plot_draws_the_front(drawn: dict[str, Any]) -> None:
    """Lost share falls as the slowdown rises, so all coordinates are on the front."""
    (axes,) = drawn["pareto"].axes
    assert sorted(axes.lines[-1].get_xdata()) == pytest.approx([40, 80, 120])


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_plot_files_have_paper_width_and_are_reproducible(drawn: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """A plot is one or two columns wide, with letters of at least 7 points."""
    again = draw()
    for name, figure in drawn.items():
        if name in ("lines", "map"):  # one that is drawn once more has another layout: its own, improved
            save_figure(figure, tmp_path / f"{name}.{kind}")
            save_figure(again[name], tmp_path / f"again.{kind}")
            assert (tmp_path / f"again.{kind}").read_bytes() == (tmp_path / f"{name}.{kind}").read_bytes()
        assert figure.get_figwidth() == WIDTHS[2 if name == "panels" else 1]
        assert min(text.get_size() for axes in figure.axes for text in axes.get_xticklabels()) >= 7


def test_plots_of_an_unfinished_sweep_show_finished_points() -> None:
    sweep, points, records = made(plot=PLOTS[:3])
    some = dict(list(records.items())[:4])
    (axes,) = figures(sweep, points, some)["lines"].axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1, 1]
    assert figures(sweep, points, {}) == {}
    assert [row[-1] for row in grid_of(sweep, points, some).rows] == ["2", "2"]


def test_display_units_and_log_scales_are_chosen_by_values() -> None:
    assert (
        DisplayScale.of([5e8, 2e9, 9e9], "time") == DisplayScale(1e9, "ms")
        and DisplayScale.of([1, 2], "") == DisplayScale()
    )
    assert DisplayScale.of([0.0], "size") == DisplayScale(1, "B")
    assert (
        is_log([1, 10, 100])
        and is_log(["64KiB", "256KiB", "1MiB"])
        and not is_log([0.2, 0.4, 0.6])
        and not is_log(["a", "b", "c"])
    )
