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

As events, per iteration and bucket: all gradients ready, bucket before started -> start: step 0; start, delivery of
step s -> step s + 1; all 2(N - 1) C deliveries -> complete; all buckets complete -> gate.

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

from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, Patterns, lists, messages
from gradwire.experiment.collectives.kinds.ring import Ring
from gradwire.experiment.program import Importance, Ints, Lists, Messages, Step


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


class RingReduce(Exchange):
    """The exchange of one job in a ring."""

    worker_optimizes = True

    def __init__(self, context: JobContext, table: Ring) -> None:
        super().__init__(context)
        self.rails = context.rails
        self.buckets = fill_buckets(context, table.bucket)
        self._bucket_of = np.zeros(len(context.trace.tensors), dtype=np.int64)
        for number, bucket in enumerate(self.buckets):
            self._bucket_of[list(bucket.tensors)] = number
        self._pieces = np.bincount(
            [info.layer for info in context.trace.tensors], minlength=len(context.trace.layers)
        ).tolist()
        self._patterns = Patterns()
        tensors = context.trace.tensors
        self._layers = [sorted({tensors[each].layer for each in bucket.tensors}) for bucket in self.buckets]
        count, steps = len(context.workers), 2 * (len(context.workers) - 1)
        # columns of the messages of one bucket, in the order of steps, workers, rails
        turn, self._rail = np.divmod(np.arange(steps * count * self.rails), self.rails)
        self._step, self._worker = np.divmod(turn, count)
        self._receiver = (self._worker + 1) % count
        self._segment = (self._worker - self._step) % count * self.rails + self._rail
        hosts = np.array(context.workers)
        self._src = context.cards.nodes(hosts[self._worker], self._rail)
        self._dst = context.cards.nodes(hosts[self._receiver], self._rail)

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        return tuple(bucket.tensors for bucket in self.buckets), len(self.context.workers) * self.rails

    @property
    def unit_bytes(self) -> int:
        return max(bucket.segment_bytes for bucket in self.buckets)

    @property
    def bytes_per_iteration(self) -> int:
        return len(self._step) * sum(bucket.segment_bytes for bucket in self.buckets)

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        buckets, workers, each = len(self.buckets), len(self.context.workers), len(self._step)
        due = self._due(ready)  # [buckets, each]
        order = np.argsort(due.ravel(), kind="stable")
        number_of = np.empty(len(order), dtype=np.int64)
        number_of[order] = np.arange(len(order))
        place = number_of.reshape(buckets, each)
        bucket, column = np.divmod(order, each)
        # events: deliveries, starts [buckets, workers], complete [buckets, workers], gates [workers], both
        n = len(order)
        start = n + np.arange(buckets * workers).reshape(buckets, workers)
        complete = n + buckets * workers + np.arange(buckets * workers).reshape(buckets, workers)
        gate = n + 2 * buckets * workers + np.arange(workers)
        own = np.flatnonzero((self._step > 0) & (self._step < workers))  # wait for the own bucket as well
        both = gate[-1] + 1 + np.arange(buckets * len(own)).reshape(buckets, len(own))
        count = int(gate[-1]) + 1 + both.size
        needs, host = np.ones(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        nodes = self.context.nodes
        host[:n], host[start], host[complete], host[gate] = self._dst[column], nodes, nodes, nodes
        host[both] = nodes[self._worker[own]]
        needs[start] = np.array([[len(each.tensors)] for each in self.buckets])
        needs[start[1:]] += 1
        needs[complete] = 2 * (workers - 1) * self.rails
        needs[gate] = buckets
        needs[both] = 2
        after, posts = self._wiring(place, start, complete, gate, own, both)
        tensors = len(self._bucket_of)
        gates = np.full((workers, len(self._pieces) + 1), -1, dtype=np.int64)
        gates[:, -1] = gate
        fired = start[self._bucket_of].T.ravel()  # by worker and tensor
        step = Step(
            messages=self._messages(number, bucket, column),
            needs=needs, host=host, station=np.full(count, -1, dtype=np.int64), effort=np.zeros(count, dtype=np.int64),
            after=lists(after, count), posts=lists(posts, count),
            contents=lambda: self._contents(place, bucket, column),
        )  # fmt: skip
        return Exchanged(step, (np.arange(workers * tensors + 1), fired), gates)

    def _due(self, ready: Ints) -> Ints:
        """When every message could be ready at the earliest, [buckets, messages of a bucket]."""
        workers, rails = len(self.context.workers), self.rails
        earliest = np.stack([ready[:, list(bucket.tensors)].max(axis=1) for bucket in self.buckets])
        earliest = np.maximum.accumulate(earliest, axis=0)  # [buckets, workers]
        rows, moment = [], earliest
        for step in range(2 * (workers - 1)):
            if step:
                moment = np.roll(moment, 1, axis=1)
                if step < workers:
                    moment = np.maximum(moment, earliest)
            rows.append(np.repeat(moment, rails, axis=1))
        return np.concatenate(rows, axis=1)

    def _wiring(
        self, place: Ints, start: Ints, complete: Ints, gate: Ints, own: Ints, both: Ints
    ) -> tuple[list[tuple[Ints, Ints]], list[tuple[Ints, Ints]]]:
        """What counts what, and what posts what, as pairs of columns."""
        workers, buckets, rails = len(gate), len(start), self.rails
        width = workers * rails  # messages of a step
        worker = self._worker
        before = ((self._step - 1) * workers + (worker - 1) % workers) * rails + self._rail  # what came in
        later = np.flatnonzero(self._step >= workers)
        first = np.arange(width)
        posts = [
            (start[:, worker[first]], place[:, first]),
            (both, place[:, own]),
            (place[:, before[later]], place[:, later]),
        ]
        after = [
            (start[:, worker[own]], both),
            (start[:-1], start[1:]),  # after what it lets go itself
            (place[:, before[own]], both),
            (place, complete[:, self._receiver]),  # after what it lets go
            (complete, np.broadcast_to(gate, (buckets, workers))),
        ]
        return after, posts

    def _messages(self, iteration: int, bucket: Ints, column: Ints) -> Messages:
        context, count = self.context, len(self.context.workers)
        step, worker, segment = self._step[column], self._worker[column], self._segment[column]
        reducing = step < count - 1
        sizes = np.array([
            (each.segment_bytes, each.segment_elements, each.priority, each.front) for each in self.buckets
        ])  # fmt: skip
        nbytes, elements, priority, front = sizes[bucket].T
        captured = np.array([context.captured(each, iteration) for each in range(count)])
        return messages(
            context, np.where(reducing, "reduce_scatter", "all_gather"),
            self._importance(captured, bucket, worker, segment, reducing),
            iteration=iteration, tensor=-1, layer=-1, part=bucket * count * self.rails + segment,
            src=self._src[column], dst=self._dst[column], nbytes=nbytes, priority=priority,
            loss=context.bounds.of(iteration, ~reducing, worker, self._layers, bucket), rank=front,
            captured=np.where(step < count, captured[worker], -1), first=segment * elements,
        )  # fmt: skip

    def _importance(
        self, captured: Ints, bucket: Ints, worker: Ints, segment: Ints, reducing: NDArray[np.bool_]
    ) -> Importance:
        """The important packets of a segment: those in which any tensor's share is important."""
        context = self.context
        if context.tagger is None:
            return Importance((), np.full(len(bucket), Importance.AS_SENT))
        segments = len(context.workers) * self.rails
        keys = (captured[worker] * len(self.buckets) + bucket) * segments + segment
        wanted = reducing if context.table.pull_important else np.ones(len(bucket), dtype=np.bool_)
        found, inverse = np.unique(keys[wanted], return_inverse=True)
        numbers = []
        for key in found.tolist():
            rest, which = divmod(key, segments)
            whose, number = divmod(rest, len(self.buckets))
            numbers.append(self._patterns.of(key, partial(self._tag, whose, self.buckets[number], which)))
        pattern = np.full(len(bucket), Importance.ALL, dtype=np.int64)
        pattern[wanted] = np.array(numbers, dtype=np.int64)[inverse]
        return Importance(self._patterns.found, pattern)

    def _tag(self, captured: int, bucket: Bucket, segment: int) -> NDArray[np.bool_]:
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

    def _contents(self, place: Ints, bucket: Ints, column: Ints) -> tuple[Lists, NDArray[np.bool_]]:
        """A message carries what came in by the step before, and up to step N - 1 the sender's own part."""
        workers, rails = len(self.context.workers), self.rails
        before = ((self._step - 1) * workers + (self._worker - 1) % workers) * rails + self._rail
        carried = self._step[column] > 0
        first = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(carried, out=first[1:])
        return (first, place[bucket[carried], before[column[carried]]]), self._step[column] < workers


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
