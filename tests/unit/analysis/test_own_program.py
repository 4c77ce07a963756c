"""A program of one's own and its replay: the scenario that its Result makes, and what is said of unfit ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gradwire
from gradwire import cli
from gradwire.analysis.user_program import load_user_program, run_column, side_by_side
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.traces.storage.writer import write as write_trace

ITERATIONS = (
    "job",
    "worker",
    "iteration",
    "start_ps",
    "forward_end_ps",
    "backward_end_ps",
    "end_ps",
    "compute_ps",
    "exposed_ps",
)
TOML = """name = "mine"
topology = { kind = "star", hosts = 4 }
link = { rate = "50Mbps" }
host = { software_latency = "250us" }
[exec]
mtu = 1000
[[traffic]]
name = "beside"
kind = "incast"
fan_in = 2
size = "1kB"
"""


def result(hosts: tuple[str, ...] = ("h2", "h0"), takes: tuple[int, ...] = (9, 4, 5), **more: Any) -> Result:
    """Ranks at `hosts`, whose iterations take so many ms."""
    rows = [(worker, number, ms * 10**9) for worker in range(len(hosts)) for number, ms in enumerate(takes)]
    count = len(rows)
    values = {
        "job": ["x"] * count, "worker": [row[0] for row in rows], "iteration": [row[1] for row in rows],
        "start_ps": [0] * count, "end_ps": [row[2] for row in rows], "exposed_ps": [row[2] for row in rows],
    }  # fmt: skip
    columns = {name: values.get(name, [0] * count) for name in ITERATIONS}
    programs = {"ranks": [{"rank": rank, "host": host} for rank, host in enumerate(hosts)], "congestion": {}, **more}
    summary = {
        "name": "mine",
        "programs": programs,
        "totals": {},
        "engine": {"kind": "emulation", "clock": "virtual", "switch": "bpf"},
    }
    return Result.build(summary, {"iterations": columns}, scenario=TOML)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "ran"
    result(command=["python", "my train.py"]).write(place)
    write_trace(gradwire.load_trace("lstm"), place / "trace.rank0")
    return place


def test_report_and_timeline_show_ranks_of_a_user_program(folder: Path):
    """Ranks appear with their hosts, computing and waiting, though the scenario has no job."""
    written = gradwire.report(folder, out=folder.parent / "page.html", iteration=1)
    (figure,) = re.findall(
        r'<figure class="timeline".*?<script type="application/json">(.*?)</script>', written.path.read_text()
    )
    hosts = {host["name"]: host for host in json.loads(figure)["runs"][0]["hosts"]}
    assert {name: host["role"] for name, host in hosts.items()} == {"h2": "x rank 0", "h0": "x rank 1"}
    assert all(len(host["spans"]["begin"]) == 3 for host in hosts.values())  # its iterations here begin all at once
    again = f"gradwire exec {folder}/scenario.toml --clock virtual -- python &#x27;my train.py&#x27;"
    assert again in written.path.read_text()
    told = json.loads(written.timelines[0].read_text())
    assert {event["args"]["worker"] for event in told["traceEvents"] if event["ph"] == "X"} == {0, 1}


def test_replay_places_ranks_as_workers_and_uses_the_kernel_tcp(folder: Path):
    found = load_user_program(folder, ["link.rate=100Mbps", "job.jitter=0.1"])
    scenario = found.scenario
    (job,) = scenario.job
    assert (job.workers, job.placement.workers, job.iterations, job.jitter) == (2, ("h2", "h0"), 3, 0.1)
    assert (job.exchange.kind, job.scheduler.kind) == ("ring", "ddp")
    assert gradwire.load_trace(job.trace).layers == gradwire.load_trace("lstm").layers
    assert (scenario.transport.kind, scenario.transport.connections) == ("cubic", "persistent")
    assert scenario.transport.payload + 52 == 1000
    assert scenario.link.rate == 100_000_000
    assert [table.name for table in scenario.traffic] == ["beside"]
    assert scenario.exec is None
    assert len(gradwire.simulate(scenario).iterations) == 6


def test_replay_uses_the_congestion_control_of_the_hosts(folder: Path, tmp_path: Path):
    for kernels, kind in (("reno", "tcp_newreno"), ("dctcp", "dctcp")):
        place = tmp_path / kernels
        result(congestion={"h0": kernels, "h2": kernels}).write(place)
        write_trace(gradwire.load_trace("lstm"), place / "trace")
        assert load_user_program(place).scenario.transport.kind == kind
    result(congestion={"h0": "vegas"}).write(tmp_path / "vegas")
    write_trace(gradwire.load_trace("lstm"), tmp_path / "vegas" / "trace")
    with pytest.raises(ScenarioError, match="no congestion control 'vegas'"):
        load_user_program(tmp_path / "vegas")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (result(("h0", "h0")), "several ranks on one host"),
        (result(("h0",)), "one rank"),
        (result(takes=()), "no iterations"),
        (result(), "no trace of its program"),
        (Result.build({"name": "x", "totals": {}}, {}), "not the Result of a user-defined program"),
    ],
)
def test_results_unsuitable_for_replay_are_refused(tmp_path: Path, made: Result, words: str):
    made.write(tmp_path / "ran")
    with pytest.raises(ResultError, match=words) as caught:
        load_user_program(tmp_path / "ran")
    assert str(tmp_path / "ran") in str(caught.value)


def test_first_iteration_is_reported_separately():
    found = run_column("program", result())
    assert (found.first, found.mean, found.longest) == (9e9, 4.5e9, 9e9)
    grid, data = side_by_side(result(), result(takes=(9, 9, 9)), result(takes=(18, 4, 5)))
    assert data["replayed"]["mean"] == 9e9
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["other iterations, mean"][3:] == ["+100.0 %", "+0.0 %"]
    assert rows["first iteration"][3:] == ["+0.0 %", "+100.0 %"]


def test_fidelity_from_a_program_run_refuses_several_seeds(folder: Path):
    done = CliRunner().invoke(cli.app, ["fidelity", "--from", str(folder), "--set", "fidelity.seeds=2"])
    assert done.exit_code == 2
    assert "fidelity.seeds: cannot be combined with --from: the program ran once; expected 1" in done.stderr
