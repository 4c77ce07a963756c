"""emulate: a scenario on real sockets, from the outside.

    check, choose a backend -> Plan -> a folder -> the runner, in private namespaces or in virtual time
    -> what it saw -> verified -> Result

Everything that is made is made inside: namespaces and devices by the runner, which the kernel ends with this process,
and the folder, which is removed here.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emu import machines
from emu.namespaces import python_command, start_private
from emu.outcome import make_result
from emu.plan import Plan
from emu.prepare import Resolved, check_rates, check_scenario, make_plan
from emu.raw import Raw
from emu.runner import PREFIX
from emu.switches.base import TestbedError
from emu.virtual import kernel_or_error, run_inside
from scenarios.schema_transport import Dlcp
from scenarios.schema_transport_base import Tcp

if TYPE_CHECKING:
    from scenarios.result import Result
    from scenarios.schema import Scenario

ROOT = Path(__file__).resolve().parent.parent
GRACE_S = 10.0
"""Between asking the runner to end and ending it."""
LIMIT_S = 3600.0
"""Longest run, on the wall clock, unless told otherwise; our choice."""
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
    if list(captures) == ["switches"]:
        captures = resolved.network.names[resolved.network.host_count :]
    if scenario.emulation.hosts:
        chosen = for_machines(scenario, resolved, clock, captures)
    else:
        switch = request.switch or scenario.emulation.switch
        chosen = choose_backend(scenario, resolved, clock, switch, captures)
    for attempt in range(1, request.rounds + 1):
        result = _once(scenario, resolved, request, chosen, ideal, heard, attempt)
        if result.summary["engine"]["valid"] or result.summary["totals"]["ended_by"] != "done" or clock == "virtual":
            break
        if attempt < request.rounds and heard is not None:
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
    check_rates(plan, kernel.reachable_bps if kernel.reachable_bps > 0 else None)
    if choice.name == "bpf":
        from emu.switches.bpf import object_file

        options["bpf_program"] = str(object_file())  # here: inside a virtual machine compiling takes long
    plan = make_plan(scenario, resolved, clock=clock, switch=choice.name, captures=captures, options=options)
    return Chosen(plan, tuple(choice.substitutions), kernel.release)


def for_machines(scenario: Scenario, resolved: Resolved, clock: str, captures: Sequence[str]) -> Chosen:
    """The plan of a scenario for the real machines that it names."""
    for given, where, what in (
        (clock == "virtual", "--clock", "real machines have a clock of their own"),
        (bool(captures), "--pcap", "captures at real machines are theirs to make"),
    ):
        if given:
            raise TestbedError(what, where, "without it")
    options = {"connections": scenario.emulation.connections, **kernel_options(scenario)}
    return Chosen(make_plan(scenario, resolved, clock="wall", switch="none", options=options), (), "")


def kernel_options(scenario: Scenario) -> dict[str, Any]:
    """What the kernel's TCP takes from its host and not from a socket: the smallest time-out, in ms, the initial
    window, in packets, and whether to ask for marks. TestbedError where transports of one scenario want it different.
    """
    wanted: dict[str, dict[Any, str]] = {"min_rto": {}, "initial_window": {}, "ecn": {}}
    for transport in scenario.transports:
        if isinstance(transport, Tcp):
            wanted["min_rto"].setdefault(transport.min_rto, transport.kind)
            wanted["initial_window"].setdefault(transport.initial_window, transport.kind)
            if transport.kind != "dctcp":  # which asks for marks by itself
                wanted["ecn"].setdefault(transport.ecn_capable, transport.kind)
    for field, values in wanted.items():
        if len(values) > 1:
            raise TestbedError(
                f"is not the same for {' and '.join(values.values())}, which share the kernels of their hosts",
                f"transport.{field}", "one value",
            )  # fmt: skip
    options: dict[str, Any] = {}
    dlcp = [each.probe_timeout for each in scenario.transports if isinstance(each, Dlcp)]
    if wanted["min_rto"]:
        options["rto_min_ms"] = max(1, math.ceil(next(iter(wanted["min_rto"])) / 10**9))
        options["initcwnd"] = next(iter(wanted["initial_window"]))
    elif dlcp:
        # the side channel repeats what is lost as soon as a Probe would be repeated, not after 200 ms
        options["rto_min_ms"] = max(1, math.ceil(min(dlcp) / 10**9))
    if scenario.emulation.loss_recovery == "classic":
        options["loss_recovery"] = "classic"
    # Probes are dropped by choice unless they are ECN-capable; asking for marks makes them, and all other TCP, so
    if True in wanted["ecn"] or (dlcp and not wanted["ecn"]):
        options["tcp_ecn"] = 1
    return options


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
    folder = Path(tempfile.mkdtemp(prefix="gradwire-emu-"))
    interrupted = False
    try:
        plan = replace(chosen.plan, trace_folders=prepare(resolved.traces, folder))
        if scenario.emulation.hosts:
            plan = machines.plan_for(plan, scenario.emulation.hosts)
            raw = machines.run_on_machines(plan, scenario.emulation.hosts, heard)
            chosen = replace(chosen, substitutions=tuple(machines.differences(raw)))
        else:
            with (folder / "plan.pickle").open("wb") as file:
                pickle.dump(plan, file, protocol=pickle.HIGHEST_PROTOCOL)
            limit = request.max_wall_s or LIMIT_S
            try:
                status = _run(plan, folder, limit, heard)
            except KeyboardInterrupt:
                interrupted, status = True, 130
            found = _take(folder, status)
            if found is None:
                raise EmulationInterrupted(None)
            raw = found
        wrong = contents_wrong(plan, raw, resolved)
        if wrong:
            raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
        if request.capture_folder is not None:
            request.capture_folder.mkdir(parents=True, exist_ok=True)
            for path in raw.captures.values():
                shutil.move(path, request.capture_folder / Path(path).name)
        engine = {
            "kind": "emulation",
            "clock": plan.clock,
            "switch": plan.switch,
            "kernel": raw.kernel,
            "substitutions": list(chosen.substitutions),
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
        if interrupted or raw.reports.ended_by == "interrupt":
            raise EmulationInterrupted(result)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _run(plan: Plan, folder: Path, limit_s: float, heard: Heard | None) -> int:
    """Run the runner; returns its exit status. Ctrl-C ends it in order, so that it leaves what it saw."""
    if plan.clock == "virtual":
        return run_inside(
            [*python_command("emu.runner", str(folder)), "--machine"],
            seed=plan.seed,
            limit_s=limit_s,
            environment={"PYTHONPATH": str(ROOT)},
            heard=None if heard is None else lambda line: heard(json.loads(line)),
        )
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
    errors, words = process.stderr, list[bytes]()
    threads = [
        threading.Thread(target=_listen, args=(process.stdout, heard), daemon=True),
        threading.Thread(target=lambda: words.append(errors.read()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"not over after {limit_s:.0f} s", "testbed", "--max-wall", usage=False) from None
        except KeyboardInterrupt:
            _ask_to_end(process)
            process.wait(timeout=GRACE_S)
            raise
    except subprocess.TimeoutExpired:
        raise KeyboardInterrupt from None
    finally:
        if process.poll() is None:
            process.kill()  # unshare; the kernel ends the rest
            process.wait()
        for thread in threads:
            thread.join(timeout=5)
    if status not in (0, 1, 2, 130) or not _left_something(folder):
        last = b"".join(words).decode(errors="replace").strip().splitlines()
        raise TestbedError(
            f"the runner ended with status {status}: {last[-1] if last else 'it said nothing'}", "testbed", usage=False
        )
    return status


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT to the runner, the only child of unshare."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        os.kill(int(child), signal.SIGINT)


def _left_something(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("raw.pickle", "error.pickle"))


def _listen(stream: Any, heard: Heard | None) -> None:
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if line.startswith(PREFIX):
            if heard is not None:
                heard(json.loads(line[len(PREFIX) :]))
        else:
            print(line, file=sys.stderr)


def _take(folder: Path, status: int) -> Raw | None:
    """What the runner left. TestbedError if that is the reason why there is nothing; None if it had no time to."""
    if (folder / "error.pickle").exists():
        with (folder / "error.pickle").open("rb") as file:
            raise pickle.load(file)
    if not (folder / "raw.pickle").exists():
        if status == 130:
            return None
        raise TestbedError(f"the runner ended with status {status} and left nothing", "testbed", usage=False)
    with (folder / "raw.pickle").open("rb") as file:
        raw: Raw = pickle.load(file)
    return raw
