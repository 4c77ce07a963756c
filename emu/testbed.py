"""`emulate` plans a scenario for the testbed, runs it in namespaces or a virtual machine, and returns a verified
Result.

    check, choose a backend -> Plan -> a folder -> the runner, in private namespaces or in virtual time
    -> raw results -> verified -> Result

Namespaces and devices are made by the runner, and the kernel ends them with this process; the folder is removed with
this process, too (`gradwire.emu.system.temporary_folders`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.emu.agent import compiled_agent
from gradwire.emu.control import machines
from gradwire.emu.control.supervisor import EmulationInterrupted, ProgressCallback, run
from gradwire.emu.native import code_cache
from gradwire.emu.planning.capabilities import untagged_job_notes
from gradwire.emu.planning.faults import fault_changes, fault_departures
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.planning.planner import check_rates, check_scenario, kernel_options, make_plan, traffic_side_effects
from gradwire.emu.planning.user_programs import (
    ProgramRequest,
    check_clock,
    check_kernel,
    options_of_programs,
    program_departures,
    programs_of,
    with_request,
)
from gradwire.emu.results.outcome import make_result
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.system.temporary_folders import temporary_folder
from gradwire.emu.transports import owners_of
from gradwire.emu.user_programs.outcome import read_marks, save_rank_files
from gradwire.emu.user_programs.player import RANK_FILES
from gradwire.emu.user_programs.programs import Programs
from gradwire.emu.virtual_time.machine_clock import ClockStoppedError
from gradwire.emu.virtual_time.virtual_machine import kernel_or_error
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.workload.resolve import Resolved

if TYPE_CHECKING:
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

LIMIT_S = 3600.0
"""Default time limit of a run on the wall clock; our choice."""
SAMPLING_TOLERANCE = 1.1
"""Ratio of sampling intervals that is tolerated: a tenth of the samples may be missing (our choice)."""
MAX_RUNS = 3
"""Maximum runs of a scenario while the machine disturbs them (our choice)."""


@dataclass(frozen=True)
class Request:
    """Options of a run; None: as in the scenario's [emulation] table.

    captures : nodes at whose ports packets are captured, or "switches"; `capture_folder` for the files.
    rounds : maximum number of runs while the machine disturbs them.
    answers_late : mean lateness of hosts' answers, as a share of the base round-trip time, above which a run counts as
        disturbed; None: no limit.
    programs : a command to run across the network instead of the scenario's jobs, once; `left_folder` for the files of
        its ranks.
    """

    clock: str | None = None
    switch: str | None = None
    captures: Sequence[str] = ()
    capture_folder: Path | None = None
    max_wall_s: float | None = None
    rounds: int = MAX_RUNS
    answers_late: float | None = None
    programs: ProgramRequest | None = None
    left_folder: Path | None = None


def emulate(
    scenario: Scenario,
    resolved: Resolved,
    request: Request | None = None,
    *,
    ideal: Mapping[int, int] | None = None,
    on_progress: ProgressCallback | None = None,
) -> Result:
    """Run a scenario on real sockets.

    Parameters
    ----------
    resolved : its network, routes, traces and program (`gradwire.workload.resolve.resolve`).
    ideal : unloaded transfer time in picoseconds, by message of traffic.
    on_progress : called with progress: {"state": "building" | "running", "delivered": ..., "messages": ...};
        {"state": "again", "why": ...} before a repetition, after a disturbance or a stopped virtual machine;
        {"state": "compiling"} before, if a transport is new; {"state": "ending"} when programs in virtual time have
        been asked to end, which may take a while.

    Returns
    -------
    Result
        `summary["engine"]` has the backend, the substitutions, and `valid`: False for a run on the wall clock during
        which the machine stood still or whose switch could not keep up.

    Raises
    ------
    ScenarioError, TestbedError
        It cannot be run, or failed; nothing is left behind.
    EmulationInterrupted
        Ctrl-C, with the Result so far.
    """
    request = request or Request()
    check_scenario(scenario, programs=request.programs is not None)
    if scenario.emulation.hosts:  # no forks on real machines
        return _emulate(scenario, resolved, request, ideal, on_progress, DeferredInterrupt())
    result: Result | None = None
    try:
        with DeferredInterrupt() as ctrl_c:
            result = _emulate(scenario, resolved, request, ideal, on_progress, ctrl_c)
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
    on_progress: ProgressCallback | None,
    ctrl_c: DeferredInterrupt,
) -> Result:
    clock = request.clock or scenario.emulation.clock
    if request.programs is not None:
        check_clock(request.programs, clock)
    captures = request.captures
    names = resolved.network.names
    unknown = [repr(name) for name in captures if name not in (*names, "switches")]
    if unknown:
        raise TestbedError(f"no such node: {', '.join(unknown)}", "--at", ", ".join(names[:12]))
    if list(captures) == ["switches"]:
        captures = names[resolved.network.host_count :]
    if scenario.emulation.hosts:
        chosen = for_machines(scenario, resolved, clock, request.switch, captures)
    else:
        switch = request.switch or scenario.emulation.switch
        try:
            programs = programs_of(scenario, resolved.network, request.programs) if request.programs else None
            chosen = choose_backend(
                scenario, resolved, clock, switch, captures, request.answers_late, programs, on_progress
            )
        except TestbedError:
            if ctrl_c.is_requested:  # a terminal's Ctrl-C also ends the probe
                raise EmulationInterrupted(None) from None
            raise
    if request.programs is not None:
        scenario = with_request(scenario, request.programs)
    begin = time.perf_counter()
    for attempt in range(1, request.rounds + 1):
        try:
            result = _once(scenario, resolved, request, chosen, ideal, on_progress, attempt, ctrl_c)
        except ClockStoppedError as error:  # the machine's fault: a repetition gives the same run
            _say(on_progress, state="again", why=str(error))
            result = _once(scenario, resolved, request, chosen, ideal, on_progress, attempt + 1, ctrl_c)
        if ctrl_c.is_requested:  # during verification
            raise EmulationInterrupted(result)
        is_valid, ended_by = result.summary["engine"]["valid"], result.summary["totals"]["ended_by"]
        if is_valid or request.programs is not None or ended_by != "done" or clock == "virtual":
            break
        once = (time.perf_counter() - begin) / attempt
        if attempt == request.rounds or once * (attempt + 1) > (request.max_wall_s or LIMIT_S):
            break
        _say(on_progress, state="again", why="; ".join(result.summary["engine"]["disturbed"][:2]))
    return result


class ChosenPlan(NamedTuple):
    """A plan with its backend and that backend's departures from the plan."""

    plan: TestbedPlan
    substitutions: tuple[str, ...]


