"""Verifies by check sums that packets arrived as sent, losses are as reported, and sums of gradients are correct.

Every host has a check sum of every packet sent and received (`gradwire.emu.agent.payload.contents`). They are compared,
and computed again from the gradients and the losses, for whole tensors and buckets: those of parameter servers from the
definition of a server, those of collectives from the program, which a separate test checks with real arrays.

Additions are in float32 (or the tensor's type) in a fixed order, so that all values must be equal to the bit:

* a parameter server adds the gradient of the worker on its host first, then those that arrived, by worker;
* in a collective a worker adds what arrived to its gradient, by stages, and replaces elements by finished ones.

Missing packets count as zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.agent.base import Arrival
from gradwire.emu.agent.payload.contents import SUM_START, CheckSums, Sums, check_sums
from gradwire.emu.agent.payload.magnitudes import RUN, Magnitudes
from gradwire.emu.agent.payload.values import ValueSource as Source
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.loss import allowed_loss
from gradwire.workload.program import MessageColumns, Program

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

Values = NDArray[Any]  # of whatever type the gradients have

PUSH, PULL, REDUCE, GATHER = range(4)

MAX_LISTED = 20
"""Maximum number of listed violations of one kind."""

MEAN_TOLERANCE = 1e-2
"""Relative tolerance of a run's mean against the trace: float16 has 11 bits."""

RUNS_CHECKED = 64
"""Approximate number of runs per gradient that are compared with the trace."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The data of a run to verify.

    traces, magnitudes : the traces, and the sources of sent values (`gradwire.emu.agent.payload.values`).
    payloads : bytes of a full packet, by number of a transport.
    arrivals, sums : of all hosts; messages incomplete at the end of the run have no arrival.
    important_arrive : by number of a transport, True if important packets must not be lost.
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
        return self.payloads[self.program.tables[self.program.messages.table[message]].transport]

    def sizes(self, message: int) -> Values:
        size, payload = int(self.program.messages.nbytes[message]), self.payload(message)
        sizes = np.full(-(-size // payload), payload, dtype=np.int64)
        sizes[-1] = size - (len(sizes) - 1) * payload
        return sizes

    def have(self, message: int) -> Values:
        """Return bool[packets] of a message's received packets."""
        have = self.arrivals[message].have
        return np.ones(len(self.sizes(message)), dtype=np.bool_) if have is None else np.asarray(have, np.bool_)

    def name(self, message: int) -> str:
        rows, table = self.program.messages, self.program.tables[self.program.messages.table[message]]
        what = f"tensor {rows.tensor[message]} part" if rows.tensor[message] >= 0 else "part"
        return (
            f"message {message} ({KINDS[rows.kind[message]]} of {table.name}, iteration {rows.iteration[message]}, "
            f"{what} {rows.part[message]}, node {rows.src[message]} to {rows.dst[message]})"
        )


def verify(evidence: Evidence, complete: bool = True) -> list[str]:
    """Return all errors of a run as messages; empty if there are none.

    complete : True if all messages must have arrived; False for an interrupted run.
    """
    errors: list[str] = []
    for checks in (
        _missing(evidence) if complete else iter(()),
        _losses(evidence),
        _transfers(evidence),
        _values(evidence),
    ):
        lines = list(checks)
        errors += lines[:MAX_LISTED]
        if len(lines) > MAX_LISTED:
            errors.append(f"... and {len(lines) - MAX_LISTED} more of this kind")
    return errors


def _missing(evidence: Evidence) -> Iterator[str]:
    for message in range(len(evidence.program.messages)):
        for records, what in (
            (evidence.arrivals, "did not arrive"),
            (evidence.sums.sent, "was not sent, or its check sums are missing"),
            (evidence.sums.received, "has no check sums of received packets"),
        ):
            if message not in records:
                yield f"{evidence.name(message)} {what}"


