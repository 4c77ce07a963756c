"""A program written out: all parts, from the first step to the last one, as hosts need it that run on their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gradwire.experiment.program import (
    COMPUTE,
    END,
    FIRE,
    NOTE,
    UNTIL,
    WAIT,
    Course,
    Ints,
    Lists,
    Messages,
    Operation,
    Part,
    Process,
    Program,
    Step,
)
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json


def written_out(parts: Sequence[Part]) -> Program:
    """The program of these parts. Messages are numbered part by part, and step by step; other events follow."""
    steps = [(part, list(part.steps())) for part in parts]
    total = sum(len(step.messages) for _, mine in steps for step in mine)
    writing = _Writing(total)
    for number, (part, mine) in enumerate(steps):
        writing.add(number, part, mine)
    return writing.finish([part.table for part in parts])


class _Writing:
    """Columns of everything, as it grows."""

    def __init__(self, messages: int) -> None:
        self.messages = 0
        self.events = messages  # numbers of events that are no messages follow those that are
        self.rows: list[Messages] = []
        self.delivery: list[tuple[object, ...]] = []  # needs, host, station, effort of deliveries ...
        self.other: list[tuple[object, ...]] = []  # ... and of other events
        self.after: list[tuple[Ints, Ints]] = []
        self.posts: list[tuple[Ints, Ints]] = []
        self.processes: list[Process] = []
        self.sums: list[Any] = []
        self.own: list[bool] = []
        self.stations: dict[int, int] = {}  # how many a host has

    def add(self, number: int, part: Part, steps: Sequence[Step]) -> None:
        """A part, with the number of its table."""
        station = np.array([self._station(node) for node in part.stations.tolist()], dtype=np.int64)
        numbers: list[Ints] = []
        courses: list[Course] = []
        for step in steps:
            numbers.append(self._step(step, station))
            courses += step.courses
            self._timed(number, step, numbers[-1])
        counted = np.concatenate([*numbers, np.zeros(0, dtype=np.int64)])  # the part's events, counted through
        for process, (host, worker) in enumerate(zip(part.hosts.tolist(), part.workers.tolist(), strict=True)):
            mine = np.concatenate([course.operations for course in courses if course.process == process])
            named = np.isin(mine[:, 0], (FIRE, WAIT))
            mine = mine.copy()
            mine[named, 1] = counted[mine[named, 1]]
            self.processes.append(
                Process(host, number, worker, tuple(Operation(*row) for row in mine.tolist()), _compute(mine))
            )

    def _station(self, node: int) -> int:
        self.stations[node] = self.stations.get(node, -1) + 1
        return self.stations[node]

    def _step(self, step: Step, station: Ints) -> Ints:
        """Add a step. Returns the numbers of its events."""
        n, count = len(step.messages), len(step)
        number = np.concatenate((self.messages + np.arange(n), self.events + np.arange(count - n)))
        named = np.where(step.station >= 0, station[step.station] if len(station) else -1, -1)
        columns = (step.needs, step.host, named, step.effort)
        self.delivery.append(tuple(column[:n] for column in columns))
        self.other.append(tuple(column[n:] for column in columns))
        for lists, pairs in ((step.after, self.after), (step.posts, self.posts)):
            owner = np.repeat(np.arange(count), np.diff(lists[0]))
            pairs.append((number[owner], number[lists[1]]))
        if step.settles is not None:
            what = "has flows that start when a sender is done, which a program on real sockets is not told"
            raise ScenarioError(what, "traffic", "recv_done_trigger, or gradwire run")
        self.rows.append(step.messages)
        if step.contents is None:
            self.sums += [None] * n
            self.own += [False] * n
        else:
            (first, members), own = step.contents()
            members = number[members]
            self.sums += [tuple(members[a:b].tolist()) for a, b in pairwise(first)]
            self.own += own.tolist()
        self.messages += n
        self.events += count - n
        return number

    def _timed(self, table: int, step: Step, number: Ints) -> None:
        """Flows that begin by themselves: a process of their source lets them go."""
        if step.begins is None:
            return
        begins: dict[int, list[tuple[int, list[int]]]] = {}
        for flow in np.flatnonzero(step.begins >= 0).tolist():
            mine = begins.setdefault(int(step.messages.src[flow]), [])
            if not mine or mine[-1][0] != step.begins[flow]:
                mine.append((int(step.begins[flow]), []))
            mine[-1][1].append(int(number[flow]))
        for source, moments in begins.items():
            operations = []
            for time, flows in moments:
                operations += [Operation(UNTIL, time), Operation(FIRE, self.events)]
                one = np.ones(1, dtype=np.int64)
                self.other.append((one, source * one, -one, 0 * one))
                self.posts.append((np.full(len(flows), self.events), np.array(flows)))
                self.events += 1
            self.processes.append(Process(source, table, -1, tuple(operations)))

    def finish(self, tables: Sequence[Any]) -> Program:
        """The program of what has been added."""
        needs, host, station, effort = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(row[place] for row in (*self.delivery, *self.other))])
            for place in range(4)
        )
        return Program(
            tables=tuple(tables), messages=_joined(self.rows), needs=needs, host=host,
            after=_lists(self.after, self.events), posts=_lists(self.posts, self.events), station=station,
            effort=effort, processes=tuple(_together(self.processes)), sums=self.sums, own=self.own,
        )  # fmt: skip


def _compute(operations: Ints) -> tuple[int, ...]:
    """Picoseconds spent computing, by iteration."""
    found, current = [], 0
    for operation, value, _ in operations.tolist():
        if operation == COMPUTE:
            current += value
        elif operation == NOTE and value == END:
            found.append(current)
            current = 0
    return tuple(found)


def _together(processes: Sequence[Process]) -> list[Process]:
    """Those of the flows of one source in several batches as one process."""
    merged: dict[tuple[int, int], int] = {}
    found: list[Process] = []
    for each in processes:
        key = (each.host, each.job)
        if each.worker >= 0 or key not in merged:
            if each.worker < 0:
                merged[key] = len(found)
            found.append(each)
        else:
            before = found[merged[key]]
            found[merged[key]] = replace(before, steps=before.steps + each.steps)
    return found


def _joined(rows: Sequence[Messages]) -> Messages:
    columns: Json = {}
    for field in fields(Messages):
        if field.name == "important":
            columns[field.name] = [each for row in rows for each in row.important]
        else:
            kind = np.float64 if field.name in ("bound", "share") else np.int64
            parts = [getattr(row, field.name) for row in rows]
            columns[field.name] = np.concatenate([np.zeros(0, dtype=kind), *parts])
    return Messages(**columns)


def _lists(pairs: Sequence[tuple[Ints, Ints]], owners: int) -> Lists:
    empty = np.zeros(0, dtype=np.int64)
    owner = np.concatenate([empty, *(pair[0] for pair in pairs)])
    item = np.concatenate([empty, *(pair[1] for pair in pairs)])
    order = np.argsort(owner, kind="stable")
    first = np.zeros(owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=owners), out=first[1:])
    return first, np.asarray(item[order], dtype=np.int64)
