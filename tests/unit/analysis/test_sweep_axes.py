"""Axes of sweeps: grids, zips, ranges, samples and conditions by closed forms; keys; what is refused."""

from __future__ import annotations

import math
import shutil
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.result_store.provenance import input_digests
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import list_sweeps
from gradwire.scenarios.loading.modules import user_module
from gradwire.scenarios.loading.toml import write_toml
from gradwire.studies.sweep.axes import coordinates, expand, range_values
from gradwire.studies.sweep.condition import parse_condition
from gradwire.studies.sweep.points import distinct_points, key_of, points_of, trace_digest
from gradwire.studies.sweep.quantity import number_of, numbers_of
from gradwire.studies.sweep.schema import Range, build_sweep, load_sweep
from gradwire.studies.sweep.stored_sweep import with_absolute_sweep_paths
from gradwire.traces.storage.writer import write
from tests.support.sweep_cases import SCENARIO, sweep_tables
from tests.support.trace_cases import small_trace


def rows(*axes: dict[str, Any], **more: Any) -> list[tuple[Any, ...]]:
    """The coordinates of a sweep with some axes."""
    sweep = build_sweep(sweep_tables(axis=list(axes), **more))
    columns = [axis.column for axis in sweep.axis]
    return [tuple(coordinates(row, columns).values()) for row in expand(sweep)]


def axis(name: str, *values: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "key": "traffic.load", "values": list(values), **more}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_grid_is_the_cartesian_product_of_its_axes(lengths: list[int]) -> None:
    """The first axis changes slowest, as in itertools.product."""
    axes = [axis(f"a{number}", *range(length)) for number, length in enumerate(lengths)]
    assert rows(*axes) == list(product(*(range(length) for length in lengths)))


def test_zipped_axes_advance_together() -> None:
    """They act as one axis at the position of the first."""
    found = rows(axis("a", 1, 2, zip="z"), axis("b", "x", "y"), axis("c", 10, 20, zip="z"))
    assert found == [(1, "x", 10), (1, "y", 10), (2, "x", 20), (2, "y", 20)]
    with pytest.raises(ScenarioError, match=r"other lengths \(a 2, c 1\)"):
        rows(axis("a", 1, 2, zip="z"), axis("c", 10, zip="z"))


def test_duplicate_axis_values_are_refused() -> None:
    """Values, policies and variants must be distinct; for zipped axes the pairs must be."""
    assert rows(axis("a", 1, 1, 2, zip="z"), axis("b", 1, 2, 2, zip="z")) == [(1, 1), (1, 2), (2, 2)]
    assert rows(axis("a", True, 1)) == [(True,), (1,)]
    twice = [
        [axis("a", 0.2, 0.5, 0.2)], [axis("a", 1, 1.0)], [axis("a", 1, 2, labels=["x", "x"])],
        [{"variant": [{"name": "v"}, {"name": "v", "set": {"seed": 2}}]}],
        [axis("a", 1, 2, 1, zip="z"), axis("b", 3, 3, 3, zip="z")],
    ]  # fmt: skip
    for axes in twice:
        with pytest.raises(ScenarioError, match=r"twice; expected distinct values"):
            rows(*axes)


def test_ranges_match_hand_computed_values() -> None:
    """Ends are exact, steps or factors are equal, and whole numbers occur once."""

    def of(low: Any, high: Any, count: int, scale: str = "linear") -> list[Any]:
        return range_values(Range.model_validate({"from": low, "to": high, "count": count, "scale": scale}))

    assert of(0.1, 0.5, 5) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert of("64KiB", "1MiB", 5, "log") == ["64KiB", "128KiB", "256KiB", "512KiB", "1MiB"]
    assert of("1us", "1ms", 4, "log") == ["1us", "10us", "100us", "1ms"]
    assert of(1, 4, 7) == [1, 2, 3, 4]
    assert of("1Gbps", "3Gbps", 3) == ["1Gbps", "2Gbps", "3Gbps"]


@given(st.floats(0.001, 10), st.floats(1.5, 1e4), st.integers(3, 30))
def test_log_range_has_a_constant_factor(low: float, factor: float, count: int) -> None:
    found = range_values(Range.model_validate({"from": low, "to": low * factor, "count": count, "scale": "log"}))
    steps = [math.log(two / one) for one, two in pairwise(found)]  # type: ignore[operator]
    assert steps == pytest.approx([math.log(factor) / (count - 1)] * (count - 1), rel=1e-6)


