"""Results of the testbed beside simulated ones: which run is which, and nothing that was not counted shown as a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from analysis_cases import messages, ports, small_result
from test_analysis_compare import cells

from gradwire.analysis.comparison.compare import compare, result_folders
from gradwire.analysis.comparison.plots import retransmissions
from gradwire.analysis.comparison.tables import headings, network_rows
from gradwire.analysis.metrics import measure
from gradwire.analysis.telemetry.telemetry import describe, series
from gradwire.analysis.telemetry.telemetry_tables import grids, print_telemetry
from gradwire.result_store.result import Result

ENGINE = {
    "kind": "emulation", "clock": "virtual", "switch": "red", "kernel": "6.1", "substitutions": [], "valid": True,
    "disturbed": [],
}  # fmt: skip


def emulated(wire: str = "udp", engine: dict[str, Any] | None = None, **tables: Any) -> Result:
    """`small_result` as a testbed would have seen it: queues and the marks of messages unknown, no speed."""
    unknown = ports() | {"peak_queue_bytes": [-1, -1]}
    columns = messages(marked=[-1] * 5) if wire == "tcp" else messages()
    plain = small_result(columns, port_columns=unknown)
    every = {name: getattr(plain, name).to_pydict() for name in ("messages", "iterations", "ports")}
    used = {"j": {"kind": "k", "payload": 100, "overhead": 58, "wire": wire}}
    summary = plain.summary | {"engine": ENGINE | (engine or {}), "transports": used}
    return Result.build(summary, every | tables)


def test_packet_hops_are_shown_for_simulated_runs_only(capsys: pytest.CaptureFixture[str]):
    compare([emulated()]).print()
    assert "packet-hops" not in capsys.readouterr().out
    compare([small_result(), emulated()]).print()
    text = capsys.readouterr().out
    assert cells(text, "packet-hops") == ["1,234", "-"]
    assert cells(text, "simulated per second") == ["5.00 M", "-"]


def test_headings_distinguish_simulated_and_emulated_runs():
    def names(*results: Result) -> list[str]:
        return headings(compare(results).flat)

    assert names(emulated()) == ["Policy"]
    assert names(small_result(), emulated()) == ["Policy, simulated", "Policy, emulated"]
    assert names(emulated(), emulated(engine={"clock": "wall"})) == ["Policy, virtual clock", "Policy, wall clock"]
    assert names(emulated(), emulated(engine={"switch": "bpf"})) == ["Policy, switches red", "Policy, switches bpf"]
    other = small_result(policy="q", label="Other")
    assert names(other, emulated()) == ["Other, simulated", "Policy, emulated"]
    assert result_folders([small_result(), emulated()]) == ["p-simulated", "p-emulated"]
    assert result_folders([emulated(), emulated()]) == ["p", "p-2"]


def test_headings_mark_disturbed_runs():
    noisy = emulated(engine={"valid": False, "disturbed": ["h0: a timer was 20 ms late"]})
    assert headings(compare([noisy]).flat) == ["Policy (disturbed)"]
    noisy.summary["totals"] = noisy.summary["totals"] | {"finished": False}
    assert headings(compare([noisy]).flat) == ["Policy (interrupted, disturbed)"]


def test_report_states_clock_switch_and_kernel_of_the_testbed(tmp_path: Path):
    noisy = emulated(engine={"valid": False, "disturbed": ["a timer was late"], "substitutions": ["no netem"]})
    noisy.summary["totals"] = noisy.summary["totals"] | {"finished": False, "ended_by": "max_wall"}
    comparison = compare([small_result(), noisy])
    text = (comparison.write(tmp_path / "out") / "report.md").read_text(encoding="utf-8")
    assert "700 ps simulated." in text
    assert (
        "700 ps on real sockets (virtual clock, switches red, Linux 6.1), not as the scenario says: no netem." in text
    )
    assert "not valid**, the machine disturbed the run: a timer was late." in text
    assert "cover 700 ps of the run only" in text
    assert comparison.cut_short == ["case p, at 700 ps of the run"]


def test_missing_counters_are_unknown_instead_of_zero():
    machines = emulated(ports={})
    found = measure(machines)[0]
    assert (found.drops_tail, found.marks, found.dropped) == (-1, -1, -1)
    rows = {row.label: row.cells for row in network_rows([found, measure(small_result())[0]])}
    assert rows["drops: tail"] == ["-", "3"]
    assert rows["CE marks"] == ["-", "30"]
    assert "packets trimmed" not in {row.label for row in network_rows([found])}
    assert retransmissions([found]) is not None  # packets were sent again
    partly = emulated(ports=ports() | {"drops_tail": [3, -1]})
    assert measure(partly)[0].drops_tail == -1
    assert measure(partly)[0].drops_selective == 5
    assert measure(partly)[0].dropped == -1


def test_report_does_not_claim_zero_drops_without_port_counters(tmp_path: Path):
    text = (compare([emulated(ports={})]).write(tmp_path / "out") / "report.md").read_text(encoding="utf-8")
    assert "drops were not counted" in text and "no packet was dropped" not in text


def numbers_below_zero(text: str) -> list[str]:
    return re.findall(r"(?<![\w.>-])-\d", text)


def test_unknown_queues_and_marks_are_printed_without_numbers(capsys: pytest.CaptureFixture[str]):
    found = describe(emulated("tcp"))
    print_telemetry(found, wanted=False)
    text = capsys.readouterr().out
    assert numbers_below_zero("a | -1 B") and not numbers_below_zero(text)
    assert [entry["peak_queue_bytes"] for entry in found["ports"]] == [None, None]
    assert [entry["port"] for entry in found["ports"]] == ["a->b", "b->c"]  # by packets, since queues are unknown
    assert cells(text, "a->b") == ["30", "-"]
    assert [(entry["marked"], entry["lost"]) for entry in found["layers"]] == [(None, None)] * 2
    assert "Lost: 19 packets counted by the switches; not all are listed." in text
    assert describe(emulated("tcp"), ["a->b"])["drops_not_listed"] == 6
    assert describe(emulated(drops=lost(2)))["drops_not_listed"] == 0
    assert "output.delays" not in text and "packet_log" not in text and "--pcap" in text
    assert any("the busiest" in grid.title for grid in grids(found, 1))
    single = ports() | {"packets": [1, 0], "peak_queue_bytes": [-1, -1]}
    assert [entry["port"] for entry in describe(emulated(ports=single))["ports"]] == ["a->b"]


def lost(message: int) -> dict[str, list[Any]]:
    """As many drops as `ports` has counted, all of one message."""
    n = 19
    return {
        "message": [message] * n, "packet": [-1 if message < 0 else 0] * n, "port": ["a->b"] * n, "time_ps": list(range(n)),
        "cause": ["tail"] * n, "important": [True] * n, "priority": [0] * n,
    }  # fmt: skip


def test_losses_by_layer_require_the_message_of_every_drop():
    seen = describe(emulated(drops=lost(2)))
    assert [entry["lost"] for entry in seen["layers"]] == [0, 19]
    assert seen["drops"][0]["data"] is True
    assert [entry["lost"] for entry in describe(emulated())["layers"]] == [None, None]  # counted only
    side = describe(emulated(drops=lost(-1)))  # data goes over UDP, so these were control packets
    assert side["drops"][0]["data"] is False
    assert [entry["lost"] for entry in side["layers"]] == [0, 0]
    tcp = describe(emulated("tcp", drops=lost(-1)))
    assert tcp["drops"][0]["data"] is None
    assert [row[2] for grid in grids(tcp, None) if grid.title == "packets lost" for row in grid.rows] == ["TCP"]
    assert [entry["lost"] for entry in tcp["layers"]] == [None, None]


def test_irregular_queue_samples_are_resampled_at_their_period():
    times = [100, 200, 301, 1000]
    samples = {
        "time_ps": times, "port": ["a->b"] * 4, "queue_bytes": [5, 7, 0, 3], "sent_bytes": [100, 200, 200, 899],
        "rate_bps": [8 * 10**12] * 4,
    }  # fmt: skip
    (found,) = series(emulated(samples=samples))
    assert found.period_ps == 100  # of 100, 100, 101, 699 (even number: the mean of the middle two, whole)
    assert found.queue_bytes.tolist() == [0, 5, 7, 7, 0, 0, 0, 0, 0, 0, 3]
    assert found.utilisation[1] == found.utilisation[2] == 1.0 and found.utilisation[3] < 0.02
    assert abs(found.utilisation.sum() * 100 - 899) < 3  # nothing is lost but less than a byte a period
    assert len(series(small_result())) == 0


def test_resampled_queue_samples_of_a_long_run_are_limited():
    times = [1000, 2001, 3003, 10**13 + 7]
    samples = {
        "time_ps": times, "port": ["a->b"] * 4, "queue_bytes": [0] * 4, "sent_bytes": [0] * 4, "rate_bps": [10**9] * 4,
    }  # fmt: skip
    (found,) = series(emulated(samples=samples))
    assert len(found.queue_bytes) < 110_000
