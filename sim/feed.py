"""Hands the flows of one traffic to the network, batch by batch, each in time before its first flow starts."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import simpy

from gradwire.experiment.topology import Cards
from gradwire.experiment.traffic.base import Flows
from gradwire.experiment.traffic.rails import ends
from gradwire.sim.coupling import Block, Coupling
from gradwire.sim.fabric.sends import Sends

KINDS = ("flow",)


class Feed:
    """One `[[traffic]]` table as a process beside the jobs.

    Attributes
    ----------
    submitted : flows handed to the network so far, started or not.
    blocks : they, in order.
    """

    def __init__(
        self, table: Any, source: Iterator[Flows], coupling: Coupling, transport: int, cards: Cards
    ) -> None:
        """`cards` : the hosts of the network. `transport` : the fabric's number of what carries the flows."""
        self.table, self.transport, self.cards = table, transport, cards
        self.submitted = 0
        self.blocks: list[Block] = []
        self._source, self._coupling = source, coupling
        self._bytes = 0.0
        self._drawn = False
        self._receivers_left = 0  # joins that are still to come, of all blocks

    @property
    def done(self) -> bool:
        """Whether every flow has been delivered and no more will come."""
        return self._drawn and not self._receivers_left

    @property
    def expected_bytes(self) -> float:
        """Of all flows; while there are more to come, as many as there will be if they go on like this."""
        if self._drawn or not self.blocks:
            return self._bytes
        table, last = self.table, self.blocks[-1]
        flows, rounds = getattr(table, "flows", None), getattr(table, "rounds", None)
        ahead = []  # how many times as many
        if isinstance(flows, int):
            ahead.append(flows / self.submitted)
        if isinstance(rounds, int):
            ahead.append(rounds / (1 + int(np.max(last.iteration))))
        reached = int(np.max(last.sends.start_ps)) - table.start
        if table.stop is not None and reached > 0:
            ahead.append((table.stop - table.start) / reached)
        return self._bytes * max(1.0, min(ahead, default=1.0))

    def start(self) -> None:
        """Submit what begins at once, and leave the rest to a process of the coupling's environment.

        At once, because as soon as anything is under way the network is let run for one software latency, and would
        hear of flows within it too late.
        """
        for batch in self._source:
            if self._early(batch) > 0:
                self._coupling.env.process(self._run(batch))
                return
            self._submit(batch)
        self._drawn = True

    def _early(self, batch: Flows) -> int:
        """Picoseconds until it is to be submitted: what is submitted at s starts at s + latency at the earliest, which
        is as far as the network may be."""
        return int(batch.start_ps.min()) - self._coupling.latency - int(self._coupling.env.now)

    def _run(self, first: Flows) -> Generator[simpy.Event, Any, None]:
        for batch in itertools.chain((first,), self._source):
            early = self._early(batch)
            if early > 0:
                yield self._coupling.env.timeout(early)
            self._submit(batch)
        self._drawn = True

    def _submit(self, batch: Flows) -> None:
        table = self.table
        src, dst = ends(batch, self.cards)
        receivers, join = np.unique(dst, return_inverse=True)
        block = Block(
            job=table.name,
            iteration=batch.round,
            kinds=KINDS,
            kind=np.zeros(len(batch), dtype=np.int8),
            part=batch.flow,
            sends=Sends(
                src=src,
                dst=dst,
                nbytes=batch.nbytes,
                priority=table.priority,
                bound=table.bound,
                important=False if table.droppable else None,
                start_ps=batch.start_ps,
                edges=batch.edges,
                join=join,
            ),
            joined=self._joined,
            transport=self.transport,
            timed=True,
            receivers="hosts" if self.cards.single else "network cards",
        )
        self._coupling.submit(block)
        self.blocks.append(block)
        self.submitted += len(batch)
        self._bytes += float(batch.nbytes.sum())
        self._receivers_left += len(receivers)

    def _joined(self, join: int) -> None:
        self._receivers_left -= 1
