"""Converts a scenario and a command to `Programs` for `gradwire exec` (ranks, hosts, marking rules, compute times)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import TransportPlan, host_address
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.user_programs.programs import Programs, Rule, ranks_of
from gradwire.scenarios.errors import Mistake, ScenarioError, with_scenario_location
from gradwire.scenarios.inner_units import Bytes
from gradwire.scenarios.schema.exec import Exec, ExecMark
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import IPV4, TCP, TCP_OVERHEAD
from gradwire.topology import Network
from gradwire.traces.trace import EXPECTED_TRACE, Trace, load_trace

MB = 1 << 20
MEMORY_MB, RANK_MB = 1024, 1024
"""Memory of a virtual machine, plus that of each rank; our choice: a rank with torch takes some 300 MB."""
MAX_RANKS = 256
CANNOT_RUN = "the command cannot run across this network"


@dataclass(frozen=True)
class ProgramRequest:
    """The command to run and its environment. None: as in the scenario's [exec].

    hosts : names, in order of ranks.
    """

    command: tuple[str, ...]
    hosts: tuple[str, ...] | None = None
    ranks_per_host: int | None = None
    compute: str | None = None
    trace: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: str = field(default_factory=os.getcwd)


@with_scenario_location
def programs_of(scenario: Scenario, network: Network, request: ProgramRequest) -> Programs:
    """Return the ranks, their hosts and the rules for their packets. Raises ScenarioError: with every name that the
    network does not have, and rules that cannot hold."""
    _find_command(request)
    table = scenario.exec or Exec()
    names = network.names
    hosts = names[: network.host_count]
    number = {name: node for node, name in enumerate(hosts)}
    rank_hosts = request.hosts or table.hosts or tuple(hosts)
    per_host = request.ranks_per_host or table.ranks_per_host
    mistakes = _unknown(table, request, hosts)
    if not mistakes and len(rank_hosts) * per_host > MAX_RANKS:
        what = f"{len(rank_hosts)} hosts with {per_host} ranks each are {len(rank_hosts) * per_host} processes"
        mistakes.append(Mistake("exec.ranks_per_host", what, per_host, f"at most {MAX_RANKS} ranks in total"))
    if not mistakes:
        mistakes += [
            Mistake(f"exec.mark[{index}].rank", *mistake)
            for index, mark in enumerate(table.mark)
            if (mistake := _wrong_rank(mark, len(rank_hosts), per_host)) is not None
        ]
    compute = request.compute or table.compute
    if "compute_scale" in table.model_fields_set and compute == "none":
        what = 'compute = "measured" or "trace" as well; on the command line --compute or --trace'
        mistakes.append(Mistake("exec.compute_scale", "has no effect", table.compute_scale, what))
    if mistakes:
        raise ScenarioError(CANNOT_RUN, mistakes=mistakes)
    addresses = [host_address(node) for node in range(len(hosts))]
    congestion = {} if table.congestion is None else dict.fromkeys(range(len(hosts)), table.congestion)
    congestion |= {number[host.name]: host.congestion for host in table.host}
    ranks = ranks_of(hosts, addresses, [number[name] for name in rank_hosts], per_host)
    trace = _trace_of(compute, request, table)
    return Programs(
        command=request.command,
        ranks=ranks,
        names=tuple(zip(hosts, addresses, strict=True)),
        environment=dict(request.environment),
        cwd=request.cwd,
        grace_s=table.grace / 1e12,
        rules=tuple(_rule(mark, number, [rank.node for rank in ranks]) for mark in table.mark),
        congestion=congestion,
        compute=compute,
        scale=table.compute_scale,
        trace="" if trace is None else trace.name,
        times="" if trace is None else timetable(trace, table.compute_scale),
        trace_hash="" if trace is None else trace.digest(),
        memory_mb=table.memory // MB if table.memory else MEMORY_MB + RANK_MB * len(ranks),
        traffic=bool(scenario.traffic),
    )


@with_scenario_location
def with_request(scenario: Scenario, request: ProgramRequest) -> Scenario:
    """Return the scenario with the command's options merged into its [exec], as stored in a Result."""
    table = scenario.exec or Exec()
    options = {name: getattr(request, name) for name in ("hosts", "ranks_per_host", "compute", "trace")}
    if request.trace is not None and Path(request.trace).is_dir():
        options["trace"] = str(Path(request.trace).absolute())
    table_of_run = table.model_copy(update={name: value for name, value in options.items() if value is not None})
    if table_of_run.compute != "trace" and table_of_run.trace is not None:  # the scenario's trace, which is unused
        table_of_run = table_of_run.model_copy(update={"trace": None})
        table_of_run.model_fields_set.discard("trace")
    return scenario.model_copy(update={"exec": table_of_run})


