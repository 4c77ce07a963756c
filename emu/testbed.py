"""emulate: a scenario on real sockets, from the outside.

    check, choose a backend -> Plan -> a folder -> the runner, in private namespaces or in virtual time
    -> what it saw -> verified -> Result

Everything that is made is made inside: namespaces and devices by the runner, which the kernel ends with this process,
and the folder, which goes away with this process (`gradwire.emu.system.scratch`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.emu.agent import machine
from gradwire.emu.control import machines
from gradwire.emu.control.supervise import EmulationInterrupted, Heard, run
from gradwire.emu.native import kept
from gradwire.emu.planning.ability import untagged
from gradwire.emu.planning.beside import shared
from gradwire.emu.planning.faults import differences as faulty
from gradwire.emu.planning.plan import Plan
from gradwire.emu.planning.prepare import (
    check_rates,
    check_scenario,
    fault_changes,
    kernel_options,
    make_plan,
)
from gradwire.emu.planning.programs import (
    Asked,
    as_asked,
    check_clock,
    check_kernel,
    differences,
    options_of_programs,
    programs_of,
)
from gradwire.emu.programs.described import Programs
from gradwire.emu.programs.outcome import keep_left, read_marks
from gradwire.emu.programs.player import LEFT
from gradwire.emu.results.outcome import make_result
from gradwire.emu.switches.base import BackendKind, TestbedError
from gradwire.emu.system.raw import Raw
from gradwire.emu.system.scratch import scratch
from gradwire.emu.transports import owners_of
from gradwire.emu.uml.virtual import kernel_or_error
from gradwire.emu.uml.watch import StoodStill
from gradwire.experiment.resolved import Resolved
from gradwire.scenarios.inner_units import Bytes, Ns
from gradwire.scenarios.interrupt import CtrlC

if TYPE_CHECKING:
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

LIMIT_S = 3600.0
"""Longest run, on the wall clock, unless told otherwise; our choice."""
MISSED = 1.1
"""A tenth of the samples may be missing (our choice)."""
ROUNDS = 3
"""A run that the machine has disturbed is repeated so often (our choice)."""


@dataclass(frozen=True)
class Request:
    """How a scenario is to be run; None: as its [emulation] table says.

    captures : nodes at whose ports packets are captured, or just "switches", and `capture_folder` where the files go.
    rounds : how often a run that the machine has disturbed is made at most.
    answers_late : how late hosts may answer on average, as a share of the base round trip, before a run counts as
        disturbed; None: as late as they do.
    programs : a command to be run across the network instead of the scenario's jobs, once; and `left_folder` where
        what its ranks leave goes.
    """

    clock: str | None = None
    switch: str | None = None
    captures: Sequence[str] = ()
    capture_folder: Path | None = None
    max_wall_s: float | None = None
    rounds: int = ROUNDS
    answers_late: float | None = None
    programs: Asked | None = None
    left_folder: Path | None = None


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
    resolved : its network, routes, traces and program (`gradwire.experiment.resolve.resolve`).
    ideal : picoseconds on the empty network, by message of traffic.
    heard : called with news of the run: {"state": "building" | "running", "delivered": ..., "messages": ...}, and
        {"state": "again", "why": ...} where a disturbed run is repeated, or one whose virtual machine stood still;
        {"state": "compiling"} before, where a transport runs here for the first time; {"state": "ending"} when programs
        under virtual time have been asked to end, which may take them a while.

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
    check_scenario(scenario, programs=request.programs is not None)
    if scenario.emulation.hosts:  # everything happens in this process, and nothing is forked once it has begun
        return _emulate(scenario, resolved, request, ideal, heard, CtrlC())
    result: Result | None = None
    try:
        with CtrlC() as ctrl_c:
            result = _emulate(scenario, resolved, request, ideal, heard, ctrl_c)
    except EmulationInterrupted:
        raise
    except KeyboardInterrupt:
        raise EmulationInterrupted(result) from None
    return result


def _emulate(
    scenario: Scenario,
    resolved: Resolved,
    request: Request,
    ideal: Mapping[int, int] | None,
    heard: Heard | None,
    ctrl_c: CtrlC,
) -> Result:
    clock = request.clock or scenario.emulation.clock
    if request.programs is not None:
        check_clock(request.programs, clock)
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
        try:
            programs = programs_of(scenario, resolved.network, request.programs) if request.programs else None
            chosen = choose_backend(scenario, resolved, clock, switch, captures, request.answers_late, programs, heard)
        except TestbedError:
            if ctrl_c.asked:  # a terminal's Ctrl-C has ended what was asking the kernel, too
                raise EmulationInterrupted(None) from None
            raise
    if request.programs is not None:
        scenario = as_asked(scenario, request.programs)
    begin = time.perf_counter()
    for attempt in range(1, request.rounds + 1):
        try:
            result = _once(scenario, resolved, request, chosen, ideal, heard, attempt, ctrl_c)
        except StoodStill as error:  # as a machine, which it need not do again: the run itself would be the same
            if heard is not None:
                heard({"state": "again", "why": str(error)})
            result = _once(scenario, resolved, request, chosen, ideal, heard, attempt + 1, ctrl_c)
        if ctrl_c.asked:  # while it was looked through
            raise EmulationInterrupted(result)
        if (
            result.summary["engine"]["valid"]
            or request.programs is not None
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
    scenario: Scenario,
    resolved: Resolved,
    clock: str,
    switch: str,
    captures: Sequence[str] = (),
    answers_late: float | None = None,
    programs: Programs | None = None,
    heard: Heard | None = None,
) -> Chosen:
    """The plan of a scenario for this machine, and all that has to be compiled for it. TestbedError if no backend, or
    not the wanted one, can run it."""
    from gradwire.emu.planning.choose import choose, kind_of
    from gradwire.emu.planning.probe import probe, virtual_kernel

    fault_changes(scenario, resolved.network)  # whoever has to build a kernel knows it first
    if clock == "virtual":
        kernel_or_error()
        kernel = virtual_kernel()
    else:
        kernel = probe()
    options = {"kernel": kernel, "answers_late": answers_late, **kernel_options(scenario)}
    if programs is not None:
        options |= options_of_programs(scenario)
        check_kernel(programs, kernel)
    make = partial(make_plan, scenario, resolved, clock=clock, captures=captures, programs=programs)
    plan = make(switch="userspace", options=options)
    choice = choose(plan, kernel, switch)
    check_rates(plan, kernel.reachable_bps)
    kind = kind_of(choice.name)
    options |= {"ahead_ns": kind.ahead_ns, **kind.ready(), "compiled": compiled_for(plan, kind, heard)}
    plan = make(switch=choice.name, options=options)
    done = [*choice.substitutions, *unlike(scenario, plan, programs)]
    return Chosen(plan, tuple(done), kernel.release)


def unlike(scenario: Scenario, plan: Plan, programs: Programs | None) -> list[str]:
    """What is done otherwise than the scenario says, whatever the switches are made of, in words."""
    done = [*faulty(plan.changes, plan.routes, programs is not None), *untagged(scenario)]
    return done if programs is None else [*done, *differences(programs, plan.clock), *shared(scenario, plan)]


def compiled_for(plan: Plan, switches: BackendKind, heard: Heard | None = None) -> kept.Told:
    """Compile what the agents of a plan and its switches run and is not kept yet. Returns where it is."""

    def begins() -> None:
        if heard is not None:
            heard({"state": "compiling"})

    return kept.make_ready({**machine.works(owners_of(plan)), **switches.works()}, begins)


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
    plan = make_plan(scenario, resolved, clock="wall", switch="none", options=kernel_options(scenario))
    return Chosen(plan, (), "")


def _once(
    scenario: Scenario,
    resolved: Resolved,
    request: Request,
    chosen: Chosen,
    ideal: Mapping[int, int] | None,
    heard: Heard | None,
    attempt: int,
    ctrl_c: CtrlC,
) -> Result:
    from gradwire.emu.agent.magnitudes import prepare

    begin = time.perf_counter()
    with scratch("gradwire-emu-") as folder:
        plan = replace(chosen.plan, trace_folders=prepare(resolved.traces, folder))
        limit = request.max_wall_s or LIMIT_S
        if scenario.emulation.hosts:
            plan = machines.plan_for(plan, scenario.emulation.hosts)
            raw = machines.run_on_machines(plan, scenario.emulation.hosts, heard, limit)
            chosen = replace(chosen, substitutions=tuple(machines.differences(raw)))
        else:
            raw = run(plan, folder, limit, heard, ctrl_c)
        wrong = contents_wrong(plan, raw, resolved)
        if wrong:
            raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
        if plan.programs is not None:
            raw.marks, no_marks = read_marks(folder / LEFT, len(plan.programs.ranks), raw.began_ns)
            raw.notes += no_marks
        if request.left_folder is not None:
            raw.lost_captures += keep_left(folder / LEFT, request.left_folder, raw.marks)
        if request.capture_folder is not None:
            raw.lost_captures += _keep_captures(raw, request.capture_folder)
        engine = {
            "kind": "emulation",
            "clock": plan.clock,
            "switch": plan.switch,
            "kernel": raw.kernel,
            "substitutions": [*chosen.substitutions, *sampled(plan, raw), *raw.notes],
            "valid": not raw.complaints,
            "disturbed": raw.complaints,
            "lost_captures": raw.lost_captures,
        }
        late = [seen for seen in raw.reports.punctuality.values() if seen]
        result = make_result(
            scenario,
            plan,
            raw,
            trace_hash=",".join(dict.fromkeys([*(trace.digest() for trace in resolved.traces), *paced(plan)])),
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
            whole = plan.programs is not None or result.messages.num_rows or result.iterations.num_rows
            raise EmulationInterrupted(result if whole else None)
        return result


def paced(plan: Plan) -> list[str]:
    """The digest of the trace whose times computing of programs takes, if any."""
    return [plan.programs.trace_hash] if plan.programs is not None and plan.programs.trace_hash else []


def sampled(plan: Plan, raw: Raw) -> list[str]:
    """How often ports were looked at, where that was less often than wanted."""
    times = [time_ns for time_ns, _ in raw.samples]
    if plan.sample_ps is None or len(times) < 2:
        return []
    every_ms, wanted_ms = (times[-1] - times[0]) / (len(times) - 1) / 1e6, plan.sample_ps / 1e9
    if every_ms <= MISSED * wanted_ms:
        return []
    return [f"ports were sampled every {every_ms:.3g} ms, not every {wanted_ms:g} ms: looking takes its time"]


def _keep_captures(raw: Raw, folder: Path) -> list[str]:
    """Move captures to where they are wanted; what cannot be kept, in words, for the Result is worth more than they."""
    lost = []
    for path in map(Path, raw.captures.values()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(path, folder / path.name)
        except OSError as error:
            lost.append(f"{folder / path.name}: cannot be written: {error.strerror}")
            with suppress(OSError):
                (folder / path.name).unlink()
    return lost


def contents_wrong(plan: Plan, raw: Raw, resolved: Resolved) -> list[str]:
    """What arrived is what was sent, what was lost is what is reported, and sums are the sums of what arrived; in words
    where they are not."""
    from gradwire.emu.agent.base import Arrival
    from gradwire.emu.agent.contents import CheckSums
    from gradwire.emu.agent.values import values_of
    from gradwire.emu.results.verify import Evidence, verify

    sums, reports = CheckSums(), raw.reports
    for each in reports.contents.values():
        if isinstance(each, CheckSums):
            sums.update(each)
    arrivals = {
        message: Arrival(
            message, Ns(int(reports.end_ns[message])), Bytes(int(reports.received[message])),
            Bytes(int(reports.lost[message])), reports.have.get(message),
        )
        for message in np.flatnonzero(reports.end_ns >= 0).tolist()
    }  # fmt: skip
    evidence = Evidence(
        plan.program,
        resolved.traces,
        [values_of(folder) for folder in plan.trace_folders],
        [transport.payload for transport in plan.transports],
        plan.seed,
        arrivals,
        sums,
        [bool(each.parameters.get("important_must_arrive", False)) for each in plan.transports],
    )
    # jobs end a run when they are done, and traffic beside them may be under way then
    whole = reports.ended_by == "done" and not any(not table.is_job for table in plan.program.tables)
    return verify(evidence, complete=whole)
