"""What lost packets cost a collective's result: per worker and tensor the share of all workers' values that is missing.

The Result says which bytes of which message were missing. What a message carried, and so what went missing with it,
is the program's: a sum of some workers' values on the way to the result, or a finished one on the way back. Here
every element is followed along the messages of its bucket, as the number of workers whose values are in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.result import KINDS

if TYPE_CHECKING:
    from gradwire.experiment.program import Program
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

Counts = NDArray[np.int32]

REDUCE, GATHER, PARAMETERS = (KINDS.index(kind) for kind in ("reduce_scatter", "all_gather", "parameters"))


class LostValues(NamedTuple):
    """Of one worker's copy of one tensor after an iteration: the share of all workers' values that is not in it."""

    job: str
    iteration: int
    worker: int
    tensor: int
    share: float


def lost_values(scenario: Scenario, result: Result, trace: Trace | None = None) -> list[LostValues]:
    """Of every tensor that a collective has reduced, at every worker, by job, iteration, worker and tensor.

    Parameters
    ----------
    scenario, trace : that the Result is of (with the policy that it was run with).

    A lost value counts as nothing, whatever stands for it in training (`job.fill`). Parameter servers are left out:
    what was lost of a push or a pull is in the table of messages by itself. So is what hands out parameters instead of
    sums.

    Raises
    ------
    ScenarioError
        The scenario cannot be resolved.
    """
    from gradwire.experiment.resolve import resolve

    resolved = resolve(scenario, trace)
    program = resolved.program
    missing = _missing(program, resolved.network.names, result)
    missed: dict[tuple[str, int, int, int], float] = defaultdict(float)  # in elements, of all workers' values
    for (table, iteration, bucket), messages in _buckets(program).items():
        job = program.tables[table]
        held = _followed(program, messages, missing)
        among = _members(program, messages)
        numels = [resolved.traces[job.trace].tensors[tensor].numel for tensor in job.buckets[bucket]]
        first = job.slices[bucket][1] if job.slices else 0
        for worker, counts in held.items():
            low = 0
            for tensor, numel in zip(job.buckets[bucket], numels, strict=True):
                high = low + (first or numel)
                there = float(counts[low:high].sum(dtype=np.float64)) / among[worker]
                missed[job.name, iteration, worker, tensor] += (high - low - there) / numel
                low = high
    return [LostValues(*key, share) for key, share in sorted(missed.items())]


def _buckets(program: Program) -> dict[tuple[int, int, int], list[int]]:
    """Messages of every bucket, each after those that it is made of."""
    rows = program.messages
    found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    others = np.isin(rows.table, np.unique(rows.table[rows.kind == PARAMETERS]))
    for message in np.flatnonzero(((rows.kind == REDUCE) | (rows.kind == GATHER)) & ~others).tolist():
        table = int(rows.table[message])
        bucket = int(rows.part[message]) // program.tables[table].segments
        found[table, int(rows.iteration[message]), bucket].append(message)
    return found


def _followed(program: Program, messages: list[int], missing: Mapping[int, list[tuple[int, int]]]) -> dict[int, Counts]:
    """By worker, how many workers' values are in every element of its bucket in the end."""
    rows, table = program.messages, program.tables[int(program.messages.table[messages[0]])]
    size = max(int(rows.first[m] + rows.nbytes[m] // table.element_bytes) for m in messages)
    workers = {node: worker for (job, node), worker in program.workers().items() if job == rows.table[messages[0]]}
    held = {worker: np.ones(size, dtype=np.int32) for worker in workers.values()}
    came: dict[int, tuple[int, Any]] = {}
    for message in messages:
        first, count = int(rows.first[message]), int(rows.nbytes[message]) // table.element_bytes
        values = np.full(count, 1 if program.own[message] else 0, dtype=np.int32)
        for each in program.sums[message]:
            _put(values, first, *came[each], rows.kind[each] == GATHER)
        for begin, nbytes in missing.get(message, ()):
            values[begin // table.element_bytes : -(-(begin + nbytes) // table.element_bytes)] = 0
        came[message] = first, values
        _put(held[workers[int(rows.dst[message])]], 0, first, values, rows.kind[message] == GATHER)
    return held


def _members(program: Program, messages: list[int]) -> dict[int, int]:
    """By worker, how many exchange a bucket with each other: of a split model not all do."""
    rows = program.messages
    workers = {node: worker for (job, node), worker in program.workers().items() if job == rows.table[messages[0]]}
    group = {worker: {worker} for worker in workers.values()}
    for message in messages:
        one, other = (workers[int(end[message])] for end in (rows.src, rows.dst))
        if group[one] is not group[other]:
            group[one] |= group[other]
            for each in group[other]:
                group[each] = group[one]
    return {worker: len(each) for worker, each in group.items()}


def _put(into: Counts, at: int, first: int, values: Counts, instead: bool) -> None:
    """Add values, or put them in the place of others, where they overlap."""
    begin = first - at
    low, high = max(begin, 0), min(begin + len(values), len(into))
    mine = values[low - begin : high - begin]
    into[low:high] = mine if instead else into[low:high] + mine


def _missing(program: Program, names: tuple[str, ...], result: Result) -> dict[int, list[tuple[int, int]]]:
    """By number in the program, the first byte and the bytes of every gap."""
    number = {key: message for message, key in enumerate(_keys(program, names))}
    columns = ("message", "job", "kind", "iteration", "tensor", "part", "src", "dst")
    mine = {}
    for row in result.messages.select(list(columns)).to_pylist():
        mine[row["message"]] = number.get(tuple(row[name] for name in columns[1:]))
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in result.missing.to_pylist():
        message = mine.get(row["message"])
        if message is not None:
            found[message].append((row["offset"], row["bytes"]))
    return found


def _keys(program: Program, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    rows = program.messages
    columns = (rows.table, rows.kind, rows.iteration, rows.tensor, rows.part, rows.src, rows.dst)
    for table, kind, iteration, tensor, part, src, dst in zip(*(each.tolist() for each in columns), strict=True):
        yield program.tables[table].name, KINDS[kind], iteration, tensor, part, names[src], names[dst]
