"""emulate: a scenario on real sockets, from the outside.

    check, choose a backend -> Plan -> a folder -> the runner, in private namespaces or in virtual time
    -> what it saw -> verified -> Result

Everything that is made is made inside: namespaces and devices by the runner, which the kernel ends with this process,
and the folder, which goes away with this process (`emu.scratch`).
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emu import machines
from emu.namespaces import python_command, start_private
from emu.outcome import make_result
from emu.plan import Plan
from emu.prepare import Resolved, check_rates, check_scenario, kernel_options, make_plan
from emu.raw import Raw
from emu.runner import PREFIX, STOP, capturable
from emu.scratch import scratch
from emu.switches.base import TestbedError
from emu.virtual import GRACE_S, kernel_or_error, run_inside, wait

if TYPE_CHECKING:
    from scenarios.result import Result
    from scenarios.schema import Scenario

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130
LIMIT_S = 3600.0
"""Longest run, on the wall clock, unless told otherwise; our choice."""
MISSED = 1.1
"""A tenth of the samples may be missing (our choice)."""
ROUNDS = 3
"""A run that the machine has disturbed is repeated so often (our choice)."""

Heard = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """How a scenario is to be run; None: as its [emulation] table says.

    captures : nodes at whose ports packets are captured, or just "switches", and `capture_folder` where the files go.
    rounds : how often a run that the machine has disturbed is made at most.
    """

    clock: str | None = None
    switch: str | None = None
    captures: Sequence[str] = ()
    capture_folder: Path | None = None
    max_wall_s: float | None = None
    rounds: int = ROUNDS


class EmulationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an emulation; `result` holds what had been seen by then, None if nothing had."""

    def __init__(self, result: Result | None) -> None:
        super().__init__("interrupted")
        self.result = result


def emulate(
    scenario: Scenario,
    resolved: Resolved,
    request: Request | None = None,
    *,
    ideal: Mapping[int, int] | None = None,
    heard: Heard | None = None,
) -> Result:
    """Run a scenario on real sockets.

    Parameters
    ----------
    resolved : its network, routes, traces and program (`sim.resolve.resolve`).
    ideal : picoseconds on the empty network, by message of traffic.
    heard : called with news of the run: {"state": "building" | "running", "delivered": ..., "messages": ...}, and
        {"state": "again", "why": ...} where a disturbed run is repeated.

    Returns
    -------
    Result
        `summary["engine"]` says what it ran on, what was substituted, and whether it is `valid`: a run on the wall
        clock during which the machine stood still, or whose switch could not keep up, is not.

    Raises
    ------
    ScenarioError, TestbedError
        It cannot be run, or failed; nothing is left behind.
    EmulationInterrupted
        Ctrl-C, with the Result so far.
    """
    request = request or Request()
    check_scenario(scenario)
    clock = request.clock or scenario.emulation.clock
    captures = request.captures
    names = resolved.network.names
    unknown = [repr(name) for name in captures if name not in (*names, "switches")]
    if unknown:
        raise TestbedError(f"there is no node {', '.join(unknown)}", "--at", ", ".join(names[:12]))
    if list(captures) == ["switches"]:
        captures = names[resolved.network.host_count :]
    if scenario.emulation.hosts:
        chosen = for_machines(scenario, resolved, clock, request.switch, captures)
    else:
        switch = request.switch or scenario.emulation.switch
        chosen = choose_backend(scenario, resolved, clock, switch, captures)
    begin = time.perf_counter()
    for attempt in range(1, request.rounds + 1):
        result = _once(scenario, resolved, request, chosen, ideal, heard, attempt)
        if (
            result.summary["engine"]["valid"]
            or result.summary["totals"]["ended_by"] != "done"
            or clock == "virtual"
        ):
            break
        once = (time.perf_counter() - begin) / attempt
        if attempt == request.rounds or once * (attempt + 1) > (request.max_wall_s or LIMIT_S):
            break
        if heard is not None:
            heard({"state": "again", "why": "; ".join(result.summary["engine"]["disturbed"][:2])})
    return result


@dataclass(frozen=True)
class Chosen:
    """A plan with the backend that is to run it, and what that does otherwise than the plan says."""

    plan: Plan
    substitutions: tuple[str, ...]
    release: str


