"""Buckets: gradients that travel together, one after the other, as one array that is cut into segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gradwire.experiment.collectives.base import JobContext, Patterns
from gradwire.experiment.collectives.setting import JobSetting
from gradwire.scenarios.arrays import Flags


class Run(NamedTuple):
    """Elements of a tensor, one after the other."""

    tensor: int
    first: int
    length: int


class Bucket(NamedTuple):
    """What is reduced together.

    runs : as they lie in it.
    offsets : where each run starts, in elements; one more entry: where the last one ends.
    element_bytes : types that are mixed travel as the widest of them.
    priority, front : of the layer nearest the input, and that layer.
    segment_elements : of one of `segments`, the last one is filled up.
    """

    runs: tuple[Run, ...]
    offsets: tuple[int, ...]
    element_bytes: int
    priority: int
    front: int
    layers: tuple[int, ...]
    segments: int
    segment_elements: int

    @classmethod
    def of(cls, context: JobContext, runs: Sequence[Run], segments: int) -> Bucket:
        """`segments`: into how many it is cut, of whole elements."""
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
        """The first of its elements in its first tensor, and how many they are."""
        return self.runs[0].first, self.offsets[-1]

    def important(self, context: JobContext, captured: int, first: int, count: int) -> Flags:
        """Which packets of a run of segments are important: those in which any tensor's share is."""
        payload, begin = context.payload, first * self.segment_elements
        total = count * self.segment_elements
        per_packet = payload // self.element_bytes
        bits = np.zeros(-(-total * self.element_bytes // payload), dtype=np.bool_)
        for run, low, high in zip(self.runs, self.offsets, self.offsets[1:], strict=False):
            at, end = max(low, begin), min(high, begin + total)
            while at < end:
                # Up to the next packet boundary first, whole packets after that.
                into = (at - begin) % per_packet
                many = min(per_packet - into, end - at) if into else end - at
                size = per_packet * context.trace.tensors[run.tensor].element_bytes
                found = context.tagger.important(captured, run.tensor, run.first + at - low, many, size)
                packet = (at - begin) // per_packet
                bits[packet : packet + len(found)] |= found
                at += many
        return bits


def gathered(sizes: Sequence[int], order: Iterable[int], caps: Sequence[int]) -> list[tuple[int, ...]]:
    """Tensors into buckets, in this order; a bucket is closed by the tensor that brings it to its cap.

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


def cut(numel: int, element_bytes: int, most: int) -> list[tuple[int, int]]:
    """A tensor in parts of at most `most` bytes, but one element at least: (first element, elements) of each, the
    remainder last."""
    step = max(1, most // element_bytes)
    return [(first, min(step, numel - first)) for first in range(0, numel, step)]


def pieces(numel: int, element_bytes: int, most: int) -> int:
    """How many parts `cut` makes."""
    return -(-numel // max(1, most // element_bytes))


def runs_of(context: JobContext, order: Iterable[int], cap: int) -> list[tuple[Run, ...]]:
    """The runs of every bucket, tensors in this order. What the job's scheduler says of sizes goes before `cap`, the
    bytes that the exchange says."""
    tensors, scheduling = context.trace.tensors, context.scheduling
    if scheduling.cut is not None:
        return [
            (Run(tensor, first, count),)
            for tensor in order
            for first, count in cut(tensors[tensor].numel, tensors[tensor].element_bytes, scheduling.cut)
        ]
    caps = scheduling.caps or (cap,)
    groups = gathered([info.bytes for info in tensors], order, caps)
    return [tuple(Run(tensor, 0, tensors[tensor].numel) for tensor in group) for group in groups]


def buckets_of(setting: JobSetting, cap: int) -> int:
    """How many buckets an iteration has at the most, without making them. `cap` as of `runs_of`."""
    scheduling, tensors = setting.scheduling, setting.trace.tensors
    if scheduling.cut is not None:
        return sum(pieces(info.numel, info.element_bytes, scheduling.cut) for info in setting.exchanged)
    sizes, caps = [info.bytes for info in tensors], scheduling.caps or (cap,)
    return max(len(gathered(sizes, order, caps)) for order in setting.orders)


class Tags:
    """Patterns of importance of the segments of buckets, each worked out once."""

    def __init__(self, context: JobContext, buckets: Sequence[Bucket]) -> None:
        self._context, self._buckets, self._patterns = context, buckets, Patterns()

    @property
    def patterns(self) -> list[Flags]:
        return self._patterns.found

    def of(self, captured: int, bucket: int, first: int, count: int) -> int:
        """The number of the pattern of a run of segments, of a worker that replays `captured`."""
        make = partial(self._buckets[bucket].important, self._context, captured, first, count)
        return self._patterns.of((captured, bucket, first, count), make)
