"""The ring all-reduce as a program of the fabric: what `ring` does, without asking Python at every step.

Message s N + w is worker w's in step s; with C rings side by side (one per network card), message (s N + w) C + c
is its message in ring c. It waits for the message of step s - 1 that comes to w, and up to step N - 1, whose
segment w has to add its own part to (or finish), for w's own bucket as well: a gate that opens when the bucket is
ready. When all messages to a worker, on all its cards, have arrived, so has its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire.sim.collectives.base import ALL_LAYERS, JobContext
from gradwire.sim.collectives.ring import Bucket, Ring
from gradwire.sim.coupling import Block, Coupling
from gradwire.sim.fabric.sends import Sends

KINDS = ("reduce_scatter", "all_gather")


@dataclass(frozen=True)
class _Steps:
    """Columns that all programs of a ring have in common; N workers, C rails, 2 (N - 1) N C messages."""

    step: NDArray[np.int64]
    worker: NDArray[np.int64]
    rail: NDArray[np.int64]
    receiver: NDArray[np.int64]
    segment: NDArray[np.int64]
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, workers: int, rails: int) -> _Steps:
        turn, rail = np.divmod(np.arange(2 * (workers - 1) * workers * rails), rails)
        step, worker = np.divmod(turn, workers)
        receiver = (worker + 1) % workers
        before = np.arange(len(step) - workers * rails)
        after = ((step[before] + 1) * workers + receiver[before]) * rails + rail[before]
        segment = (worker - step) % workers * rails + rail
        return cls(step, worker, rail, receiver, segment, np.stack((before, after), axis=1))


class RingProgram(Ring):
    """The exchange of one job in a ring, run by the fabric."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        self._steps = _Steps.of(len(context.workers), self.rails)
        self._blocks: dict[tuple[int, int], Block] = {}  # (iteration, bucket)
        self._rails_left: dict[
            tuple[int, int, int], int
        ] = {}  # (iteration, worker, bucket), until they are all done

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
        first = self.rails * (worker + count * np.arange(count))
        self._coupling.release(block, (first[:, None] + np.arange(self.rails)).ravel())

    def _joined(self, iteration: int, number: int, join: int) -> None:
        """Everything that comes to a worker by one of its rails is there."""
        key = (iteration, join // self.rails, number)
        self._rails_left[key] = self._rails_left.get(key, self.rails) - 1
        if not self._rails_left[key]:
            del self._rails_left[key]
            self._complete(iteration, key[1], number)

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
            part=number * count * self.rails + steps.segment,
            sends=Sends(
                src=context.cards.nodes(hosts[steps.worker], steps.rail),
                dst=context.cards.nodes(hosts[steps.receiver], steps.rail),
                nbytes=np.full(len(steps.step), bucket.segment_bytes, dtype=np.int64),
                priority=bucket.priority,
                bound=np.where(reducing, context.table.push_bound, context.table.pull_bound),
                patterns=patterns,
                pattern=pattern,
                edges=steps.edges,
                gates=(steps.step < count).astype(np.int64),
                join=steps.receiver * self.rails + steps.rail,
            ),
            joined=lambda join: self._joined(iteration, number, join),
            transport=context.transport,
            receivers="hosts" if self.rails == 1 else "network cards",
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
        segments = len(context.workers) * self.rails
        keys = captured[steps.worker] * segments + steps.segment
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
            iteration_, segment = divmod(key, segments)
            bits = self._segment_bits(iteration_, number, segment)
            assert isinstance(bits, np.ndarray)
            patterns.append(bits)
        return patterns, pattern