RANGES = (
    {"name": "a", "key": "traffic.load", "range": {"from": 0.0, "to": 1.0}},
    {"name": "b", "key": "switch.buffer", "range": {"from": "64KiB", "to": "4MiB", "scale": "log"}},
)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_latin_sample_has_one_value_per_stratum(count: int, seed: int) -> None:
    """Strata of each axis are equal parts of its scale."""
    found = rows(*RANGES, sample={"kind": "latin", "count": count, "seed": seed})
    assert len(found) == count
    shares = [math.log2(number_of(b).value / 65536) / 6 for _, b in found]  # type: ignore[union-attr]
    rounding = 1e-3  # bytes are whole, and numbers are written with so many digits
    for column in ([a for a, _ in found], shares):
        for part, share in enumerate(sorted(column)):
            assert part - rounding <= share * count <= part + 1 + rounding


def test_longer_random_sample_extends_the_shorter_sample() -> None:
    """The values of an axis do not depend on other axes."""
    short = rows(*RANGES, sample={"kind": "random", "count": 5})
    assert rows(*RANGES, sample={"kind": "random", "count": 9})[:5] == short
    assert [a for (a,) in rows(RANGES[0], sample={"kind": "random", "count": 5})] == [a for a, _ in short]
    assert rows(*RANGES, sample={"kind": "random", "count": 5, "seed": 2}) != short


def test_conditional_axis_applies_where_its_condition_holds() -> None:
    """Points at which the axis does not apply occur once."""
    found = rows(axis("t", "dctcp", "dlcp"), axis("bound", 0.0, 0.1, when="t == dlcp"), axis("load", 1, 2))
    assert found == [("dctcp", None, 1), ("dctcp", None, 2), *(("dlcp", b, n) for b in (0.0, 0.1) for n in (1, 2))]
    with pytest.raises(ScenarioError, match="not an axis"):
        rows(axis("a", 1, when="b == 1"), axis("b", 1))


def test_when_and_skip_select_points() -> None:
    axes = (axis("a", 1, 2, 3), axis("b", 1, 2, 3))
    assert rows(*axes, when=["a >= 2", "b >= 2"], skip="a == 3 and b == 3") == [(2, 2), (2, 3), (3, 2)]
    with pytest.raises(ScenarioError, match="no points"):
        rows(*axes, when="a > 3")
    with pytest.raises(ScenarioError, match="which have no order"):
        rows(*axes, when="a < b")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("buffer > 512KiB", True), ("buffer == 1024KiB", True), ("buffer <= 1MB", False), ("load >= 0.5 and load < .7", True),
        ("transport != ndp", True), ("transport in [ndp, dlcp]", True), ("transport in ['ndp']", False),
        ("not (load == 0.6 or load == 1)", False), ("load == 1 or load == 0.6 and buffer == 1MiB", True),
        ('transport == "dlcp"', True), ("absent == 3", False), ("absent != 3", True), ("absent < 3", False),
        ("flag == true", True), ("flag == 1", False), ("load == nan", False),
    ],
)  # fmt: skip
def test_conditions_evaluate_correctly(text: str, holds: bool) -> None:
    """The point has load 0.6, buffer 1 MiB, DLCP, and an axis that does not apply."""
    at = {"load": 0.6, "buffer": "1MiB", "transport": "dlcp", "absent": None, "flag": True}
    assert parse_condition(text, list(at), "here")(at) is holds


@pytest.mark.parametrize(
    "text",
    ["", "load", "load >", "load = 1", "load == 1 and", "(load == 1", "load == 1)", "1 == load", "load in 1", "load in [1",
     "other == 1", "load == 1 load == 2", "load == 'x", "__import__('os')", "not " * 60 + "load == 1"],
)  # fmt: skip
def test_malformed_conditions_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^here: "):
        parse_condition(text, ["load"], "here")


def test_ordering_names_in_a_condition_is_refused() -> None:
    test = parse_condition("transport < ndp", ["transport"], "here")
    with pytest.raises(ScenarioError, match="which have no order"):
        test({"transport": "dlcp"})


def test_quantities_are_parsed_with_a_common_unit() -> None:
    assert numbers_of(["1KiB", "2kB"]) == ([1024, 2000], "size")
    assert numbers_of(["1KiB", "1us"]) is None and numbers_of([1, "a"]) is None and number_of(True) is None


