"""`lost_values` computes the share of all workers' values that packet loss removed from each worker's reduced copy of a
tensor.

The Result records the missing bytes of every message. The program determines the content of a message: a sum of some
workers' values on the way to the result, or a finished sum on the way back. Every element is followed along the
messages of its bucket, as the number of workers whose values it includes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import Trace
from gradwire.workload.program import Program

Counts = NDArray[np.int32]

REDUCE, GATHER, PARAMETERS = (KINDS.index(kind) for kind in ("reduce_scatter", "all_gather", "parameters"))


class LostValues(NamedTuple):
    """Share of all workers' values that is missing in one worker's copy of a tensor after an iteration."""

    job: str
    iteration: int
    worker: int
    tensor: int
    share: float


def lost_values(scenario: Scenario, result: Result, trace: Trace | None = None) -> list[LostValues]:
    """Return the losses of every tensor that a collective reduced, by job, iteration, worker and tensor.

    scenario, trace : of the Result (with the policy of the run).

    A lost value counts as zero, whatever replaces it in training (`job.fill`). Parameter servers are left out: the loss
    of a push or a pull is directly in the table of messages. So are collectives that distribute parameters, not sums.

    Raises `ScenarioError` if the scenario cannot be resolved.
    """
    from gradwire.workload.resolve import resolve

    resolved = resolve(scenario, trace)
    program = resolved.program
    missing = _missing(program, resolved.network.names, result)
    missed: dict[tuple[str, int, int, int], float] = defaultdict(float)  # number of elements missing, over all workers
    for (table, iteration, bucket), messages in _buckets(program).items():
        job = program.tables[table]
        included = _followed(program, messages, missing)
        group_size = _members(program, messages)
        numels = [resolved.traces[job.trace].tensors[tensor].numel for tensor in job.buckets[bucket]]
        first = job.slices[bucket][1] if job.slices else 0
        for worker, counts in included.items():
            low = 0
            for tensor, numel in zip(job.buckets[bucket], numels, strict=True):
                high = low + (first or numel)
                present = float(counts[low:high].sum(dtype=np.float64)) / group_size[worker]
                missed[job.name, iteration, worker, tensor] += (high - low - present) / numel
                low = high
    return [LostValues(*key, share) for key, share in sorted(missed.items())]


def _buckets(program: Program) -> dict[tuple[int, int, int], list[int]]:
    """Return the messages of every bucket, each after those it is made of."""
    rows = program.messages
    by_bucket: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    others = np.isin(rows.table, np.unique(rows.table[rows.kind == PARAMETERS]))
    for message in np.flatnonzero(((rows.kind == REDUCE) | (rows.kind == GATHER)) & ~others).tolist():
        table = int(rows.table[message])
        bucket = int(rows.part[message]) // program.tables[table].segments
        by_bucket[table, int(rows.iteration[message]), bucket].append(message)
    return by_bucket


def _followed(program: Program, messages: list[int], missing: Mapping[int, list[tuple[int, int]]]) -> dict[int, Counts]:
    """Return, by worker, the number of workers whose values each element of its bucket finally includes."""
    rows, table = program.messages, program.tables[int(program.messages.table[messages[0]])]
    size = max(int(rows.first[m] + rows.nbytes[m] // table.element_bytes) for m in messages)
    workers = {node: worker for (job, node), worker in program.workers().items() if job == rows.table[messages[0]]}
    included = {worker: np.ones(size, dtype=np.int32) for worker in workers.values()}
    received: dict[int, tuple[int, Any]] = {}
    for message in messages:
        first, count = int(rows.first[message]), int(rows.nbytes[message]) // table.element_bytes
        values = np.full(count, 1 if program.own[message] else 0, dtype=np.int32)
        for source in program.sums[message]:
            _put(values, first, *received[source], rows.kind[source] == GATHER)
        for begin, nbytes in missing.get(message, ()):
            values[begin // table.element_bytes : -(-(begin + nbytes) // table.element_bytes)] = 0
        received[message] = first, values
        _put(included[workers[int(rows.dst[message])]], 0, first, values, rows.kind[message] == GATHER)
    return included


def _members(program: Program, messages: list[int]) -> dict[int, int]:
    """Return, by worker, the number of workers that exchange a bucket with it: in a split model not all do."""
    rows = program.messages
    workers = {node: worker for (job, node), worker in program.workers().items() if job == rows.table[messages[0]]}
    group_of = {worker: {worker} for worker in workers.values()}
    for message in messages:
        one, other = (workers[int(end[message])] for end in (rows.src, rows.dst))
        if group_of[one] is not group_of[other]:
            group_of[one] |= group_of[other]
            for worker in group_of[other]:
                group_of[worker] = group_of[one]
    return {worker: len(members) for worker, members in group_of.items()}


def _put(into: Counts, at: int, first: int, values: Counts, replace: bool) -> None:
    """Add values to the overlapping part of `into`, or replace it."""
    begin = first - at
    low, high = max(begin, 0), min(begin + len(values), len(into))
    overlap = values[low - begin : high - begin]
    into[low:high] = overlap if replace else into[low:high] + overlap


def _missing(program: Program, names: tuple[str, ...], result: Result) -> dict[int, list[tuple[int, int]]]:
    """Return, by message number in the program, first byte and size of every gap."""
    rows = program.messages
    planned = (rows.table, rows.kind, rows.iteration, rows.tensor, rows.part, rows.src, rows.dst)
    number = {
        (program.tables[table].name, KINDS[kind], iteration, tensor, part, names[src], names[dst]): message
        for message, (table, kind, iteration, tensor, part, src, dst) in enumerate(
            zip(*(column.tolist() for column in planned), strict=True)
        )
    }
    columns = ("message", "job", "kind", "iteration", "tensor", "part", "src", "dst")
    recorded = zip(*(result.messages[name].to_pylist() for name in columns), strict=True)
    number_in_program = {row[0]: number.get(row[1:]) for row in recorded}
    gaps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in result.missing.to_pylist():
        message = number_in_program.get(row["message"])
        if message is not None:
            gaps[message].append((row["offset"], row["bytes"]))
    return gaps
