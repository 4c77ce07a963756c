"""Staged collectives: buckets of gradients that go through a schedule of transfers.

The schedule is the kind's, and what follows from what in it is worked out by
`gradwire.experiment.collectives.schedule`.

Tensors are put into buckets in the order in which their gradients become ready; a bucket is closed when it
reaches the wanted size [notes: PyTorch DDP, which also rebuilds its buckets in order of arrival after the
first iteration].  A worker starts on a bucket when all its gradients are ready and the bucket before it was
started, or, where buckets are `blocking`, is complete there.  What it then sends, to whom and after what is the
schedule's; workers are its ranks, in the order of their placement.

As events, per iteration and bucket: all gradients ready, bucket before started -> start: what is made of own values
only; start, deliveries -> what is made of these; all deliveries to a worker and its start -> complete; all buckets
complete -> gate, or layer by layer those that have something of the layer -> the layer's gate.

Our choices: segments are of equal size, rounded up to whole elements (libraries pad as well); buckets do not wait for
each other beyond their start; forward waits for all buckets and then for the captured optimiser step, or, layerwise,
for those of the layer and then for the layer's share of it, by bytes; the sender's own gradient stands for the
magnitude of a sum that it passes on.

A message on the way to a sum is a "reduce_scatter" in the Result, one on the way back an "all_gather", whatever the
shape of the way. Loss bounds hold per message, and losses on the way to a sum add up: with bound_per = "exchange" they
are what all messages of a way together may cost, and each may lose a part of that (`mean_hops`; in a ring of N this
is P / ((N - 1) / 2) [notes: 2P/(N-1)]).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, lists, messages, own_updates
from gradwire.experiment.collectives.buckets import Bucket, Tags, runs_of
from gradwire.experiment.collectives.schedule import Links, Transfers, grouped, links, mean_hops
from gradwire.experiment.collectives.staged_table import StagedTable
from gradwire.experiment.program import Importance, Ints, Lists, Messages, Step
from gradwire.experiment.scheduling import FIFO
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.asked import asked, file_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.result import KINDS

REDUCE_SCATTER, ALL_GATHER = KINDS.index("reduce_scatter"), KINDS.index("all_gather")


class Numbers(NamedTuple):
    """Events of a step: deliveries first, `place` [buckets, transfers], then these.

    start, complete : [buckets, workers].
    joined : [buckets, groups that wait for several things].
    gates : [workers, layers + 1], -1 where there is none.
    own : [2, workers], or [2, 0] where workers do not update parts of their own: reduced, and updated.
    """

    place: Ints
    start: Ints
    complete: Ints
    joined: Ints
    gates: Ints
    own: Ints
    total: int


def transfers_of(table: StagedTable, workers: int, rails: int, inside: int = 1) -> Transfers:
    """The schedule of a kind of collective, by its own rule.

    Raises
    ------
    ScenarioError
        Its rule was stopped, or what it gives is no schedule among so many workers.
    """
    with asked(table, "transfers", "job.exchange"):
        plan: object = table.schedule(workers, rails, inside)
    if isinstance(plan, Transfers):
        wrong = _beyond(plan, workers, rails)
        if not wrong:
            return plan
    else:
        wrong = f"a {type(plan).__name__}"
    what = f"{file_of(type(table))}: transfers of {type(table).__name__} gives {wrong}"
    raise ScenarioError(what, "job.exchange", "Transfers (gradwire.experiment.collectives.schedule) among the workers")


def _beyond(plan: Transfers, workers: int, rails: int) -> str:
    """What in a schedule is there not, in words; empty if all is."""
    if not len(plan):
        return ""
    for name, values, below in (
        ("src", plan.src, workers), ("dst", plan.dst, workers), ("rail", plan.rail, rails),
        ("first", plan.first, plan.segments), ("first + count", plan.first + plan.count, plan.segments + 1),
    ):  # fmt: skip
        if values.min() < 0 or values.max() >= below:
            return f"{name} from {values.min()} to {values.max()}, and {below - 1} is the last"
    return ""


class Staged(Exchange):
    """The exchange of one job by a schedule."""

    worker_optimizes = True
    repeats = True
    updates = False
    """Whether workers update parts of their own between the way to the sums and the way back."""
    one_by_one = False
    """Whether a bucket begins when the one before it is over, not when that has begun."""
    rounds: tuple[Ints, Ints]
    """Events of the iteration that was made last: the start and the end of every bucket at every worker."""

    def __init__(self, context: JobContext, table: StagedTable) -> None:
        scheduling = context.scheduling
        layouts = [runs_of(context, order, table.bucket) for order in context.orders]
        plan = transfers_of(table, context.members, context.rails, context.inside)
        if context.groups is not None:
            plan = grouped(plan, context.groups)
        self._lay(context, plan, [[Bucket.of(context, runs, plan.segments) for runs in each] for each in layouts])
        self.slots = table.slots if scheduling.order == FIFO else 0
        self.slots_apart = table.slots_apart
        self.one_by_one = self.one_by_one or table.blocking
        self.layerwise = (scheduling.forward or table.forward) == "layerwise"

    def _lay(self, context: JobContext, plan: Transfers, layouts: list[list[Bucket]]) -> None:
        """Buckets, for the first iteration, and where there are more, for later ones, that go through a schedule."""
        Exchange.__init__(self, context)
        workers = len(context.workers)
        self.plan = plan
        self._links = found = links(plan)
        self._layouts = layouts
        self.buckets = [bucket for layout in layouts for bucket in layout]
        self._tags = Tags(context, self.buckets)
        self._layers = [bucket.layers for bucket in self.buckets]
        # of the groups of transfers that have the same content: what they wait for
        self._source = plan.src[found.lead]
        self._held = self._holds(plan, found)
        waits = found.counts + found.own + self._held
        self._several = np.flatnonzero(waits > 1)
        self._plain = waits == 1
        self._owner = np.repeat(np.arange(len(waits)), found.counts)  # of `needs`
        hosts = np.array(context.workers)
        self._src, self._dst = context.cards.ends(hosts[plan.src], hosts[plan.dst], plan.rail)
        self._share = (1.0, 1.0)
        if context.table.bound_per == "exchange":
            hops = mean_hops(plan, workers)
            self._share = tuple(1 / max(each, 1.0) for each in hops)  # type: ignore[assignment]

    def _holds(self, plan: Transfers, found: Links) -> Flags:
        """Which groups of transfers wait for the worker's update besides."""
        return np.zeros(len(found.lead), dtype=np.bool_)

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        return tuple(bucket.tensors for bucket in self.buckets), self.plan.segments

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        return tuple(bucket.slice for bucket in self.buckets) if self.context.scheduling.cut is not None else ()

    @property
    def unit_bytes(self) -> int:
        return int(self.plan.count.max()) * max(bucket.segment_bytes for bucket in self.buckets)

    @property
    def bytes_per_iteration(self) -> int:
        return int(self.plan.count.sum()) * sum(bucket.segment_bytes for bucket in self._layouts[-1])

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        before = 0 if number == 0 or len(self._layouts) == 1 else len(self._layouts[0])
        layout = self._layouts[0 if number == 0 else -1]
        order = np.argsort(self._due(layout, ready).ravel(), kind="stable")
        bucket, column = np.divmod(order, len(self.plan))
        numbers, needs, host = self._events(layout, order, last)
        after, posts = self._wiring(layout, numbers)
        self.rounds = numbers.start, numbers.complete
        step = Step(
            messages=self._messages(number, bucket + before, column),
            needs=needs, host=host, station=np.full(len(needs), -1, dtype=np.int64),
            effort=np.zeros(len(needs), dtype=np.int64),
            after=lists(after, len(needs)), posts=lists(posts, len(needs)),
            contents=lambda: self._contents(numbers.place, bucket, column),
        )  # fmt: skip
        reduced, updated = numbers.own
        updates = own_updates(reduced, self.context.members, updated) if self.updates else None
        return Exchanged(step, self._fires(layout, numbers.start), numbers.gates, updates=updates)

    def _due(self, layout: list[Bucket], ready: Ints) -> Ints:
        """When every message could be ready at the earliest, [buckets, transfers]."""
        plan, found = self.plan, self._links
        earliest = self._earliest(layout, ready)
        if self.in_turn:
            earliest = np.maximum.accumulate(earliest, axis=0)
        due = np.zeros((len(layout), len(plan)), dtype=np.int64)
        edges = np.flatnonzero(np.diff(plan.stage, prepend=-1, append=-1))
        # groups are numbered by their first transfers, so those of a stage lie together, and so do their needs
        for begin, end in zip(edges.tolist(), edges.tolist()[1:], strict=False):
            first, behind = found.group[begin], int(found.group[begin:end].max()) + 1
            moment = np.where(found.own[first:behind], earliest[:, self._source[first:behind]], 0)
            low, high = found.begins[first], found.begins[behind]
            if high > low:
                for mine, known in zip(moment, due[:, found.needs[low:high]], strict=True):  # by bucket
                    np.maximum.at(mine, self._owner[low:high] - first, known)
            due[:, begin:end] = moment[:, found.group[begin:end] - first]
        return due

    def _earliest(self, layout: list[Bucket], ready: Ints) -> Ints:
        """When every bucket may begin at the earliest, [buckets, workers]."""
        return np.stack([ready[:, list(bucket.tensors)].max(axis=1) for bucket in layout])

    def _events(self, layout: list[Bucket], order: Ints, last: bool) -> tuple[Numbers, Ints, Ints]:
        """Numbers of events, what each needs, and where it happens."""
        plan, found, nodes = self.plan, self._links, self.context.nodes
        buckets, workers, n = len(layout), len(nodes), len(order)
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        start = n + np.arange(buckets * workers).reshape(buckets, workers)
        complete = start + buckets * workers
        gates, wanted = self._gates(layout, n + 2 * buckets * workers, last)
        behind = n + 2 * buckets * workers + len(wanted) * workers
        joined = behind + np.arange(buckets * len(self._several)).reshape(buckets, len(self._several))
        own = behind + joined.size + np.arange(2 * workers * self.updates).reshape(2, -1)
        total = behind + joined.size + own.size
        needs, host = np.ones(total, dtype=np.int64), np.empty(total, dtype=np.int64)
        host[:n] = self._dst[order % len(plan)]
        host[start], host[complete] = nodes, nodes
        host[joined] = nodes[self._source[self._several]]
        host[gates[gates >= 0]] = np.repeat(nodes, len(wanted))
        needs[start] = self._starts(layout)
        if self.in_turn:
            needs[start[1:]] += 1
        needs[complete] = np.bincount(plan.dst, minlength=workers) + 1
        needs[gates[gates >= 0]] = np.tile(wanted, workers)
        needs[joined] = (found.counts + found.own + self._held)[self._several]
        if self.updates:
            host[own] = nodes
            needs[own[0]] = buckets * (np.bincount(plan.dst[plan.adds], minlength=workers) + 1)
        return Numbers(place.reshape(buckets, -1), start, complete, joined, gates, own, total), needs, host

    @property
    def in_turn(self) -> bool:
        """Whether the buckets of a worker begin one after the other."""
        return self.one_by_one or self.context.scheduling.in_turn

    def _starts(self, layout: list[Bucket]) -> Ints:
        """What has to be fired until a bucket starts, [buckets, 1]."""
        return np.array([[len(each.tensors)] for each in layout], dtype=np.int64)

    def _gates(self, layout: list[Bucket], first: int, last: bool) -> tuple[Ints, Ints]:
        """Gates, numbered from `first`, and what those of a worker need."""
        workers, layers = len(self.context.workers), len(self.context.trace.layers)
        gates = np.full((workers, layers + 1), -1, dtype=np.int64)
        if self.layerwise and not last:
            needs = np.zeros(layers, dtype=np.int64)
            for bucket in layout:
                needs[list(bucket.layers)] += 1
            used = np.flatnonzero(needs)
            needs = needs[used]
        else:
            used, needs = np.array([layers]), np.array([len(layout)])
        gates[:, used] = first + np.arange(workers * len(used)).reshape(workers, len(used))
        return gates, needs

    def _wiring(
        self, layout: list[Bucket], numbers: Numbers
    ) -> tuple[list[tuple[Ints, Ints]], list[tuple[Ints, Ints]]]:
        """What counts what, and what posts what, as pairs of columns."""
        plan, found = self.plan, self._links
        place, start, complete, joined, gates, updating, _ = numbers
        join = np.full(len(found.lead), -1, dtype=np.int64)
        join[self._several] = np.arange(len(self._several))
        alone = self._plain[found.group]  # transfers that wait for one thing
        first = np.flatnonzero(alone & found.own[found.group])
        later = np.flatnonzero(alone & ~found.own[found.group])
        several = np.flatnonzero(~alone)
        posts = [
            (start[:, plan.src[first]], place[:, first]),
            (joined[:, join[found.group[several]]], place[:, several]),
            (place[:, found.needs[found.begins[found.group[later]]]], place[:, later]),
        ]
        own = self._several[found.own[self._several]]
        needed = join[self._owner] >= 0
        after = [(start[:, self._source[own]], joined[:, join[own]])]
        if self.in_turn and not self.one_by_one:
            after.append((start[:-1], start[1:]))  # after what it lets go itself
        after += [
            (place[:, found.needs[needed]], joined[:, join[self._owner[needed]]]),
            (place, complete[:, plan.dst]),  # after what it lets go
            (start, complete),
        ]
        if self.one_by_one:
            after.append((complete[:-1], start[1:]))
        if self.updates:
            adds, held = np.flatnonzero(plan.adds), self._several[self._held[self._several]]
            reduced, updated = updating
            after += [
                (place[:, adds], np.broadcast_to(reduced[plan.dst[adds]], (len(layout), len(adds)))),
                (start, np.broadcast_to(reduced, start.shape)),
                (np.broadcast_to(updated[self._source[held]], (len(layout), len(held))), joined[:, join[held]]),
            ]
        if gates[0, -1] >= 0:
            after.append((complete, np.broadcast_to(gates[:, -1], complete.shape)))
        elif (gates >= 0).any():
            after += [
                (complete[b], gates[:, layer]) for b, bucket in enumerate(layout) for layer in bucket.layers
            ]
        return after, posts

    def _fires(self, layout: list[Bucket], start: Ints) -> Lists:
        """The starts that every worker's tensors fire."""
        tensors, workers = len(self.context.trace.tensors), start.shape[1]
        bucket = np.repeat(np.arange(len(layout)), [len(each.tensors) for each in layout])
        tensor = np.concatenate([each.tensors for each in layout])
        owner = np.arange(workers)[:, None] * tensors + tensor
        return lists([(owner, start[bucket].T)], workers * tensors)

    def _messages(self, iteration: int, bucket: Ints, column: Ints) -> Messages:
        context, plan, scheduling = self.context, self.plan, self.context.scheduling
        worker, first, count = plan.src[column], plan.first[column], plan.count[column]
        reducing, own = plan.adds[column], self._links.own[self._links.group[column]]
        ranks = [[scheduling.rank(back, each.front) for each in self.buckets] for back in (False, True)]
        sizes = np.array([(each.segment_bytes, each.segment_elements, each.priority) for each in self.buckets])
        segment_bytes, elements, priority = sizes[bucket].T
        captured = np.array([context.captured(each, iteration) for each in range(len(context.workers))])
        loss = context.bounds.of(iteration, ~reducing, worker, self._layers, bucket)
        if self._share != (1.0, 1.0):
            part = np.where(reducing, *self._share)
            loss = loss._replace(bound=loss.bound * part, share=loss.share * part)
        return messages(
            context, np.where(reducing, REDUCE_SCATTER, ALL_GATHER),
            self._importance(captured, bucket, worker, first, count, reducing),
            iteration=iteration, tensor=-1, layer=-1, part=bucket * plan.segments + first,
            src=self._src[column], dst=self._dst[column], nbytes=count * segment_bytes, priority=priority,
            loss=loss, rank=np.array(ranks)[(~reducing).astype(np.int64), bucket] if not self.slots else 0,
            captured=np.where(own, captured[worker], -1), first=first * elements,
        )  # fmt: skip

    def _importance(
        self, captured: Ints, bucket: Ints, worker: Ints, first: Ints, count: Ints, reducing: Flags
    ) -> Importance:
        if self.context.tagger is None:
            return Importance((), np.full(len(bucket), Importance.AS_SENT))
        wanted = reducing if self.context.table.pull_important else np.ones(len(bucket), dtype=np.bool_)
        columns = (captured[worker], bucket, first, count)
        shape = tuple(int(column.max()) + 1 for column in columns)
        found, inverse = np.unique(np.ravel_multi_index(columns, shape)[wanted], return_inverse=True)
        numbers = [self._tags.of(*key) for key in np.stack(np.unravel_index(found, shape)).T.tolist()]
        pattern = np.full(len(bucket), Importance.ALL, dtype=np.int64)
        pattern[wanted] = np.array(numbers, dtype=np.int64)[inverse]
        return Importance(self._tags.patterns, pattern)

    def _contents(self, place: Ints, bucket: Ints, column: Ints) -> tuple[Lists, Flags]:
        """A message carries what its group waits for, on top of the sender's own part where that is in it."""
        found = self._links
        group = found.group[column]
        counts = found.counts[group]
        first = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(counts, out=first[1:])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], counts)
        needed = found.needs[np.repeat(found.begins[group], counts) + inside]
        return (first, place[np.repeat(bucket, counts), needed]), found.own[group]
