"""Ring all-reduce per bucket, as data-parallel PyTorch does it.

Tensors are put into buckets in the order in which their gradients become ready; a bucket is closed when it
reaches the wanted size [notes: PyTorch DDP, which also rebuilds its buckets in order of arrival after the
first iteration].  A worker starts on a bucket when all its gradients are ready and the bucket before it was
started.  The N workers form a ring in the order of their placement; a bucket of S bytes is cut into N
segments:

* reduce-scatter, steps 0 .. N-2: in step s worker w sends segment (w - s) mod N to worker w + 1, which adds
  its own;
* all-gather, steps N-1 .. 2N-3: the same walk goes on with finished segments.

What a worker sends in step s + 1 is what it received in step s, so step s + 1 waits for that message (and,
in the reduce-scatter, for the worker's own bucket), and for nothing else.  Every worker sends 2(N - 1) S/N
bytes.

Where hosts have C network cards, a segment is cut into C parts, one per card, and there are C such rings side by side,
each on a rail of its own: a worker sends on by the card by which it received.  NCCL does the same ("creates 4 rings,
each using a different NIC" [its issue 601]).  Where hosts have different numbers of cards, C is the largest.

Our choices: segments are S/N (or S/NC) rounded up to whole elements, all of equal size (libraries pad as well);
buckets do not wait for each other beyond their start; forward waits for all buckets and then for the
captured optimiser step; in a reduce-scatter the sender's own gradient stands for the magnitude of the
partial sum that it passes on. A loss bound holds per message: losses of the steps add up [notes: for a
total budget P use 2P/(N-1)].
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.sim.collectives.base import ALL_LAYERS, Arrived, Exchange, JobContext
from gradwire.sim.coupling import Importance, Message


class Bucket(NamedTuple):
    """Tensors that are reduced together."""

    tensors: tuple[int, ...]
    offsets: tuple[int, ...]
    """where each tensor starts, in elements; one more entry: where the last one ends"""
    segment_elements: int
    segment_bytes: int
    priority: int
    front: int
    """the layer nearest the input"""


class _Turn:
    """One worker's part in the reduction of one bucket in one iteration."""

    __slots__ = ("held", "lacking", "received", "started")

    def __init__(self, tensors: int) -> None:
        self.lacking = tensors  # gradients not ready yet
        self.started = False
        self.held: list[tuple[int, int]] = []  # (step, rail) received before the own bucket was ready
        self.received = 0


