"""A host's part of a program: its events, its processes and the messages that begin or end there, cut out of the whole.

It is all that a `gradwire.emu.agent.script.Script` plays, and says what the messages from here are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.emu.agent.base import MessageRow
from gradwire.experiment.program import Process, Program, Table
from gradwire.experiment.scheduling import LAYER
from gradwire.scenarios.arrays import Ints

GATHER = 3
"""Of `gradwire.scenarios.result.KINDS`, which an agent does not import: "all_gather"."""


@dataclass(frozen=True)
class Part:
    """What one host needs of a program. Events and messages have the numbers that they have there.

    rows : every message that the host sends or receives.
    rank : of those that it sends, where their table's order is "layer".
    needs, after, posts : of the host's events, messages to it among them; an event without entry in `after` or `posts`
        has none, one without entry in `needs` needs one.
    work : event -> (station, picoseconds), where firing takes work.
    carries : what the messages that it sends are made of.
    """

    node: int
    tables: tuple[Table, ...]
    rows: dict[int, MessageRow]
    rank: dict[int, int]
    needs: dict[int, int]
    after: dict[int, tuple[int, ...]]
    posts: dict[int, tuple[int, ...]]
    work: dict[int, tuple[int, int]]
    processes: tuple[Process, ...]
    carries: dict[int, Carried]


class Carried(NamedTuple):
    """What a message from this host is made of; see `gradwire.experiment.program.Program`. `worker` : of the message's
    job on this host, -1 without one; `tensor` is -1 where it is part of a bucket, `bucket` where it is not. `places` :
    of every message of `sums`, the first of its elements, counted from this message's first one, and whether it goes
    in the place of what is there."""

    worker: int
    captured: int
    tensor: int
    bucket: int
    first: int
    sums: tuple[int, ...] | None
    own: bool
    places: tuple[tuple[int, bool], ...] = ()


def part_of(program: Program, node: int, untagged: Sequence[bool] = ()) -> Part:
    """Cut out what a host needs. `untagged`: by transport, whether packets that nobody has tagged are important; they
    are where nothing is said."""
    messages = program.messages
    own = np.flatnonzero(program.host == node)
    ends = np.flatnonzero((messages.src == node) | (messages.dst == node))
    columns = [
        column[ends].tolist()
        for column in (
            messages.table, messages.src, messages.dst, messages.nbytes, messages.priority, messages.bound,
            messages.rank, messages.share, messages.pool, messages.turn,
        )
    ]  # fmt: skip
    rows, rank = {}, {}
    for number, table, src, dst, nbytes, priority, bound, place, share, pool, turn in zip(
        ends.tolist(), *columns, strict=True
    ):
        given = messages.important[number]
        transport = program.tables[table].transport
        important = (transport >= len(untagged) or untagged[transport]) if given is None else given
        rows[number] = MessageRow(
            number, table, src, dst, nbytes, priority, bound, important, transport, share, pool, turn
        )
        if src == node and program.tables[table].order == LAYER:
            rank[number] = place
    worked = own[program.station[own] >= 0]
    triples = (worked, program.station[worked], program.effort[worked])
    several = own[program.needs[own] != 1]
    return Part(
        node,
        program.tables,
        rows,
        rank,
        dict(zip(several.tolist(), program.needs[several].tolist(), strict=True)),
        _lists(program.after, own),
        _lists(program.posts, own),
        {
            event: (station, effort)
            for event, station, effort in zip(*(c.tolist() for c in triples), strict=True)
        },
        tuple(process for process in program.processes if process.host == node),
        _carried(program, node),
    )


def _carried(program: Program, node: int) -> dict[int, Carried]:
    messages, workers = program.messages, program.workers()
    own = np.flatnonzero(messages.src == node)
    columns = (messages.table, messages.captured, messages.tensor, messages.part, messages.first)
    found = {}
    for number, row in zip(
        own.tolist(), zip(*(column[own].tolist() for column in columns), strict=True), strict=True
    ):
        index, captured, tensor, part, first = row
        table = program.tables[index]
        bucket = part // table.segments if table.buckets else -1
        worker = workers.get((index, node), -1)
        sums = program.sums[number]
        places = tuple((int(messages.first[each]) - first, bool(messages.kind[each] == GATHER)) for each in sums or ())
        found[number] = Carried(worker, captured, tensor, bucket, first, sums, program.own[number], places)
    return found


def _lists(lists: tuple[Ints, Ints], those: Ints) -> dict[int, tuple[int, ...]]:
    first, listed = lists
    those = those[first[those + 1] > first[those]]
    ends = zip(those.tolist(), first[those].tolist(), first[those + 1].tolist(), strict=True)
    return {event: tuple(listed[begin:end].tolist()) for event, begin, end in ends}
