"""A run from the outside, without one: when it is repeated, what a Ctrl-C makes of it, what a runner has left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
import types
from typing import Any

import pytest
from star_cases import star_scenario
from userspace_cases import star

from gradwire.emu import testbed
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.report import Reports
from gradwire.emu.control import runner, supervisor
from gradwire.emu.control.runner import STALL_NS, stalls
from gradwire.emu.control.supervisor import EmulationInterrupted
from gradwire.emu.planning.backend_choice import backend_kind_of
from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.planning.probe import virtual_kernel
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.testbed import Request
from gradwire.emu.transports import make_carriers, shares_nic
from gradwire.emu.virtual_time.machine_clock import ClockStoppedError
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.workload.resolve import resolve

# runs that are repeated


def outcome(valid: bool = True, ended_by: str = "done") -> Any:
    disturbed = [] if valid else ["it stood still", "twice", "thrice"]
    return types.SimpleNamespace(
        summary={"engine": {"valid": valid, "disturbed": disturbed}, "totals": {"ended_by": ended_by}}
    )


@pytest.fixture
def runs(monkeypatch):
    """A function that emulates where every run ends as is said, and returns (the Result, how many runs, what was told).
    `during(ctrl_c)` is called in each."""

    def emulate(outcomes: list[Any], request: Request, during: Any = None) -> tuple[Any, int, list[Any]]:
        made: list[int] = []
        heard: list[Any] = []

        def once(scenario, resolved, request, chosen, ideal, heard, attempt, ctrl_c):
            made.append(attempt)
            if during is not None:
                during(ctrl_c)
            if isinstance(outcomes[attempt - 1], Exception):
                raise outcomes[attempt - 1]
            return outcomes[attempt - 1]

        monkeypatch.setattr(testbed, "choose_backend", lambda *arguments: None)
        monkeypatch.setattr(testbed, "check_scenario", lambda scenario, **more: None)
        monkeypatch.setattr(testbed, "_once", once)
        scenario = star_scenario(job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}])
        found = testbed.emulate(scenario, resolve(scenario), request, on_progress=heard.append)
        assert made == list(range(1, len(made) + 1))
        return found, len(made), heard

    return emulate


def test_disturbed_run_is_repeated_and_reasons_are_reported(runs):
    outcomes = [outcome(False), outcome(), outcome()]
    found, made, heard = runs(outcomes, Request(clock="wall"))
    assert found is outcomes[1] and made == 2
    assert heard == [{"state": "again", "why": "it stood still; twice"}]


def test_disturbed_runs_are_repeated_up_to_the_round_limit(runs):
    outcomes = [outcome(False) for _ in range(5)]
    for rounds in (1, 3):
        found, made, heard = runs(outcomes, Request(clock="wall", rounds=rounds))
        assert found is outcomes[rounds - 1] and made == rounds and len(heard) == rounds - 1


@pytest.mark.parametrize("ended_by", ["max_wall", "duration", "interrupt"])
def test_run_cut_short_is_not_repeated(runs, ended_by):
    assert runs([outcome(False, ended_by), outcome()], Request(clock="wall"))[1] == 1


def test_disturbed_virtual_time_run_is_not_repeated(runs):
    assert runs([outcome(False), outcome()], Request(clock="virtual"))[1] == 1


def test_run_with_a_stopped_clock_is_repeated_once(runs):
    still = ClockStoppedError("the clock stood still", "virtual time")
    outcomes = [still, outcome()]
    found, made, heard = runs(outcomes, Request(clock="virtual"))
    assert found is outcomes[1] and made == 2
    assert heard == [{"state": "again", "why": str(still)}]
    with pytest.raises(ClockStoppedError):
        runs([still, still, outcome()], Request(clock="virtual"))


def test_disturbed_run_is_not_repeated_beyond_the_time_limit(runs):
    assert runs([outcome(False), outcome()], Request(clock="wall", max_wall_s=1e-9))[1] == 1


def test_ctrl_c_during_evaluation_raises_with_the_result(runs):
    outcomes = [outcome(False), outcome()]
    with pytest.raises(EmulationInterrupted) as caught:
        runs(outcomes, Request(clock="wall"), lambda ctrl_c: setattr(ctrl_c, "is_requested", True))
    assert caught.value.result is outcomes[0]


@pytest.mark.parametrize("switch", ["bpf", "userspace"])
def test_hosts_receive_the_send_ahead_of_the_backend(switch, monkeypatch):
    kernel = virtual_kernel()
    monkeypatch.setattr("gradwire.emu.planning.probe.probe", lambda: kernel)
    monkeypatch.setattr("gradwire.emu.switches.linux_network.bpf_switch.object_file", lambda: "port.o")
    scenario = star_scenario(
        job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}], transport={"kind": "dlcp"}
    )
    plan = testbed.choose_backend(scenario, resolve(scenario), "wall", switch).plan
    wanted = backend_kind_of(switch).ahead_ns
    assert plan.options["ahead_ns"] == wanted

    host = types.SimpleNamespace(loop=EpollLoop(), rate=10**8, clock="wall", node=0)
    make_carriers(plan, host, [types.SimpleNamespace(transport=0, src=0)])
    assert host.loop.agent.ahead == wanted * 1000
    host.loop.close()


@pytest.mark.parametrize(
    ("clock", "rows", "programs", "shared"),
    [
        ("virtual", [(0, 0), (1, 0)], None, True),
        ("virtual", [(0, 0), (1, 5)], None, False),  # the kernel's TCP only receives here
        ("virtual", [(1, 0)], None, False),
        ("wall", [(0, 0), (1, 0)], None, False),
        ("virtual", [(0, 0)], object(), True),  # whose connections are their own
        ("virtual", [(0, 5)], object(), False),
    ],
)
def test_hosts_share_the_nic_if_udp_and_kernel_tcp_both_send(clock, rows, programs, shared):
    """`rows` holds pairs of transport (0 is UDP, 1 is kernel TCP) and source."""
    transports = [types.SimpleNamespace(by_kernel=kernel) for kernel in (False, True)]
    plan = types.SimpleNamespace(transports=transports, clock=clock, programs=programs)
    assert (
        shares_nic(plan, 0, [types.SimpleNamespace(transport=transport, src=src) for transport, src in rows]) == shared
    )


def test_ctrl_c_during_the_probe_is_reported_as_interrupt(monkeypatch):
    def choose(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        raise TestbedError("cannot create private namespaces", "testbed", "--clock virtual")

    monkeypatch.setattr(testbed, "choose_backend", choose)
    scenario = star_scenario(job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}])
    monkeypatch.setattr(testbed, "check_scenario", lambda scenario, **more: None)
    with pytest.raises(EmulationInterrupted) as caught:
        testbed.emulate(scenario, resolve(scenario), Request(clock="wall"))
    assert caught.value.result is None


# machines that are late


def late(**seen: int) -> Reports:
    reports = Reports.empty(0)
    reports.punctuality.update({0: {"timers": 100, "max_ns": 0, "p99_ns": 0}, 1: seen})
    return reports


def test_stalled_host_is_reported_with_its_lateness():
    plan = star(2)
    assert stalls(plan, late(timers=5, max_ns=STALL_NS, p99_ns=STALL_NS)) == []
    assert stalls(plan, late(timers=5, max_ns=STALL_NS + 10**5, p99_ns=0)) == ["h1: max timer lateness 10.1 ms"]


def test_host_with_lateness_above_the_round_trip_is_reported():
    plan, limit = star(2), 2 * base_round_trip_ns(star(2))
    assert stalls(plan, late(timers=100, max_ns=limit + 1, p99_ns=limit)) == []
    (said,) = stalls(plan, late(timers=100, max_ns=limit + 1, p99_ns=limit + 1))
    assert said.startswith("h1: 99 % timer lateness ")
    assert stalls(plan, late(timers=99, max_ns=limit + 1, p99_ns=limit + 1)) == []
    (said,) = stalls(plan, late(timers=100, max_ns=STALL_NS + 1, p99_ns=STALL_NS))
    assert said.startswith("h1: max timer lateness")


# what a runner has left


@pytest.fixture
def seen(tmp_path):
    """A runner, as it is seen from outside, and its folder."""
    return supervisor.Runner(tmp_path, None)


def leave(folder, ended_by: str) -> None:
    reports = Reports.empty(2)
    reports.ended_by = ended_by
    runner.write_atomically(folder / "raw.pickle", RawResults(reports))


@pytest.mark.parametrize(
    ("asked", "ended_by", "found"),
    [("", "done", "done"), ("max_wall", "interrupt", "max_wall"), ("interrupt", "interrupt", "interrupt"),
     ("max_wall", "done", "done"), ("", "interrupt", "interrupt")],
)  # fmt: skip
def test_outcome_gives_the_reason_why_a_run_ended(seen, tmp_path, asked, ended_by, found):
    leave(tmp_path, ended_by)
    if asked:
        assert seen.request_end(asked) is False and (tmp_path / runner.STOP).exists()
    assert seen.outcome(0).reports.ended_by == found


def test_reported_error_takes_precedence_over_results(seen, tmp_path):
    leave(tmp_path, "interrupt")
    seen.report_progress(json.dumps({"error": TestbedError("no room", "/tmp", "room").args}))
    with pytest.raises(TestbedError, match="no room") as caught:
        seen.outcome(2)
    assert caught.value.usage and caught.value.exit_code == 2
    seen.errors.clear()
    seen.report_progress(json.dumps({"error": TestbedError("was killed", "agent of h1", usage=False).args}))
    with pytest.raises(TestbedError) as caught:
        seen.outcome(1)
    assert not caught.value.usage and caught.value.exit_code == 1


def test_runner_without_results_is_reported_as_failed(seen):
    seen.words = ["ValueError: 1", "unshare: sigprocmask unblock failed: Interrupted"]
    with pytest.raises(
        TestbedError,
        match=r"was killed by signal 9 \(out of memory\?\) and left no results; last line of its output: ValueError: 1",
    ):
        seen.outcome(-9)
    with pytest.raises(TestbedError, match=r"ended with status 3 and left no results") as caught:
        seen.outcome(3)
    assert caught.value.exit_code == 1
    seen.request_end("interrupt")
    with pytest.raises(EmulationInterrupted) as stopped:
        seen.outcome(130)
    assert stopped.value.result is None


def test_end_request_is_accepted_only_once_the_run_has_started(tmp_path):
    told: list[Any] = []
    seen = supervisor.Runner(tmp_path, told.append)
    seen.report_progress("half a li")
    seen.report_progress('{"state": "building", "backend": "red"}')
    assert seen.request_end("interrupt") is False
    seen.report_progress('{"state": "running", "delivered": 0, "messages": 9}')
    assert seen.request_end("interrupt") is True
    assert [news["state"] for news in told] == ["building", "running"]


class Unfit:
    """Something that cannot be written to its end, as on a disk that fills up."""

    def __reduce__(self):
        raise OSError(28, "No space left on device")


def test_runner_writes_results_atomically(tmp_path):
    place = tmp_path / "raw.pickle"
    with pytest.raises(OSError, match="No space left"):
        runner.write_atomically(place, [bytes(1 << 20), Unfit()])
    assert not place.exists()
    runner.write_atomically(place, [1, 2])
    assert pickle.loads(place.read_bytes()) == [1, 2] and list(tmp_path.iterdir()) == [place]


def test_wrong_message_contents_raise_an_error(monkeypatch):
    """No Result is returned."""
    scenario = star_scenario(job=[], traffic=[{"kind": "all_to_all", "name": "all", "size": "1kB"}])
    resolved = resolve(scenario)
    plan = types.SimpleNamespace()
    monkeypatch.setattr(testbed, "replace", lambda plan, **changes: plan)
    monkeypatch.setattr(testbed, "run", lambda plan, folder, limit_s, heard, ctrl_c: RawResults(Reports.empty(0)))
    monkeypatch.setattr(testbed, "content_errors", lambda *arguments: ["message 3 differs", "b", "c", "d"])
    chosen = testbed.ChosenPlan(plan, ())  # type: ignore[arg-type]
    with pytest.raises(TestbedError, match=r"contents are wrong: message 3 differs; b; c$") as caught:
        testbed._once(scenario, resolved, Request(), chosen, None, None, 1, DeferredInterrupt())
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (TestbedError("was killed", "agent of h1", usage=False), 1, ("was killed", False)),
        (TestbedError("no rate", "link.rate", "less"), 2, ("no rate", True)),
        (OSError(28, "No space left on device"), 2, ("cannot write temporary files: No space left on device", True)),
        (OSError(5, "Input/output error"), 1, ("the runner failed: OSError: [Errno 5] Input/output error", False)),
        (ValueError("1"), 1, ("the runner failed: ValueError: 1", False)),
    ],
)
def test_runner_reports_error_and_distinguishes_usage_from_failure(tmp_path, monkeypatch, capsys, error, status, said):
    def fail(*arguments):
        raise error

    (tmp_path / "plan.pickle").write_bytes(pickle.dumps(None))
    monkeypatch.setattr(runner, "run", fail)
    assert runner.main([str(tmp_path)]) == status
    seen = supervisor.Runner(tmp_path, None)
    (line,) = capsys.readouterr().out.splitlines()
    seen.report_progress(line.removeprefix(runner.PREFIX))
    assert (seen.errors[0].what, seen.errors[0].usage) == said


@pytest.mark.parametrize(("every_ms", "told"), [(5.0, []), (5.4, []), (5.6, ["every 5.6 ms, not every 5 ms"])])
def test_notes_report_a_sampling_interval_that_is_too_long(every_ms, told):
    plan = types.SimpleNamespace(sample_ps=5_000_000_000)
    raw = types.SimpleNamespace(samples=[(round(n * every_ms * 1e6), []) for n in range(1, 40)])
    lines = testbed.sampling_notes(plan, raw)
    assert len(lines) == len(told) and all(words in line for words, line in zip(told, lines, strict=True))
    assert testbed.sampling_notes(types.SimpleNamespace(sample_ps=None), raw) == []
    assert testbed.sampling_notes(plan, types.SimpleNamespace(samples=[(7, [])])) == []