def test_points_apply_axis_values_seeds_and_policies_to_the_scenario(tmp_path: Path) -> None:
    """Values are set at their keys, seeds are consecutive, and policies or variants are applied."""
    sweep = build_sweep(sweep_tables(
        set={"link": {"rate": "40Gbps"}},
        axis=[
            {"policies": "all"},
            {"name": "both", "key": ["traffic.load", "link.loss"], "values": [0.1, 0.2]},
            {"name": "net", "key": "topology", "values": [{"kind": "star", "hosts": 4}, {"kind": "star", "hosts": 5}],
             "labels": ["four", "five"]},
        ],
    ))  # fmt: skip
    points = points_of(sweep, tmp_path)
    assert len(points) == 2 * 2 * 2 * 2
    last = points[-1]
    assert last.at == {"policy": "spray", "both": 0.2, "net": "five"} and last.seed == last.scenario.seed == 2
    tables = last.scenario.as_written()
    assert tables["traffic"][0]["load"] == tables["link"]["loss"] == 0.2 and tables["link"]["rate"] == "40Gbps"
    assert tables["load_balancing"] == "spray_random" and last.scenario.topology.host_count == 5
    assert last.labels["policy"] == "spray" and points[0].labels["policy"] == "as it is"
    assert len({point.key for point in points}) == 16


def test_point_keys_depend_on_scenario_content(tmp_path: Path) -> None:
    """Order and names do not change keys; seeds, values and measured windows do."""

    def keys(**changes: Any) -> list[str]:
        return [point.key for point in points_of(build_sweep(sweep_tables(**changes)), tmp_path)]

    first = keys()
    assert keys(axis=sweep_tables()["axis"][::-1]) != first and set(keys(axis=sweep_tables()["axis"][::-1])) == set(
        first
    )
    assert keys(name="other", description="x", measures=["marks"]) == first
    assert set(first) < set(keys(seeds=3)) and keys(seeds=[1, 2]) == first
    assert not set(first) & set(keys(set={"measure": {"after": "1us"}}))
    longer = [{"key": "traffic.load", "values": [0.2, 0.4, 0.6]}, sweep_tables()["axis"][1]]
    assert set(first) < set(keys(axis=longer))
    point = points_of(build_sweep(sweep_tables()), tmp_path)[0]
    assert key_of(point.scenario) == point.key


def test_trace_digest_changes_if_a_trace_is_recorded_again(tmp_path: Path) -> None:
    """The second trace has the same path within the same process."""
    write(small_trace(seed=1), tmp_path / "mine")
    first = trace_digest(str(tmp_path / "mine"))
    assert trace_digest(str(tmp_path / "mine")) == first == small_trace(seed=1).digest()
    shutil.rmtree(tmp_path / "mine")
    write(small_trace(seed=2), tmp_path / "mine")
    assert trace_digest(str(tmp_path / "mine")) == small_trace(seed=2).digest() != first


def test_distinct_points_are_ordered_by_seed(tmp_path: Path) -> None:
    points = points_of(build_sweep(sweep_tables(axis=[axis("a", 0.2, 0.3), axis("b", 0.5, 0.6)])), tmp_path)
    order = distinct_points(points)  # the second axis writes over the first
    assert len(points) == 8 and len(order) == 4 and [point.seed for point in order] == [1, 1, 2, 2]