def _losses(evidence: Evidence) -> Iterator[str]:
    """Compare reported losses with missing packets and with the loss bounds."""
    rows = evidence.program.messages
    budgets: dict[tuple[int, ...], list[int]] = {}
    for message, arrival in sorted(evidence.arrivals.items()):
        name, size = evidence.name(message), int(rows.nbytes[message])
        sizes, have = evidence.sizes(message), evidence.have(message)
        if len(have) != len(sizes):
            yield f"{name} reports {len(have)} packets; expected {len(sizes)}"
            continue
        present_bytes = int(sizes[have].sum())
        if arrival.received != present_bytes or arrival.lost != size - present_bytes:
            yield (
                f"{name} reports {arrival.received} bytes received and {arrival.lost} lost; its packets have "
                f"{present_bytes} and {size - present_bytes}"
            )
        if size - present_bytes > allowed_loss(size, float(rows.bound[message])):
            yield f"{name} lost {size - present_bytes} bytes of {size}, bound {rows.bound[message]:g}"
        if rows.pool[message]:
            key = (int(rows.src[message]), int(rows.dst[message]), int(rows.pool[message]))
            total = budgets.setdefault(key, [0, 0, message])
            total[0] += size - present_bytes
            total[1] += allowed_loss(size, float(rows.share[message]))
        transport = evidence.program.tables[rows.table[message]].transport
        if transport < len(evidence.important_arrive) and evidence.important_arrive[transport]:
            tags = rows.important[message]
            important = np.broadcast_to(True if tags is None else tags, len(sizes))
            lost_packets = np.flatnonzero(important & ~have)
            if len(lost_packets):
                yield f"{name} lost important packet {lost_packets[0]} ({len(lost_packets)} such packets)"
    for lost, allowed, message in budgets.values():
        if lost > allowed:
            name = evidence.name(message)
            yield f"{name} and those that share its budget lost {lost} bytes in total; allowed are {allowed}"


def _transfers(evidence: Evidence) -> Iterator[str]:
    """Compare every received packet with the sent one, or with zeros."""
    for message, received in sorted(evidence.sums.received.items()):
        sent = evidence.sums.sent.get(message)
        if sent is None or message not in evidence.arrivals:
            continue
        have, sizes = evidence.have(message), evidence.sizes(message)
        if not len(sent) == len(received) == len(have) == len(sizes):
            yield f"{evidence.name(message)} has check sums of {len(sent)} packets sent and {len(received)} received"
            continue
        zero_sums = {size: int(check_sums(bytes(size), size)[0]) for size in {int(sizes[0]), int(sizes[-1])}}
        expected = np.where(have, sent, np.array([zero_sums[size] for size in sizes.tolist()], dtype=np.uint32))
        differing = np.flatnonzero(expected != received)
        if len(differing):
            what = "differs from what was sent" if have[differing[0]] else "arrived although reported lost"
            yield f"{evidence.name(message)}: packet {differing[0]} {what} ({len(differing)} such packets)"


