"""Converts encodings of a training step to a trace of one iteration, and its outcome to masks of arrived packets.

Every step becomes a trace of one iteration. Tensors are as long as their encodings, magnitudes are those of the actual
encodings, and times those of another trace, or none. Packets are the reducer's own: a message is cut where the encoding
is. If encodings of one tensor differ in length (DGC), its message is as long as the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.job.job import Job
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace, scale_exponents, to_float16
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.exchange.ring_allreduce import VALUE, HopMasks, RingLayout
from gradwire.training.networks.network_interface import Pushed
from gradwire.workload.incremental.iteration_player import PlayedIteration
from gradwire.workload.program import Messages
from gradwire.workload.replay import CapturedIterations

EXCHANGES = ("parameter_server", "ring", "overlapped")
"""Exchanges that can be trained over; simulated jobs have more."""
CHUNK_BYTES = 4 * CHUNK_ELEMENTS


def check_exchange(job: Job) -> None:
    """Raise ScenarioError for exchanges of simulated jobs that training does not support."""
    exchange = job.exchange
    if exchange.kind not in EXCHANGES:
        raise ScenarioError(f"{exchange.kind} cannot be trained", "job.exchange", f"{', '.join(EXCHANGES)}")
    for name in ("asynchronous", "staleness"):
        if getattr(exchange, name, 0):
            what = "applies to simulated jobs; a training run sets it in its system"
            expected = 'training.system = { kind = "asynchronous" }, with its staleness'
            raise ScenarioError(what, f"job.exchange.{name}", expected)
    if getattr(exchange, "skip_zeros", False):
        what = "applies to simulated jobs; a training run leaves zeros out by its reducer"
        raise ScenarioError(what, "job.exchange.skip_zeros", 'training.reducer = { kind = "omnireduce" }')
    if job.accumulate > 1:
        what = f"{job.accumulate} micro-batches are not accumulated in training"
        raise ScenarioError(what, "job.accumulate", "1, and a larger training.batch")


def packet_payload(scenario: Scenario) -> int:
    """Return the payload in bytes of the packets of a scenario's job. Raises ScenarioError if the job's exchange is
    neither parameter_server nor ring, or packets do not hold whole values of one message."""
    job = scenario.job[0]
    payload = int((job.transport or scenario.transport).payload)
    check_exchange(job)
    if job.exchange.kind not in ("parameter_server", "ring"):
        what = f"{job.exchange.kind} cannot be trained over yet"
        raise ScenarioError(what, "job.exchange", "parameter_server or ring")
    if job.scheduler is not None and job.scheduler.unit_key:
        what = f"{job.scheduler.kind} partitions gradients itself, which training does not support yet"
        raise ScenarioError(what, "job.scheduler", "a scheduler that leaves sizes to the exchange, such as fifo")
    if payload % 4:
        raise ScenarioError(f"{payload} bytes cut a float32 value", "transport.payload", "a multiple of 4 bytes")
    partition = int(getattr(job.exchange, "partition", 0))
    if partition % payload:
        expected = f"a multiple of the payload, {payload} bytes"
        raise ScenarioError(f"{partition} bytes cut packets", "job.exchange.partition", expected)
    return payload


@dataclass(frozen=True)
class UnitLayout:
    """Positions of the units of a step's encodings in their messages; C chunks of all tensors sent.

    sizes : int64[tensors], bytes of each message, whole float32 values; 0 for tensors that are not sent.
    units : int64[tensors], units of each message.
    starts : int64[filled], the first unit of every chunk in which one begins.
    filled : int64[filled], the numbers of these chunks.
    chunks : C.
    """

    sizes: Ints
    units: Ints
    starts: Ints
    filled: Ints
    chunks: int


def tensor_mismatch_error(trace: Trace) -> TraceError:
    """Return the error for a trace of another model than the trained one."""
    return TraceError("has other tensors than the trained model", trace.name, "a trace of this model")


class StepTraceMaker:
    """Makes traces of what the workers of one job send."""

    def __init__(self, workers: int, payload: int, scale: float, times: Trace | None, phase: str | None = None) -> None:
        """Take over the job's parameters.

        scale : the job's factor on the times of a trace.
        times : trace that gives the workers' compute times, each replaying the same iterations as in a simulated job;
            it has the trained model's tensors. Computing takes no time if absent.
        phase : of the trace; None for all of it.

        Raises ScenarioError if the trace has no such phase.
        """
        self.workers, self.payload, self.scale, self.times = workers, payload, scale, times
        self._captured = None if times is None else CapturedIterations(times, phase)
        self._layouts: dict[tuple[tuple[int, int, int], ...], UnitLayout] = {}

    def layout(self, encoded: Sequence[Encoded]) -> UnitLayout:
        """Return the layout of the longest encoding of each tensor."""
        key = tuple((encoding.units, encoding.unit_bytes, encoding.head_bytes) for encoding in encoded)
        if key not in self._layouts:
            if len(self._layouts) > 8:
                self._layouts.clear()
            self._layouts[key] = _layout_of(encoded, self.payload)
        return self._layouts[key]

    def trace(self, pushed: Pushed, layout: UnitLayout, sent: Ints, alone: int | None = None) -> Trace:
        """Return a trace of what all workers send of the tensors `sent`.

        alone : the only worker that sends, which is all that is pushed; the others' iterations are empty.

        Raises TraceError if the trace whose times are used belongs to another model.
        """
        infos, layers = self._model(pushed.infos)
        mean = np.zeros((self.workers, layout.chunks))
        largest = np.zeros_like(mean)
        for row, worker in enumerate(range(self.workers) if alone is None else (alone,)):
            mean[worker], largest[worker] = self._magnitudes(pushed, row, layout)
        counts = -(-layout.sizes[sent] // CHUNK_BYTES)
        first = np.cumsum(counts) - counts
        exponents = scale_exponents(np.maximum.reduceat(largest.max(axis=0), first))
        per_chunk = np.repeat(exponents, counts)
        tensors = _tensors(infos, sent, layout.sizes[sent] // 4, exponents)
        iterations = [self._iteration(pushed, worker, len(layers), sent) for worker in range(self.workers)]
        mean_halves, largest_halves = (to_float16(values, per_chunk) for values in (mean, largest))
        return Trace({"name": "step"}, layers, tensors, iterations, mean_halves, largest_halves)

    def answer(self, infos: Sequence[TensorInfo], nbytes: Ints, step: int) -> Trace:
        """Return a trace of what servers send back, `nbytes` of each tensor, with unknown magnitudes; not all may be
        0."""
        infos, layers = self._model(infos)
        sent = np.flatnonzero(nbytes)
        word_counts = -(-nbytes[sent] // 4)
        tensors = _tensors(infos, sent, word_counts, np.zeros_like(word_counts))
        nothing, ready = np.zeros(len(layers), dtype=np.int64), np.zeros(len(sent), dtype=np.int64)
        iterations = [
            Iteration(rank, "train", step, 0.0, nothing, nothing, ready, 0, 0, 0, rank) for rank in range(self.workers)
        ]
        magnitudes = np.zeros((self.workers, int((-(-word_counts // CHUNK_ELEMENTS)).sum())), dtype=np.float16)
        return Trace({"name": "step"}, layers, tensors, iterations, magnitudes, magnitudes)

    def _model(self, infos: Sequence[TensorInfo]) -> tuple[Sequence[TensorInfo], list[str]]:
        """Return tensors and layers, those of the trace whose times are used if there is one."""
        times = self.times
        if times is None:
            return infos, [f"layer {number}" for number in range(max(info.layer for info in infos) + 1)]
        if [tensor.numel for tensor in times.tensors] != [info.numel for info in infos]:
            raise tensor_mismatch_error(times)
        return times.tensors, times.layers

    def _magnitudes(self, pushed: Pushed, worker: int, layout: UnitLayout) -> tuple[Floats, Floats]:
        """Return the (mean, largest) magnitude of each chunk's units, (C,) each. Units that a worker's message lacks
        because others' are longer count as zero."""
        sizes = _unit_magnitudes(pushed, worker, layout.units)
        mean, largest = np.zeros(layout.chunks), np.zeros(layout.chunks)
        filled, counts = layout.filled, np.diff(np.append(layout.starts, len(sizes)))
        mean[filled] = np.add.reduceat(sizes, layout.starts) / counts
        largest[filled] = np.maximum.reduceat(sizes, layout.starts)
        last = np.zeros(layout.chunks, dtype=np.int64)
        last[filled] = filled
        last = np.maximum.accumulate(last)
        return mean[last], largest[last]  # a chunk inside a long unit takes that unit's

    def _iteration(self, pushed: Pushed, worker: int, layers: int, sent: Ints) -> Iteration:
        nothing = np.zeros(layers, dtype=np.int64)
        times: tuple[Ints, Ints, Ints, int, int, int]
        if self.times is None or self._captured is None or pushed.round:
            ready = _encoding_ends(pushed, worker, sent, np.zeros(len(sent), dtype=np.int64), self.scale)
            times = nothing, nothing, ready, (done := int(ready.max())), 0, done
            return Iteration(worker, "train", pushed.step, 0.0, *times, worker)
        recorded = self.times.iterations[self._captured.of(worker, pushed.step)]
        ready = _encoding_ends(pushed, worker, sent, recorded.ready_ps[sent], self.scale)
        late = max(int(ready.max()) - recorded.backward_end_ps, 0)  # encoding may end after the backward pass
        backward_end, end = recorded.backward_end_ps + late, recorded.end_ps + late
        times = recorded.forward_start_ps, recorded.forward_end_ps, ready, backward_end, recorded.optimizer_ps, end
        return Iteration(worker, "train", pushed.step, 0.0, *times, worker)


