"""`GraphPlayback` converts the ranks' operation graphs of a trace (compute nodes, collectives, sends, receives) into
steps of messages and events. `gradwire.workload.collectives.exchanges.graph` describes the model.

As events, per iteration: the worker begins -> begun, which nodes without dependencies count; a compute node of a unit
is computed by the unit's process, which waits for dependencies elsewhere and then fires the node's event; a node that
takes no time is an event that counts its dependencies. A call at a rank: its dependencies -> start: the first messages;
start, all deliveries to the rank -> complete, which is the node's event (that of a send is its start). All iterations
have the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import LossAllowance
from gradwire.traces.rank_graphs import ROLES, SEND, RankCall
from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    JobContext,
    make_messages,
    refuse_long,
)
from gradwire.workload.collectives.common.model_parallel import ELEMENT, call_transfers
from gradwire.workload.collectives.common.transfer_schedule import Transfers, dependencies_of
from gradwire.workload.csr import csr_lists, empty_lists
from gradwire.workload.program import (
    BACKWARD_END,
    COMPUTE,
    END,
    FIRE,
    FORWARD_END,
    NOTE,
    START,
    UNTIL,
    WAIT,
    Ints,
    Messages,
    PacketImportance,
    ProcessOperations,
    Step,
)
from gradwire.workload.worker_schedule import OperationRow

if TYPE_CHECKING:
    from gradwire.workload.collectives.exchanges.graph import GraphExchange

NOTHING = -1


class SentMessage(NamedTuple):
    """A message of an iteration: ranks, NIC, bytes, and its kind in the Result."""

    src: int
    dst: int
    rail: int
    nbytes: int
    kind: str


class GraphPlayback(Exchange):
    """The exchange of one job whose workers play the graphs of ranks."""

    repeats = True

    def __init__(self, context: JobContext, table: GraphExchange) -> None:
        super().__init__(context)
        if context.trace.graphs is None:
            what = f"plays graphs of ranks, and the trace {context.trace.name} has none"
            raise ScenarioError(what, "job.exchange", "a trace imported with --ranks")
        self.graphs = context.trace.graphs
        self._algorithm = table.algorithm
        self._sent: list[SentMessage] = []
        self._needs: list[int] = []  # of events without deliveries, which are numbered after the deliveries at the end
        self._at: list[int] = []
        self._after: list[tuple[int, int]] = []
        self._posts: list[tuple[int, int]] = []
        self._build()
        refuse_long(self.unit_bytes, context.payload, "job.exchange")
        self._step = self._finished_step()

    # --- the events of an iteration: deliveries are numbered -1, -2, ... until their number is known

    def _event(self, rank: int, needs: int) -> int:
        self._needs.append(needs)
        self._at.append(rank)
        return len(self._needs) - 1

    def _build(self) -> None:
        graphs = self.graphs
        count, effort = len(graphs.names), graphs.effort_ps.tolist()
        rank, unit, call = graphs.rank.tolist(), graphs.unit.tolist(), graphs.call.tolist()
        self.begun = [self._event(number, 1) for number in range(graphs.ranks)]
        self.event = [NOTHING] * count  # fired when a node is over
        rows: dict[int, dict[int, int]] = {}  # by call and rank
        starts: dict[int, int] = {}
        for row in range(count):
            if call[row] >= 0:
                rows.setdefault(call[row], {})[rank[row]] = row
                starts[row] = self._event(rank[row], max(len(graphs.of(row)), 1))
            else:
                self.event[row] = self._event(rank[row], 1 if effort[row] else max(len(graphs.of(row)), 1))
        for number, row_of in rows.items():
            self._call(graphs.calls[number], [row_of[member] for member in graphs.calls[number].members], starts)
        for row in range(count):
            counting = starts.get(row, NOTHING if effort[row] else self.event[row])
            if counting >= 0:  # compute nodes are fired by their processes
                before = [self.event[need] for need in graphs.of(row)] or [self.begun[rank[row]]]
                self._after += [(event, counting) for event in before]
        self._relay_to_cpus()
        cpus = {r for r, u, spent, c in zip(rank, unit, effort, call, strict=True) if u and spent and c < 0}
        self.units = [(0, number) for number in range(graphs.ranks)] + [(1, number) for number in sorted(cpus)]

    def _relay_to_cpus(self) -> None:
        """Give the CPU of a rank an event of its own for each node it waits for. Only one process can wait for an
        event, and the GPU waits for all nodes of its rank."""
        graphs = self.graphs
        computed = (graphs.effort_ps > 0) & (graphs.call < 0) & (graphs.unit == 1)
        self.relays: dict[int, int] = {}
        for row in np.flatnonzero(computed).tolist():
            for need in graphs.of(row):
                if not computed[need] and need not in self.relays:
                    self.relays[need] = relay = self._event(int(graphs.rank[row]), 1)
                    self._after.append((self.event[need], relay))

    def _call(self, call: RankCall, rows: list[int], starts: dict[int, int]) -> None:
        """Add the messages of a call, whose members' nodes are `rows`, and the dependencies of messages and members."""
        start = [starts[row] for row in rows]
        if call.kind == SEND:
            message = self._send(call.members[0], call.members[1], 0, call.bytes, "point_to_point")
            self._posts.append((start[0], message))
            over = self._event(call.members[1], 2)
            self._after += [(message, over), (start[1], over)]
            self.event[rows[0]], self.event[rows[1]] = start[0], over
            return
        plan = call_transfers(call.kind, self._algorithm, len(rows), self.context.rails)
        size = -(-call.bytes // (ELEMENT * plan.segments)) * ELEMENT
        columns = (column.tolist() for column in (plan.src, plan.dst, plan.rail, plan.count))
        numbers = [
            self._send(call.members[src], call.members[dst], rail, count * size, "collective")
            for src, dst, rail, count in zip(*columns, strict=True)
        ]
        self._follow(plan, numbers, start)
        for member, row in enumerate(rows):
            arrivals = np.flatnonzero(plan.dst == member).tolist()
            self.event[row] = over = self._event(call.members[member], 1 + len(arrivals))
            self._after += [(start[member], over), *((numbers[transfer], over) for transfer in arrivals)]

    def _follow(self, plan: Transfers, numbers: list[int], start: list[int]) -> None:
        dependencies = dependencies_of(plan)
        by_group: dict[int, list[int]] = {}
        for transfer, group in enumerate(dependencies.group.tolist()):
            by_group.setdefault(group, []).append(numbers[transfer])
        for group, posted in by_group.items():
            source = int(plan.src[dependencies.lead[group]])
            needed = dependencies.needs[dependencies.begins[group] : dependencies.begins[group + 1]].tolist()
            causes = [numbers[transfer] for transfer in needed] + [start[source]] * bool(dependencies.own[group])
            by = causes[0]
            if len(causes) > 1:
                by = self._event(self._at[start[source]], len(causes))
                self._after += [(cause, by) for cause in causes]
            self._posts += [(by, message) for message in posted]

    def _send(self, src: int, dst: int, rail: int, nbytes: int, kind: str) -> int:
        self._sent.append(SentMessage(src, dst, rail, nbytes, kind))
        return -len(self._sent)

    # --- as a step

    def _finished_step(self) -> Step:
        """Return the step of an iteration; the iteration of its messages is set later."""
        n, context = len(self._sent), self.context

        def numbered(events: list[int]) -> Ints:
            numbers = np.array(events, dtype=np.int64)
            return np.where(numbers < 0, -1 - numbers, numbers + n)

        pairs = [
            (numbered([pair[0] for pair in edges]), numbered([pair[1] for pair in edges]))
            for edges in (self._after, self._posts)
        ]
        hosts, src, dst, rail = np.array(context.workers), *np.array([message[:3] for message in self._sent]).T
        self._ends = context.cards.cards(hosts[src], hosts[dst], rail)
        needs = np.concatenate([np.ones(n, dtype=np.int64), np.array(self._needs, dtype=np.int64)])
        total = len(needs)
        self._first = n
        return Step(
            messages=self._messages(0),
            needs=needs,
            host=np.concatenate([self._ends[1], context.nodes[self._at]]),
            after=csr_lists([pairs[0]], total),
            posts=csr_lists([pairs[1]], total),
            contents=lambda: (empty_lists(n), np.zeros(n, dtype=np.bool_)),
        )

    def _messages(self, iteration: int) -> Messages:
        n = len(self._sent)
        kinds = np.array([message.kind for message in self._sent])
        return make_messages(
            self.context, kinds, PacketImportance((), np.full(n, PacketImportance.AS_SENT)),
            iteration=iteration, tensor=-1, layer=-1, part=np.arange(n), src=self._ends[0], dst=self._ends[1],
            nbytes=np.array([message.nbytes for message in self._sent], dtype=np.int64), priority=0,
            loss=LossAllowance(0.0, 0.0), rank=0, captured=-1, first=0,
        )  # fmt: skip

    @property
    def threads(self) -> Ints:
        """The nodes of CPUs that compute, after those of the workers, which are GPUs."""
        return np.array([self.context.nodes[rank] for unit, rank in self.units if unit], dtype=np.int64)

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        return ((),), len(self._sent)

    @property
    def unit_bytes(self) -> int:
        return max(message.nbytes for message in self._sent)

    @property
    def bytes_per_iteration(self) -> int:
        return sum(message.nbytes for message in self._sent)

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        workers, layers = len(self.context.workers), len(self.context.trace.layers)
        step = replace(self._step, messages=self._messages(number))
        return ExchangedIteration(
            step,
            empty_lists(workers * len(self.context.trace.tensors)),
            np.full((workers, layers + 1), -1, dtype=np.int64),
        )

    def courses(self, iteration: int, factor: Callable[[int], float], start: int) -> tuple[ProcessOperations, ...]:
        """Return the actions of GPUs and CPUs in an iteration, see `Exchange.courses`."""
        courses = []
        for process, (unit, rank) in enumerate(self.units):
            rows: list[OperationRow] = [(UNTIL, start, -1)] if iteration == 0 and start else []
            begun = self._first + self.begun[rank]
            if unit:
                rows.append((WAIT, begun, iteration))
            else:
                rows += [(NOTE, START, iteration), (FIRE, begun, -1)]
            rows += self._computing(unit, rank, iteration, factor(rank))
            courses.append(ProcessOperations(process, np.array(rows, dtype=np.int64)))
        return tuple(courses)

    def _computing(self, unit: int, rank: int, iteration: int, factor: float) -> list[OperationRow]:
        """Return the rows of a unit's nodes in order; a GPU then waits for all other nodes of its rank."""
        graphs, rows, waited = self.graphs, list[OperationRow](), set[int]()
        rank_rows = np.flatnonzero(graphs.rank == rank)
        computed = rank_rows[(graphs.effort_ps[rank_rows] > 0) & (graphs.call[rank_rows] < 0)]
        here = computed[graphs.unit[computed] == unit].tolist()
        unit_rows, clock, spent = set(here), 0, 0
        last = {role: max((row for row in here if graphs.role[row] == ROLES.index(role)), default=-1) for role in ROLES}
        markers = {FORWARD_END: last["forward"], BACKWARD_END: max(last["forward"], last["backward"])}

        def wait(row: int) -> None:
            if row not in unit_rows and row not in waited:
                waited.add(row)
                event = self.relays[row] if unit else self.event[row]
                rows.append((WAIT, self._first + event, iteration))

        def note(before: int) -> None:
            for what, row in list(markers.items()):
                if not unit and row < before:
                    rows.append((NOTE, what, iteration))
                    del markers[what]

        for row in here:
            note(row)
            for need in graphs.of(row):
                wait(need)
            spent += int(graphs.effort_ps[row])
            until = round(spent * factor)  # rounding the sums, so that errors do not add up
            if until > clock:
                rows.append((COMPUTE, until - clock, -1))
            clock = until
            rows.append((FIRE, self._first + self.event[row], -1))
        if not unit:
            note(len(graphs.names))
            for row in rank_rows.tolist():
                wait(row)
            rows.append((NOTE, END, iteration))
        return rows
