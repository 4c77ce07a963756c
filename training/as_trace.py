"""From what workers send to a trace of one iteration, which networks of packets can play.

Tensors are as long as their encodings, magnitudes are those of what the workers really send, and times those of another
trace, or none. Packets are the reducer's own: a message is cut where the encoding is. Where encodings of one tensor
differ in length (DGC), its message is as long as the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.replay import Captured
from gradwire.scenarios.errors import TraceError
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace, scale_exponents

if TYPE_CHECKING:
    from gradwire.training.encoded import Encoded
    from gradwire.training.seam import Pushed

CHUNK_BYTES = 4 * CHUNK_ELEMENTS
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Where the units of a step's encodings lie in their messages; C chunks of all tensors that are sent.

    sizes : int64[tensors], bytes of each message, whole float32 values; 0 for what is not sent.
    units : int64[tensors], how many there are in each message.
    chunk : int64[units of all], the chunk that each unit begins in, counted through the tensors.
    starts : int64[filled], the first unit of every chunk in which one begins, and `filled`, which chunks these are.
    chunks : C.
    """

    sizes: Ints
    units: Ints
    starts: Ints
    filled: Ints
    chunks: int


def other_tensors(trace: Trace) -> TraceError:
    """That a trace is of another model than the one that is trained."""
    return TraceError("has other tensors than the trained model", trace.name, "a trace of this model")


