"""Real machines without machines: what agents are told, how a run is ended, and what is said of it."""

from __future__ import annotations

import os
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.emu.agent.agent import with_files
from gradwire.emu.agent.report import Reports
from gradwire.emu.control import machines
from gradwire.emu.control.launchers import CommandLauncher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.planning.planner import make_plan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.testbed import LIMIT_S, Request, emulate
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.emulation import RealHost
from gradwire.workload.resolve import resolve

HOSTS = [
    RealHost.model_validate({"name": f"h{number}", "address": f"192.0.2.{10 + number}", "ssh": f"user@node{number}"})
    for number in (2, 0, 1)
]
"""In another order than the scenario's."""
TABLES = {
    "name": "machines",
    "topology": {"kind": "star", "hosts": 3},
    "link": {"rate": "1Gbps", "latency": "50us"},
    "host": {"software_latency": "100us"},
    "transport": {"kind": "dlcp", "payload": "1400B"},
    "traffic": [{"kind": "all_to_all", "name": "all", "size": "200kB"}],
}


@pytest.fixture
def plan() -> TestbedPlan:
    scenario = build_scenario(TABLES)
    return make_plan(scenario, resolve(scenario), clock="wall", switch="none")


def test_addresses_are_matched_by_host_name(plan):
    found = machines.plan_for(plan, HOSTS)
    assert found.options["addresses"] == {0: "192.0.2.10", 1: "192.0.2.11", 2: "192.0.2.12"}


def test_trace_files_are_sent_to_real_machines(plan, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "magnitudes.npy").write_bytes(bytes([number, 10, 0, 255]))
    sent = machines.plan_for(replace(plan, trace_folders=tuple(map(str, folders))), HOSTS)
    for folder in folders:
        (folder / "magnitudes.npy").unlink()
    there = with_files(sent)  # as an agent does that sees nothing of ours
    found = [(Path(folder) / "magnitudes.npy").read_bytes() for folder in there.trace_folders]
    assert found == [bytes([0, 10, 0, 255]), bytes([1, 10, 0, 255])]


def test_remote_command_quotes_the_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "it's; here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = machines.command_of(HOSTS[0])[-1].partition(" 2>/dev/null; exec ")[0]
    assert shlex.split(there) == ["cd", str(folder)]


@pytest.fixture
def controller(monkeypatch):
    """A stand-in for the controller, which does what its `does(it)` does and has seen 77 bytes of a message."""

    class Stand:
        does: Any = None

        def __init__(self, plan, launcher, observer) -> None:
            self.plan, self.launcher, self.progress, self.check = plan, launcher, observer.progress, observer.check
            self.reports = Reports.empty(len(plan.program.messages))
            self.reports.received[0] = 77

        def run(self) -> Reports:
            Stand.does(self)
            return self.reports

    monkeypatch.setattr(machines, "Controller", Stand)
    return Stand


def test_time_limit_ends_a_run_with_partial_reports(plan, controller):
    def does(it):
        patience = time.monotonic() + 20
        while time.monotonic() < patience:
            assert it.check() == ()

    controller.does = does
    raw = machines.run_on_machines(plan, HOSTS, limit_s=0.2)
    assert raw.reports.ended_by == "max_wall" and raw.reports.received[0] == 77


def test_interrupt_ends_a_run_with_partial_reports(plan, controller):
    def does(it):
        assert it.check() == ()
        raise KeyboardInterrupt

    controller.does = does
    raw = machines.run_on_machines(plan, HOSTS, limit_s=100)
    assert raw.reports.ended_by == "interrupt" and raw.reports.received[0] == 77


def test_agent_failure_propagates(plan, controller):
    def does(it):
        raise TestbedError("was killed by signal 9", "agent of h2", usage=False)

    controller.does = does
    with pytest.raises(TestbedError, match="was killed by signal 9"):
        machines.run_on_machines(plan, HOSTS)


def test_problems_become_complaints_and_progress_is_reported(plan, controller):
    def does(it):
        it.reports.problems.append("host 1: 3 datagrams lost")
        it.progress(2, 6)

    controller.does = does
    heard: list[Any] = []
    raw = machines.run_on_machines(plan, HOSTS, heard.append)
    assert raw.complaints == ["host 1: 3 datagrams lost"]
    assert heard == [{"state": "running", "delivered": 2, "messages": 6}]


def test_every_agent_is_started_through_ssh_to_its_machine(plan, controller, monkeypatch):
    started: list[str] = []
    monkeypatch.setattr(machines, "CommandLauncher", lambda command: command)
    controller.does = lambda it: started.extend(it.launcher(node)[-2] for node in range(3))
    machines.run_on_machines(plan, HOSTS)
    assert started == ["user@node0", "user@node1", "user@node2"]


@pytest.mark.parametrize(("trip_ns", "told"), [(199_999, ""), (200_002, "0.10 ms"), (5_000_000, "2.50 ms")])
def test_notes_report_clock_uncertainty_above_threshold(trip_ns, told):
    """The uncertainty is half of the largest minimum round trip."""
    reports = Reports.empty(1)
    reports.round_trips.update({0: 50_000, 1: trip_ns, 2: 60_000})
    first, *rest = machines.machine_notes(RawResults(reports))
    assert first.startswith("real machines: ")
    assert rest == ([f"the machines' clocks agree to within {told}"] if told else [])


def test_time_limit_comes_from_the_request(monkeypatch):
    limits: list[float] = []

    def run_on_machines(plan, hosts, heard, limit_s):
        limits.append(limit_s)
        raise TestbedError("enough", "here")

    monkeypatch.setattr(machines, "run_on_machines", run_on_machines)
    scenario = build_scenario({**TABLES, "emulation": {"hosts": [each.model_dump() for each in HOSTS]}})
    for request in (Request(max_wall_s=7.5), Request()):
        with pytest.raises(TestbedError, match="enough"):
            emulate(scenario, resolve(scenario), request)
    assert limits == [7.5, LIMIT_S]


def test_agent_command_runs_in_a_separate_session(plan):
    """Ctrl-C at a terminal reaches only the controller, which ends the agents in order."""
    child = CommandLauncher(lambda node: ["sleep", "60"]).start(plan, 0, ())
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        assert not child.has_plan and child.status() is None
        files = (child.reading, child.writing, child.errors)
        assert not any(os.get_inheritable(file) or os.get_blocking(file) for file in files)
    finally:
        child.close(wait_s=0)
    assert child.status() == -signal.SIGKILL


def test_missing_agent_command_is_reported(plan):
    with pytest.raises(TestbedError, match=r"cannot start the agent of h1: No such file") as caught:
        CommandLauncher(lambda node: ["/nowhere/ssh", "node1"]).start(plan, 1, ())
    assert caught.value.where == "/nowhere/ssh node1"