def _trace_of(compute: str, request: ProgramRequest, table: Exec) -> Trace | None:
    """Return the trace with the compute times; None if they come from elsewhere. Raises ScenarioError or TraceError if
    it cannot be loaded."""
    name = request.trace or table.trace
    if compute == "trace":
        if name is None:
            expected = f'{EXPECTED_TRACE}, with compute = "trace"; on the command line --trace'
            mistake = Mistake("exec.trace", "missing", None, expected)
            raise ScenarioError(CANNOT_RUN, mistakes=[mistake])
        return load_trace(name)
    if request.trace is not None:
        mistake = Mistake("--trace", "has no effect", request.trace, 'compute = "trace" as well')
        raise ScenarioError(CANNOT_RUN, mistakes=[mistake])
    return None


def timetable(trace: Trace, scale: float) -> str:
    """Return a trace's compute times, multiplied by `scale`, as JSON text, which a rank reads with the standard library
    (`gradwire.studies.compute_replay`).

        {"tensors": [[name, elements], ...], "layers": [name, ...],
         "iterations": [[{"forward_end": [ns, ...], "ready": [ns, ...], "backward_end": ns, "optimizer": ns}, ...]]}

    `iterations` has a list for each recorded rank; `forward_end` is by layer, `ready` by tensor, all since the
    iteration's start.
    """

    def ns(ps: int) -> int:
        return round(int(ps) * scale / 1000)

    ranks = [
        [
            {
                "forward_end": [ns(time) for time in iteration.forward_end_ps],
                "ready": [ns(time) for time in iteration.ready_ps],
                "backward_end": ns(iteration.backward_end_ps),
                "optimizer": ns(iteration.optimizer_ps),
            }
            for iteration in trace.iterations
            if iteration.rank == rank
        ]
        for rank in trace.ranks
    ]
    tensors = [[tensor.name, tensor.numel] for tensor in trace.tensors]
    return json.dumps({"tensors": tensors, "layers": trace.layers, "iterations": ranks})


def _find_command(request: ProgramRequest) -> None:
    """Raise TestbedError if the command does not exist; a word with {place} differs by rank and is not checked."""
    word = request.command[0] if request.command else ""
    path = str(Path(request.cwd, word)) if "/" in word else word
    if "{" not in word and shutil.which(path, path=request.environment.get("PATH")) is None:
        reason = "not in PATH"
        if "/" in word:
            file = Path(path)
            reason = "is a folder" if file.is_dir() else "is not executable" if file.exists() else "no such program"
        raise TestbedError(f"{word!r} cannot be run: {reason}", "command", "a program, such as python3")


def _unknown(table: Exec, request: ProgramRequest, hosts: Sequence[str]) -> list[Mistake]:
    names_by_option = [("--hosts", name) for name in request.hosts or ()]
    if request.hosts is None:
        names_by_option += [(f"exec.hosts[{index}]", name) for index, name in enumerate(table.hosts or ())]
    names_by_option += [(f"exec.host[{index}].name", host.name) for index, host in enumerate(table.host)]
    for index, mark in enumerate(table.mark):
        names_by_option += [
            (f"exec.mark[{index}].{key}", value) for key in ("host", "to") if (value := getattr(mark, key))
        ]
    expected = f"{hosts[0]} to {hosts[-1]}" if len(hosts) > 2 else " or ".join(hosts)
    mistakes = [Mistake(where, "no such host", name, expected) for where, name in names_by_option if name not in hosts]
    duplicates = [name for index, name in enumerate(request.hosts or ()) if name in (request.hosts or ())[:index]]
    mistakes += [Mistake("--hosts", "named twice", name, "each host once") for name in dict.fromkeys(duplicates)]
    return mistakes


