"""Which packets messages were delivered without: rows worked out by hand, against the log of packets, of both worlds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from sim_cases import US, make_trace, ps_job, ring_job, rows

from gradwire.emu.agent.report import Reports
from gradwire.emu.results.outcome import _missing
from gradwire.result_store.missing_packets import COLUMNS, missing_columns, missing_runs
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate

TRACE = make_trace([[50_000], [90_000], [7]], iterations=2, forward=20 * US, backward=20 * US)


def flags(text: str) -> Any:
    return np.array([letter == "x" for letter in text])


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ("xx..x.x", [(0, 2, 0, 20), (4, 1, 40, 10), (6, 1, 60, 5)]),  # 65 bytes, the last packet has 5
        (".x.....", [(1, 1, 10, 10)]),
        ("xxxxxxx", [(0, 7, 0, 65)]),
        (".......", []),
    ],
)
def test_missing_runs_merge_consecutive_packets(missing: str, found: list[tuple[int, ...]]):
    assert missing_runs(9, flags(missing), 65, 10).tolist() == [[9, *run] for run in found]


def test_missing_columns_are_sorted_by_message():
    two = [missing_runs(5, flags("x.x"), 3, 1), missing_runs(2, flags(".x"), 2, 1)]
    assert missing_columns(two)["message"].tolist() == [2, 5, 5]
    assert missing_columns(two)["packet"].tolist() == [1, 0, 2]
    assert {name: len(column) for name, column in missing_columns([]).items()} == dict.fromkeys(COLUMNS, 0)


def lossy(**changes: Any) -> Any:
    """Flows and a job that may do without some of their bytes, on links that lose some."""
    tables: dict[str, Any] = {
        "name": "case",
        "topology": {"kind": "star", "hosts": 8},
        "link": {"loss": 0.02},
        "switch": {"buffer": "256KiB", "ecn_threshold": "32KiB", "selective_drop": True},
        "transport": {"kind": "dlcp", "stop_policy": "eager", "send_order": "sequential", "rate_control": "dctcp"},
        "traffic": [{"name": "t", "kind": "incast", "fan_in": 7, "size": "300kB", "bound": 0.2, "droppable": True}],
        "output": {"packet_log": True},
    }
    return build_scenario(tables | changes)


def check(result: Result) -> None:
    """The rows say what the log of packets says: what has arrived of a message by its delivery, and what has not."""
    payload = {name: used["payload"] for name, used in result.summary["transports"].items()}
    missing: dict[int, set[int]] = defaultdict(set)
    lost: dict[int, int] = defaultdict(int)
    for row in rows(result.missing):
        packets = range(row["packet"], row["packet"] + row["packets"])
        assert not missing[row["message"]].intersection((*packets, packets.start - 1, packets.stop))
        missing[row["message"]].update(packets)
        lost[row["message"]] += row["bytes"]
    came: dict[int, set[int]] = defaultdict(set)
    ends = {row["message"]: row["end_ps"] for row in rows(result.messages)}
    speed = 80  # ps a byte at 100 Gbps
    for row in rows(result.packets):
        arrival = row["start_ps"] + row["bytes"] * speed + US
        if (
            row["kind"] == "data"
            and row["port"].startswith("s")
            and not row["lost"]
            and arrival <= ends[row["message"]]
        ):
            came[row["message"]].add(row["packet"])
    for row in rows(result.messages):
        number = row["message"]
        assert (row["end_ps"] >= 0) and row["lost_bytes"] == lost[number]
        assert missing[number] == set(range(row["packets"])) - came[number]
    for row in rows(result.missing):
        assert row["offset"] == row["packet"] * payload["t" if "t" in payload else "job"]


def test_missing_rows_of_flows_match_packet_log():
    result = simulate(lossy())
    check(result)
    assert result.missing.num_rows > 20
    assert result.missing["message"].to_pylist() == sorted(result.missing["message"].to_pylist())


@pytest.mark.parametrize("kind", ["ps", "ring"])
def test_missing_rows_of_jobs_match_packet_log(kind: str):
    """The engine plays a ring's messages itself, without an event for each delivery."""
    which = ps_job(5, 2) if kind == "ps" else ring_job(6, order="fifo")
    bounds = {"push_bound": 0.2, "pull_bound": 0.1, "pull_important": False}
    tagging = {"magnitude": True, "important_fraction": 0.2}
    job = {"name": "job", "trace": "none", "iterations": 2, "tagging": tagging, **bounds, **which}
    result = simulate(lossy(traffic=[], job=[job]), TRACE)
    check(result)
    assert result.missing.num_rows > 20


def test_missing_rows_do_not_depend_on_threads():
    assert simulate(lossy(), threads=2).missing.equals(simulate(lossy()).missing)


def test_missing_table_can_be_disabled():
    with_it, without = simulate(lossy()), simulate(lossy(output={"packet_log": True, "missing": False}))
    assert without.missing.num_rows == 0
    assert without.messages.equals(with_it.messages)


def test_missing_rows_from_testbed_reports():
    """Receivers report the missing packets. Message 3 was never delivered; message 7 arrived completely."""
    reports = Reports.empty(8)
    reports.end_ns[[2, 5, 7]] = 100
    reports.have = {2: ~flags("x.xx"), 3: ~flags("x"), 5: ~flags(".x")}
    numbers = np.array([2, 3, 5, 7])
    found = _missing(reports, np.array([31, 9, 12, 40]), np.array([10, 10, 10, 10]), numbers)
    assert list(zip(*(found[name].tolist() for name in COLUMNS), strict=True)) == [
        (2, 0, 1, 0, 10), (2, 2, 2, 20, 11), (5, 1, 1, 10, 2),
    ]  # fmt: skip
