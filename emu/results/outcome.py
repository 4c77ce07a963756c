"""From what the testbed has seen to a Result: the same tables as the simulator's.

Of the tables, three say less than the simulator's. `drops` has a row per packet where the backend saw packets one by
one, and none where it only counts (the counts are in `ports`); `delays` and `packets` are empty. In `ports`,
`peak_queue_bytes` is -1 where a backend cannot tell. In `messages`, `marked` is -1 for the kernel's TCP, which keeps
its marks to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradwire.emu.agent.report import Reports
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.planning.plan import Plan
from gradwire.emu.programs import outcome as programs_outcome
from gradwire.emu.switches.base import PortCounts
from gradwire.emu.system.raw import Raw
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.missing import missing_columns, missing_runs
from gradwire.scenarios.record import scenario_text
from gradwire.scenarios.result import KINDS, Result, summarise
from gradwire.scenarios.schema.scenario import Scenario

PS = 1000
"""Picoseconds per nanosecond."""



def make_result(
    scenario: Scenario,
    plan: Plan,
    raw: Raw,
    *,
    trace_hash: str,
    engine: JsonView,
    ideal: Mapping[int, int] | None = None,
    timing: JsonView | None = None,
) -> Result:
    """The Result. `ideal`: picoseconds on the empty network, by message of traffic."""
    program, reports = plan.program, raw.reports
    ready = np.flatnonzero(reports.start_ns >= 0)
    payload = np.array([plan.transports[table.transport].payload for table in program.tables], dtype=np.int64)
    payloads, size = payload[program.messages.table[ready]], program.messages.nbytes[ready]
    messages, iterations = _messages(plan, reports, ready, payloads), _iterations(plan, reports)
    if plan.programs is not None:
        iterations = programs_outcome.iterations(raw.marks, programs_outcome.job_name(plan.programs))
    totals = {
        "simulated_ps": _end(plan, reports),
        "finished": reports.ended_by == "done" or (reports.ended_by == "duration" and not scenario.job),
        "ended_by": reports.ended_by,
        "iterations": len(iterations["worker"]),
        "iterations_wanted": sum(len(process.compute) for process in program.processes if process.worker >= 0),
        "messages": len(ready),
        "messages_under_way": int((reports.end_ns[ready] < 0).sum()),
        "bytes": int(size.sum()),
        "lost_bytes": int(np.sum(np.asarray(messages["lost_bytes"]))),
    }
    flows: Columns = {}
    if ideal:
        of_traffic = [int(number) for number in ready.tolist() if number in ideal]
        flows = {"message": of_traffic, "ideal_ps": [ideal[number] for number in of_traffic]}
    summary = summarise(scenario, trace_hash, engine, totals)
    if plan.programs is not None:
        summary["programs"] = programs_outcome.summary(plan, plan.programs, raw, plan.clock)
    return Result.build(
        summary,
        {
            "iterations": iterations,
            "messages": messages,
            "flows": flows,
            "drops": _drops(raw),
            "missing": _missing(reports, size, payloads, ready) if scenario.output.missing else {},
            "ports": _ports(raw.counts),
            "samples": _samples(plan, raw),
        },
        timing,
        scenario_text(scenario),
    )


def _messages(plan: Plan, reports: Reports, ready: Ints, payloads: Ints) -> Columns:
    """Messages that became ready, with the bytes of a full packet of each."""
    program, rows = plan.program, plan.program.messages
    done = reports.end_ns[ready] >= 0
    names = np.array(plan.names, dtype=object)
    size = rows.nbytes[ready]
    return {
        "message": ready,
        "job": [program.tables[index].name for index in rows.table[ready].tolist()],
        "iteration": rows.iteration[ready],
        "tensor": rows.tensor[ready],
        "layer": rows.layer[ready],
        "part": rows.part[ready],
        "kind": [KINDS[index] for index in rows.kind[ready].tolist()],
        "src": names[rows.src[ready]].tolist(),
        "dst": names[rows.dst[ready]].tolist(),
        "bytes": size,
        "packets": -(-size // payloads),
        "priority": rows.priority[ready],
        "start_ps": reports.start_ns[ready] * PS,
        "released_ps": np.full(len(ready), -1, dtype=np.int64),
        "end_ps": np.where(done, reports.end_ns[ready] * PS, -1),
        "received_bytes": reports.received[ready],
        "lost_bytes": np.where(done, reports.lost[ready], 0),
        "bound": rows.bound[ready],
        "share": rows.share[ready],
        "retransmitted": reports.retransmitted[ready],
        "sent_packets": reports.sent_packets[ready],
        "marked": reports.marked[ready],
        "trimmed": np.zeros(len(ready), dtype=np.int64),
        "timeouts": np.full(len(ready), -1, dtype=np.int64),  # a kernel's sockets do not tell
    }


def _missing(reports: Reports, nbytes: Ints, payload: Ints, numbers: Ints) -> Columns:
    """The table of missing packets, of messages by number with so many bytes each, and so many in a packet."""
    found = zip(numbers.tolist(), nbytes.tolist(), payload.tolist(), strict=True)
    return missing_columns([
        missing_runs(number, ~reports.have[number], size, each)
        for number, size, each in found
        if number in reports.have and reports.end_ns[number] >= 0
    ])  # fmt: skip


def _end(plan: Plan, reports: Reports) -> int:
    """When the run was over: with the last thing that anybody saw, or at its duration."""
    if reports.ended_by == "duration" and plan.duration_ps is not None:
        return plan.duration_ps
    if plan.programs is not None:
        return reports.over_ns * PS
    ends = [row.end_ps for row in reports.iterations]
    return max([int(reports.end_ns.max(initial=0)) * PS, *ends])


def _iterations(plan: Plan, reports: Reports) -> Columns:
    names = [table.name for table in plan.program.tables]
    rows = sorted(reports.iterations)
    columns: Columns = {field: [row[place] for row in rows] for place, field in enumerate(IterationRow._fields)}
    columns["job"] = [names[row.job] for row in rows]
    return columns


def _drops(raw: Raw) -> Columns:
    drops = sorted(raw.drops, key=lambda drop: (drop.time_ns, drop.port, drop.message, drop.packet))
    return {
        "message": [drop.message for drop in drops],
        "packet": [drop.packet for drop in drops],
        "port": [drop.port for drop in drops],
        "time_ps": [drop.time_ns * PS for drop in drops],
        "cause": [drop.cause for drop in drops],
        "important": [drop.important for drop in drops],
        "priority": [drop.priority for drop in drops],
    }


def _ports(counts: Sequence[PortCounts]) -> Columns:
    taken = ("port", "packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks", "peak_queue_bytes")
    columns: Columns = {name: [getattr(count, name) for count in counts] for name in taken}
    for name in ("drops_evicted", "drops_down", "drops_no_route", "trimmed", "pauses"):
        columns[name] = [0] * len(counts)
    columns["control_marks"] = [-1] * len(counts)  # switches of the testbed count what they mark all alike
    return columns


def _samples(plan: Plan, raw: Raw) -> Columns:
    rates = {port.name: port.rate for port in plan.ports}
    rows = [(time * PS, count) for time, counts in raw.samples for count in counts]
    return {
        "time_ps": [time for time, _ in rows],
        "port": [count.port for _, count in rows],
        "queue_bytes": [count.queue_bytes for _, count in rows],
        "sent_bytes": [count.bytes for _, count in rows],
        "rate_bps": [rates[count.port] for _, count in rows],
    }