def choose_backend(
    scenario: Scenario,
    resolved: Resolved,
    clock: str,
    switch: str,
    captures: Sequence[str] = (),
    answers_late: float | None = None,
    programs: Programs | None = None,
    on_progress: ProgressCallback | None = None,
) -> ChosenPlan:
    """Return the plan of a scenario for this machine, with everything compiled. Raises TestbedError if no backend, or
    not the requested one, can run it."""
    from gradwire.emu.planning.backend_choice import backend_kind_of, select_backend
    from gradwire.emu.planning.probe import probe, virtual_kernel

    fault_changes(scenario, resolved.network)  # report these errors before a kernel is built
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
    choice = select_backend(plan, kernel, switch)
    check_rates(plan, kernel.reachable_bps)
    kind = backend_kind_of(choice.name)
    works = {**compiled_agent.works(owners_of(plan)), **kind.build_units()}
    compiled = code_cache.make_ready(works, partial(_say, on_progress, state="compiling"))
    options |= {"ahead_ns": kind.ahead_ns, **kind.ready(), "compiled": compiled}
    plan = make(switch=choice.name, options=options)
    departures = [*choice.substitutions, *unlike(scenario, plan, programs)]
    return ChosenPlan(plan, tuple(departures))


def unlike(scenario: Scenario, plan: TestbedPlan, programs: Programs | None) -> list[str]:
    """Return messages about departures from the scenario that do not depend on the switches."""
    messages = [*fault_departures(plan.changes, plan.routes, programs is not None), *untagged_job_notes(scenario)]
    if programs is not None:
        messages += [*program_departures(programs, plan.clock), *traffic_side_effects(scenario, plan)]
    return messages


def _say(on_progress: ProgressCallback | None, **news: object) -> None:
    if on_progress is not None:
        on_progress(news)


def for_machines(
    scenario: Scenario, resolved: Resolved, clock: str, switch: str | None, captures: Sequence[str]
) -> ChosenPlan:
    """Return the plan of a scenario for the real machines it names; raise TestbedError for unsupported options."""
    for is_given, where, what in (
        (clock == "virtual", "--clock", "real machines have real clocks"),
        (switch not in (None, "auto"), "--switch", "real machines have real switches"),
        (bool(captures), "--pcap", "not supported on real machines"),
    ):
        if is_given:
            raise TestbedError(what, where, "a run without this option")
    plan = make_plan(scenario, resolved, clock="wall", switch="none", options=kernel_options(scenario))
    return ChosenPlan(plan, ())


