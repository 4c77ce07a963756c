"""Experiments of htsim's Ultra Ethernet simulator, translated by the program, against the figures that htsim printed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gradwire.scenarios.errors import GradwireError
from gradwire.studies.htsim.command import parse_command
from gradwire.studies.htsim.comparison import compare_rows, find_rows, summary
from gradwire.studies.htsim.page import comparison_page, result_grid
from gradwire.studies.htsim.rows import HtsimRow
from gradwire.studies.htsim.translation import (
    bandwidth_delay_packets,
    base_rtt_ps,
    return_trip_ps,
    scenario_of,
    tree_of,
)

CLOSE = 0.03  # of a last completion; ties and draws differ
LEAF_SPINE = """Nodes 16
Tiers 2
Podsize 16

Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 2
Downlink_Latency_ns 1000
Oversubscribed 2

Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 1000
"""


def matrix(nodes: int, pairs: list[tuple[int, int]], size: int) -> str:
    lines = [f"{source}->{target} start 0 size {size}" for source, target in pairs]
    return "\n".join([f"Nodes {nodes}", f"Connections {len(pairs)}", *lines, ""])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a checkout of uet-htsim, with traffic of the shapes of its own."""
    folder = tmp_path / "htsim/sim/datacenter"
    for name in ("connection_matrices", "topologies", "validate_outputs"):
        (folder / name).mkdir(parents=True)
    order = list(range(16))
    random.Random(4).shuffle(order)
    around = list(zip(order, [*order[1:], order[0]], strict=True))
    for name, text in {
        "one": matrix(16, [(0, 13)], 2_000_000),
        "incast": matrix(16, [(source, 15) for source in range(15)], 2_000_000),
        "perm": matrix(16, around, 2_000_000),
    }.items():
        (folder / f"connection_matrices/{name}.cm").write_text(text)
    (folder / "topologies/tree.topo").write_text(LEAF_SPINE)
    return tmp_path


def printed(checkout: Path, *rows: HtsimRow) -> None:
    """Write what validate.py prints for these rows."""
    text = "".join(
        f"Experiment: {row.title}\n=====\nRunning {row.command}\n[PASS] Tail FCT {row.last_us} us\n"
        f"FCT Spread {row.first_us} -> {row.last_us} ratio 1\n"
        for row in rows
    )
    (checkout / "htsim/sim/datacenter/validate_outputs/validate_uec.out").write_text(text)


def row(title: str, options: str, last_us: float) -> HtsimRow:
    return HtsimRow(title, f"./htsim_uec -tm connection_matrices/{options}", 1.0, last_us)


PUBLISHED = [
    row("one flow, sender", "one.cm -end 1000 -sender_cc_only", 176.2),
    row("one flow, both", "one.cm -end 1000 -sender_cc -receiver_cc", 177.4),
    row("incast, sender", "incast.cm -end 3000 -sender_cc_only", 2478.5),
    row("incast, both", "incast.cm -end 3000 -sender_cc -receiver_cc", 2462.9),
    row("incast, receiver", "incast.cm -end 3000 -receiver_cc_only", 2464.4),
    row("permutation, sender", "perm.cm -end 1000 -paths 128 -sender_cc_only", 194.0),
    row("permutation, both", "perm.cm -end 1000 -paths 128 -sender_cc -receiver_cc", 196.8),
    row("slow cable, sender", "perm.cm -end 2000 -paths 128 -failed 1 -sender_cc_only", 238.2),
]
"""uet-htsim 40ccb05, validate_outputs, microseconds. Its permutation of 16 nodes is another one."""


def test_last_completions_are_those_that_htsim_prints(checkout, tmp_path):
    """A slow cable slows only the flows of a pod that the permutation sends through it."""
    printed(checkout, *PUBLISHED)
    results = compare_rows(checkout, tmp_path / "out")
    assert [each.problem for each in results] == [""] * len(PUBLISHED)
    for each in results:
        limit = 0.1 if "slow" in each.title else CLOSE
        assert each.difference == pytest.approx(0, abs=limit), each.title
    page = comparison_page(results, "gradwire reproduce uec")
    assert "incast, receiver" in page and "2,464.4" in page
    again = compare_rows(checkout, tmp_path / "out")  # nothing is simulated twice
    assert again == results and len(json.loads((tmp_path / "out/rows.json").read_text())) == len(PUBLISHED)


