"""The ring all-reduce as a program of the fabric: what `ring` does, without asking Python at every step.

Message s N + w is worker w's in step s. It waits for the message of step s - 1 that comes to w, and up to step N - 1,
whose segment w has to add its own part to (or finish), for w's own bucket as well: a gate that opens when the bucket
is ready. When all messages to a worker have arrived, so has its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.collectives.base import ALL_LAYERS, JobContext
from sim.collectives.ring import Bucket, Ring
from sim.coupling import Block, Coupling
from sim.fabric.sends import Sends

KINDS = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class _Steps:
    """Columns that all programs of a ring have in common; N workers, 2 (N - 1) N messages."""

    step: NDArray[np.int64]
    worker: NDArray[np.int64]
    receiver: NDArray[np.int64]
    segment: NDArray[np.int64]
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, workers: int) -> _Steps:
        step, worker = np.divmod(np.arange(2 * (workers - 1) * workers), workers)
        receiver = (worker + 1) % workers
        before = np.arange(len(step) - workers)
        edges = np.stack((before, (step[before] + 1) * workers + receiver[before]), axis=1)
        return cls(step, worker, receiver, (worker - step) % workers, edges)


class RingProgram(Ring):
    """The exchange of one job in a ring, run by the fabric."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._steps = _Steps.of(len(context.workers))
        self._blocks: dict[tuple[int, int], Block] = {}  # (iteration, bucket)

    @property
    def _coupling(self) -> Coupling:
        assert self.context.coupling is not None
        return self.context.coupling

    def explain(self, worker: int, iteration: int, layer: int) -> list[str]:
        lines = []
        for number, bucket in enumerate(self.buckets):
            layers = {self.context.trace.tensors[tensor].layer for tensor in bucket.tensors}
            turn = self._turns.get((iteration, worker, number))
            if turn is not None and (layer == ALL_LAYERS or layer in layers):
                lines.append(
                    f"bucket {number}: {'not all segments received' if turn.started else 'not started'}"
                )
        return lines

    def _start(self, iteration: int, worker: int, number: int) -> None:
        self._turn(iteration, worker, number).started = True
        count = len(self.context.workers)
        if count == 1:
            self._complete(iteration, worker, number)
            return
        block = self._blocks.get((iteration, number))
        if block is None:
            block = self._blocks[iteration, number] = self._submit(iteration, number)
        self._coupling.release(block, worker + count * np.arange(count))

    def _complete(self, iteration: int, worker: int, number: int) -> None:
        super()._complete(iteration, worker, number)
        block = self._blocks.get((iteration, number))
        if block is not None and not block.left:
            del self._blocks[iteration, number]

    def _submit(self, iteration: int, number: int) -> Block:
        context, bucket, steps = self.context, self.buckets[number], self._steps
        count = len(context.workers)
        hosts = np.asarray(context.workers, dtype=np.int64)
        reducing = steps.step < count - 1
        patterns, pattern = self._patterns(iteration, number, bucket, reducing)
        block = Block(
            job=context.name,
            iteration=iteration,
            kinds=KINDS,
            kind=(~reducing).astype(np.int8),
            part=number * count + steps.segment,
            sends=Sends(
                src=hosts[steps.worker],
                dst=hosts[steps.receiver],
                nbytes=np.full(len(steps.step), bucket.segment_bytes, dtype=np.int64),
                priority=bucket.priority,
                bound=np.where(reducing, context.table.push_bound, context.table.pull_bound),
                patterns=patterns,
                pattern=pattern,
                edges=steps.edges,
                gates=(steps.step < count).astype(np.int64),
                join=steps.receiver,
            ),
            joined=lambda worker: self._complete(iteration, worker, number),
            transport=context.transport,
        )
        self._coupling.submit(block)
        return block

    def _patterns(
        self, iteration: int, number: int, bucket: Bucket, reducing: NDArray[np.bool_]
    ) -> tuple[list[NDArray[np.bool_]], NDArray[np.int64] | None]:
        """Which packets are important: one pattern per captured iteration and segment, one for "all of them"."""
        context, steps = self.context, self._steps
        if context.tagger is None:
            return [], None
        captured = np.array([context.captured(worker, iteration) for worker in range(len(context.workers))])
        keys = captured[steps.worker] * len(context.workers) + steps.segment
        everything = -1
        if context.table.pull_important:
            keys = np.where(reducing, keys, everything)
        wanted, pattern = np.unique(keys, return_inverse=True)
        packets = -(-bucket.segment_bytes // context.payload)
        patterns = []
        for key in wanted.tolist():
            if key == everything:
                patterns.append(np.ones(packets, dtype=np.bool_))
                continue
            iteration_, segment = divmod(key, len(context.workers))
            bits = self._segment_bits(iteration_, number, segment)
            assert isinstance(bits, np.ndarray)
            patterns.append(bits)
        return patterns, pattern