def _once(
    scenario: Scenario,
    resolved: Resolved,
    request: Request,
    chosen: ChosenPlan,
    ideal: Mapping[int, int] | None,
    on_progress: ProgressCallback | None,
    attempt: int,
    ctrl_c: DeferredInterrupt,
) -> Result:
    from gradwire.emu.agent.payload.magnitudes import prepare

    begin = time.perf_counter()
    with temporary_folder("gradwire-emu-") as folder:
        plan = replace(chosen.plan, trace_folders=prepare(resolved.traces, folder))
        limit = request.max_wall_s or LIMIT_S
        if scenario.emulation.hosts:
            plan = machines.plan_for(plan, scenario.emulation.hosts)
            raw = machines.run_on_machines(plan, scenario.emulation.hosts, on_progress, limit)
            chosen = chosen._replace(substitutions=tuple(machines.machine_notes(raw)))
        else:
            raw = run(plan, folder, limit, on_progress, ctrl_c)
        errors = content_errors(plan, raw, resolved)
        if errors:
            raise TestbedError(f"contents are wrong: {'; '.join(errors[:3])}", "verification", usage=False)
        if plan.programs is not None:
            raw.marks, mark_errors = read_marks(folder / RANK_FILES, len(plan.programs.ranks), raw.began_ns)
            raw.notes += mark_errors
        if request.left_folder is not None:
            raw.lost_captures += save_rank_files(folder / RANK_FILES, request.left_folder, raw.marks)
        if request.capture_folder is not None:
            raw.lost_captures += _keep_captures(raw, request.capture_folder)
        engine = {
            "kind": "emulation",
            "clock": plan.clock,
            "switch": plan.switch,
            "kernel": raw.kernel,
            "substitutions": [*chosen.substitutions, *sampling_notes(plan, raw), *raw.notes],
            "valid": not raw.complaints,
            "disturbed": raw.complaints,
            "lost_captures": raw.lost_captures,
        }
        digests = [trace.digest() for trace in resolved.traces]
        if plan.programs is not None and plan.programs.trace_hash:  # of the compute times
            digests.append(plan.programs.trace_hash)
        lateness = raw.reports.punctuality.values()
        result = make_result(
            scenario,
            plan,
            raw,
            trace_hash=",".join(dict.fromkeys(digests)),
            engine=engine,
            ideal=ideal,
            timing={
                "wall_s": time.perf_counter() - begin,
                "attempt": attempt,
                "late_max_ns": max((int(host.get("max_ns", 0)) for host in lateness), default=0),
                "late_p99_ns": max((int(host.get("p99_ns", 0)) for host in lateness), default=0),
            },
        )
        if raw.reports.ended_by == "interrupt":
            has_results = plan.programs is not None or result.messages.num_rows or result.iterations.num_rows
            raise EmulationInterrupted(result if has_results else None)
        return result


def sampling_notes(plan: TestbedPlan, raw: RawResults) -> list[str]:
    """Return a message if ports were sampled less often than requested."""
    times = [time_ns for time_ns, _ in raw.samples]
    if plan.sample_ps is None or len(times) < 2:
        return []
    every_ms, wanted_ms = (times[-1] - times[0]) / (len(times) - 1) / 1e6, plan.sample_ps / 1e9
    if every_ms <= SAMPLING_TOLERANCE * wanted_ms:
        return []
    return [f"ports were sampled every {every_ms:.3g} ms, not every {wanted_ms:g} ms: sampling is slow"]


def _keep_captures(raw: RawResults, folder: Path) -> list[str]:
    """Move captures to their folder; return errors, since the Result matters more."""
    errors = []
    for path in map(Path, raw.captures.values()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(path, folder / path.name)
        except OSError as error:
            errors.append(f"{folder / path.name}: cannot be written: {error.strerror}")
            with suppress(OSError):
                (folder / path.name).unlink()
    return errors


def content_errors(plan: TestbedPlan, raw: RawResults, resolved: Resolved) -> list[str]:
    """Return errors of the contents: received against sent packets, reported losses, and sums."""
    from gradwire.emu.agent.base import Arrival
    from gradwire.emu.agent.payload.contents import CheckSums
    from gradwire.emu.agent.payload.values import values_of
    from gradwire.emu.results.verify import Evidence, verify

    sums, reports = CheckSums(), raw.reports
    for host_sums in reports.contents.values():
        if isinstance(host_sums, CheckSums):
            sums.update(host_sums)
    ended = np.flatnonzero(reports.end_ns >= 0)
    columns = zip(*(column[ended].tolist() for column in (reports.end_ns, reports.received, reports.lost)), strict=True)
    arrivals = {
        message: Arrival(message, end_ns, received, lost, reports.have.get(message))
        for message, (end_ns, received, lost) in zip(ended.tolist(), columns, strict=True)
    }
    evidence = Evidence(
        plan.program,
        resolved.traces,
        [values_of(folder) for folder in plan.trace_folders],
        [transport.payload for transport in plan.transports],
        plan.seed,
        arrivals,
        sums,
        [bool(transport.parameters.get("important_must_arrive", False)) for transport in plan.transports],
    )
    # jobs end a run, and traffic may be in flight then
    is_complete = reports.ended_by == "done" and not any(not table.is_job for table in plan.program.tables)
    return verify(evidence, complete=is_complete)
