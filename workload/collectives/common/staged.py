"""`Staged` builds an iteration's messages and events for buckets of gradients that go through a schedule of transfers.

The kind of collective provides the schedule; `gradwire.workload.collectives.common.transfer_schedule` derives the
dependencies between its transfers.

Tensors are put into buckets in the order in which their gradients become ready; a bucket is closed when it reaches the
configured size [notes: PyTorch DDP, which also rebuilds its buckets in order of arrival after the first iteration]. A
worker starts a bucket when all its gradients are ready and the previous bucket was started, or, with `blocking`, is
complete at this worker. The schedule determines the worker's messages from then on; workers are its ranks, in the order
of their placement.

As events, per iteration and bucket: all gradients ready, previous bucket started -> start: transfers of own values
only; start, deliveries -> transfers of their sums; all deliveries to a worker and its start -> complete; all buckets
complete -> gate, or layerwise, all buckets with elements of the layer complete -> the layer's gate. If workers update
their parts between the halves: all arrivals at a worker in the first half, its own gradients ready -> reduced; reduced
-> the worker's optimiser -> updated; updated, sums -> the worker's messages with its part.

Our choices: segments are of equal size, rounded up to whole elements (libraries pad as well); buckets do not wait for
each other beyond their start; forward waits for all buckets and then for the captured optimiser step, or, layerwise,
for the layer's buckets and then for its share of the step, by bytes; the magnitude of a partial sum that a worker
forwards is that of the worker's own gradient.

In the Result, a message on the way to a sum is a "reduce_scatter", one on the way back an "all_gather", in every
algorithm. Loss bounds hold per message, and losses on the way to a sum add up: with bound_per = "exchange" a bound is
the loss of all messages of a path together, and each message may lose a fraction of it (`mean_hops`; in a ring of N
this is P / ((N - 1) / 2) [notes: 2P/(N-1)]).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Flags
from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    JobContext,
    make_messages,
    partial_updates,
)
from gradwire.workload.collectives.common.buckets import Bucket, BucketTags, bucket_runs
from gradwire.workload.collectives.common.transfer_schedule import (
    Dependencies,
    Transfers,
    dependencies_of,
    group_transfers,
    mean_hops,
)
from gradwire.workload.csr import CsrLists, csr_lists, select_lists
from gradwire.workload.program import Ints, Messages, PacketImportance, Step
from gradwire.workload.scheduling import FIFO

if TYPE_CHECKING:
    from gradwire.workload.collectives.common.staged_table import StagedTable

REDUCE_SCATTER, ALL_GATHER = KINDS.index("reduce_scatter"), KINDS.index("all_gather")


class StagedEvents(NamedTuple):
    """Numbers of the events of a step: deliveries `place` [buckets, transfers] first, then these.

    start, complete : [buckets, workers].
    joined : [buckets, groups that wait for several events].
    gates : [workers, layers + 1], -1 for none.
    own : [2, workers]: reduced, and updated; [2, 0] if workers do not update parts of their own.
    """

    place: Ints
    start: Ints
    complete: Ints
    joined: Ints
    gates: Ints
    own: Ints
    total: int


class Staged(Exchange):
    """The exchange of one job by a schedule."""

    repeats = True
    one_by_one = False
    """True if a bucket begins when the previous one is over, not when it has begun."""
    rounds: tuple[Ints, Ints]
    """Events of the latest iteration: the start and the end of every bucket at every worker."""

    def __init__(self, context: JobContext, table: StagedTable, updates: bool = False) -> None:
        """`updates`: True if workers update their own parts between the reduce-scatter and the all-gather."""
        scheduling = context.scheduling
        layouts = [bucket_runs(context, order, table.bucket) for order in context.orders]
        plan = table.checked_transfers(context.members, context.rails, context.inside)
        if context.groups is not None:
            plan = group_transfers(plan, context.groups)
        buckets = [[Bucket.of(context, runs, plan.segments) for runs in layout] for layout in layouts]
        self._lay_out_buckets(context, plan, buckets, updates)
        self.slots = table.slots if scheduling.order == FIFO else 0
        self.slots_apart = table.slots_apart
        self.one_by_one = self.one_by_one or table.blocking
        self.layerwise = (scheduling.forward or table.forward) == "layerwise"

    def _lay_out_buckets(
        self, context: JobContext, plan: Transfers, layouts: list[list[Bucket]], updates: bool = False
    ) -> None:
        """Set up buckets, for the first iteration and, if there are more, for later ones, that go through a
        schedule."""
        Exchange.__init__(self, context)
        workers = len(context.workers)
        self.plan, self.updates, self.worker_optimizes = plan, updates, not updates
        self._links = dependencies = dependencies_of(plan)
        self._layouts = layouts
        self.buckets = [bucket for layout in layouts for bucket in layout]
        self._tags = BucketTags(context, self.buckets)
        self._layers = [bucket.layers for bucket in self.buckets]
        # by groups of transfers with the same content: their dependencies
        self._source = plan.src[dependencies.lead]
        self._held = _first_sums(plan, dependencies) & updates  # groups that also wait for the worker's update
        waits = dependencies.counts + dependencies.own + self._held
        self._several = np.flatnonzero(waits > 1)
        self._plain = waits == 1
        self._owner = np.repeat(np.arange(len(waits)), dependencies.counts)  # of `needs`
        hosts = np.array(context.workers)
        self._src, self._dst = context.cards.cards(hosts[plan.src], hosts[plan.dst], plan.rail)
        self._share = (1.0, 1.0)
        if context.table.bound_per == "exchange":
            hops = mean_hops(plan, workers)
            self._share = tuple(1 / max(count, 1.0) for count in hops)  # type: ignore[assignment]

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

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        before = 0 if number == 0 or len(self._layouts) == 1 else len(self._layouts[0])
        layout = self._layouts[0 if number == 0 else -1]
        order = np.argsort(self._due(layout, ready).ravel(), kind="stable")
        bucket, column = np.divmod(order, len(self.plan))
        numbers, needs, host = self._events(layout, order, last)
        after, posts = self._wiring(layout, numbers)
        self.rounds = numbers.start, numbers.complete
        step = Step(
            messages=self._messages(number, bucket + before, column),
            needs=needs,
            host=host,
            after=csr_lists(after, len(needs)),
            posts=csr_lists(posts, len(needs)),
            contents=lambda: self._contents(numbers.place, bucket, column),
        )
        reduced, updated = numbers.own
        updates = partial_updates(reduced, self.context.members, updated) if self.updates else None
        return ExchangedIteration(step, self._fired_starts(layout, numbers.start), numbers.gates, updates=updates)

    def _due(self, layout: list[Bucket], ready: Ints) -> Ints:
        """Return the earliest time at which every message could be ready, [buckets, transfers]."""
        plan, dependencies = self.plan, self._links
        earliest = self._earliest_starts(layout, ready)
        if self.is_sequential:
            earliest = np.maximum.accumulate(earliest, axis=0)
        due = np.zeros((len(layout), len(plan)), dtype=np.int64)
        edges = np.flatnonzero(np.diff(plan.stage, prepend=-1, append=-1))
        # groups are numbered by their first transfers, so those of a stage lie together, and so do their needs
        for begin, end in zip(edges.tolist(), edges.tolist()[1:], strict=False):
            first, end_group = dependencies.group[begin], int(dependencies.group[begin:end].max()) + 1
            ready_at = np.where(dependencies.own[first:end_group], earliest[:, self._source[first:end_group]], 0)
            low, high = dependencies.begins[first], dependencies.begins[end_group]
            if high > low:
                for times, known in zip(ready_at, due[:, dependencies.needs[low:high]], strict=True):  # by bucket
                    np.maximum.at(times, self._owner[low:high] - first, known)
            due[:, begin:end] = ready_at[:, dependencies.group[begin:end] - first]
        return due

    def _earliest_starts(self, layout: list[Bucket], ready: Ints) -> Ints:
        """Return the earliest start of every bucket, [buckets, workers]."""
        return np.stack([ready[:, list(bucket.tensors)].max(axis=1) for bucket in layout])

    def _events(self, layout: list[Bucket], order: Ints, last: bool) -> tuple[StagedEvents, Ints, Ints]:
        """Return the numbers of events, the firings that each needs, and its node."""
        plan, dependencies, nodes = self.plan, self._links, self.context.nodes
        buckets, workers, n = len(layout), len(nodes), len(order)
        delivery = np.empty(n, dtype=np.int64)
        delivery[order] = np.arange(n)
        start = n + np.arange(buckets * workers).reshape(buckets, workers)
        complete = start + buckets * workers
        gates, gate_needs = self._gates(layout, n + 2 * buckets * workers, last)
        next_number = n + 2 * buckets * workers + len(gate_needs) * workers
        joined = next_number + np.arange(buckets * len(self._several)).reshape(buckets, len(self._several))
        own = next_number + joined.size + np.arange(2 * workers * self.updates).reshape(2, -1)
        total = next_number + joined.size + own.size
        needs, host = np.ones(total, dtype=np.int64), np.empty(total, dtype=np.int64)
        host[:n] = self._dst[order % len(plan)]
        host[start], host[complete] = nodes, nodes
        host[joined] = nodes[self._source[self._several]]
        host[gates[gates >= 0]] = np.repeat(nodes, len(gate_needs))
        needs[start] = self._starts(layout)
        if self.is_sequential:
            needs[start[1:]] += 1
        needs[complete] = np.bincount(plan.dst, minlength=workers) + 1
        needs[gates[gates >= 0]] = np.tile(gate_needs, workers)
        needs[joined] = (dependencies.counts + dependencies.own + self._held)[self._several]
        if self.updates:
            host[own] = nodes
            needs[own[0]] = buckets * (np.bincount(plan.dst[plan.adds], minlength=workers) + 1)
        return StagedEvents(delivery.reshape(buckets, -1), start, complete, joined, gates, own, total), needs, host

    @property
    def is_sequential(self) -> bool:
        """True if the buckets of a worker begin one after the other."""
        return self.one_by_one or self.context.scheduling.in_turn

    def _starts(self, layout: list[Bucket]) -> Ints:
        """Return the firings that a bucket needs to start, [buckets, 1]."""
        return np.array([[len(bucket.tensors)] for bucket in layout], dtype=np.int64)

    def _gates(self, layout: list[Bucket], first: int, last: bool) -> tuple[Ints, Ints]:
        """Return the gates, numbered from `first`, and the firings that those of a worker need."""
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
        self, layout: list[Bucket], numbers: StagedEvents
    ) -> tuple[list[tuple[Ints, Ints]], list[tuple[Ints, Ints]]]:
        """Return the pairs of counted and counting events, and of posting events and messages, as columns."""
        plan, dependencies = self.plan, self._links
        delivery, start, complete, joined, gates, updating, _ = numbers
        join = np.full(len(dependencies.lead), -1, dtype=np.int64)
        join[self._several] = np.arange(len(self._several))
        alone = self._plain[dependencies.group]  # transfers that wait for one event
        first = np.flatnonzero(alone & dependencies.own[dependencies.group])
        later = np.flatnonzero(alone & ~dependencies.own[dependencies.group])
        several = np.flatnonzero(~alone)
        posts = [
            (start[:, plan.src[first]], delivery[:, first]),
            (joined[:, join[dependencies.group[several]]], delivery[:, several]),
            (delivery[:, dependencies.needs[dependencies.begins[dependencies.group[later]]]], delivery[:, later]),
        ]
        own = self._several[dependencies.own[self._several]]
        needed = join[self._owner] >= 0
        after = [(start[:, self._source[own]], joined[:, join[own]])]
        if self.is_sequential and not self.one_by_one:
            after.append((start[:-1], start[1:]))  # counted after the messages that it posts itself
        after += [
            (delivery[:, dependencies.needs[needed]], joined[:, join[self._owner[needed]]]),
            (delivery, complete[:, plan.dst]),  # counted after the messages that it posts
            (start, complete),
        ]
        if self.one_by_one:
            after.append((complete[:-1], start[1:]))
        if self.updates:
            adds, held = np.flatnonzero(plan.adds), self._several[self._held[self._several]]
            reduced, updated = updating
            after += [
                (delivery[:, adds], np.broadcast_to(reduced[plan.dst[adds]], (len(layout), len(adds)))),
                (start, np.broadcast_to(reduced, start.shape)),
                (np.broadcast_to(updated[self._source[held]], (len(layout), len(held))), joined[:, join[held]]),
            ]
        if gates[0, -1] >= 0:
            after.append((complete, np.broadcast_to(gates[:, -1], complete.shape)))
        elif (gates >= 0).any():
            after += [(complete[b], gates[:, layer]) for b, bucket in enumerate(layout) for layer in bucket.layers]
        return after, posts

    def _fired_starts(self, layout: list[Bucket], start: Ints) -> CsrLists:
        """Return the starts that every worker's tensors fire."""
        tensors, workers = len(self.context.trace.tensors), start.shape[1]
        bucket = np.repeat(np.arange(len(layout)), [len(item.tensors) for item in layout])
        tensor = np.concatenate([item.tensors for item in layout])
        owner = np.arange(workers)[:, None] * tensors + tensor
        return csr_lists([(owner, start[bucket].T)], workers * tensors)

    def _messages(self, iteration: int, bucket: Ints, column: Ints) -> Messages:
        context, plan, scheduling = self.context, self.plan, self.context.scheduling
        worker, first, count = plan.src[column], plan.first[column], plan.count[column]
        reducing, own = plan.adds[column], self._links.own[self._links.group[column]]
        ranks = [[scheduling.rank(back, item.front) for item in self.buckets] for back in (False, True)]
        sizes = np.array([(item.segment_bytes, item.segment_elements, item.priority) for item in self.buckets])
        segment_bytes, elements, priority = sizes[bucket].T
        captured = np.array([context.captured(index, iteration) for index in range(len(context.workers))])
        loss = context.bounds.of(iteration, ~reducing, worker, self._layers, bucket)
        if self._share != (1.0, 1.0):
            part = np.where(reducing, *self._share)
            loss = loss._replace(bound=loss.bound * part, share=loss.share * part)
        return make_messages(
            context,
            np.where(reducing, REDUCE_SCATTER, ALL_GATHER),
            self._importance(captured, bucket, worker, first, count, reducing),
            iteration=iteration,
            tensor=-1,
            layer=-1,
            part=bucket * plan.segments + first,
            src=self._src[column],
            dst=self._dst[column],
            nbytes=count * segment_bytes,
            priority=priority,
            loss=loss,
            rank=np.array(ranks)[(~reducing).astype(np.int64), bucket] if not self.slots else 0,
            captured=np.where(own, captured[worker], -1),
            first=first * elements,
        )

    def _importance(
        self, captured: Ints, bucket: Ints, worker: Ints, first: Ints, count: Ints, reducing: Flags
    ) -> PacketImportance:
        if self.context.tagger is None:
            return PacketImportance((), np.full(len(bucket), PacketImportance.AS_SENT))
        tagged = reducing if self.context.table.pull_important else np.ones(len(bucket), dtype=np.bool_)
        columns = (captured[worker], bucket, first, count)
        shape = tuple(int(column.max()) + 1 for column in columns)
        keys, inverse = np.unique(np.ravel_multi_index(columns, shape)[tagged], return_inverse=True)
        numbers = [self._tags.of(*key) for key in np.stack(np.unravel_index(keys, shape)).T.tolist()]
        pattern = np.full(len(bucket), PacketImportance.ALL, dtype=np.int64)
        pattern[tagged] = np.array(numbers, dtype=np.int64)[inverse]
        return PacketImportance(self._tags.patterns, pattern)

    def _contents(self, delivery: Ints, bucket: Ints, column: Ints) -> tuple[CsrLists, Flags]:
        """Return the contents of messages: those that the message's group waits for, plus the sender's own part if
        included."""
        dependencies = self._links
        group = dependencies.group[column]
        first, needed = select_lists((dependencies.begins, dependencies.needs), group)
        return (first, delivery[np.repeat(bucket, np.diff(first)), needed]), dependencies.own[group]


def _first_sums(plan: Transfers, dependencies: Dependencies) -> Flags:
    """Return the groups that are the first to send their worker's sums: some of their inputs were added."""
    added = np.zeros(len(dependencies.lead), dtype=np.bool_)
    owner = np.repeat(np.arange(len(added)), dependencies.counts)
    added[owner[plan.adds[dependencies.needs]]] = True
    return added & ~plan.adds[dependencies.lead]
