"""The report of a diagnosis: measured and simulated times, policies, page, command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log_cases import dump, entry, write_dump
from typer.testing import CliRunner

from gradwire.analysis.diagnosis.call_times import CallClass
from gradwire.cli import app
from gradwire.scenarios.errors import GradwireError
from gradwire.studies.diagnose.page import write_page
from gradwire.studies.diagnose.report import diagnose, text_of
from gradwire.studies.diagnose.simulated_calls import built_in_network, scenario_network, simulated_ns
from gradwire.traces.collective_logs import flight_recorder
from gradwire.traces.collective_logs.example_job import Fault, JobShape, example_job

SHAPE = JobShape(ranks=32, layout="tensor_data", iterations=4, layers=2, buckets=(40_000_000, 20_000_000))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diagnose") / "slow"
    flight_recorder.write(example_job(SHAPE, Fault("slow_link", 12, 4.0), 1), folder)
    return folder


def test_simulated_rings_take_their_bytes_over_the_rate() -> None:
    """On rails without contention a ring of n takes 2 (n - 1) / n of the bytes, or half, and its steps' latencies."""
    network = built_in_network("100Gbps")
    lower = 8e6 * 8 / 100e9 * 1e9 * 3 / 4  # of an all-gather among 4 hosts, ns
    gather = simulated_ns(CallClass("all_gather", 8_000_000, 4, True), 4, network)
    reduce = simulated_ns(CallClass("all_reduce", 8_000_000, 4, True), 4, network)
    assert lower < gather < 1.15 * lower and 2 * lower < reduce < 2.3 * lower
    eight = simulated_ns(CallClass("all_reduce", 64_000_000, 32, True), 4, network)  # 8 NICs a host, 8 times the bytes
    assert eight == pytest.approx(reduce, rel=0.05)


def test_larger_calls_are_scaled_and_a_slow_link_is_put_in() -> None:
    network = built_in_network("100Gbps")
    kind = CallClass("all_gather", 64_000_000, 4, True)
    whole, twice = simulated_ns(kind, 4, network), simulated_ns(kind._replace(nbytes=128_000_000), 4, network)
    assert twice == pytest.approx(2 * whole)
    assert simulated_ns(kind, 4, network.with_slow_link(4)) > 3.5 * whole


def test_networks_of_scenarios(tmp_path: Path) -> None:
    rails = scenario_network("rails")
    assert rails.has_topology and list(rails.policies) == ["one card", "two cards", "eight cards"]
    kind = CallClass("all_gather", 1_000_000, 4, True)
    one, eight = (simulated_ns(kind._replace(members=4), 4, rails, policy) for policy in ("one card", "eight cards"))
    assert one > 3 * eight
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\ntransport = "mine:Mine"\n[topology]\nkind = "star"\nhosts = 4\n')
    with pytest.raises(GradwireError, match="names the class mine:Mine"):
        scenario_network(str(own))
    with pytest.raises(GradwireError, match="among 1 hosts"):
        simulated_ns(kind, 1, rails)


def test_the_report_of_a_slow_link(slow: Path, tmp_path: Path) -> None:
    report = diagnose(slow, network=built_in_network("340Gbps"))
    data = json.loads(json.dumps(report.as_dict()))
    assert data["verdict"] == "slow_link" and 12 in data["findings"][0]["ranks"]
    largest = next(row for row in data["classes"] if row["nbytes"] == 40_000_000)
    assert largest["simulated_ms"] == pytest.approx(largest["median_ms"], rel=0.35)
    assert largest["busbw_gbs"] == pytest.approx(40 / largest["median_ms"] * 2 * 3 / 4)
    as_it_is, *policies = data["policies"]
    assert as_it_is["with_slow_link_ms"] > 2.5 * as_it_is["healthy_ms"] and len(policies) == 3
    text = "\n".join(text_of(report))
    assert "verdict: the link from rank" in text and "packet spraying" in text
    size = write_page(report, tmp_path / "page.html", "gradwire diagnose")
    page = (tmp_path / "page.html").read_text()
    assert len(page.encode()) == size and "What a policy would change" in page and "Waiting of each rank" in page


def test_the_command(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["diagnose", str(slow), "--no-simulate", "--json", "--out", str(page)])
    assert done.exit_code == 0 and json.loads(done.stdout)["verdict"] == "slow_link" and page.exists()
    again = CliRunner().invoke(app, ["diagnose", str(slow), "--out", str(page)])
    assert again.exit_code == 2 and "exists already" in again.stderr
    both = CliRunner().invoke(app, ["diagnose", str(slow), "--nic", "1Gbps", "--on", "rails"])
    assert both.exit_code == 2 and "--nic and --on" in both.stderr
    missing = CliRunner().invoke(app, ["diagnose", str(tmp_path / "none")])
    assert missing.exit_code == 2 and "Traceback" not in missing.stderr


def test_dumps_without_durations(tmp_path: Path) -> None:
    for rank in (0, 1):
        own = [entry(1)] + [entry(2, state="scheduled")] * (rank == 0)
        write_dump(tmp_path, rank, dump([{k: v for k, v in each.items() if k != "duration_ms"} for each in own]))
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert done.exit_code == 0
    assert "rank 1 has not entered all_reduce number 2 of default_pg (0); 1 rank waits" in done.stdout
    assert "TORCH_NCCL_ENABLE_TIMING=1" in done.stdout


@pytest.mark.parametrize("format", ["flight_recorder", "json", "inspector"])
def test_example_dumps(tmp_path: Path, format: str) -> None:
    out = tmp_path / "dumps"
    options = ["--fault", "straggler", "--ranks", "16", "--format", format, "--out", str(out), "--json"]
    done = CliRunner().invoke(app, ["trace", "example-dumps", *options])
    assert done.exit_code == 0
    rank = json.loads(done.stdout)["fault"]["rank"]
    assert diagnose(out, simulated=False).diagnosis.findings[0].ranks == (rank,)
