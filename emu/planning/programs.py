"""From a scenario and a command to `Programs`: who runs where, rules for packets, and what changes meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.emu.planning.plan import TransportPlan, host_address
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.programs.described import Programs, Rule, ranks_of
from gradwire.emu.programs.timetable import timetable
from gradwire.emu.switches.base import TestbedError
from gradwire.experiment.topology import Network
from gradwire.scenarios.errors import Mistake, ScenarioError, names_scenario
from gradwire.scenarios.inner_units import Bytes
from gradwire.scenarios.schema.exec import Exec, ExecMark
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import IPV4, TCP, TCP_OVERHEAD
from gradwire.traces.trace import NAMED_BY, Trace, load_trace

MB = 1 << 20
MEMORY_MB, RANK_MB = 1024, 1024
"""Of a virtual machine, and for each rank; our choice: a rank with torch takes some 300 MB."""
MOST_RANKS = 256


@dataclass(frozen=True)
class Asked:
    """What is to run: a command and its environment. None: as the scenario's [exec] says.

    hosts : names, in the order of ranks.
    """

    command: tuple[str, ...]
    hosts: tuple[str, ...] | None = None
    ranks_per_host: int | None = None
    compute: str | None = None
    trace: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: str = field(default_factory=os.getcwd)


@names_scenario
def programs_of(scenario: Scenario, network: Network, asked: Asked) -> Programs:
    """Who runs where, and what happens to whom.

    Raises
    ------
    ScenarioError
        With every name that the network does not have, and rules that cannot hold.
    """
    _find_command(asked)
    table = scenario.exec or Exec()
    names = network.names
    hosts = names[: network.host_count]
    number = {name: node for node, name in enumerate(hosts)}
    used = asked.hosts or table.hosts or tuple(hosts)
    per_host = asked.ranks_per_host or table.ranks_per_host
    mistakes = _unknown(table, asked, hosts)
    if not mistakes and len(used) * per_host > MOST_RANKS:
        what = f"{len(used)} hosts with {per_host} ranks each are {len(used) * per_host} processes"
        mistakes.append(Mistake("exec.ranks_per_host", what, per_host, f"at most {MOST_RANKS} ranks together"))
    if not mistakes:
        mistakes += [
            Mistake(f"exec.mark[{place}].rank", *wrong)
            for place, mark in enumerate(table.mark)
            if (wrong := _wrong_rank(mark, len(used), per_host)) is not None
        ]
    compute = asked.compute or table.compute
    if "compute_scale" in table.model_fields_set and compute == "none":
        what = 'compute = "measured" or "trace" as well; on the command line --compute or --trace'
        mistakes.append(Mistake("exec.compute_scale", "has no effect", table.compute_scale, what))
    if mistakes:
        raise ScenarioError("the command cannot run across this network", mistakes=mistakes)
    addresses = [host_address(node) for node in range(len(hosts))]
    congestion = {} if table.congestion is None else dict.fromkeys(range(len(hosts)), table.congestion)
    congestion |= {number[each.name]: each.congestion for each in table.host}
    ranks = ranks_of(hosts, addresses, [number[name] for name in used], per_host)
    trace = _trace_of(compute, asked, table)
    return Programs(
        command=asked.command, ranks=ranks, names=tuple(zip(hosts, addresses, strict=True)),
        environment=dict(asked.environment), cwd=asked.cwd, grace_s=table.grace / 1e12,
        rules=tuple(_rule(mark, number, [rank.node for rank in ranks]) for mark in table.mark),
        congestion=congestion, compute=compute, scale=table.compute_scale,
        trace="" if trace is None else trace.name, times="" if trace is None else timetable(trace, table.compute_scale),
        trace_hash="" if trace is None else trace.digest(),
        memory_mb=table.memory // MB if table.memory else MEMORY_MB + RANK_MB * len(ranks),
        traffic=bool(scenario.traffic),
    )  # fmt: skip


@names_scenario
def as_asked(scenario: Scenario, asked: Asked) -> Scenario:
    """The scenario with what is asked for in its [exec], as a Result keeps it."""
    table = scenario.exec or Exec()
    given = {name: getattr(asked, name) for name in ("hosts", "ranks_per_host", "compute", "trace")}
    if asked.trace is not None and Path(asked.trace).is_dir():
        given["trace"] = str(Path(asked.trace).absolute())
    ran = table.model_copy(update={name: value for name, value in given.items() if value is not None})
    if ran.compute != "trace" and ran.trace is not None:  # of the scenario, whose times were not asked for
        ran = ran.model_copy(update={"trace": None})
        ran.model_fields_set.discard("trace")
    return scenario.model_copy(update={"exec": ran})


def _trace_of(compute: str, asked: Asked, table: Exec) -> Trace | None:
    """Whose times computing takes; None where no trace says it. ScenarioError and TraceError where it cannot be had."""
    name = asked.trace or table.trace
    if compute == "trace":
        if name is None:
            wanted = f'{NAMED_BY}, with compute = "trace"; on the command line --trace'
            mistake = Mistake("exec.trace", "is missing", None, wanted)
            raise ScenarioError("the command cannot run across this network", mistakes=[mistake])
        return load_trace(name)
    if asked.trace is not None:
        raise ScenarioError(
            "the command cannot run across this network",
            mistakes=[Mistake("--trace", "has no effect", asked.trace, 'compute = "trace" as well')],
        )
    return None


def _find_command(asked: Asked) -> None:
    """Raise TestbedError if there is nothing to run; a word with a {place} in it is another one for every rank."""
    word = asked.command[0] if asked.command else ""
    path = str(Path(asked.cwd, word)) if "/" in word else word
    if "{" not in word and shutil.which(path, path=asked.environment.get("PATH")) is None:
        where = "not in PATH"
        if "/" in word:
            file = Path(path)
            where = "is a folder" if file.is_dir() else "is not executable" if file.exists() else "no such program"
        raise TestbedError(f"{word!r} cannot be run: {where}", "command", "a program, such as python3")


def _unknown(table: Exec, asked: Asked, hosts: Sequence[str]) -> list[Mistake]:
    named = [("--hosts", name) for name in asked.hosts or ()]
    if asked.hosts is None:
        named += [(f"exec.hosts[{place}]", name) for place, name in enumerate(table.hosts or ())]
    named += [(f"exec.host[{place}].name", each.name) for place, each in enumerate(table.host)]
    for place, mark in enumerate(table.mark):
        named += [(f"exec.mark[{place}].{key}", value) for key in ("host", "to") if (value := getattr(mark, key))]
    expected = f"{hosts[0]} to {hosts[-1]}" if len(hosts) > 2 else " or ".join(hosts)
    found = [Mistake(where, "is no host", name, expected) for where, name in named if name not in hosts]
    twice = [name for place, name in enumerate(asked.hosts or ()) if name in (asked.hosts or ())[:place]]
    found += [Mistake("--hosts", "is named twice", name, "each host once") for name in dict.fromkeys(twice)]
    return found


def _wrong_rank(mark: ExecMark, hosts: int, per_host: int) -> tuple[str, int, str] | None:
    if mark.rank is None:
        return None
    if per_host > 1:
        what = f"shares its host, and its address, with {per_host - 1} others"
        return what, mark.rank, "host or port, or one rank per host"
    return None if mark.rank < hosts else ("is no rank", mark.rank, f"0 to {hosts - 1}")


def _rule(mark: ExecMark, number: Mapping[str, int], nodes: Sequence[int]) -> Rule:
    from_: tuple[int, ...] | None = None
    if mark.host is not None:
        from_ = (number[mark.host],)
    elif mark.rank is not None:
        from_ = (nodes[mark.rank],)
    to = None if mark.to is None else host_address(number[mark.to])
    return Rule(from_, to, mark.port, mark.protocol, mark.smaller_than, mark.priority, mark.important)


def transport_of_programs(scenario: Scenario) -> TransportPlan:
    """What carries programs' bytes: the kernel's TCP or UDP, whatever they open, in packets of at most the MTU."""
    table = scenario.exec or Exec()
    payload = Bytes(table.mtu - IPV4 - TCP)
    return TransportPlan("program", payload, Bytes(TCP_OVERHEAD), "tcp", {}, congestion=table.congestion or "kernel")


def options_of_programs(scenario: Scenario) -> dict[str, int]:
    """What the kernel's TCP is told at every host, as `gradwire.emu.planning.prepare.kernel_options` has it."""
    table = scenario.exec or Exec()
    found = {}
    if table.ecn:
        found["tcp_ecn"] = 1
    if table.min_rto is not None:
        found["min_rto_ns"] = table.min_rto // 1000
    return found


