"""Converts a testbed run's raw results to a Result with the simulator's tables.

Some values are missing. `drops` has a row per packet if the backend sees packets one by one, and no rows if it only
counts (the counts are in `ports`); `delays` and `packets` are empty. `peak_queue_bytes` of `ports` is -1 if the backend
does not measure it. `marked` of `messages` is -1 for the kernel's TCP, which does not report its marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradwire.emu.agent.report import Reports
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import PortCounts
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.user_programs import outcome as programs_outcome
from gradwire.result_store.missing_packets import missing_columns, missing_runs
from gradwire.result_store.provenance import scenario_text
from gradwire.result_store.result import Result, summarise
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.schema.scenario import Scenario

PS = 1000
"""Picoseconds per nanosecond."""
COPIED = ("iteration", "tensor", "layer", "part", "priority", "bound", "share")
"""Columns of the program's messages that are columns of the Result."""


def make_result(
    scenario: Scenario,
    plan: TestbedPlan,
    raw: RawResults,
    *,
    trace_hash: str,
    engine: JsonView,
    ideal: Mapping[int, int] | None = None,
    timing: JsonView | None = None,
) -> Result:
    """Return the Result; `ideal`: unloaded transfer time in picoseconds, by message of traffic."""
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


def _messages(plan: TestbedPlan, reports: Reports, ready: Ints, payloads: Ints) -> Columns:
    """Return the messages that became ready; `payloads`: bytes of a full packet of each."""
    program, rows = plan.program, plan.program.messages
    is_delivered = reports.end_ns[ready] >= 0
    names = np.array(plan.names, dtype=object)
    size = rows.nbytes[ready]
    return {
        **{name: getattr(rows, name)[ready] for name in COPIED},
        **{name: getattr(reports, name)[ready] for name in ("retransmitted", "sent_packets", "marked")},
        "message": ready,
        "job": [program.tables[index].name for index in rows.table[ready].tolist()],
        "kind": [KINDS[index] for index in rows.kind[ready].tolist()],
        "src": names[rows.src[ready]].tolist(),
        "dst": names[rows.dst[ready]].tolist(),
        "bytes": size,
        "packets": -(-size // payloads),
        "start_ps": reports.start_ns[ready] * PS,
        "released_ps": np.full(len(ready), -1, dtype=np.int64),
        "end_ps": np.where(is_delivered, reports.end_ns[ready] * PS, -1),
        "received_bytes": reports.received[ready],
        "lost_bytes": np.where(is_delivered, reports.lost[ready], 0),
        "trimmed": np.zeros(len(ready), dtype=np.int64),
        "timeouts": np.full(len(ready), -1, dtype=np.int64),  # not reported by sockets
    }


def _missing(reports: Reports, nbytes: Ints, payload: Ints, numbers: Ints) -> Columns:
    """Return the table of missing packets of the messages `numbers`, given their sizes and payloads."""
    messages = zip(numbers.tolist(), nbytes.tolist(), payload.tolist(), strict=True)
    return missing_columns(
        [
            missing_runs(number, ~reports.have[number], size, packet_bytes)
            for number, size, packet_bytes in messages
            if number in reports.have and reports.end_ns[number] >= 0
        ]
    )


def _end(plan: TestbedPlan, reports: Reports) -> int:
    """Return the end of the run: the last event, or its duration."""
    if reports.ended_by == "duration" and plan.duration_ps is not None:
        return plan.duration_ps
    if plan.programs is not None:
        return reports.over_ns * PS
    ends = [row.end_ps for row in reports.iterations]
    return max([int(reports.end_ns.max(initial=0)) * PS, *ends])


def _iterations(plan: TestbedPlan, reports: Reports) -> Columns:
    names = [table.name for table in plan.program.tables]
    rows = sorted(reports.iterations)
    columns: Columns = {field: [row[column] for row in rows] for column, field in enumerate(IterationRow._fields)}
    columns["job"] = [names[row.job] for row in rows]
    return columns


def _drops(raw: RawResults) -> Columns:
    drops = sorted(raw.drops, key=lambda drop: (drop.time_ns, drop.port, drop.message, drop.packet))
    names = ("message", "packet", "port", "cause", "important", "priority")
    columns: Columns = {name: [getattr(drop, name) for drop in drops] for name in names}
    return {**columns, "time_ps": [drop.time_ns * PS for drop in drops]}


def _ports(counts: Sequence[PortCounts]) -> Columns:
    names = ("port", "packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks", "peak_queue_bytes")
    columns: Columns = {name: [getattr(count, name) for count in counts] for name in names}
    for name in ("drops_evicted", "drops_down", "drops_no_route", "trimmed", "pauses"):
        columns[name] = [0] * len(counts)
    columns["control_marks"] = [-1] * len(counts)  # switches of the testbed count all marks together
    return columns


def _samples(plan: TestbedPlan, raw: RawResults) -> Columns:
    rates = {port.name: port.rate for port in plan.ports}
    rows = [(time * PS, count) for time, counts in raw.samples for count in counts]
    return {
        "time_ps": [time for time, _ in rows],
        "port": [count.port for _, count in rows],
        "queue_bytes": [count.queue_bytes for _, count in rows],
        "sent_bytes": [count.bytes for _, count in rows],
        "rate_bps": [rates[count.port] for _, count in rows],
    }
