"""Whether what arrived is what was sent, what was lost is what was reported, and the sums are right.

Every host keeps a check sum of every packet that it sent and received (`gradwire.emu.agent.contents`). Here they are
put side by side, and then computed once more from the gradients and from what was lost, whole tensors and whole buckets
at a time: those of parameter servers from what a server is, and those of collectives from what the program says that
they are made of, which is held against real arrays by a test of its own.

Additions are in float32 (or the tensor's type) and in a fixed order, so that everything has to be equal to the bit:

* a parameter server adds the gradient of the worker on its own host first, then those that arrived, by worker;
* in a collective a worker adds what arrived to its own gradient, by stages, and puts what is finished in its place.

What a packet would have carried that did not arrive counts as zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.base import Arrival
from gradwire.emu.agent.contents import NOTHING, CheckSums, Sums, check_sums
from gradwire.emu.agent.magnitudes import RUN, Magnitudes
from gradwire.emu.agent.values import Values as Source
from gradwire.experiment.program import Program, Table
from gradwire.scenarios.loss import allowed_loss
from gradwire.scenarios.result import KINDS

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

Values = NDArray[Any]  # of whatever type the gradients have

PUSH, PULL, REDUCE, GATHER = range(4)

SHOWN = 20
"""Violations of one sort that are said one by one."""

CLOSE = 1e-2
"""How far the mean of a gradient's run may be from the trace's, as a share of it: float16 has 11 bits."""

RUNS_CHECKED = 64
"""So many runs of every gradient, about, are held against the trace."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of a run.

    traces, magnitudes : the traces, and what hosts sent of them (`gradwire.emu.agent.values`).
    payloads : bytes of a full packet, by number of a transport.
    arrivals, sums : of all hosts together; messages that had not arrived when the run was cut have no arrival.
    important_arrive : by number of a transport, whether packets that are important must not be lost.
    """

    program: Program
    traces: Sequence[Trace]
    magnitudes: Sequence[Source]
    payloads: Sequence[int]
    seed: int
    arrivals: Mapping[int, Arrival]
    sums: CheckSums
    important_arrive: Sequence[bool] = ()

    def payload(self, message: int) -> int:
        """Bytes of a full packet of a message."""
        return self.payloads[self.program.tables[self.program.messages.table[message]].transport]

    def sizes(self, message: int) -> Values:
        """Bytes of every packet of a message."""
        size, payload = int(self.program.messages.nbytes[message]), self.payload(message)
        sizes = np.full(-(-size // payload), payload, dtype=np.int64)
        sizes[-1] = size - (len(sizes) - 1) * payload
        return sizes

    def have(self, message: int) -> Values:
        """Which packets of a message arrived."""
        given = self.arrivals[message].have
        return (
            np.ones(len(self.sizes(message)), dtype=np.bool_)
            if given is None
            else np.asarray(given, np.bool_)
        )

    def name(self, message: int) -> str:
        """A message in words."""
        rows, table = self.program.messages, self.program.tables[self.program.messages.table[message]]
        what = f"tensor {rows.tensor[message]} part" if rows.tensor[message] >= 0 else "part"
        return (
            f"message {message} ({KINDS[rows.kind[message]]} of {table.name}, iteration {rows.iteration[message]}, "
            f"{what} {rows.part[message]}, node {rows.src[message]} to {rows.dst[message]})"
        )


def verify(evidence: Evidence, complete: bool = True) -> list[str]:
    """Everything that is wrong with a run, in words; an empty list if nothing is.

    Parameters
    ----------
    complete : whether all messages have to be there; False for a run that was cut.
    """
    found: list[str] = []
    for sort in (
        _missing(evidence) if complete else iter(()),
        _losses(evidence),
        _transfers(evidence),
        _values(evidence),
    ):
        lines = list(sort)
        found += lines[:SHOWN]
        if len(lines) > SHOWN:
            found.append(f"... and {len(lines) - SHOWN} more like this")
    return found


def _missing(evidence: Evidence) -> Iterator[str]:
    for message in range(len(evidence.program.messages)):
        for kept, what in (
            (evidence.arrivals, "has not arrived"),
            (evidence.sums.sent, "was not sent, or its check sums are missing"),
            (evidence.sums.received, "has no check sums of what arrived"),
        ):
            if message not in kept:
                yield f"{evidence.name(message)} {what}"


def _losses(evidence: Evidence) -> Iterator[str]:
    """What is counted against what is there, and against what was promised."""
    rows = evidence.program.messages
    budgets: dict[tuple[int, ...], list[int]] = {}
    for message, arrival in sorted(evidence.arrivals.items()):
        name, size = evidence.name(message), int(rows.nbytes[message])
        sizes, have = evidence.sizes(message), evidence.have(message)
        if len(have) != len(sizes):
            yield f"{name} reports {len(have)} packets, it has {len(sizes)}"
            continue
        there = int(sizes[have].sum())
        if arrival.received != there or arrival.lost != size - there:
            yield (
                f"{name} reports {arrival.received} bytes received and {arrival.lost} lost, its packets say {there} "
                f"and {size - there}"
            )
        if size - there > allowed_loss(size, float(rows.bound[message])):
            yield f"{name} lost {size - there} bytes of {size}, bound {rows.bound[message]:g}"
        if rows.pool[message]:
            key = (int(rows.src[message]), int(rows.dst[message]), int(rows.pool[message]))
            total = budgets.setdefault(key, [0, 0, message])
            total[0] += size - there
            total[1] += allowed_loss(size, float(rows.share[message]))
        transport = evidence.program.tables[rows.table[message]].transport
        if transport < len(evidence.important_arrive) and evidence.important_arrive[transport]:
            given = rows.important[message]
            important = np.broadcast_to(True if given is None else given, len(sizes))
            gone = np.flatnonzero(important & ~have)
            if len(gone):
                yield f"{name} lost packet {gone[0]}, which is important ({len(gone)} such packets)"
    for lost, allowed, message in budgets.values():
        if lost > allowed:
            name = evidence.name(message)
            yield f"{name} and those that share its budget lost {lost} bytes together, {allowed} are allowed"


def _transfers(evidence: Evidence) -> Iterator[str]:
    """Every packet as it was sent, or zeros."""
    for message, received in sorted(evidence.sums.received.items()):
        sent = evidence.sums.sent.get(message)
        if sent is None or message not in evidence.arrivals:
            continue
        have, sizes = evidence.have(message), evidence.sizes(message)
        if not len(sent) == len(received) == len(have) == len(sizes):
            yield f"{evidence.name(message)} has check sums of {len(sent)} packets sent and {len(received)} received"
            continue
        nothing = {size: int(check_sums(bytes(size), size)[0]) for size in {int(sizes[0]), int(sizes[-1])}}
        expected = np.where(have, sent, np.array([nothing[size] for size in sizes.tolist()], dtype=np.uint32))
        wrong = np.flatnonzero(expected != received)
        if len(wrong):
            what = "differs from what was sent" if have[wrong[0]] else "is there, though reported lost"
            yield f"{evidence.name(message)}: packet {wrong[0]} {what} ({len(wrong)} such packets)"


def _values(evidence: Evidence) -> Iterator[str]:
    """What every message should have carried."""
    gradients = _Gradients(evidence)
    yield from _servers(evidence, gradients)
    yield from _collectives(evidence, gradients)
    yield from gradients.complaints


class _Gradients:
    """Whole gradients, checked against the trace as they are made."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.workers = evidence.program.workers()
        self.complaints: list[str] = []

    def of(self, job: int, worker: int, captured: int, tensor: int) -> Values:
        table = self._evidence.program.tables[job]
        magnitudes = self._evidence.magnitudes[table.trace]
        numel = magnitudes.numel[tensor]
        values = magnitudes.gradient(self._evidence.seed, table.name, worker, captured, tensor, 0, numel)
        if isinstance(magnitudes, Magnitudes):  # what was given is what it is
            self._check(values, table, worker, captured, tensor)
        return values

    def _check(self, values: Values, table: Table, worker: int, captured: int, tensor: int) -> None:
        """Some runs of it against the trace itself."""
        mean, largest = self._evidence.traces[table.trace].magnitudes(captured, tensor)
        tiny = float(np.finfo(values.dtype).smallest_subnormal)
        for run in range(0, len(mean), -(-len(mean) // RUNS_CHECKED)):
            size = np.abs(values[run * RUN : (run + 1) * RUN].astype(np.float64))
            close = abs(size.mean() - mean[run]) <= CLOSE * mean[run] + tiny
            if not close or size.max() > max(largest[run], mean[run]) * (1 + CLOSE) + tiny:
                self.complaints.append(
                    f"job {table.name}: gradient {tensor} of worker {worker}, iteration {captured} of the trace: run "
                    f"{run} has |g| of {size.mean():g} on average and {size.max():g} at most, in the trace "
                    f"{mean[run]:g} and {largest[run]:g}"
                )
                return

    def worker(self, job: int, node: int) -> int:
        return self.workers.get((job, node), -1)


def _servers(evidence: Evidence, gradients: _Gradients) -> Iterator[str]:
    rows = evidence.program.messages
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for message in np.flatnonzero((rows.kind == PUSH) | (rows.kind == PULL)).tolist():
        if message in evidence.sums.sent:
            groups[int(rows.table[message]), int(rows.iteration[message]), int(rows.tensor[message])].append(
                message
            )
    for (job, _, tensor), messages in groups.items():
        yield from _tensor(evidence, gradients, job, tensor, messages)


def _tensor(
    evidence: Evidence, gradients: _Gradients, job: int, tensor: int, messages: list[int]
) -> Iterator[str]:
    """The pushes of a tensor in one iteration, and the pulls."""
    rows = evidence.program.messages
    of_worker: dict[int, Values] = {}
    arrived: dict[int, dict[int, Values]] = defaultdict(dict)  # part -> worker -> what came
    totals: dict[int, Sums] = {}  # part -> check sums of what is pulled

    def slice_of(message: int, worker: int, count: int | None = None) -> Values:
        if worker not in of_worker:
            of_worker[worker] = gradients.of(job, worker, int(rows.captured[message]), tensor)
        whole = of_worker[worker]
        first = int(rows.first[message])
        return whole[first : first + (int(rows.nbytes[message]) // whole.itemsize if count is None else count)]

    for message in messages:
        if rows.kind[message] != PUSH:
            continue
        worker = gradients.worker(job, int(rows.src[message]))
        values = slice_of(message, worker)
        yield from _compare(evidence, message, _sums(evidence, message, values))
        if message in evidence.arrivals:
            arrived[int(rows.part[message])][worker] = _masked(evidence, message, values)
    count = len({worker for (table, _), worker in gradients.workers.items() if table == job})
    for message in messages:
        if rows.kind[message] != PULL:
            continue
        part = int(rows.part[message])
        if part not in totals:
            own = gradients.worker(job, int(rows.src[message]))
            came = arrived[part]
            absent = set(range(count)) - set(came) - {own}
            if absent:
                yield f"{evidence.name(message)} was sent before the push of worker {min(absent)} arrived"
                continue
            parts = [came[worker] for worker in sorted(came)]
            if own >= 0:
                parts.insert(0, slice_of(message, own, len(parts[0]) if parts else None))
            total = parts[0].copy()
            for values in parts[1:]:
                total += values
            answer = np.full(int(rows.nbytes[message]) // total.itemsize, 0.0 if own >= 0 else NOTHING, total.dtype)
            common = min(len(total), len(answer))
            answer[:common] = total[:common]
            totals[part] = _sums(evidence, message, answer)
        yield from _compare(evidence, message, totals[part])


def _collectives(evidence: Evidence, gradients: _Gradients) -> Iterator[str]:
    rows = evidence.program.messages
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for message in np.flatnonzero((rows.kind == REDUCE) | (rows.kind == GATHER)).tolist():
        if message in evidence.sums.sent:  # in a run that was cut, not all are
            job = int(rows.table[message])
            bucket = int(rows.part[message]) // evidence.program.tables[job].segments
            groups[job, int(rows.iteration[message]), bucket].append(message)
    for (job, _, bucket), messages in groups.items():
        yield from _bucket(evidence, gradients, job, bucket, messages)


def _bucket(
    evidence: Evidence, gradients: _Gradients, job: int, bucket: int, messages: list[int]
) -> Iterator[str]:
    """The messages of a bucket, each after those that it is made of."""
    program, rows = evidence.program, evidence.program.messages
    own: dict[int, Values] = {}
    came: dict[int, Values] = {}
    dtype = evidence.magnitudes[program.tables[job].trace].widest(program.tables[job].buckets[bucket])
    for message in messages:
        first, count = int(rows.first[message]), int(rows.nbytes[message]) // dtype.itemsize
        value = np.full(count, 0.0 if program.own[message] else NOTHING, dtype=dtype)
        if program.own[message]:
            worker = gradients.worker(job, int(rows.src[message]))
            if worker not in own:
                own[worker] = _own_bucket(evidence, gradients, job, bucket, worker, int(rows.captured[message]))
            mine = own[worker][first : first + count]  # the last segment is filled up with zeros
            value[: len(mine)] = mine
        missing = [each for each in program.sums[message] if each not in came]
        if missing:
            yield f"{evidence.name(message)} was sent before {evidence.name(missing[0])} arrived"
            continue
        for each in program.sums[message]:
            begin = int(rows.first[each]) - first
            low, high = max(begin, 0), min(begin + len(came[each]), count)
            part = came[each][low - begin : high - begin]
            value[low:high] = part if rows.kind[each] == GATHER else value[low:high] + part
        yield from _compare(evidence, message, _sums(evidence, message, value))
        if message in evidence.arrivals:
            came[message] = _masked(evidence, message, value)


def _own_bucket(
    evidence: Evidence, gradients: _Gradients, job: int, bucket: int, worker: int, captured: int
) -> Values:
    """A worker's own gradients of a bucket."""
    table = evidence.program.tables[job]
    tensors = table.buckets[bucket]
    dtype = evidence.magnitudes[table.trace].widest(tensors)
    whole = np.concatenate([gradients.of(job, worker, captured, tensor).astype(dtype) for tensor in tensors])
    first, count = table.slices[bucket] if table.slices else (0, len(whole))
    return whole[first : first + count]


def _masked(evidence: Evidence, message: int, values: Values) -> Values:
    """What arrives of a message: the packets that did, and zeros."""
    if evidence.have(message).all():
        return values
    kept = np.repeat(evidence.have(message), evidence.sizes(message))
    content = np.frombuffer(values.tobytes(), dtype=np.uint8) * kept
    return content.view(values.dtype)


def _compare(evidence: Evidence, message: int, wanted: Sums) -> Iterator[str]:
    sent = evidence.sums.sent[message]
    if len(wanted) != len(sent):
        yield f"{evidence.name(message)} has {len(sent)} packets, it should have {len(wanted)}"
        return
    wrong = np.flatnonzero(wanted != sent)
    if len(wrong):
        more = f" ({len(wrong)} such packets)"
        yield f"{evidence.name(message)} does not carry what it should, from packet {wrong[0]} on{more}"


def _sums(evidence: Evidence, message: int, values: Values) -> Sums:
    """The check sums of a message that carries these values."""
    return check_sums(np.ascontiguousarray(values).data, evidence.payload(message))