class AsTrace:
    """Makes traces of what the workers of one job send."""

    def __init__(
        self, workers: int, payload: int, scale: float, times: Trace | None, phase: str | None = None
    ) -> None:  # fmt: skip
        """
        Parameters
        ----------
        scale : what the job multiplies the times of a trace by.
        times : whose computing the workers do, each the iterations that it replays as a simulated job's; it has the
            trained model's tensors. Computing takes no time if absent.
        phase : of the trace; None for all of it.

        Raises
        ------
        ScenarioError
            The trace has no such phase.
        """
        self.workers, self.payload, self.scale, self.times = workers, payload, scale, times
        self._captured = None if times is None else Captured(times, phase)
        self._layouts: dict[tuple[tuple[int, int, int], ...], Layout] = {}

    def layout(self, encoded: Sequence[Encoded]) -> Layout:
        """Where the units of the longest encoding of each tensor lie."""
        key = tuple((each.units, each.unit_bytes, each.head_bytes) for each in encoded)
        if key not in self._layouts:
            if len(self._layouts) > 8:
                self._layouts.clear()
            self._layouts[key] = _laid_out(encoded, self.payload)
        return self._layouts[key]

    def trace(self, pushed: Pushed, layout: Layout, sent: Ints, alone: int | None = None) -> Trace:
        """What all workers send of the tensors `sent`; or what one does alone, which is all that is pushed, and then
        the others' iterations are empty.

        Raises
        ------
        TraceError
            The trace whose times are taken is of another model.
        """
        infos, layers = self._model(pushed.infos)
        mean = np.zeros((self.workers, layout.chunks))
        most = np.zeros_like(mean)
        for row, worker in enumerate(range(self.workers) if alone is None else (alone,)):
            mean[worker], most[worker] = self._magnitudes(pushed, row, layout)
        counts = -(-layout.sizes[sent] // CHUNK_BYTES)
        first = np.cumsum(counts) - counts
        exponents = scale_exponents(np.maximum.reduceat(most.max(axis=0), first))
        per_chunk = np.repeat(exponents, counts)
        tensors = [
            TensorInfo(info.name, (size // 4,), size // 4, "float32", info.layer, exponent)
            for info, size, exponent in zip(
                [infos[index] for index in sent], layout.sizes[sent].tolist(), exponents.tolist(), strict=True
            )
        ]
        iterations = [self._iteration(pushed, worker, len(layers), sent) for worker in range(self.workers)]
        return Trace(
            {"name": "step"}, layers, tensors, iterations,
            _halves(mean, per_chunk), _halves(most, per_chunk),
        )  # fmt: skip

    def answer(self, infos: Sequence[TensorInfo], nbytes: Ints, step: int) -> Trace:
        """What servers send back: so many bytes of each tensor, of which nobody knows magnitudes. At least one of them
        is sent."""
        infos, layers = self._model(infos)
        sent = np.flatnonzero(nbytes)
        words = -(-nbytes[sent] // 4)
        tensors = [
            TensorInfo(infos[at].name, (count,), count, "float32", infos[at].layer, 0)
            for at, count in zip(sent.tolist(), words.tolist(), strict=True)
        ]
        nothing, ready = np.zeros(len(layers), dtype=np.int64), np.zeros(len(sent), dtype=np.int64)
        iterations = [
            Iteration(rank, "train", step, 0.0, nothing, nothing, ready, 0, 0, 0, rank) for rank in range(self.workers)
        ]
        magnitudes = np.zeros((self.workers, int((-(-words // CHUNK_ELEMENTS)).sum())), dtype=np.float16)
        return Trace({"name": "step"}, layers, tensors, iterations, magnitudes, magnitudes)

    def _model(self, infos: Sequence[TensorInfo]) -> tuple[Sequence[TensorInfo], list[str]]:
        """Tensors and layers, those of the trace whose times are taken where there is one."""
        times = self.times
        if times is None:
            return infos, [f"layer {number}" for number in range(max(info.layer for info in infos) + 1)]
        if [tensor.numel for tensor in times.tensors] != [info.numel for info in infos]:
            raise other_tensors(times)
        return times.tensors, times.layers

    def _magnitudes(self, pushed: Pushed, worker: int, layout: Layout) -> tuple[Floats, Floats]:
        """(mean, largest) magnitude of each chunk's units, (C,) each. Those that a shorter message than others' has not
        got are nothing."""
        sizes = _unit_magnitudes(pushed, worker, layout.units)
        mean, most = np.zeros(layout.chunks), np.zeros(layout.chunks)
        filled, counts = layout.filled, np.diff(np.append(layout.starts, len(sizes)))
        mean[filled] = np.add.reduceat(sizes, layout.starts) / counts
        most[filled] = np.maximum.reduceat(sizes, layout.starts)
        last = np.zeros(layout.chunks, dtype=np.int64)
        last[filled] = filled
        last = np.maximum.accumulate(last)
        return mean[last], most[last]  # a chunk inside of a long unit has that one's

    def _iteration(self, pushed: Pushed, worker: int, layers: int, sent: Ints) -> Iteration:
        nothing = np.zeros(layers, dtype=np.int64)
        if self.times is None or self._captured is None or pushed.round:
            ready = _encoded_by(pushed, worker, sent, np.zeros(len(sent), dtype=np.int64), self.scale)
            done = int(ready.max())
            return Iteration(worker, "train", pushed.step, 0.0, nothing, nothing, ready, done, 0, done, worker)
        then = self.times.iterations[self._captured.of(worker, pushed.step)]
        ready = _encoded_by(pushed, worker, sent, then.ready_ps[sent], self.scale)
        late = max(int(ready.max()) - then.backward_end_ps, 0)  # encoding may end after the backward pass
        return Iteration(
            worker, "train", pushed.step, 0.0, then.forward_start_ps, then.forward_end_ps, ready,
            then.backward_end_ps + late, then.optimizer_ps, then.end_ps + late, worker,
        )  # fmt: skip


def _encoded_by(pushed: Pushed, worker: int, sent: Ints, ready: Ints, scale: float = 1.0) -> Ints:
    """When encodings can be sent of tensors that are ready then: a worker encodes one after the other as they become
    ready, those of the back first of those that do so together. `scale`: what the job multiplies computing by, which
    encoding is not; with 0 it cannot be told apart, and is added by whoever asked."""
    if not pushed.encode_ps or not scale:
        return ready
    found, free = ready.copy(), 0
    for place in sorted(range(len(sent)), key=lambda each: (ready[each], -each)):
        free = max(free, int(ready[place])) + round(pushed.encode_ps[worker][int(sent[place])] / scale)
        found[place] = free
    return found


def _laid_out(encoded: Sequence[Encoded], payload: int) -> Layout:
    """Where units lie, given the longest encoding of each tensor."""
    sizes, places, before = [], [], 0
    for each in encoded:
        if not each.units:
            sizes.append(0)
            continue
        fit, packets = each.units_per_packet(payload), each.packets(payload)
        units = np.arange(each.units)
        packet, within = np.divmod(units, fit)
        begin = packet * payload + each.head_bytes + within * each.unit_bytes
        size = (packets - 1) * payload + each.head_bytes + (each.units - (packets - 1) * fit) * each.unit_bytes
        size = -(-size // 4) * 4
        places.append(before + begin // CHUNK_BYTES)
        before += -(-size // CHUNK_BYTES)
        sizes.append(size)
    chunk = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    filled, starts = np.unique(chunk, return_index=True)
    units = np.array([each.units for each in encoded], dtype=np.int64)
    return Layout(np.array(sizes, dtype=np.int64), units, starts, filled, before)


def _unit_magnitudes(pushed: Pushed, worker: int, units: Ints) -> Floats:
    """The mean magnitude of what each of a worker's units stands for, (units of all messages,), zero of those that only
    others have; they leave the device at once."""
    import torch

    found = []
    for tensor, count in enumerate(units.tolist()):
        mine = pushed.encoded[worker][tensor]
        if mine.units:
            found.append(pushed.unit_magnitudes(worker, tensor))
        if count > mine.units:
            found.append(mine.fields[0].new_zeros(count - mine.units, dtype=torch.float32))
    sizes = torch.cat(found).cpu().numpy().astype(np.float64)
    known = np.isfinite(sizes)
    if not known.all():  # of a training that diverges: more than any packet's numbers together
        sizes[~known] = 2**20 * sizes[known].max(initial=1.0)
    return sizes


def _halves(values: Floats, exponents: Ints) -> NDArray[np.float16]:
    halves = np.ldexp(values, exponents).astype(np.float16)
    halves[(halves == 0) & (values > 0)] = np.finfo(np.float16).smallest_subnormal
    return halves
