"""`RankSchedule` collects a rank's operations and turns them into a graph, as the graphs of Chakra files."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.chakra_graphs import COMP
from gradwire.traces.formats.chakra_graphs.graph import SENDS, ChakraGraph, ChakraNode
from gradwire.traces.formats.draft import MAX_TIME_PS, PS_PER_NS

CALC, SEND, RECV = "calc", "send", "recv"
MAX_RANKS = 1 << 16
MAX_BYTES = 1 << 53
STARTED = "irequires, read as: what the other operation waits for"


class GoalOperation(NamedTuple):
    """An operation: kind, name, bytes or nanoseconds, peer and tag of a transfer, and whether the CPU computes it."""

    kind: str
    name: str
    size: int
    peer: int = 0
    tag: int = 0
    on_cpu: bool = False


class RankSchedule:
    """The operations of one rank. `after[n]` : those whose end operation n waits for; `with_start[n]` : those whose
    start."""

    def __init__(self) -> None:
        self.operations: list[GoalOperation] = []
        self.after: list[list[int]] = []
        self.with_start: list[list[int]] = []

    def add(self, operation: GoalOperation) -> int:
        """Add an operation and return its number."""
        self.operations.append(operation)
        self.after.append([])
        self.with_start.append([])
        return len(self.operations) - 1

    def graph(self, where: str, notes: Counter[str]) -> ChakraGraph:
        """Return the graph; TraceError for sizes out of range, and for operations that wait to start in a circle."""
        if not self.operations:  # a rank of the job, all the same
            self.add(GoalOperation(CALC, "nothing", 0))
            notes["ranks without operations"] += 1
        graph = ChakraGraph()
        graph.names = []
        for number, operation in enumerate(self.operations):
            if not 0 <= operation.size < (MAX_TIME_PS // PS_PER_NS if operation.kind == CALC else MAX_BYTES):
                raise TraceError(f"{operation.kind} {operation.name} of {operation.size}", where, "a smaller number")
            attributes: dict[str, object] = {"is_cpu_op": operation.on_cpu}
            kind = COMP
            if operation.kind != CALC:
                kind = SENDS[operation.kind == RECV]
                end = "comm_dst" if operation.kind == SEND else "comm_src"
                notes["transfers of 0 bytes, which take 1"] += operation.size == 0
                attributes |= {end: operation.peer, "comm_tag": operation.tag, "comm_size": max(operation.size, 1)}
            deps = sorted(set(self.after[number]) | self._before_start(number, where, notes))
            graph.add(ChakraNode(number, operation.name, kind, 0, [], deps, attributes))
            if operation.kind == CALC:
                graph.durations[number] = operation.size * PS_PER_NS
        return graph

    def _before_start(self, number: int, where: str, notes: Counter[str]) -> set[int]:
        """Return the operations that those wait for whose start an operation waits for, directly or not."""
        found: set[int] = set()
        pending, seen = list(self.with_start[number]), set(self.with_start[number])
        notes[STARTED] += len(pending)
        while pending:
            other = pending.pop()
            if other == number:
                raise TraceError(f"{self.operations[number].name} waits for its own start", where, "no circles")
            found.update(self.after[other])
            new = set(self.with_start[other]) - seen
            seen |= new
            pending += new
        return found
