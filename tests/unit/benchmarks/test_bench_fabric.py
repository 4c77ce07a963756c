"""`gradwire bench fabric` and `gradwire.benchmarks.scale`: which rows there are, what is compared with what, and small real ones."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from gradwire.benchmarks import fabric as bench
from gradwire.benchmarks import scale
from gradwire.benchmarks.rows import markdown_header, markdown_line
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.registry import components

EVERYTHING = {*bench.FEATURES, *bench.ENGINE_OPTIONS, *components("load_balancing")} - {"ecmp"}


def rows_of(**filters: Any) -> list[tuple[Any, ...]]:
    asked = {"case": None, "hosts": None, "transport": None, "threads": 1, "feature": None, **filters}
    names = ("case", "hosts", "transport", "threads", "feature")
    return [tuple(row[name] for name in names) for group in bench._groups(**asked) for row in group]


def test_bench_fabric_without_filters_has_default_rows() -> None:
    found = rows_of()
    assert len(found) == 4 * 3
    assert {row[2] for row in found} == {"tcp_newreno", "dctcp", "dlcp"} and {row[4] for row in found} == {""}
    assert rows_of(case="incast", transport="dlcp") == [("incast", 128, "dlcp", 1, "")]


def test_bench_fabric_alternates_each_row_with_plain_dctcp() -> None:
    groups = list(bench._groups("permutation", 432, "swift", None, None))
    assert [(row["transport"], row["feature"]) for row in groups[0]] == [("dctcp", "")] * 2 + [("swift", "")] * 2
    assert [row["threads"] for row in groups[0]] == [1, 2, 1, 2] and len(groups) == 1
    pairs = list(itertools.pairwise(rows_of(case="incast", transport="dctcp", feature="all")))[::2]
    assert [one for one, _ in pairs] == [("incast", 128, "dctcp", 1, "")] * len(pairs)
    assert {other[4] for _, other in pairs} == EVERYTHING
    kinds = {row[2] for row in rows_of(case="incast", transport="all")}
    assert kinds == {kind for kind, each in components("transport").items() if each.simulated}


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"transport": "tpc"}, "--transport: no transport tpc"),
        ({"feature": "pfd"}, "--feature: no feature pfd"),
        ({"hosts": 5}, "bench fabric: no such benchmark"),
        ({"case": "incast", "hosts": 432}, "bench fabric: no such benchmark"),
    ],
)
def test_bench_fabric_refuses_unknown_filters(filters: dict[str, Any], words: str) -> None:
    asked = {"case": None, "hosts": None, "transport": None, "threads": 1, "as_json": True, **filters}
    with pytest.raises(GradwireError) as error:
        bench.bench_fabric(**asked)
    assert str(error.value).startswith(words)


def test_bench_fabric_reports_relative_speed_and_failures_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stand-in rows run at 10 M hops/s per thread, and at 4 M with the feature. The median of three runs counts."""
    walls = itertools.cycle([1.0, 9.0, 2.0])

    def run(row: dict[str, Any], module: str) -> dict[str, Any]:
        if row["feature"] == "red":
            raise bench.BenchmarkError("no end", "row")
        speed = row["threads"] * (4 if row["feature"] else 10) * 1_000_000
        more = {"wall_s": next(walls), "cpu_s": 1.0, "peak_rss_bytes": 1, "compile_s": 0.0}
        return {**row, **more, "packet_hops": speed, "hops_per_s": speed}

    monkeypatch.setattr(bench, "_in_own_process", run)
    monkeypatch.setattr(bench, "REPEATS", 3)
    options = {"case": "permutation", "hosts": 128, "transport": "dctcp", "threads": None}
    with pytest.raises(bench.BenchmarkError, match="1 of"):
        bench.bench_fabric(**options, feature="all", as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["of_plain"] for row in rows} == {0.4} and {row["wall_s"] for row in rows} == {2.0}
    assert {row["feature"] for row in rows} == EVERYTHING - {"red"}
    bench.bench_fabric(**options, feature="turns", as_json=False)
    shown = capsys.readouterr().out
    assert "turns" in shown and "0.40" in shown


@pytest.mark.parametrize("kind", ["dctcp", "dlcp"])
def test_bench_fabric_and_scale_rows_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.PERMUTATIONS, 128, 40_000)
    row = bench.run_row("permutation", 128, kind, 1)
    # ten packets of data, and what answers them, over at least two links each
    assert row["packet_hops"] > 128 * 10 * 2 and 0 < row["wall_s"]
    large = scale.run_row(128, kind, 1, 40_000)
    assert large["packet_hops"] == row["packet_hops"] and large["links"] == 384
    assert markdown_line(large, scale.COLUMNS).count("|") == markdown_header(scale.COLUMNS).splitlines()[0].count("|")
    assert scale.check_limits([large]) == []


def test_bench_features_reach_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("gradwire.sim.engine.fabric.Fabric", lambda *a, **options: made.append(options))
    network = scale_network()
    for feature in (*bench.FEATURES, "delays", "least_queue"):
        bench.make_fabric(network, "dctcp", 1, feature)
        switch = made[-1]["switch"]
        for name in bench.FEATURES.get(feature, {}):
            assert getattr(switch, name) != getattr(type(switch)(), name)
    assert made[-1]["balancing"] == "least_queue" and made[0]["balancing"] == "ecmp"
    assert made[-2]["delays"] and "delays" not in made[0]


def scale_network() -> Any:
    from gradwire.topology import LinkSpec, star

    return star(4, LinkSpec(10**11, 10**6))


def test_scale_benchmark_reports_missed_limits() -> None:
    good = {"hosts": 8192, "transport": "dctcp", "threads": 2, "build_s": 2.0, "peak_rss_bytes": 3e8, "hops_per_s": 9e6}
    assert "MISSED" not in " ".join(scale.check_limits([good]))
    for change in ({"build_s": 20.0}, {"peak_rss_bytes": 6e9}, {"hops_per_s": 7.9e6}):
        (text,) = scale.check_limits([{**good, **change}])
        assert text.count("MISSED") == 1
    assert "MISSED" not in scale.check_limits([{**good, "threads": 1, "hops_per_s": 5e6}])[0]
