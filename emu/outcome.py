"""From what the testbed has seen to a Result: the same tables as the simulator's.

Of the tables, three say less than the simulator's. `drops` has a row per packet where the backend saw packets one by
one, and none where it only counts (the counts are in `ports`); `delays` and `packets` are empty. In `ports`,
`peak_queue_bytes` is -1 where a backend cannot tell. In `messages`, `marked` is -1 for the kernel's TCP, which keeps
its marks to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emu.plan import Plan
from emu.switches.base import Drop, PortCounts
from scenarios.result import KINDS, Result, summarise
from scenarios.schema import Scenario

PS = 1000
"""Picoseconds per nanosecond."""

Ints = NDArray[np.int64]


@dataclass
class Raw:
    """What a run inside leaves for the outside; times are nanoseconds since the common beginning, -1 = never.

    start, end : int64[messages]; when a message was ready, and when it was delivered.
    received, lost, sent_packets, retransmitted, marked : int64[messages].
    iterations : rows (job table, worker, iteration, start, forward_end, backward_end, end, compute) in ns, compute in ps.
    counts : of the ports, at the end; `samples` (time, counts) on the way.
    drops : with times since the common beginning.
    ended_by : "done", "duration", "interrupted".
    lateness : per host what its timers were late by (max_ns, p99_ns, stalls).
    complaints : what the backend and the watch over the clock found wrong; a run with any is not valid.
    violations : where contents or sums were not what they should have been.
    round_trips : of the control channel to hosts on other machines, ns.
    """

    start: Ints
    end: Ints
    received: Ints
    lost: Ints
    sent_packets: Ints
    retransmitted: Ints
    marked: Ints
    iterations: list[tuple[int, ...]]
    counts: list[PortCounts]
    samples: list[tuple[int, list[PortCounts]]] = field(default_factory=list)
    drops: Sequence[Drop] = ()
    ended_by: str = "done"
    end_ns: int = 0
    lateness: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    captures: Mapping[str, str] = field(default_factory=dict)
    wall_s: float = 0.0


def make_result(
    scenario: Scenario,
    plan: Plan,
    raw: Raw,
    *,
    trace_hash: str,
    engine: Mapping[str, Any],
    ideal: Mapping[int, int] | None = None,
    timing: Mapping[str, Any] | None = None,
) -> Result:
    """The Result. `ideal`: picoseconds on the empty network, by message of traffic."""
    program = plan.program
    ready = np.flatnonzero(raw.start >= 0)
    done = raw.end[ready] >= 0
    rows = program.messages
    payload = np.array([plan.transports[table.transport].payload for table in program.tables], dtype=np.int64)
    table = rows.table[ready]
    names = np.array(plan.names, dtype=object)
    size = rows.nbytes[ready]
    messages: dict[str, Any] = {
        "message": ready,
        "job": [program.tables[index].name for index in table.tolist()],
        "iteration": rows.iteration[ready],
        "tensor": rows.tensor[ready],
        "layer": rows.layer[ready],
        "part": rows.part[ready],
        "kind": [KINDS[index] for index in rows.kind[ready].tolist()],
        "src": names[rows.src[ready]].tolist(),
        "dst": names[rows.dst[ready]].tolist(),
        "bytes": size,
        "packets": -(-size // payload[table]),
        "priority": rows.priority[ready],
        "start_ps": raw.start[ready] * PS,
        "end_ps": np.where(done, raw.end[ready] * PS, -1),
        "received_bytes": np.where(done, raw.received[ready], 0),
        "lost_bytes": np.where(done, raw.lost[ready], 0),
        "bound": rows.bound[ready],
        "retransmitted": raw.retransmitted[ready],
        "sent_packets": raw.sent_packets[ready],
        "marked": raw.marked[ready],
        "trimmed": np.zeros(len(ready), dtype=np.int64),
    }
    iterations = _iterations(plan, raw)
    wanted = sum(len(process.compute) for process in program.processes if process.worker >= 0)
    totals = {
        "simulated_ps": raw.end_ns * PS,
        "finished": raw.ended_by == "done",
        "ended_by": raw.ended_by,
        "iterations": len(iterations["worker"]),
        "iterations_wanted": wanted,
        "messages": len(ready),
        "messages_under_way": int((~done).sum()),
        "bytes": int(size.sum()),
        "lost_bytes": int(np.sum(messages["lost_bytes"])),
    }
    flows: dict[str, Any] = {}
    if ideal:
        of_traffic = [int(number) for number in ready.tolist() if number in ideal]
        flows = {"message": of_traffic, "ideal_ps": [ideal[number] for number in of_traffic]}
    return Result.build(
        summarise(scenario, trace_hash, engine, totals),
        {
            "iterations": iterations,
            "messages": messages,
            "flows": flows,
            "drops": _drops(raw),
            "ports": _ports(raw.counts),
            "samples": _samples(plan, raw),
        },
        timing,
    )


def _iterations(plan: Plan, raw: Raw) -> dict[str, Any]:
    rows = sorted(raw.iterations)
    table, worker, iteration, start, forward, backward, end, compute = (
        np.array(rows, dtype=np.int64).reshape(-1, 8).T
    )
    return {
        "job": [plan.program.tables[index].name for index in table.tolist()],
        "worker": worker,
        "iteration": iteration,
        "start_ps": start * PS,
        "forward_end_ps": forward * PS,
        "backward_end_ps": backward * PS,
        "end_ps": end * PS,
        "compute_ps": compute,
        "exposed_ps": (end - start) * PS - compute,
    }


def _drops(raw: Raw) -> dict[str, Any]:
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


def _ports(counts: Sequence[PortCounts]) -> dict[str, Any]:
    taken = ("port", "packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks", "peak_queue_bytes")
    columns: dict[str, Any] = {name: [getattr(count, name) for count in counts] for name in taken}
    for name in ("drops_evicted", "drops_down", "drops_no_route", "trimmed", "pauses"):
        columns[name] = [0] * len(counts)
    return columns


def _samples(plan: Plan, raw: Raw) -> dict[str, Any]:
    rates = {port.name: port.rate for port in plan.ports}
    rows = [(time * PS, count) for time, counts in raw.samples for count in counts]
    return {
        "time_ps": [time for time, _ in rows],
        "port": [count.port for _, count in rows],
        "queue_bytes": [count.queue_bytes for _, count in rows],
        "sent_bytes": [count.bytes for _, count in rows],
        "rate_bps": [rates[count.port] for _, count in rows],
    }
