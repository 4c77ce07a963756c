"""Groups gradients into buckets that travel together, cuts these into segments, and finds their important packets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.workload.collectives.common.base import ImportancePatterns, JobContext, JobSetting


class TensorRange(NamedTuple):
    """Consecutive elements of a tensor."""

    tensor: int
    first: int
    length: int


class Bucket(NamedTuple):
    """Elements that are reduced together.

    runs : in the order of the bucket.
    offsets : the start of each run, in elements, and the end of the last one.
    element_bytes : of the widest type in the bucket; mixed types travel as this one.
    priority, front : of the layer nearest the input, and that layer.
    segment_elements : of one of `segments`; the last one is padded.
    """

    runs: tuple[TensorRange, ...]
    offsets: tuple[int, ...]
    element_bytes: int
    priority: int
    front: int
    layers: tuple[int, ...]
    segments: int
    segment_elements: int

    @classmethod
    def of(cls, context: JobContext, runs: Sequence[TensorRange], segments: int) -> Bucket:
        """Return the bucket of `runs`, cut into `segments` segments of whole elements."""
        infos = [context.trace.tensors[run.tensor] for run in runs]
        offsets = np.concatenate([[0], np.cumsum([run.length for run in runs])]).tolist()
        layers = tuple(sorted({info.layer for info in infos}))
        priority = min(context.priorities[run.tensor] for run in runs)
        width = max(info.element_bytes for info in infos)
        return cls(
            tuple(runs), tuple(offsets), width, priority, layers[0], layers, segments, -(-offsets[-1] // segments)
        )

    @property
    def segment_bytes(self) -> int:
        return self.segment_elements * self.element_bytes

    @property
    def tensors(self) -> tuple[int, ...]:
        return tuple(run.tensor for run in self.runs)

    @property
    def slice(self) -> tuple[int, int]:
        """The first element in the bucket's first tensor, and the number of elements."""
        return self.runs[0].first, self.offsets[-1]

    def important(self, context: JobContext, captured: int, first: int, count: int) -> Flags:
        """Return the important packets of a run of segments: those in which any tensor's share is important."""
        payload, begin = context.payload, first * self.segment_elements
        total = count * self.segment_elements
        per_packet = payload // self.element_bytes
        bits = np.zeros(-(-total * self.element_bytes // payload), dtype=np.bool_)
        for run, low, high in zip(self.runs, self.offsets, self.offsets[1:], strict=False):
            element, end = max(low, begin), min(high, begin + total)
            while element < end:
                # First up to the next packet boundary, then whole packets.
                offset = (element - begin) % per_packet
                length = min(per_packet - offset, end - element) if offset else end - element
                size = per_packet * context.trace.tensors[run.tensor].element_bytes
                flags = context.tagger.important(captured, run.tensor, run.first + element - low, length, size)
                packet = (element - begin) // per_packet
                bits[packet : packet + len(flags)] |= flags
                element += length
        return bits


def group_into_buckets(sizes: Sequence[int], order: Iterable[int], caps: Sequence[int]) -> list[tuple[int, ...]]:
    """Group tensors into buckets in this order; the tensor that reaches the cap closes its bucket.

    sizes : bytes of every tensor.
    caps : bytes, of the first bucket, the second and so on; the last one holds for all that follow.
    """
    groups: list[list[int]] = [[]]
    filled = 0
    for tensor in order:
        if filled >= caps[min(len(groups), len(caps)) - 1]:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += sizes[tensor]
    return [tuple(group) for group in groups]


def cut_tensor(numel: int, element_bytes: int, most: int) -> list[tuple[int, int]]:
    """Cut a tensor into parts of at most `most` bytes but at least one element: (first element, elements) of each, the
    remainder last."""
    step = max(1, most // element_bytes)
    return [(first, min(step, numel - first)) for first in range(0, numel, step)]


def count_pieces(numel: int, element_bytes: int, most: int) -> int:
    """Return the number of parts of `cut_tensor`."""
    return -(-numel // max(1, most // element_bytes))


def bucket_runs(context: JobContext, order: Iterable[int], cap: int) -> list[tuple[TensorRange, ...]]:
    """Return the runs of every bucket, tensors in this order. Sizes of the job's scheduler override `cap`, the bytes
    of the exchange."""
    tensors, scheduling = context.trace.tensors, context.scheduling
    if scheduling.cut is not None:
        return [
            (TensorRange(tensor, first, count),)
            for tensor in order
            for first, count in cut_tensor(tensors[tensor].numel, tensors[tensor].element_bytes, scheduling.cut)
        ]
    caps = scheduling.caps or (cap,)
    groups = group_into_buckets([info.bytes for info in tensors], order, caps)
    return [tuple(TensorRange(tensor, 0, tensors[tensor].numel) for tensor in group) for group in groups]


def count_buckets(setting: JobSetting, cap: int) -> int:
    """Return an upper bound of an iteration's buckets, without creating them. `cap` as in `bucket_runs`."""
    scheduling, tensors = setting.scheduling, setting.trace.tensors
    if scheduling.cut is not None:
        return sum(count_pieces(info.numel, info.element_bytes, scheduling.cut) for info in setting.exchanged)
    sizes, caps = [info.bytes for info in tensors], scheduling.caps or (cap,)
    return max(len(group_into_buckets(sizes, order, caps)) for order in setting.orders)


class BucketTags:
    """Patterns of importance of the segments of buckets, each computed once."""

    def __init__(self, context: JobContext, buckets: Sequence[Bucket]) -> None:
        self._context, self._buckets, self._patterns = context, buckets, ImportancePatterns()

    @property
    def patterns(self) -> list[Flags]:
        return self._patterns.found

    def of(self, captured: int, bucket: int, first: int, count: int) -> int:
        """Return the number of the pattern of a run of segments, for a worker that replays `captured`."""
        make = partial(self._buckets[bucket].important, self._context, captured, first, count)
        return self._patterns.of((captured, bucket, first, count), make)