def _wrong_rank(mark: ExecMark, hosts: int, per_host: int) -> tuple[str, int, str] | None:
    if mark.rank is None:
        return None
    if per_host > 1:
        what = f"shares its host and address with {per_host - 1} other ranks"
        return what, mark.rank, "host or port, or one rank per host"
    return None if mark.rank < hosts else ("no such rank", mark.rank, f"0 to {hosts - 1}")


def _rule(mark: ExecMark, node_of: Mapping[str, int], nodes: Sequence[int]) -> Rule:
    sources: tuple[int, ...] | None = None
    if mark.host is not None:
        sources = (node_of[mark.host],)
    elif mark.rank is not None:
        sources = (nodes[mark.rank],)
    target = None if mark.to is None else host_address(node_of[mark.to])
    return Rule(sources, target, mark.port, mark.protocol, mark.smaller_than, mark.priority, mark.important)


def transport_of_programs(scenario: Scenario) -> TransportPlan:
    """Return the transport of user programs: the kernel's TCP or UDP in packets of at most the MTU."""
    table = scenario.exec or Exec()
    payload = Bytes(table.mtu - IPV4 - TCP)
    return TransportPlan("program", payload, Bytes(TCP_OVERHEAD), "tcp", {}, congestion=table.congestion or "kernel")


def options_of_programs(scenario: Scenario) -> dict[str, int]:
    """Return the options of the host kernels, in the form of `gradwire.emu.planning.planner.kernel_options`."""
    table = scenario.exec or Exec()
    options = {}
    if table.ecn:
        options["tcp_ecn"] = 1
    if table.min_rto is not None:
        options["min_rto_ns"] = table.min_rto // 1000
    return options


def check_kernel(programs: Programs, kernel: KernelFeatures) -> None:
    """Raise TestbedError if the kernel lacks marking rules or congestion controls that the programs need."""
    if programs.rules and not kernel.has("tool", "nft"):
        raise TestbedError(kernel.explain_missing("tool", "nft"), "exec.mark", "nftables, or no rules")
    if programs.rules and kernel.nft_marks:
        what = f"nftables cannot modify packets on this kernel ({kernel.nft_marks})"
        raise TestbedError(what, "exec.mark", "no rules, or --clock virtual")
    for name in sorted(set(programs.congestion.values())):
        if not kernel.has("congestion", name):
            expected = ", ".join(kernel.congestion) + ("" if kernel.virtual else ", or --clock virtual")
            what = f"congestion control not available on this kernel: {name!r}"
            raise TestbedError(what, "exec.congestion", expected)


def check_clock(request: ProgramRequest, clock: str) -> None:
    """Raise ScenarioError if options request compute times on the wall clock. The same keys in a scenario are allowed,
    for its other clock."""
    options = {"--trace": request.trace, "--compute": None if request.compute == "none" else request.compute}
    what = "has no effect on the wall clock, where computing takes real time"
    mistakes = [
        Mistake(option, what, value, "--clock virtual")
        for option, value in options.items()
        if clock == "wall" and value is not None
    ]
    if mistakes:
        raise ScenarioError("the command cannot run with these options", mistakes=mistakes[:1])


def program_departures(programs: Programs, clock: str) -> list[str]:
    """Return messages about departures from the scenario or from a user's likely expectation."""
    messages = []
    if clock == "wall" and programs.compute != "none":
        messages.append(f'computing takes real time: compute = "{programs.compute}" is for the virtual clock')
    if clock == "virtual" and programs.compute == "none":
        messages.append('computing takes no time (compute = "none"): iterations take only network time')
    if clock == "virtual" and programs.compute == "measured":
        messages.append(
            f"computing is added as a sleep at gradwire.mark, {programs.scale:g} times the processor time: it does not "
            "overlap with packets sent before the mark, and runs are not reproducible"
        )
    if clock == "virtual" and programs.compute == "trace":
        messages.append(f"computing takes {programs.scale:g} times the times recorded in the trace {programs.trace!r}")
    return messages
