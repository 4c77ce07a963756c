"""`export_program` combines all steps of all parts into one program, for hosts that run on their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import count, pairwise
from typing import Any

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.workload.csr import csr_lists, owners_of
from gradwire.workload.program import (
    COMPUTE,
    END,
    FIRE,
    NOTE,
    UNTIL,
    WAIT,
    Ints,
    Messages,
    Operation,
    Process,
    ProcessOperations,
    Program,
    ProgramPart,
    Step,
)


def export_program(parts: Sequence[ProgramPart]) -> Program:
    """Return the program of these parts. Messages are numbered part by part, and step by step; other events follow."""
    steps = [(part, list(part.steps())) for part in parts]
    total = sum(len(step.messages) for _, part_steps in steps for step in part_steps)
    writing = _Writing(total)
    for number, (part, part_steps) in enumerate(steps):
        writing.add(number, part, part_steps)
    return writing.finish([part.table for part in parts])


class _Writing:
    """Builder of a program's columns."""

    def __init__(self, messages: int) -> None:
        self.messages = 0
        self.events = messages  # other events are numbered after the messages
        self.rows: list[Messages] = []
        self.delivery: list[tuple[object, ...]] = []  # needs, host, station, effort of deliveries ...
        self.other: list[tuple[object, ...]] = []  # ... and of other events
        self.after: list[tuple[Ints, Ints]] = []
        self.posts: list[tuple[Ints, Ints]] = []
        self.processes: list[Process] = []
        self.sums: list[Any] = []
        self.own: list[bool] = []
        self.stations: dict[int, Iterator[int]] = defaultdict(count)  # numbers by host

    def add(self, number: int, part: ProgramPart, steps: Sequence[Step]) -> None:
        """Add a part, with the number of its table."""
        station = np.array([next(self.stations[node]) for node in part.stations.tolist()], dtype=np.int64)
        numbers: list[Ints] = []
        courses: list[ProcessOperations] = []
        for step in steps:
            numbers.append(self._step(step, station))
            courses += step.courses
            self._timed(number, step, numbers[-1])
        counted = np.concatenate([*numbers, np.zeros(0, dtype=np.int64)])  # all events of the part
        for process, (host, worker) in enumerate(zip(part.hosts.tolist(), part.workers.tolist(), strict=True)):
            operations = np.concatenate([course.operations for course in courses if course.process == process])
            named = np.isin(operations[:, 0], (FIRE, WAIT))
            operations[named, 1] = counted[operations[named, 1]]
            rows = tuple(Operation(*row) for row in operations.tolist())
            self.processes.append(Process(host, number, worker, rows, _compute(operations)))

    def _step(self, step: Step, station: Ints) -> Ints:
        """Add a step, and return the numbers of its events."""
        n, others = len(step.messages), len(step) - len(step.messages)
        number = np.concatenate((self.messages + np.arange(n), self.events + np.arange(others)))
        named = np.where(step.station >= 0, station[step.station] if len(station) else -1, -1)
        columns = (step.needs, step.host, named, step.effort)
        self.delivery.append(tuple(column[:n] for column in columns))
        self.other.append(tuple(column[n:] for column in columns))
        for links, pairs in ((step.after, self.after), (step.posts, self.posts)):
            pairs.append((number[owners_of(links)], number[links[1]]))
        if step.settles is not None:
            what = "has flows that start when a sender is done, which real sockets do not report"
            raise ScenarioError(what, "traffic", "recv_done_trigger, or gradwire run")
        self.rows.append(step.messages)
        if step.contents is None:
            self.sums += [None] * n
            self.own += [False] * n
        else:
            (first, members), own_gradient = step.contents()
            members = number[members]
            self.sums += [tuple(members[a:b].tolist()) for a, b in pairwise(first)]
            self.own += own_gradient.tolist()
        self.messages += n
        self.events += others
        return number

    def _timed(self, table: int, step: Step, number: Ints) -> None:
        """Add a process at each source that posts flows with start times."""
        if step.begins is None:
            return
        begins: dict[int, list[tuple[int, list[int]]]] = {}
        for flow in np.flatnonzero(step.begins >= 0).tolist():
            batches = begins.setdefault(int(step.messages.src[flow]), [])
            if not batches or batches[-1][0] != step.begins[flow]:
                batches.append((int(step.begins[flow]), []))
            batches[-1][1].append(int(number[flow]))
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
        """Return the program of the added parts."""
        needs, host, station, effort = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(row[column] for row in (*self.delivery, *self.other))])
            for column in range(4)
        )
        return Program(
            tables=tuple(tables),
            messages=_joined(self.rows),
            needs=needs,
            host=host,
            after=csr_lists(self.after, self.events),
            posts=csr_lists(self.posts, self.events),
            station=station,
            effort=effort,
            processes=tuple(_together(self.processes)),
            sums=self.sums,
            own=self.own,
        )


def _compute(operations: Ints) -> tuple[int, ...]:
    """Return the picoseconds spent computing, by iteration."""
    totals, current = [], 0
    for operation, value, _ in operations.tolist():
        if operation == COMPUTE:
            current += value
        elif operation == NOTE and value == END:
            totals.append(current)
            current = 0
    return tuple(totals)


def _together(processes: Sequence[Process]) -> list[Process]:
    """Merge the processes of one source's flows in several batches into one."""
    index: dict[tuple[int, int], int] = {}
    merged: list[Process] = []
    for process in processes:
        key = (process.host, process.job)
        if process.worker >= 0 or key not in index:
            if process.worker < 0:
                index[key] = len(merged)
            merged.append(process)
        else:
            before = merged[index[key]]
            merged[index[key]] = replace(before, steps=before.steps + process.steps)
    return merged


def _joined(rows: Sequence[Messages]) -> Messages:
    columns: Json = {}
    for field in fields(Messages):
        if field.name == "important":
            columns[field.name] = [packets for row in rows for packets in row.important]
        else:
            kind = np.float64 if field.name in ("bound", "share") else np.int64
            parts = [getattr(row, field.name) for row in rows]
            columns[field.name] = np.concatenate([np.zeros(0, dtype=kind), *parts])
    return Messages(**columns)