def test_relative_files_are_resolved_beside_the_sweep(tmp_path: Path) -> None:
    """Values, variants and the base scenario are covered."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "sizes.txt").write_text("1000 0\n2000 1\n")
    (folder / "base.toml").write_text('name = "base"\n[topology]\nkind = "star"\nhosts = 3\n[[traffic]]\nname = "w"\n'
                                      'kind = "poisson"\nsizes = "./sizes.txt"\nload = 0.1\nflows = 5\n')  # fmt: skip
    axes = [{"key": "traffic.sizes", "values": ["./sizes.txt", "1kB"]},
            {"variant": [{"name": "v", "set": {"traffic": {"sizes": "./sizes.txt"}}}, {"name": "w"}]}]  # fmt: skip
    points = points_of(build_sweep(sweep_tables(scenario="./base.toml", axis=axes, seeds=1)), folder)
    found = [point.scenario.traffic[0].path for point in points]
    assert found == [str(folder / "sizes.txt")] * 3 + [None]


def test_sweep_with_absolute_paths_has_the_same_points(tmp_path: Path) -> None:
    """The sweep keeps its point keys when it is read from another folder."""
    folder = tmp_path / "there"
    (folder / "own").mkdir(parents=True)
    (folder / "sizes.txt").write_text("1000 0\n2000 1\n")
    (folder / "own" / "few.txt").write_text("1000 0\n1500 1\n")
    (folder / "mine.py").write_text("class Mine: pass\n")
    (folder / "base.toml").write_text(write_toml({**SCENARIO, "load_balancing": "mine:Mine"}))
    axes = [
        {"key": "traffic.sizes", "values": ["./sizes.txt", "own/few.txt", "web_search", "1kB"]},
        {"variant": [{"name": "v", "set": {"traffic": {"sizes": "./sizes.txt"}}}, {"name": "w"}]},
    ]
    for scenario in ("base.toml", {**SCENARIO, "load_balancing": "mine:Mine"}, "websearch"):
        tables = sweep_tables(scenario=scenario, axis=axes, set={"traffic": {"flows": 9}}, seeds=1)
        here = points_of(build_sweep(tables), folder)
        there = points_of(build_sweep(with_absolute_sweep_paths(tables, folder)), tmp_path)
        assert [point.key for point in here] == [point.key for point in there]
        if scenario != "websearch":
            assert all(user_module("mine", point.scenario.folder) == folder / "mine.py" for point in there)
            assert (
                input_digests(there[0].scenario)["load_balancing"] == input_digests(here[0].scenario)["load_balancing"]
            )
    library = sweep_tables(scenario="websearch")
    assert with_absolute_sweep_paths(library, folder) == library


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measures": []}, "measures: is too short"),
        ({"axes": []}, 'axes: unknown key; expected "axis"'),
        ({"axis": [{"key": "traffic.load"}]}, "axis[0]: has no values; expected one of values, range"),
        ({"axis": [{"values": [1]}]}, "axis[0].key: is missing"),
        ({"axis": [{"key": "a..b", "values": [1]}]}, "axis[0].key: is not a path"),
        ({"axis": [{"key": "seed", "values": [1]}]}, "axis[0].key: cannot be an axis"),
        ({"axis": [{"key": "topology", "values": [{"kind": "star"}]}]}, "axis[0].labels: is missing"),
        ({"axis": [axis("a", 1), axis("a", 2)]}, "axis[1].name: is taken by another axis"),
        ({"axis": [axis("seed", 1)]}, "axis[0].name: is a reserved column name"),
        ({"axis": [{"key": "traffic.load", "range": {"from": 1, "to": "1us", "count": 2}}]}, "axis[0].range.to: has another unit"),
        ({"axis": [{"key": "traffic.load", "range": {"from": 2, "to": 1, "count": 2}}]}, "axis[0].range.to: is not above"),
        ({"axis": [{"key": "traffic.load", "range": {"from": 0, "to": 1, "count": 2, "scale": "log"}}]}, "has no logarithm"),
        ({"axis": [{"key": "traffic.load", "range": {"from": 0.1, "to": 1}}]}, "axis[0].range.count: is missing"),
        ({"sample": {"count": 3}}, "sample: has no effect"),
        ({"seeds": [1, 1]}, "seeds: is empty or has duplicates"),
        ({"plot": [{"name": "p", "kind": "lines", "x": "load"}]}, "plot[0].y: is missing"),
        ({"plot": [{"name": "p", "kind": "pie"}]}, "plot[0].kind: is unknown"),
    ],
)  # fmt: skip
def test_invalid_sweep_files_are_refused_with_the_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        build_sweep(sweep_tables(**changes))
    assert words in str(caught.value)


def test_invalid_scenario_of_a_point_names_the_point(tmp_path: Path) -> None:
    sweep = build_sweep(sweep_tables(axis=[{"key": "traffic.load", "values": [0.2, 2.0]}]))
    with pytest.raises(ScenarioError, match=r"small at load 2.0: invalid scenario"):
        points_of(sweep, tmp_path)
    with pytest.raises(ScenarioError, match="no policy other"):
        points_of(build_sweep(sweep_tables(axis=[{"policies": ["other"]}])), tmp_path)
    assert "policy" in SCENARIO


@pytest.mark.parametrize("name", list_sweeps())
def test_library_sweeps_are_valid(name: str) -> None:
    from gradwire.studies.sweep.checks import check_sweep

    sweep, folder, _ = load_sweep(name)
    points = points_of(sweep, folder)
    check_sweep(sweep, points)
    assert sweep.name == name and len(points) <= 125 and sweep.plot
