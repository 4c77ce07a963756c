"""`NonzeroBlocks` computes the bytes of messages that leave out blocks of zeros, as OmniReduce's do.

Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed Deep Learning",
SIGCOMM '21: workers send only those blocks of a tensor that hold a nonzero gradient, each with the position of the
worker's next one, so that the server knows when no more will come; it sends back the sums of blocks that any worker has
sent. The server adds up as blocks arrive; here a partition is the unit of that (our choice), so that small partitions
stream. A block has 256 elements, the published default [recalled], and those of a trace's magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.traces.parts import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace
    from gradwire.workload.collectives.exchanges.parameter_server_steps import Partition

POSITION = 4
"""Bytes of a position; a message of no block at all has one."""


class NonzeroBlocks:
    """Bytes of partitions without their blocks of zeros, by captured iteration."""

    def __init__(self, trace: Trace, partitions: Sequence[Partition]) -> None:
        self._trace, self._partitions = trace, partitions
        self._sizes: dict[frozenset[int], Ints] = {}

    def sizes(self, captured: Iterable[int]) -> Ints:
        """Return the bytes of each partition, int64 [partitions]: of blocks that are not zero in at least one of these
        captured iterations."""
        key = frozenset(captured)
        if key not in self._sizes:
            self._sizes[key] = self._counted(key)
        return self._sizes[key]

    def _counted(self, captured: frozenset[int]) -> Ints:
        sizes = np.zeros(len(self._partitions), dtype=np.int64)
        filled = [self._filled(captured, tensor) for tensor in range(len(self._trace.tensors))]
        for number, piece in enumerate(self._partitions):
            first, beyond = piece.first, piece.first + piece.elements
            starts = np.arange(first // CHUNK_ELEMENTS, -(-beyond // CHUNK_ELEMENTS))
            starts = starts[filled[piece.tensor][starts]] * CHUNK_ELEMENTS
            elements = np.minimum(starts + CHUNK_ELEMENTS, beyond) - np.maximum(starts, first)
            element_bytes = self._trace.tensors[piece.tensor].element_bytes
            sizes[number] = element_bytes * elements.sum() + POSITION * max(len(starts), 1)
        return sizes

    def _filled(self, captured: Iterable[int], tensor: int) -> np.ndarray:
        """Return the blocks of a tensor that are not zero, bool [blocks]."""
        return np.logical_or.reduce([self._trace.chunk_max(each, tensor) > 0 for each in captured])
