"""`gradwire bench emu`: what is counted is what was sent, and what cannot run is said."""

from __future__ import annotations

import json

import pytest
from emu_cases import needs

from gradwire.benchmarks import emu as bench
from gradwire.benchmarks.emu_rows import run_row
from gradwire.scenarios.errors import GradwireError


def full_row(row: dict[str, object]) -> None:
    assert "refused" not in row and row["wall_s"] > 0
    assert row["hops_per_s"] >= row["packets_per_s"] > 0


@pytest.mark.parametrize(("what", "links"), [("star", 2), ("leaf-spine", 4)])
def test_core_benchmark_counts_every_packet_on_every_link(what: str, links: int) -> None:
    row = run_row("core", what, 50)
    full_row(row)
    assert (row["packets"], row["hops"]) == (8 * 50, 8 * 50 * links)


@needs("namespaces", "tun")
def test_tun_benchmark_counts_the_packets_sent() -> None:
    row = bench.in_own_process({"case": "tun", "what": "small", "size": 1000, "payload": 200})
    full_row(row)
    assert (row["packets"], row["hops"]) == (1000, 2000)
    assert row["mbps"] == pytest.approx(1000 * 200 * 8 / row["wall_s"] / 1e6, rel=0.02, abs=0.1)


@needs("namespaces", "tun")
def test_agents_benchmark_delivers_the_message() -> None:
    size = 280_000
    row = bench.in_own_process({"case": "agents", "what": "userspace", "size": size, "transport": "dlcp"})
    full_row(row)
    assert row["received_bytes"] == size
    assert row["sent_packets"] >= size // 1400
    assert row["packets"] > row["sent_packets"]  # acknowledgements, and the connection of the side channel
    assert row["hops"] <= 2 * row["packets"]


@needs("uml")
def test_virtual_benchmark_separates_virtual_time_from_boot_time() -> None:
    size = 28_000
    row = bench.in_own_process({"case": "virtual", "what": "userspace", "size": size, "transport": "dlcp"})
    full_row(row)
    assert row["received_bytes"] == 4 * size
    assert row["packets"] > row["sent_packets"] >= 4 * size // 1400
    assert row["boot_s"] > 0 and row["build_s"] > 0
    assert row["virtual_ms_per_s"] == pytest.approx(row["virtual_ms"] / row["wall_s"], rel=0.01)
    assert row["mbps"] <= 10_000


def test_bench_emu_prints_rows_and_refuses_unknown_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "CORE_PACKETS", 20)
    bench.bench_emu(case="core", as_json=True)
    shown = capsys.readouterr()
    rows = json.loads(shown.out)["rows"]
    assert [(row["what"], row["hops"]) for row in rows] == [("star", 320), ("leaf-spine", 640)]
    assert "core star, run 1/1" in shown.err
    with pytest.raises(GradwireError, match="no such benchmark"):
        bench.bench_emu(case="cores", as_json=False)


def answers(**by_what: dict[str, object]):
    """Stands in for processes: what each of the rows is said to have done."""

    def run(row: dict[str, object]) -> dict[str, object]:
        found = by_what[str(row["what"])]
        if "error" in found:
            raise bench.BenchmarkError(str(found["error"]), str(row["what"]))
        return {**row, **found}

    return run


DONE = {"packets": 10, "hops": 20, "wall_s": 1.0, "packets_per_s": 10, "hops_per_s": 20}


def test_bench_emu_reports_rows_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "in_own_process", answers(bpf={"refused": "no clang"}, userspace=DONE))
    bench.bench_emu(case="agents", as_json=False)
    out, err = capsys.readouterr()
    assert "agents bpf dlcp: not run: no clang" in out.splitlines()
    assert (err.count("agents bpf"), err.count("agents userspace")) == (1, 3)  # refused once, not asked again
    monkeypatch.setattr(bench, "in_own_process", answers(bpf={"refused": "no clang"}, userspace={"refused": "no TUN"}))
    with pytest.raises(GradwireError, match="nothing can run here: no clang; no TUN") as caught:
        bench.bench_emu(case="agents", as_json=False)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().out == ""


def test_bench_emu_reports_failures_after_other_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "in_own_process", answers(bpf={"error": "it broke"}, userspace=DONE))
    with pytest.raises(bench.BenchmarkError, match="1 of 2 rows: agents bpf dlcp: it broke") as caught:
        bench.bench_emu(case="agents", as_json=True)
    assert caught.value.exit_code == 1
    assert [row["what"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["userspace"]


def test_bench_emu_reports_the_run_of_median_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter((3.0, 1.0, 2.0))
    monkeypatch.setattr(bench, "rows_of", lambda case: iter([{"case": case, "what": "star"}]))
    monkeypatch.setattr(bench, "in_own_process", lambda row: {**row, **DONE, "wall_s": next(times)})
    bench.bench_emu(case="core", as_json=True)
    assert [row["wall_s"] for row in json.loads(capsys.readouterr().out)["rows"]] == [2.0]


def test_tun_benchmark_is_refused_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gradwire.emu.system.namespaces.private_command", lambda command: ["sh", "-c", "echo not permitted >&2; exit 1"]
    )
    row = bench.in_own_process({"case": "tun", "what": "small", "size": 10, "payload": 200})
    assert row["refused"] == "private namespaces cannot be created (not permitted)"


def test_virtual_benchmark_is_refused_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.emu.virtual_time.virtual_machine.find_kernel", lambda: None)
    assert "make uml" in run_row("virtual", "userspace", 1000, transport="dlcp")["refused"]
