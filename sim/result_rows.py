"""`ResultRows` collects the rows of a Result's tables (messages, iterations, drops, flows) as steps are completed.

During a run the engine hands over completed steps and forgets them; at the end the rest is taken from whichever network
was simulated. Rows are stored compactly (`gradwire.result_store.row_blocks`), so memory grows with what is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.result_store.lazy_table import LazyTable
from gradwire.result_store.missing_packets import COLUMNS
from gradwire.result_store.row_blocks import BlockTable, ColumnStore
from gradwire.result_store.table_schema import CAUSES
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import CompletedStep
from gradwire.sim.engine.tables import DROPS_BY, drop_columns
from gradwire.sim.message_table import (
    IterationRow,
    MessageRows,
    iteration_columns,
    iteration_rows,
    message_counts,
    table_blocks,
)
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.network_interface import Track
from gradwire.topology import Network
from gradwire.workload.program import ProgramPart
from gradwire.workload.unloaded_time import unloaded_times

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.engine.tables import FabricTables
    from gradwire.topology.routing import Routing


class ResultRows:
    """The rows so far: the `gradwire.sim.engine.program.completed_step.StepTaker` of a run.

    Attributes
    ----------
    messages : the table of messages, with totals.
    iterations : rows of the table of iterations.
    """

    def __init__(self, scenario: Scenario, network: Network) -> None:
        shelf = self._shelf = ColumnStore()
        self._scenario, self._network = scenario, network
        self.messages = MessageRows(network.names, [transport.payload for transport in scenario.transports], shelf)
        self.iterations: list[IterationRow] = []
        self._missing = table_blocks("missing", shelf, ("message",))
        self._drops = table_blocks("drops", shelf, DROPS_BY)

    def step(self, part: ProgramPart, number: int, over: CompletedStep, counts: MessageCounts, missing: Ints) -> None:
        self._step(part, number, over, counts, Ps(at.FOREVER))
        self._missing.add(dict(zip(COLUMNS, missing.T, strict=True)))

    def drops(self, rows: Ints) -> None:
        self._drops.add(drop_columns(rows))

    def _step(self, part: ProgramPart, number: int, outcome: CompletedStep, counts: MessageCounts, end_ps: Ps) -> None:
        self.messages.add_step(part.table, outcome, counts, end_ps)
        if len(part.hosts):
            self.iterations += iteration_rows(part, number, outcome)

    def take_rest(self, coupling: Coupling, tracks: Sequence[Track], tables: FabricTables, end_ps: Ps) -> None:
        """Take what has not been handed over, from any network, which has advanced to `end_ps`."""
        counts = message_counts(tables)
        self.messages.add_messages(coupling.messages, counts)
        for track in tracks:
            for number, step in enumerate(track.steps, track.handed.steps):
                self._step(track.part, number, step, counts, end_ps)
        if tables.missing:
            self._missing.add({name: np.asarray(tables.missing[name], dtype=np.int64) for name in COLUMNS})
        log = getattr(coupling.fabric, "drop_log", None)
        if log is not None:
            self.drops(log())

    def tables(self, routing: Routing) -> dict[str, LazyTable | Columns]:
        """Return the tables by name."""
        ports = [self._network.link_name(link) for link in range(self._network.link_count)]
        return {
            "iterations": {**iteration_columns(self.iterations)},
            "messages": self.messages.table(),
            "flows": self._flows(routing),
            "drops": BlockTable("drops", self._drops, {"port": ports, "cause": CAUSES}),
            "missing": BlockTable("missing", self._missing, {}),
        }

    def _flows(self, routing: Routing) -> LazyTable:
        """Return the table of flows: the unloaded transfer time of each, by message number."""
        blocks = table_blocks("flows", self._shelf, ("message",))
        for table in self._scenario.traffic:
            transport = self._scenario.transports[self._scenario.transport_of(table)]
            for rows in self.messages.flows_of(table.name):
                src, dst, nbytes = (rows[name].astype(np.int64) for name in ("src", "dst", "bytes"))
                ideal = unloaded_times(
                    self._network,
                    routing,
                    src,
                    dst,
                    nbytes,
                    transport.payload,
                    transport.overhead,
                    self._scenario.load_balancing,
                )
                blocks.add({"message": rows["message"], "ideal_ps": ideal})
        return BlockTable("flows", blocks, {})
