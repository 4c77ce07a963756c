"""`part_of` extracts one host's events, processes and messages from a scenario's program, for the host's agent.

`HostProgram` is the input of `gradwire.emu.agent.script.Script`, and describes the contents of messages from this host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.emu.agent.base import MessageRow
from gradwire.scenarios.arrays import Ints
from gradwire.workload.program import MessageColumns, Process, Program
from gradwire.workload.scheduling import LAYER

GATHER = 3
"""Index of "all_gather" in `gradwire.result_store.table_schema.KINDS`, which an agent does not import."""


@dataclass(frozen=True)
class HostProgram:
    """A program's data for one host, with the program's numbers of events and messages.

    rows : every message that the host sends or receives.
    rank : of those that it sends, if their table's order is "layer".
    needs, after, posts : of the host's events, including messages to it; an event without entry in `after` or `posts`
        has none, one without entry in `needs` needs one.
    work : event -> (station, picoseconds), if firing takes work.
    carries : contents of the messages that it sends.
    """

    node: int
    tables: tuple[MessageColumns, ...]
    rows: dict[int, MessageRow]
    rank: dict[int, int]
    needs: dict[int, int]
    after: dict[int, tuple[int, ...]]
    posts: dict[int, tuple[int, ...]]
    work: dict[int, tuple[int, int]]
    processes: tuple[Process, ...]
    carries: dict[int, MessageContents]


class MessageContents(NamedTuple):
    """The contents of a message from this host; see `gradwire.workload.program.Program`.

    worker : of the message's job on this host, -1 without one.
    tensor, bucket : one of them is -1: the message is part of a tensor or of a bucket.
    places : for every message of `sums`, the offset of its first element from this message's first one, and whether it
        replaces the elements there.
    """

    worker: int
    captured: int
    tensor: int
    bucket: int
    first: int
    sums: tuple[int, ...] | None
    own: bool
    places: tuple[tuple[int, bool], ...] = ()


def part_of(program: Program, node: int, untagged: Sequence[bool] = ()) -> HostProgram:
    """Return a host's part of a program.

    untagged : by transport, whether untagged packets are important; True if missing.
    """
    messages = program.messages
    host_events = np.flatnonzero(program.host == node)
    ends = np.flatnonzero((messages.src == node) | (messages.dst == node))
    names = ("table", "src", "dst", "nbytes", "priority", "bound", "rank", "share", "pool", "turn")
    columns = [getattr(messages, name)[ends].tolist() for name in names]
    rows, rank = {}, {}
    for number, table, src, dst, nbytes, priority, bound, position, share, pool, turn in zip(
        ends.tolist(), *columns, strict=True
    ):
        tags = messages.important[number]
        transport = program.tables[table].transport
        important = (transport >= len(untagged) or untagged[transport]) if tags is None else tags
        rows[number] = MessageRow(
            number, table, src, dst, nbytes, priority, bound, important, transport, share, pool, turn
        )
        if src == node and program.tables[table].order == LAYER:
            rank[number] = position
    work_events = host_events[program.station[host_events] >= 0]
    triples = (work_events, program.station[work_events], program.effort[work_events])
    several = host_events[program.needs[host_events] != 1]
    return HostProgram(
        node,
        program.tables,
        rows,
        rank,
        dict(zip(several.tolist(), program.needs[several].tolist(), strict=True)),
        _lists(program.after, host_events),
        _lists(program.posts, host_events),
        {event: (station, effort) for event, station, effort in zip(*(c.tolist() for c in triples), strict=True)},
        tuple(process for process in program.processes if process.host == node),
        _carried(program, node),
    )


def _carried(program: Program, node: int) -> dict[int, MessageContents]:
    messages, workers = program.messages, program.workers()
    host_messages = np.flatnonzero(messages.src == node)
    columns = (messages.table, messages.captured, messages.tensor, messages.part, messages.first)
    contents = {}
    for number, row in zip(
        host_messages.tolist(), zip(*(column[host_messages].tolist() for column in columns), strict=True), strict=True
    ):
        index, captured, tensor, part, first = row
        table = program.tables[index]
        bucket = part // table.segments if table.buckets else -1
        worker = workers.get((index, node), -1)
        sums = program.sums[number]
        places = tuple(
            (int(messages.first[other]) - first, bool(messages.kind[other] == GATHER)) for other in sums or ()
        )
        contents[number] = MessageContents(worker, captured, tensor, bucket, first, sums, program.own[number], places)
    return contents


def _lists(lists: tuple[Ints, Ints], events: Ints) -> dict[int, tuple[int, ...]]:
    first, listed = lists
    events = events[first[events + 1] > first[events]]
    ends = zip(events.tolist(), first[events].tolist(), first[events + 1].tolist(), strict=True)
    return {event: tuple(listed[begin:end].tolist()) for event, begin, end in ends}