def _values(evidence: Evidence) -> Iterator[str]:
    """Compare every message with its expected contents."""
    program, rows, gradients = evidence.program, evidence.program.messages, _Gradients(evidence)
    tensors: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    buckets: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    columns = zip(*(column.tolist() for column in (rows.kind, rows.table, rows.iteration)), strict=True)
    for message, (kind, job, iteration) in enumerate(columns):
        if message not in evidence.sums.sent:  # an interrupted run lacks some
            continue
        if kind in (PUSH, PULL):
            tensors[job, iteration, int(rows.tensor[message])].append(message)
        elif kind in (REDUCE, GATHER):
            buckets[job, iteration, int(rows.part[message]) // program.tables[job].segments].append(message)
    for (job, _, tensor), messages in tensors.items():
        yield from _tensor(evidence, gradients, job, tensor, messages)
    for (job, _, bucket), messages in buckets.items():
        yield from _bucket(evidence, gradients, job, bucket, messages)
    yield from gradients.complaints


class _Gradients:
    """Whole gradients, checked against the trace when made."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.workers = evidence.program.workers()
        self.complaints: list[str] = []

    def of(self, job: int, worker: int, captured: int, tensor: int) -> Values:
        table = self._evidence.program.tables[job]
        magnitudes = self._evidence.magnitudes[table.trace]
        numel = magnitudes.numel[tensor]
        values = magnitudes.gradient(self._evidence.seed, table.name, worker, captured, tensor, 0, numel)
        if isinstance(magnitudes, Magnitudes):  # given values have no reference
            self._check(values, table, worker, captured, tensor)
        return values

    def _check(self, values: Values, table: MessageColumns, worker: int, captured: int, tensor: int) -> None:
        """Compare some runs of a gradient with the trace."""
        mean, largest = self._evidence.traces[table.trace].magnitudes(captured, tensor)
        tiny = float(np.finfo(values.dtype).smallest_subnormal)
        for run in range(0, len(mean), -(-len(mean) // RUNS_CHECKED)):
            size = np.abs(values[run * RUN : (run + 1) * RUN].astype(np.float64))
            close = abs(size.mean() - mean[run]) <= MEAN_TOLERANCE * mean[run] + tiny
            if not close or size.max() > max(largest[run], mean[run]) * (1 + MEAN_TOLERANCE) + tiny:
                self.complaints.append(
                    f"job {table.name}: gradient {tensor} of worker {worker}, iteration {captured} of the trace: run "
                    f"{run} has mean |g| {size.mean():g} and max {size.max():g}; in the trace {mean[run]:g} and "
                    f"{largest[run]:g}"
                )
                return

    def worker(self, job: int, node: int) -> int:
        return self.workers.get((job, node), -1)


def _tensor(evidence: Evidence, gradients: _Gradients, job: int, tensor: int, messages: list[int]) -> Iterator[str]:
    """Check the pushes and pulls of a tensor in one iteration."""
    rows = evidence.program.messages
    of_worker: dict[int, Values] = {}
    arrived: dict[int, dict[int, Values]] = defaultdict(dict)  # part -> worker -> received values
    totals: dict[int, Sums] = {}  # part -> check sums of the pull

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
            server_worker = gradients.worker(job, int(rows.src[message]))
            received = arrived[part]
            missing = set(range(count)) - set(received) - {server_worker}
            if missing:
                yield f"{evidence.name(message)} was sent before the push of worker {min(missing)} arrived"
                continue
            parts = [received[worker] for worker in sorted(received)]
            if server_worker >= 0:
                parts.insert(0, slice_of(message, server_worker, len(parts[0]) if parts else None))
            total = parts[0].copy()
            for values in parts[1:]:
                total += values
            answer = np.full(
                int(rows.nbytes[message]) // total.itemsize, 0.0 if server_worker >= 0 else SUM_START, total.dtype
            )
            common = min(len(total), len(answer))
            answer[:common] = total[:common]
            totals[part] = _sums(evidence, message, answer)
        yield from _compare(evidence, message, totals[part])


def _bucket(evidence: Evidence, gradients: _Gradients, job: int, bucket: int, messages: list[int]) -> Iterator[str]:
    """Check the messages of a bucket, each after its inputs."""
    program, rows = evidence.program, evidence.program.messages
    own_buckets: dict[int, Values] = {}
    received: dict[int, Values] = {}
    dtype = evidence.magnitudes[program.tables[job].trace].widest(program.tables[job].buckets[bucket])
    for message in messages:
        first, count = int(rows.first[message]), int(rows.nbytes[message]) // dtype.itemsize
        value = np.full(count, 0.0 if program.own[message] else SUM_START, dtype=dtype)
        if program.own[message]:
            worker = gradients.worker(job, int(rows.src[message]))
            if worker not in own_buckets:
                own_buckets[worker] = _own_bucket(evidence, gradients, job, bucket, worker, int(rows.captured[message]))
            own_part = own_buckets[worker][first : first + count]  # the last segment is padded with zeros
            value[: len(own_part)] = own_part
        missing = [source for source in program.sums[message] if source not in received]
        if missing:
            yield f"{evidence.name(message)} was sent before {evidence.name(missing[0])} arrived"
            continue
        for source in program.sums[message]:
            begin = int(rows.first[source]) - first
            low, high = max(begin, 0), min(begin + len(received[source]), count)
            part = received[source][low - begin : high - begin]
            value[low:high] = part if rows.kind[source] == GATHER else value[low:high] + part
        yield from _compare(evidence, message, _sums(evidence, message, value))
        if message in evidence.arrivals:
            received[message] = _masked(evidence, message, value)


def _own_bucket(evidence: Evidence, gradients: _Gradients, job: int, bucket: int, worker: int, captured: int) -> Values:
    table = evidence.program.tables[job]
    tensors = table.buckets[bucket]
    dtype = evidence.magnitudes[table.trace].widest(tensors)
    whole = np.concatenate([gradients.of(job, worker, captured, tensor).astype(dtype) for tensor in tensors])
    first, count = table.slices[bucket] if table.slices else (0, len(whole))
    return whole[first : first + count]


def _masked(evidence: Evidence, message: int, values: Values) -> Values:
    """Return the received values of a message, with zeros for missing packets."""
    if evidence.have(message).all():
        return values
    present = np.repeat(evidence.have(message), evidence.sizes(message))
    content = np.frombuffer(values.tobytes(), dtype=np.uint8) * present
    return content.view(values.dtype)


def _compare(evidence: Evidence, message: int, expected: Sums) -> Iterator[str]:
    sent = evidence.sums.sent[message]
    if len(expected) != len(sent):
        yield f"{evidence.name(message)} has {len(sent)} packets; expected {len(expected)}"
        return
    differing = np.flatnonzero(expected != sent)
    if len(differing):
        count_text = f" ({len(differing)} such packets)"
        yield f"{evidence.name(message)} has wrong contents from packet {differing[0]} on{count_text}"


def _sums(evidence: Evidence, message: int, values: Values) -> Sums:
    return check_sums(np.ascontiguousarray(values).data, evidence.payload(message))