def test_defaults_are_those_that_htsim_prints(checkout):
    """It prints for 1024 hosts of 100 Gbps: 43 packets of queue, marks from 9 to 35, a round trip of 14.02 us and a
    time-out of 100.7 us."""
    command = parse_command("-tm connection_matrices/one.cm -sender_cc_only")
    tree = tree_of(command, checkout / "htsim/sim/datacenter")
    assert (tree.hosts, tree.edges, tree.up) == (16, 8, (2, 2))
    assert base_rtt_ps(command, tree) / 1e6 == pytest.approx(14.02, abs=0.01)
    assert bandwidth_delay_packets(command, tree) == 43
    assert return_trip_ps(tree) / 1e6 == pytest.approx(6.03, abs=0.01)
    tables = scenario_of(command, checkout / "htsim/sim/datacenter")
    switch = tables["switch"]
    assert [int(switch[key][:-1]) // 4150 for key in ("trim_threshold", "ecn_threshold", "ecn_ceiling")] == [43, 9, 35]
    assert int(tables["transport"]["min_rto"][:-2]) / 1e6 == pytest.approx(100.66, abs=0.01)


def test_receiver_control_turns_marks_off_on_last_hops(checkout):
    folder = checkout / "htsim/sim/datacenter"
    tables = scenario_of(parse_command("-tm connection_matrices/one.cm -receiver_cc_only"), folder)
    assert tables["switch"]["override"] == [{"ports": "edge*->h*", "ecn": False}]
    assert tables["transport"]["control"] == "receiver" and "averaging" not in tables["transport"]
    tree = "-topo topologies/tree.topo -sender_cc -receiver_cc -cwnd 5"
    tables = scenario_of(parse_command(f"-tm connection_matrices/one.cm {tree}"), folder)
    assert tables["switch"]["override"] == [{"ports": "edge*->h*", "ecn": False}]
    assert tables["topology"] == {"kind": "htsim", "file": str(folder / "topologies/tree.topo")}
    assert tables["transport"]["initial_window"] == pytest.approx(5 * 4150 * 8 / (100e9 * 9.35e-6), rel=0.01)


def test_slow_cables_are_a_quarter_one_way_with_their_queues(checkout):
    tables = scenario_of(parse_command("-tm connection_matrices/one.cm -failed 2"), checkout / "htsim/sim/datacenter")
    assert [(each["between"], each["rate"], each["one_way"]) for each in tables["fault"]] == [
        (["core0", "agg0"], "25000000000bps", True),
        (["core1", "agg0"], "25000000000bps", True),
    ]
    assert [each["ports"] for each in tables["switch"]["override"]] == ["core0->agg0", "core1->agg0"]
    assert int(tables["switch"]["override"][0]["trim_threshold"][:-1]) == 43 * 4150 // 4


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("-tm a.cm -conn_reuse", "-conn_reuse is not translated"),
        ("-tm a.cm -paths", "-paths has no value"),
        ("-tm a.cm -paths many", "-paths has no value"),
        ("-sender_cc_only", "names no traffic matrix"),
        ("-tm a.cm -load_balancing_algo reps_legacy", "reps_legacy is not translated"),
    ],
)
def test_commands_that_cannot_be_translated_say_why(words, what):
    with pytest.raises(GradwireError, match=what):
        parse_command(words)


def test_experiments_are_found_once_and_by_their_words(checkout):
    printed(checkout, PUBLISHED[0], PUBLISHED[2], PUBLISHED[0])
    assert [each.title for each in find_rows(checkout)["validate_uec.out"]] == ["one flow, sender", "incast, sender"]
    assert [each.title for each in find_rows(checkout, "INCAST")["validate_uec.out"]] == ["incast, sender"]
    with pytest.raises(GradwireError, match="no experiment contains"):
        find_rows(checkout, "torus")
    with pytest.raises(GradwireError, match="no experiments that htsim has printed"):
        find_rows(checkout / "htsim/sim/datacenter/topologies")


@pytest.mark.parametrize("content", ["{", "[1]", '[{"title": "x"}]', '[{"spread_us": [], "colour": 1}]'])
def test_other_content_of_the_output_folder_is_refused(checkout, tmp_path, content):
    printed(checkout, PUBLISHED[0])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/rows.json").write_text(content)
    with pytest.raises(GradwireError, match="holds no rows of an earlier comparison"):
        compare_rows(checkout, tmp_path / "out")
    assert (tmp_path / "out/rows.json").read_text() == content


def test_rows_that_cannot_be_set_are_named(checkout, tmp_path):
    printed(checkout, row("reuse", "one.cm -conn_reuse", 17.0))
    results = compare_rows(checkout, tmp_path / "out")
    assert result_grid(results).rows == [["reuse", "uec", "17.0", "-", "-conn_reuse is not translated"]]
    assert summary(results) == "0 of 0 experiments end within 5% of htsim; 1 cannot be set"