class Ring(Exchange):
    """The exchange of one job in a ring."""

    worker_optimizes = True

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self.rails = context.rails
        self.buckets = fill_buckets(context, context.table.exchange.bucket)
        self._bucket_of = {
            tensor: number for number, bucket in enumerate(self.buckets) for tensor in bucket.tensors
        }
        self._pieces = [0] * len(context.trace.layers)
        for info in context.trace.tensors:
            self._pieces[info.layer] += 1
        self._bits: dict[tuple[int, int, int], NDArray[np.bool_]] = {}  # (captured, bucket, segment and rail)
        self._turns: dict[tuple[int, int, int], _Turn] = {}  # (iteration, worker, bucket)
        self._next: dict[tuple[int, int], int] = {}  # (iteration, worker) -> the bucket to start next

    def pieces(self) -> list[int]:
        return self._pieces

    def bucket_of(self, tensor: int) -> int:
        """Number of the bucket that a tensor is in."""
        return self._bucket_of[tensor]

    @property
    def unit_bytes(self) -> int:
        return max(bucket.segment_bytes for bucket in self.buckets)

    @property
    def bytes_per_iteration(self) -> int:
        count = len(self.context.workers)
        return count * 2 * (count - 1) * self.rails * sum(bucket.segment_bytes for bucket in self.buckets)

    def gradient_ready(self, worker: int, iteration: int, tensor: int) -> None:
        self._turn(iteration, worker, self._bucket_of[tensor]).lacking -= 1
        number = self._next.get((iteration, worker), 0)
        while number < len(self.buckets) and not self._turn(iteration, worker, number).lacking:
            self._next[iteration, worker] = number + 1
            self._start(iteration, worker, number)
            number += 1
        if number == len(self.buckets):
            del self._next[iteration, worker]

    def explain(self, worker: int, iteration: int, layer: int) -> list[str]:
        steps = 2 * (len(self.context.workers) - 1) * self.rails
        lines = []
        for number, bucket in enumerate(self.buckets):
            layers = {self.context.trace.tensors[tensor].layer for tensor in bucket.tensors}
            turn = self._turns.get((iteration, worker, number))
            if turn is not None and (layer == ALL_LAYERS or layer in layers):
                lines.append(f"bucket {number}: {turn.received} of {steps} segments received")
        return lines

    def _turn(self, iteration: int, worker: int, number: int) -> _Turn:
        key = (iteration, worker, number)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _Turn(len(self.buckets[number].tensors))
        return turn

    def _start(self, iteration: int, worker: int, number: int) -> None:
        """The worker's own gradients are in the bucket: send step 0 and pass on what has come in already."""
        turn = self._turn(iteration, worker, number)
        turn.started = True
        if len(self.context.workers) == 1:
            self._complete(iteration, worker, number)
            return
        for rail in range(self.rails):
            self._send(iteration, worker, number, 0, rail)
        for step, rail in sorted(turn.held):
            self._send(iteration, worker, number, step + 1, rail)
        turn.held.clear()

    def _send(self, iteration: int, worker: int, number: int, step: int, rail: int) -> None:
        receiver = (worker + 1) % len(self.context.workers)
        arrived = partial(self._received, receiver, number, step, rail)
        self.context.post(self.segment(iteration, worker, number, step, rail, arrived))

    def segment(
        self, iteration: int, worker: int, number: int, step: int, rail: int, arrived: Arrived
    ) -> Message:
        """What a worker sends in a step of bucket `number`."""
        context, bucket, count = self.context, self.buckets[number], len(self.context.workers)
        segment = (worker - step) % count * self.rails + rail
        reducing = step < count - 1
        bits: Importance = None if context.tagger is None else True
        if reducing or not context.table.pull_important:
            bits = self._segment_bits(context.captured(worker, iteration), number, segment)
        return Message(
            context.name,
            "reduce_scatter" if reducing else "all_gather",
            iteration,
            -1,
            number * count * self.rails + segment,
            context.cards.node(context.workers[worker], rail),
            context.cards.node(context.workers[(worker + 1) % count], rail),
            bucket.segment_bytes,
            bucket.priority,
            context.table.push_bound if reducing else context.table.pull_bound,
            bits,
            bucket.front,
            arrived,
        )

    def _received(self, worker: int, number: int, step: int, rail: int, message: Message) -> None:
        iteration, last = message.iteration, 2 * len(self.context.workers) - 3
        turn = self._turn(iteration, worker, number)
        turn.received += 1
        if step < last:
            if turn.started:
                self._send(iteration, worker, number, step + 1, rail)
            else:
                turn.held.append((step, rail))
        if turn.received == (last + 1) * self.rails:
            self._complete(iteration, worker, number)

    def _complete(self, iteration: int, worker: int, number: int) -> None:
        del self._turns[iteration, worker, number]
        inbox = self.inbox(worker, iteration)
        for tensor in self.buckets[number].tensors:
            inbox.arrive(self.context.trace.tensors[tensor].layer)

    def _segment_bits(self, captured: int, number: int, segment: int) -> Importance:
        """The important packets of a segment: those in which any tensor's share is important."""
        if self.context.tagger is None:
            return None
        key = (captured, number, segment)
        if key not in self._bits:
            self._bits[key] = self._tag_segment(captured, self.buckets[number], segment)
        return self._bits[key]

    def _tag_segment(self, captured: int, bucket: Bucket, segment: int) -> NDArray[np.bool_]:
        context, payload = self.context, self.context.payload
        begin = segment * bucket.segment_elements
        per_packet = payload * bucket.segment_elements // bucket.segment_bytes
        bits = np.zeros(-(-bucket.segment_bytes // payload), dtype=np.bool_)
        for tensor, low, high in zip(bucket.tensors, bucket.offsets, bucket.offsets[1:], strict=False):
            at, end = max(low, begin), min(high, begin + bucket.segment_elements)
            while at < end:
                # Up to the next packet boundary first, whole packets after that.
                into = (at - begin) % per_packet
                count = min(per_packet - into, end - at) if into else end - at
                size = per_packet * context.trace.tensors[tensor].element_bytes
                found = context.tagger.important(captured, tensor, at - low, count, size)
                packet = (at - begin) // per_packet
                bits[packet : packet + len(found)] |= found
                at += count
        return bits


def fill_buckets(context: JobContext, size: int) -> list[Bucket]:
    """Tensors into buckets by readiness; a bucket is closed by the tensor that brings it to `size` bytes."""
    groups: list[list[int]] = [[]]
    filled = 0
    for tensor in context.ready_order:
        if filled >= size:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += context.trace.tensors[tensor].bytes
    return [_bucket(context, tuple(group)) for group in groups]


def _bucket(context: JobContext, tensors: tuple[int, ...]) -> Bucket:
    infos = [context.trace.tensors[tensor] for tensor in tensors]
    offsets = np.concatenate([[0], np.cumsum([info.numel for info in infos])]).tolist()
    elements = -(-offsets[-1] // (len(context.workers) * context.rails))
    # Mixed types in one bucket travel as the widest of them.
    width = max(info.element_bytes for info in infos)
    return Bucket(
        tensors,
        tuple(offsets),
        elements,
        elements * width,
        min(context.priorities[tensor] for tensor in tensors),
        min(info.layer for info in infos),
    )