def check_kernel(programs: Programs, kernel: Kernel) -> None:
    """Raise TestbedError for rules and congestion controls that a kernel has not got."""
    if programs.rules and not kernel.has("tool", "nft"):
        raise TestbedError(kernel.why_not("tool", "nft"), "exec.mark", "nftables, or no rules")
    if programs.rules and kernel.nft_marks:
        what = f"nftables cannot write to packets on this kernel ({kernel.nft_marks})"
        raise TestbedError(what, "exec.mark", "no rules, or --clock virtual")
    for name in sorted(set(programs.congestion.values())):
        if not kernel.has("congestion", name):
            there = ", ".join(kernel.congestion)
            more = "" if kernel.virtual else ", or --clock virtual"
            raise TestbedError(f"this kernel has no congestion control {name!r}", "exec.congestion", f"{there}{more}")


def check_clock(asked: Asked, clock: str) -> None:
    """Raise ScenarioError if computing is asked for of which the wall clock knows nothing; what a scenario says for the
    other clock may stand there."""
    given = {"--trace": asked.trace, "--compute": None if asked.compute == "none" else asked.compute}
    what = "has no effect on the wall clock, where computing takes what it takes"
    mistakes = [
        Mistake(option, what, value, "--clock virtual")
        for option, value in given.items()
        if clock == "wall" and value is not None
    ]
    if mistakes:
        raise ScenarioError("the command cannot run as asked for", mistakes=mistakes[:1])


def differences(programs: Programs, clock: str) -> list[str]:
    """What happens otherwise than the scenario says, or than a user may think, in words."""
    found = []
    if clock == "wall" and programs.compute != "none":
        found.append(f'computing takes what it takes: compute = "{programs.compute}" is for the virtual clock')
    if clock == "virtual" and programs.compute == "none":
        found.append('computing takes no time (compute = "none"): iterations are what the network takes')
    if clock == "virtual" and programs.compute == "measured":
        found.append(
            f"computing is slept at gradwire.mark, {programs.scale:g} times what it took of the processor: it does not "
            "overlap with what is sent before the mark, and no two runs are alike"
        )
    if clock == "virtual" and programs.compute == "trace":
        found.append(f"computing takes {programs.scale:g} times what the trace {programs.trace!r} has recorded")
    return found