def choose_backend(
    scenario: Scenario, resolved: Resolved, clock: str, switch: str, captures: Sequence[str] = ()
) -> Chosen:
    """The plan of a scenario for this machine. TestbedError if no backend, or not the wanted one, can run it."""
    from emu.choose import choose
    from emu.probe import probe, virtual_kernel

    if clock == "virtual":
        kernel_or_error()
        kernel = virtual_kernel()
    else:
        kernel = probe()
    options = {"connections": scenario.emulation.connections, "kernel": kernel, **kernel_options(scenario)}
    plan = make_plan(scenario, resolved, clock=clock, switch="userspace", captures=captures, options=options)
    choice = choose(plan, kernel, switch)
    if captures and not capturable(plan, choice.name):
        raise TestbedError(
            f"switches of the backend {choice.name} have no devices to capture at", "--pcap",
            f"--at {plan.names[0]}, or --switch bpf or red",
        )  # fmt: skip
    check_rates(plan, kernel.reachable_bps if kernel.reachable_bps > 0 else None)
    if choice.name == "bpf":
        from emu.switches.bpf import object_file

        options["bpf_program"] = str(object_file())  # here: inside a virtual machine compiling takes long
    plan = make_plan(scenario, resolved, clock=clock, switch=choice.name, captures=captures, options=options)
    return Chosen(plan, tuple(choice.substitutions), kernel.release)


def for_machines(
    scenario: Scenario, resolved: Resolved, clock: str, switch: str | None, captures: Sequence[str]
) -> Chosen:
    """The plan of a scenario for the real machines that it names. TestbedError for what they cannot do."""
    for given, where, what in (
        (clock == "virtual", "--clock", "real machines have a clock of their own"),
        (switch not in (None, "auto"), "--switch", "real machines have switches of their own"),
        (bool(captures), "--pcap", "captures at real machines are theirs to make"),
    ):
        if given:
            raise TestbedError(what, where, "without it")
    options = {"connections": scenario.emulation.connections, **kernel_options(scenario)}
    return Chosen(make_plan(scenario, resolved, clock="wall", switch="none", options=options), (), "")


def _once(
    scenario: Scenario,
    resolved: Resolved,
    request: Request,
    chosen: Chosen,
    ideal: Mapping[int, int] | None,
    heard: Heard | None,
    attempt: int,
) -> Result:
    from emu.agent.magnitudes import prepare

    begin = time.perf_counter()
    with scratch("gradwire-emu-") as folder:
        plan = replace(chosen.plan, trace_folders=prepare(resolved.traces, folder))
        limit = request.max_wall_s or LIMIT_S
        if scenario.emulation.hosts:
            plan = machines.plan_for(plan, scenario.emulation.hosts)
            raw = machines.run_on_machines(plan, scenario.emulation.hosts, heard, limit)
            chosen = replace(chosen, substitutions=tuple(machines.differences(raw)))
        else:
            raw = _run(plan, folder, limit, heard)
        wrong = contents_wrong(plan, raw, resolved)
        if wrong:
            raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
        if request.capture_folder is not None:
            _keep_captures(raw, request.capture_folder)
        engine = {
            "kind": "emulation",
            "clock": plan.clock,
            "switch": plan.switch,
            "kernel": raw.kernel,
            "substitutions": [*chosen.substitutions, *sampled(plan, raw), *raw.notes],
            "valid": not raw.complaints,
            "disturbed": raw.complaints,
        }
        late = [seen for seen in raw.reports.punctuality.values() if seen]
        result = make_result(
            scenario,
            plan,
            raw,
            trace_hash=",".join(dict.fromkeys(trace.digest() for trace in resolved.traces)),
            engine=engine,
            ideal=ideal,
            timing={
                "wall_s": time.perf_counter() - begin,
                "attempt": attempt,
                "late_max_ns": max((int(seen.get("max_ns", 0)) for seen in late), default=0),
                "late_p99_ns": max((int(seen.get("p99_ns", 0)) for seen in late), default=0),
            },
        )
        if raw.reports.ended_by == "interrupt":
            raise EmulationInterrupted(
                result if result.messages.num_rows or result.iterations.num_rows else None
            )
        return result


def sampled(plan: Plan, raw: Raw) -> list[str]:
    """How often ports were looked at, where that was less often than wanted."""
    times = [time_ns for time_ns, _ in raw.samples]
    if plan.sample_ps is None or len(times) < 2:
        return []
    every_ms, wanted_ms = (times[-1] - times[0]) / (len(times) - 1) / 1e6, plan.sample_ps / 1e9
    if every_ms <= MISSED * wanted_ms:
        return []
    return [f"ports were sampled every {every_ms:.3g} ms, not every {wanted_ms:g} ms: looking takes its time"]