def _tensors(infos: Sequence[TensorInfo], sent: Ints, words: Ints, exponents: Ints) -> list[TensorInfo]:
    """Return the tensors `sent` as vectors of float32 words."""
    rows = zip([infos[tensor] for tensor in sent.tolist()], words.tolist(), exponents.tolist(), strict=True)
    return [TensorInfo(info.name, (count,), count, "float32", info.layer, exponent) for info, count, exponent in rows]


def _encoding_ends(pushed: Pushed, worker: int, sent: Ints, ready: Ints, scale: float = 1.0) -> Ints:
    """Return when the encodings of tensors that are ready at `ready` can be sent. A worker encodes one after the other
    as they become ready; of those ready at once, the last tensor first. `scale` is the job's factor on compute times,
    which does not apply to encoding; with 0 the two cannot be distinguished, and the caller adds the encoding time."""
    if not pushed.encode_ps or not scale:
        return ready
    encoded, free = ready.copy(), 0
    for index in sorted(range(len(sent)), key=lambda i: (ready[i], -i)):
        free = max(free, int(ready[index])) + round(pushed.encode_ps[worker][int(sent[index])] / scale)
        encoded[index] = free
    return encoded


def _layout_of(encoded: Sequence[Encoded], payload: int) -> UnitLayout:
    sizes, chunks, chunks_before = [], [], 0
    for encoding in encoded:
        if not encoding.units:
            sizes.append(0)
            continue
        fit, packets = encoding.units_per_packet(payload), encoding.packets(payload)
        packet, within = np.divmod(np.arange(encoding.units), fit)
        begin = packet * payload + encoding.head_bytes + within * encoding.unit_bytes
        last = encoding.head_bytes + (encoding.units - (packets - 1) * fit) * encoding.unit_bytes
        size = -(-((packets - 1) * payload + last) // 4) * 4
        chunks.append(chunks_before + begin // CHUNK_BYTES)
        chunks_before += -(-size // CHUNK_BYTES)
        sizes.append(size)
    chunk = np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64)
    filled, starts = np.unique(chunk, return_index=True)
    units = np.array([encoding.units for encoding in encoded], dtype=np.int64)
    return UnitLayout(np.array(sizes, dtype=np.int64), units, starts, filled, chunks_before)


def _unit_magnitudes(pushed: Pushed, worker: int, units: Ints) -> Floats:
    """Return the mean magnitude of each of a worker's units, (units of all messages,), on the CPU. Zero stands for
    units that only other workers have."""
    magnitudes = []
    for tensor, count in enumerate(units.tolist()):
        encoding = pushed.encoded[worker][tensor]
        if encoding.units:
            magnitudes.append(pushed.unit_magnitudes(worker, tensor))
        if count > encoding.units:
            magnitudes.append(encoding.fields[0].new_zeros(count - encoding.units, dtype=torch.float32))
    sizes = torch.cat(magnitudes).cpu().numpy().astype(np.float64)
    known = np.isfinite(sizes)
    if not known.all():  # diverging: a value larger than any packet's sum
        sizes[~known] = 2**20 * sizes[known].max(initial=1.0)
    return sizes


def masks_of(
    pushed: Pushed, sent: Ints, played: PlayedIteration
) -> tuple[list[list[Tensor | None]], list[list[Tensor | None]]]:
    """Return the packets that arrived at the servers, and back at the workers, by worker and tensor; None for all.

    sent : tensor numbers of the messages' tensors.
    """
    pushes, pulls, rows = pushed.all_arrived(), pushed.all_arrived(), played.messages
    for index, missing in played.missing.items():
        sender, receiver = played.workers[index].tolist()
        tensor, begin = int(sent[rows.tensor[index]]), int(rows.first[index]) * VALUE // pushed.payload
        if sender < 0:
            _lose(pulls[receiver], tensor, pushed.pull_packets(tensor), begin, missing)
        else:
            _lose(pushes[sender], tensor, pushed.packets(sender, tensor), begin, missing)
    return pushes, pulls


def masks_of_worker(
    counts: Sequence[int], payload: int, sent: Ints, messages: Messages, missing: Mapping[int, Flags]
) -> list[Tensor | None]:
    """Return the packets that arrived of one worker's push, by tensor; None for all.

    counts : packets of each tensor, of `payload` bytes. `sent`: tensor numbers of the messages' tensors.
    """
    row: list[Tensor | None] = [None] * len(counts)
    for index, lost in missing.items():
        tensor = int(sent[messages.tensor[index]])
        _lose(row, tensor, counts[tensor], int(messages.first[index]) * VALUE // payload, lost)
    return row


def _lose(masks: list[Tensor | None], tensor: int, packets: int, begin: int, missing: Flags) -> None:
    """Mark the missing packets of a message that begins at packet `begin` of its tensor, which has `packets`."""
    if (mask := masks[tensor]) is None:
        mask = masks[tensor] = torch.ones(packets, dtype=torch.bool)
    arrived = torch.from_numpy(~missing)[: max(packets - begin, 0)]
    mask[begin : begin + len(arrived)] = arrived


def hops_of(layout: RingLayout, sent: Ints, played: PlayedIteration) -> HopMasks:
    """Return the packets of a ring that arrived; sender, segment and phase determine the hop."""
    count = layout.workers
    if played.segments != count:
        raise ScenarioError(f"has {played.segments // count} parallel rings", "topology", "hosts with one network card")
    buckets = tuple(tuple(sent[list(part)].tolist()) for part in played.buckets)
    layout = replace(layout, buckets=buckets)
    masks: list[Tensor | None] = [None] * len(buckets)
    rows = played.messages
    for index, missing in played.missing.items():
        bucket, segment = divmod(int(rows.part[index]), count)
        sender = int(played.workers[index, 0])
        gathering = KINDS[int(rows.kind[index])] == "all_gather"
        hop = count - 1 + (sender + 1 - segment) % count if gathering else (sender - segment) % count
        if (mask := masks[bucket]) is None:
            mask = masks[bucket] = torch.ones(layout.mask_shape(bucket), dtype=torch.bool)
        mask[hop, sender] = torch.from_numpy(~missing)
    return HopMasks(buckets, masks)
