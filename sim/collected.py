"""Collected: the rows of a Result's tables, as they become final.

While a run is under way, what is over comes step by step from the engine, which forgets it; at its end comes what is
left, from whichever network it was. Rows are kept small meanwhile (`gradwire.scenarios.blocks`), so that memory grows
with what is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.ideal import ideal_times
from gradwire.experiment.program import Part
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.blocks import KeptBlocks, Shelf
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.kept import Kept
from gradwire.scenarios.missing import COLUMNS
from gradwire.scenarios.result import CAUSES
from gradwire.sim.coupling import Coupling
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.over import Over
from gradwire.sim.fabric.tables import DROPS_BY, drop_columns
from gradwire.sim.message_table import (
    Iteration,
    MessageRows,
    blocks_of,
    counts_of,
    iteration_columns,
    iteration_rows,
)
from gradwire.sim.network_like import Track

if TYPE_CHECKING:
    from gradwire.experiment.routing import Routing
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.fabric.tables import Tables


class Collected:
    """The rows so far: the `gradwire.sim.fabric.over.Taker` of a run.

    Attributes
    ----------
    messages : with the totals of all of them.
    iterations : rows of the table.
    """

    def __init__(self, scenario: Scenario, network: Network) -> None:
        shelf = self._shelf = Shelf()
        self._scenario, self._network = scenario, network
        self.messages = MessageRows(network.names, [transport.payload for transport in scenario.transports], shelf)
        self.iterations: list[Iteration] = []
        self._missing = blocks_of("missing", shelf, ("message",))
        self._drops = blocks_of("drops", shelf, DROPS_BY)

    def step(self, part: Part, number: int, over: Over, counts: Counts, missing: Ints) -> None:
        self._step(part, number, over, counts, Ps(at.FOREVER))
        self._missing.add(dict(zip(COLUMNS, missing.T, strict=True)))

    def drops(self, rows: Ints) -> None:
        self._drops.add(drop_columns(rows))

    def _step(self, part: Part, number: int, over: Over, counts: Counts, end_ps: Ps) -> None:
        self.messages.add_step(part.table, over, counts, end_ps)
        if len(part.hosts):
            self.iterations += iteration_rows(part, number, over)

    def rest(self, coupling: Coupling, tracks: Sequence[Track], tables: Tables, end_ps: Ps) -> None:
        """Take what has not been handed over, from whichever network it is. `end_ps`: how far that has come."""
        counts = counts_of(tables)
        self.messages.add_messages(coupling.messages, counts)
        for track in tracks:
            for number, step in enumerate(track.steps, track.handed.steps):
                self._step(track.part, number, step, counts, end_ps)
        if tables.missing:
            self._missing.add({name: np.asarray(tables.missing[name], dtype=np.int64) for name in COLUMNS})
        log = getattr(coupling.fabric, "drop_log", None)
        if log is not None:
            self.drops(log())

    def kept(self, routing: Routing) -> dict[str, Kept | Columns]:
        """The tables, by name."""
        ports = [self._network.link_name(link) for link in range(self._network.link_count)]
        return {
            "iterations": {**iteration_columns(self.iterations)},
            "messages": self.messages.kept(),
            "flows": self._flows(routing),
            "drops": KeptBlocks("drops", self._drops, {"port": ports, "cause": CAUSES}),
            "missing": KeptBlocks("missing", self._missing, {}),
        }

    def _flows(self, routing: Routing) -> Kept:
        """The table of flows: how long each would have taken on an empty network, by number of the message."""
        found = blocks_of("flows", self._shelf, ("message",))
        for table in self._scenario.traffic:
            transport = self._scenario.transports[self._scenario.transport_of(table)]
            for rows in self.messages.flows_of(table.name):
                src, dst, nbytes = (rows[name].astype(np.int64) for name in ("src", "dst", "bytes"))
                ideal = ideal_times(
                    self._network, routing, src, dst, nbytes, transport.payload, transport.overhead,
                    self._scenario.load_balancing,
                )  # fmt: skip
                found.add({"message": rows["message"], "ideal_ps": ideal})
        return KeptBlocks("flows", found, {})
