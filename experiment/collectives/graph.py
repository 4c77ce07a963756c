"""Graphs of ranks as steps of a program; what is played, and how, says `gradwire.experiment.collectives.kinds.graph`.

As events, per iteration: the worker begins -> begun, which nodes without needs count; a node of a unit computes, in its
process, which waits for needs that are elsewhere and then fires the node's event; a node that takes no time is an event
that counts its needs. A call at a rank: its needs -> start: the first messages; start, all deliveries to the rank ->
complete, which is the node's event (that of a send is its start). All iterations have the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gradwire.components.limits import MAX_PACKETS
from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, lists, messages
from gradwire.experiment.collectives.kinds.graph import Graph
from gradwire.experiment.collectives.parallel import ELEMENT, nothing, plan_of
from gradwire.experiment.collectives.schedule import Transfers, links
from gradwire.experiment.courses import Row
from gradwire.experiment.program import (
    BACKWARD_END,
    COMPUTE,
    END,
    FIRE,
    FORWARD_END,
    NOTE,
    START,
    UNTIL,
    WAIT,
    Course,
    Importance,
    Ints,
    Messages,
    Step,
)
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import Allowance
from gradwire.traces.graphs import ROLES, SEND, Call

NOTHING = -1


class Sent(NamedTuple):
    """A message of an iteration: ranks, network card, bytes, and its kind in the Result."""

    src: int
    dst: int
    rail: int
    nbytes: int
    kind: str


class Played(Exchange):
    """The exchange of one job whose workers play the graphs of ranks."""

    repeats = True

    def __init__(self, context: JobContext, table: Graph) -> None:
        super().__init__(context)
        if context.trace.graphs is None:
            what = f"plays graphs of ranks, and the trace {context.trace.name} has none"
            raise ScenarioError(what, "job.exchange", "a trace imported with --ranks")
        self.graphs = context.trace.graphs
        self._algorithm = table.algorithm
        self._sent: list[Sent] = []
        self._needs: list[int] = []  # of events, without deliveries, which are numbered behind them at first
        self._at: list[int] = []
        self._after: list[tuple[int, int]] = []
        self._posts: list[tuple[int, int]] = []
        self._build()
        longest = max(each.nbytes for each in self._sent)
        if longest > context.payload * MAX_PACKETS:
            what = f"makes messages of {-(-longest // context.payload)} packets"
            raise ScenarioError(what, "job.exchange", expected=f"at most {MAX_PACKETS} packets in a message")
        self._step = self._made()

    # --- the events of an iteration: deliveries are -1, -2, ... while they are counted

    def _event(self, rank: int, needs: int) -> int:
        self._needs.append(needs)
        self._at.append(rank)
        return len(self._needs) - 1

    def _build(self) -> None:
        graphs = self.graphs
        count, effort = len(graphs.names), graphs.effort_ps.tolist()
        rank, unit, call = graphs.rank.tolist(), graphs.unit.tolist(), graphs.call.tolist()
        self.begun = [self._event(each, 1) for each in range(graphs.ranks)]
        self.event = [NOTHING] * count  # that is fired when a node is over
        rows: dict[int, dict[int, int]] = {}  # by call and rank
        starts: dict[int, int] = {}
        for row in range(count):
            if call[row] >= 0:
                rows.setdefault(call[row], {})[rank[row]] = row
                starts[row] = self._event(rank[row], max(len(graphs.of(row)), 1))
            else:
                self.event[row] = self._event(rank[row], 1 if effort[row] else max(len(graphs.of(row)), 1))
        for number, at in rows.items():
            self._call(graphs.calls[number], [at[each] for each in graphs.calls[number].members], starts)
        for row in range(count):
            counting = starts.get(row, NOTHING if effort[row] else self.event[row])
            if counting >= 0:  # nodes that compute are fired by their processes
                before = [self.event[each] for each in graphs.of(row)] or [self.begun[rank[row]]]
                self._after += [(each, counting) for each in before]
        cpus = {r for r, u, spent, c in zip(rank, unit, effort, call, strict=True) if u and spent and c < 0}
        self.units = [(0, each) for each in range(graphs.ranks)] + [(1, each) for each in sorted(cpus)]

    def _call(self, call: Call, rows: list[int], starts: dict[int, int]) -> None:
        """The messages of a call, whose members' nodes are these rows, and what they and the members wait for."""
        start = [starts[row] for row in rows]
        if call.kind == SEND:
            message = self._send(call.members[0], call.members[1], 0, call.bytes, "point_to_point")
            self._posts.append((start[0], message))
            over = self._event(call.members[1], 2)
            self._after += [(message, over), (start[1], over)]
            self.event[rows[0]], self.event[rows[1]] = start[0], over
            return
        plan = plan_of(call.kind, self._algorithm, len(rows), self.context.rails)
        size = -(-call.bytes // (ELEMENT * plan.segments)) * ELEMENT
        columns = (each.tolist() for each in (plan.src, plan.dst, plan.rail, plan.count))
        numbers = [
            self._send(call.members[src], call.members[dst], rail, many * size, "collective")
            for src, dst, rail, many in zip(*columns, strict=True)
        ]
        self._follow(plan, numbers, start)
        for place, row in enumerate(rows):
            got = np.flatnonzero(plan.dst == place).tolist()
            self.event[row] = over = self._event(call.members[place], 1 + len(got))
            self._after += [(start[place], over), *((numbers[each], over) for each in got)]

    def _follow(self, plan: Transfers, numbers: list[int], start: list[int]) -> None:
        """What each message of a collective is posted by."""
        found = links(plan)
        by_group: dict[int, list[int]] = {}
        for transfer, group in enumerate(found.group.tolist()):
            by_group.setdefault(group, []).append(numbers[transfer])
        for group, those in by_group.items():
            source = int(plan.src[found.lead[group]])
            needed = found.needs[found.begins[group] : found.begins[group + 1]].tolist()
            causes = [numbers[each] for each in needed] + [start[source]] * bool(found.own[group])
            by = causes[0]
            if len(causes) > 1:
                by = self._event(self._at[start[source]], len(causes))
                self._after += [(each, by) for each in causes]
            self._posts += [(by, each) for each in those]

    def _send(self, src: int, dst: int, rail: int, nbytes: int, kind: str) -> int:
        self._sent.append(Sent(src, dst, rail, nbytes, kind))
        return -len(self._sent)

    # --- as a step

    def _made(self) -> Step:
        """The step of an iteration, whose messages are of none yet."""
        n, context = len(self._sent), self.context

        def numbered(events: list[int]) -> Ints:
            given = np.array(events, dtype=np.int64)
            return np.where(given < 0, -1 - given, given + n)

        pairs = [
            (numbered([each[0] for each in given]), numbered([each[1] for each in given]))
            for given in (self._after, self._posts)
        ]
        hosts, src, dst, rail = np.array(context.workers), *np.array([each[:3] for each in self._sent]).T
        self._ends = context.cards.ends(hosts[src], hosts[dst], rail)
        needs = np.concatenate([np.ones(n, dtype=np.int64), np.array(self._needs, dtype=np.int64)])
        total = len(needs)
        self._first = n
        return Step(
            messages=self._messages(0), needs=needs, host=np.concatenate([self._ends[1], context.nodes[self._at]]),
            after=lists([pairs[0]], total), posts=lists([pairs[1]], total),
            station=np.full(total, -1, dtype=np.int64), effort=np.zeros(total, dtype=np.int64),
            contents=lambda: (nothing(n), np.zeros(n, dtype=np.bool_)),
        )  # fmt: skip

    def _messages(self, iteration: int) -> Messages:
        n = len(self._sent)
        return messages(
            self.context, np.array([each.kind for each in self._sent]), Importance((), np.full(n, Importance.AS_SENT)),
            iteration=iteration, tensor=-1, layer=-1, part=np.arange(n), src=self._ends[0], dst=self._ends[1],
            nbytes=np.array([each.nbytes for each in self._sent], dtype=np.int64), priority=0,
            loss=Allowance(0.0, 0.0), rank=0, captured=-1, first=0,
        )  # fmt: skip

    @property
    def threads(self) -> Ints:
        """CPUs that compute, behind the workers, which are GPUs."""
        return np.array([self.context.nodes[rank] for unit, rank in self.units if unit], dtype=np.int64)

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        return ((),), len(self._sent)

    @property
    def unit_bytes(self) -> int:
        return max(each.nbytes for each in self._sent)

    @property
    def bytes_per_iteration(self) -> int:
        return sum(each.nbytes for each in self._sent)

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        workers, layers = len(self.context.workers), len(self.context.trace.layers)
        step = replace(self._step, messages=self._messages(number))
        return Exchanged(
            step, nothing(workers * len(self.context.trace.tensors)), np.full((workers, layers + 1), -1, dtype=np.int64)
        )

    def courses(self, iteration: int, factor: Callable[[int], float], start: int) -> tuple[Course, ...]:
        """What GPUs and CPUs do in an iteration, see `Exchange.courses`."""
        found = []
        for process, (unit, rank) in enumerate(self.units):
            rows: list[Row] = [(UNTIL, start, -1)] if iteration == 0 and start else []
            begun = self._first + self.begun[rank]
            if unit:
                rows.append((WAIT, begun, iteration))
            else:
                rows += [(NOTE, START, iteration), (FIRE, begun, -1)]
            rows += self._computing(unit, rank, iteration, factor(rank))
            found.append(Course(process, np.array(rows, dtype=np.int64)))
        return tuple(found)

    def _computing(self, unit: int, rank: int, iteration: int, factor: float) -> list[Row]:
        """The nodes of a unit one after the other; behind those of a GPU, everything else of its rank."""
        graphs, rows, waited = self.graphs, list[Row](), set[int]()
        mine = np.flatnonzero(graphs.rank == rank)
        computed = mine[(graphs.effort_ps[mine] > 0) & (graphs.call[mine] < 0)]
        here = computed[graphs.unit[computed] == unit].tolist()
        own, clock, spent = set(here), 0, 0
        last = {role: max((row for row in here if graphs.role[row] == ROLES.index(role)), default=-1) for role in ROLES}
        behind = {FORWARD_END: last["forward"], BACKWARD_END: max(last["forward"], last["backward"])}

        def wait(row: int) -> None:
            if row not in own and row not in waited:
                waited.add(row)
                rows.append((WAIT, self._first + self.event[row], iteration))

        def note(before: int) -> None:
            for what, row in list(behind.items()):
                if not unit and row < before:
                    rows.append((NOTE, what, iteration))
                    del behind[what]

        for row in here:
            note(row)
            for each in graphs.of(row):
                wait(each)
            spent += int(graphs.effort_ps[row])
            until = round(spent * factor)  # moments are rounded, so that errors do not add up
            if until > clock:
                rows.append((COMPUTE, until - clock, -1))
            clock = until
            rows.append((FIRE, self._first + self.event[row], -1))
        if not unit:
            note(len(graphs.names))
            for row in mine.tolist():
                wait(row)
            rows.append((NOTE, END, iteration))
        return rows