def _keep_captures(raw: Raw, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in raw.captures.values():
            shutil.move(path, folder / Path(path).name)
    except OSError as error:
        raise TestbedError(
            f"cannot write captures: {error.strerror}", str(folder), "a place with room"
        ) from None


def contents_wrong(plan: Plan, raw: Raw, resolved: Resolved) -> list[str]:
    """What arrived is what was sent, what was lost is what is reported, and sums are the sums of what arrived; in words
    where they are not."""
    from emu.agent.base import Arrival
    from emu.agent.contents import CheckSums
    from emu.agent.magnitudes import Magnitudes
    from emu.verify import Evidence, verify

    sums, reports = CheckSums(), raw.reports
    for each in reports.contents.values():
        if each is not None:
            sums.update(each)
    arrivals = {
        message: Arrival(
            message, int(reports.end_ns[message]), int(reports.received[message]), int(reports.lost[message]),
            reports.have.get(message),
        )
        for message in np.flatnonzero(reports.end_ns >= 0).tolist()
    }  # fmt: skip
    evidence = Evidence(
        plan.program,
        resolved.traces,
        [Magnitudes(folder) for folder in plan.trace_folders],
        [transport.payload for transport in plan.transports],
        plan.seed,
        arrivals,
        sums,
        [bool(each.parameters.get("important_must_arrive", False)) for each in plan.transports],
    )
    # jobs end a run when they are done, and traffic beside them may be under way then
    whole = reports.ended_by == "done" and not any(not table.is_job for table in plan.program.tables)
    return verify(evidence, complete=whole)


class _Run:
    """A runner that has been started, as it is seen from here: what it says, and that it has been asked to end."""

    def __init__(self, folder: Path, heard: Heard | None) -> None:
        self._folder, self._told = folder, heard
        self.errors: list[TestbedError] = []
        self.words: list[str] = []
        self.asked = ""
        self._begun = False

    def heard(self, text: str) -> None:
        """A line of news; called from a thread."""
        try:
            news = json.loads(text)
        except ValueError:  # a line that somebody else has written into
            return
        if "error" in news:
            self.errors.append(TestbedError(*news["error"]))
            return
        self._begun = self._begun or news.get("state") == "running"
        if self._told is not None:
            self._told(news)

    def ask(self, why: str) -> bool:
        """Ask it to end: "interrupt" or "max_wall". Whether it has begun, and so may have something to leave."""
        self.asked = why
        with suppress(OSError):
            (self._folder / STOP).touch()
        return self._begun

    def outcome(self, status: int) -> Raw:
        """What it has left. Raises what it has said was wrong, or that it has left nothing."""
        if self.errors:
            raise self.errors[0]
        if (self._folder / "raw.pickle").exists():
            with (self._folder / "raw.pickle").open("rb") as file:
                raw: Raw = pickle.load(file)
            if raw.reports.ended_by == "interrupt":
                raw.reports.ended_by = self.asked or "interrupt"
            return raw
        if self.asked:
            raise EmulationInterrupted(None)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        words = [line for line in self.words if not line.startswith("unshare: sigprocmask")]  # its child was killed
        last = f"; its last words: {words[-1]}" if words else ""
        raise TestbedError(f"the runner {how} and left nothing{last}", "testbed", usage=False)


def _run(plan: Plan, folder: Path, limit_s: float, heard: Heard | None) -> Raw:
    """Have the runner run. Ctrl-C and the limit end it in order, so that it leaves what it saw by then."""
    with (folder / "plan.pickle").open("wb") as file:
        pickle.dump(plan, file, protocol=pickle.HIGHEST_PROTOCOL)
    run = _Run(folder, heard)
    if plan.clock == "virtual":
        return run.outcome(_run_virtual(plan, folder, limit_s, run))
    return run.outcome(_run_private(folder, limit_s, run))


def _run_virtual(plan: Plan, folder: Path, limit_s: float, run: _Run) -> int:
    try:
        return run_inside(
            [*python_command("emu.runner", str(folder)), "--machine"],
            seed=plan.seed,
            limit_s=limit_s,
            environment={"PYTHONPATH": str(ROOT)},
            heard=run.heard,
            ask=run.ask,
        )
    except KeyboardInterrupt:  # it had no time to end in order, but may have left something
        return INTERRUPTED


def _run_private(folder: Path, limit_s: float, run: _Run) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = start_private(
        python_command("emu.runner", str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    threads = [
        threading.Thread(target=_listen, args=(process.stdout, run), daemon=True),
        threading.Thread(target=_note, args=(process.stderr, run), daemon=True),
    ]
    for thread in threads:
        thread.start()

    def ask(why: str) -> bool:
        begun = run.ask(why)
        _signal_runner(process)  # it may be busy and not look at files
        return begun

    try:
        wait(process, limit_s, GRACE_S, ask, "testbed")
    except KeyboardInterrupt:
        pass
    finally:
        if process.poll() is None:
            process.kill()  # unshare; the kernel ends the rest
            process.wait()
        for thread in threads:
            thread.join(timeout=5)
    return process.returncode


def _signal_runner(process: subprocess.Popen[bytes]) -> None:
    """SIGINT to the runner, the only child of unshare."""
    with suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGINT)


def _listen(stream: Any, run: _Run) -> None:
    """Until the runner closes it, whatever becomes of those who are told: a runner that nobody hears stands still."""
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        with suppress(OSError):  # a terminal or a pipe that is gone
            if line.startswith(PREFIX):
                run.heard(line[len(PREFIX) :])
            else:
                print(line, file=sys.stderr)


def _note(stream: Any, run: _Run) -> None:
    for raw in stream:
        if line := raw.decode(errors="replace").strip():
            run.words = [*run.words[-20:], line]
