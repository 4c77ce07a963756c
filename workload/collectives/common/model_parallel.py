"""`SplitModel` builds the exchange of a job whose model is split, with gradients and the collectives that passes wait
for.

Gradients go by the job's exchange inside the groups that hold the same part of the model
(`gradwire.workload.collectives.common.groups`). A pass that reaches a communication of the trace starts it and waits
until it is finished at its worker. All-reduces, reduce-scatters and all-gathers use the halves of `algorithm`,
all-to-alls send everything at once, broadcasts go down a binomial tree. On an idle network, where a message of m bytes
takes a + m b, those of S bytes among g workers by rings take

    all-reduce 2(g - 1)(a + b S/g) · reduce-scatter, all-gather (g - 1)(a + b S/g) · all-to-all a + (g - 1) b S/g ·
    broadcast log2(g)(a + S b)

These communications may not lose anything; all of their packets are important and in queue 0, since a pass stalls for
them (our choice). In the Result they are messages of their layer and of the kinds `KIND_OF`, without
values, since no file contains them. Gradients of experts are summed among the workers with the same
experts, in separate buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.loss import LossAllowance
from gradwire.traces.parts import Communication
from gradwire.traces.trace import Trace
from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    JobContext,
    JobSetting,
    RoundAction,
    make_messages,
)
from gradwire.workload.collectives.common.buckets import Bucket
from gradwire.workload.collectives.common.groups import ModelGroups
from gradwire.workload.collectives.common.half_collectives import count_transfers, half_of, schedule
from gradwire.workload.collectives.common.staged import Staged
from gradwire.workload.collectives.common.transfer_schedule import (
    TransferRows,
    Transfers,
    binomial,
    group_transfers,
    scatter,
    transfers,
)
from gradwire.workload.collectives.exchanges.fsdp_rounds import Rounds
from gradwire.workload.csr import CsrLists, csr_lists, empty_lists, owners_of
from gradwire.workload.program import Ints, Messages, PacketImportance, Step
from gradwire.workload.steps import add_events, merge_steps

ELEMENT = 4
"""Bytes: segments of a communication are multiples of this (our choice)."""
KIND_OF = {
    "tensor": "tensor_parallel",
    "context": "context_parallel",
    "expert": "expert_parallel",
    "data": "data_parallel",
    "expert_data": "data_parallel",
}
"""Message kind of each dimension in the Result."""


def call_transfers(kind: str, algorithm: Any, members: int, rails: int) -> Transfers:
    """Return the schedule of a communication of a kind that traces contain, among `members` workers."""
    if kind == "all_to_all":
        return transfers(scatter(members), members, rails)
    if kind == "broadcast":
        return transfers([row for row in binomial(members) if not row.adds], 1, rails)
    if kind == "reduce":
        return transfers([row for row in binomial(members) if row.adds], 1, rails)
    if kind in ("gather", "scatter"):
        others, root = np.arange(1, members), np.zeros(members - 1, dtype=np.int64)
        src, dst = (others, root) if kind == "gather" else (root, others)
        return transfers([TransferRows(0, src, dst, others, 1, False)], members, rails)  # a segment for each member
    whole = schedule(algorithm, members, rails, 1)
    return whole if kind == "all_reduce" else half_of(whole, adds=kind == "reduce_scatter")


def count_call_transfers(kind: str, algorithm: Any, members: int, rails: int) -> int:
    """Return the number of transfers of `call_transfers`."""
    if kind == "all_to_all":
        return members * (members - 1) * rails
    if kind in ("broadcast", "reduce", "gather", "scatter"):
        return (members - 1) * rails
    whole = count_transfers(algorithm, members, rails, 1)
    return whole if kind == "all_reduce" else whole // 2


def count_messages(setting: JobSetting, groups: ModelGroups) -> int | None:
    """Return an upper bound of the messages of a split model's iteration, without creating them; None: unknown."""
    counts = [
        setting.table.exchange.messages_of(replace(setting, groups=groups.members(dimension), tensors=tensors))
        for dimension, tensors in _by_dimension(setting.trace, groups)
    ]
    calls = 0
    for call in setting.trace.communications:
        members = groups.members(call.group)
        calls += len(members) * count_call_transfers(
            call.kind, setting.table.parallel.algorithm, members.shape[1], setting.rails
        )
    return None if None in counts else sum(counts) + calls * setting.table.accumulate


def _by_dimension(trace: Trace, groups: ModelGroups) -> list[tuple[str, list[int]]]:
    """Return the dimensions in which gradients are exchanged, and their tensors."""
    dimensions = ["data" if groups.expert == 1 else info.group for info in trace.tensors]
    return [
        (dimension, [tensor for tensor, name in enumerate(dimensions) if name == dimension])
        for dimension in dict.fromkeys(dimensions)
        if groups.size(dimension) > 1
    ]


class CallRounds(Rounds):
    """Communications of one kind in one dimension, each of which begins when its workers reach it."""

    one_by_one = False

    def __init__(self, context: JobContext, plan: Transfers, kind: str, called: Sequence[Communication]) -> None:
        self._kind = KINDS.index(kind)
        super().__init__(context, plan, [_bucket(call, plan.segments) for call in called])

    @property
    def is_sequential(self) -> bool:
        return False

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        return tuple((0, bucket.offsets[-1]) for bucket in self.buckets)

    def _starts(self, layout: list[Bucket]) -> Ints:
        return np.ones((len(layout), 1), dtype=np.int64)

    def _earliest_starts(self, layout: list[Bucket], ready: Ints) -> Ints:
        return np.zeros((len(layout), len(ready)), dtype=np.int64)

    def _fired_starts(self, layout: list[Bucket], start: Ints) -> CsrLists:
        return empty_lists(start.shape[1] * len(self.context.trace.tensors))

    def _messages(self, iteration: int, bucket: Ints, column: Ints) -> Messages:
        plan, count = self.plan, self.plan.count[column]
        sizes = np.array([(item.segment_bytes, item.segment_elements, item.front) for item in self.buckets])
        segment_bytes, elements, layer = sizes[bucket].T
        count_transfers = PacketImportance.AS_SENT if self.context.tagger is None else PacketImportance.ALL
        return make_messages(
            self.context, np.full(len(column), self._kind), PacketImportance((), np.full(len(column), count_transfers)),
            iteration=iteration, tensor=-1, layer=layer, part=bucket * plan.segments + plan.first[column],
            src=self._src[column], dst=self._dst[column], nbytes=count * segment_bytes, priority=0,
            loss=LossAllowance(0.0, 0.0), rank=0, captured=-1, first=plan.first[column] * elements,
        )  # fmt: skip

    def _contents(self, delivery: Ints, bucket: Ints, column: Ints) -> tuple[CsrLists, Flags]:
        return empty_lists(len(column)), np.zeros(len(column), dtype=np.bool_)


class SplitModel(Exchange):
    """The exchange of one job with a table `parallel`.

    gradients : exchanges of gradients, one per dimension that has any.
    calls : communications that passes wait for, by kind and dimension.
    """

    repeats = True

    def __init__(self, context: JobContext, where: str = "job") -> None:
        super().__init__(context)
        self.groups = ModelGroups.of(context.table, context.trace, where)
        self.groups.check_machines(context.workers, context.cards, where)
        self.gradients: list[Staged] = []
        for dimension, tensors in _by_dimension(context.trace, self.groups):
            inner = replace(context, groups=self.groups.members(dimension), tensors=tensors)
            self.gradients.append(context.table.exchange.collective(inner))
        self._call()
        self.layerwise = any(exchange.layerwise for exchange in self.gradients)
        self.worker_optimizes = not self.gradients or any(exchange.worker_optimizes for exchange in self.gradients)

    def _call(self) -> None:
        """Build the schedules of communications, and the rounds that a worker starts at each, counted through all."""
        context, micros = self.context, self.context.table.accumulate
        calls: dict[tuple[str, str], list[int]] = {}
        for number, call in enumerate(context.trace.communications):
            if self.groups.size(call.group) > 1:
                calls.setdefault((call.kind, call.group), []).append(number)
        self.calls: list[CallRounds] = []
        self._called: dict[tuple[int, int], RoundAction] = {}
        rounds = 0
        for (kind, dimension), numbers in calls.items():
            members = self.groups.members(dimension)
            plan = call_transfers(kind, context.table.parallel.algorithm, members.shape[1], context.rails)
            rows = [context.trace.communications[number] for number in numbers]
            self.calls.append(CallRounds(context, group_transfers(plan, members), KIND_OF[dimension], rows * micros))
            for micro in range(micros):
                for number in numbers:
                    self._called[micro, number] = RoundAction(asks=(rounds,), waits=rounds)
                    rounds += 1

    @property
    def parts(self) -> list[Staged]:
        return [*self.gradients, *self.calls]

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for part in self.parts for bucket in part.buckets]

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        """Tensors of every bucket, followed by the communications as buckets without tensors; and the segments."""
        return tuple(bucket.tensors for bucket in self.buckets), max(part.plan.segments for part in self.parts)

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        cut = self.context.scheduling.cut is not None
        return tuple(item for part in self.parts for item in part.slices) if cut else ()

    @property
    def unit_bytes(self) -> int:
        return max(part.unit_bytes for part in self.parts)

    @property
    def bytes_per_iteration(self) -> int:
        return sum(part.bytes_per_iteration for part in self.parts)

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
        exchanged = [part.iteration(number, ready, last) for part in self.parts]
        step, numbers = self._merged([item.step for item in exchanged])
        workers, count = len(self.context.workers), len(self.gradients)
        gates = [
            np.where(item.gates >= 0, number_of[item.gates], -1)
            for item, number_of in zip(exchanged[:count], numbers, strict=False)
        ]
        step, joined = _joined_gates(step, self.context.nodes, gates or [exchanged[0].gates])
        fires = [
            (owners_of(item.fires), number_of[item.fires[1]])
            for item, number_of in zip(exchanged, numbers, strict=True)
        ]
        start, end = (
            np.concatenate(
                [
                    np.zeros((0, workers), dtype=np.int64),
                    *(
                        number_of[calls.rounds[side]]
                        for calls, number_of in zip(self.calls, numbers[count:], strict=True)
                    ),
                ]
            )
            for side in (0, 1)
        )
        return ExchangedIteration(
            step,
            csr_lists(fires, workers * len(self.context.trace.tensors)),
            joined,
            called=self._called,
            rounds=(start, end),
            updates=self._updates(exchanged[:count], numbers),
        )

    def _merged(self, steps: Sequence[Step]) -> tuple[Step, list[Ints]]:
        """Merge all steps; also return the new numbers of the events of each. Parts are counted through buckets."""
        segments, bucket = self.buckets_and_segments[1], 0
        renumbered = []
        for step, part in zip(steps, self.parts, strict=True):
            which, segment = np.divmod(step.messages.part, part.plan.segments)
            rows = replace(step.messages, part=(which + bucket) * segments + segment)
            renumbered.append(replace(step, messages=rows))
            bucket += len(part.buckets)
        whole, numbers = renumbered[0], [np.arange(len(renumbered[0]))]
        for step in renumbered[1:]:
            whole, (before, added) = merge_steps(whole, step)
            numbers = [*(before[number] for number in numbers), added]
        return whole, numbers

    def _updates(self, exchanges: Sequence[ExchangedIteration], numbers: Sequence[Ints]) -> Ints | None:
        """Return the updates: each exchange of gradients updates its tensors, in a share of the time by bytes.

        Parameters outside all exchanges are updated by every worker at the end.
        """
        updates, tensors, whole = [], self.context.trace.tensors, self.context.trace.total_bytes
        left = whole
        for part, exchanged, number_of in zip(self.gradients, exchanges, numbers, strict=False):
            if exchanged.updates is None:
                continue
            rows = exchanged.updates.copy()
            rows[:, :, 0] = number_of[rows[:, :, 0]]
            rows[:, :, 3] = np.where(rows[:, :, 3] >= 0, number_of[rows[:, :, 3]], -1)
            nbytes = sum(tensors[tensor].bytes for tensor in part.context.tensors or ())
            rows[:, :, 1] *= nbytes
            rows[:, :, 2] *= whole
            left -= nbytes
            updates.append(rows)
        if updates and left:  # waits for an event that the last update has waited for already
            rest = updates[-1][:, -1:].copy()
            rest[:, :, 1:] = left, whole, -1
            updates.append(rest)
        return np.concatenate(updates, axis=1) if updates else None


def _bucket(call: Communication, segments: int) -> Bucket:
    """Return the data of a communication as a bucket without tensors."""
    elements = -(-call.bytes // ELEMENT)
    size = -(-elements // segments)
    return Bucket((), (0, elements), ELEMENT, 0, call.layer, (call.layer,), segments, segment_elements=size)


def _joined_gates(step: Step, nodes: Ints, gates: Sequence[Ints]) -> tuple[Step, Ints]:
    """Return gates that open once those of all exchanges have, int64[workers, layers + 1]; -1 for none."""
    stacked = np.stack(gates)
    both = (stacked >= 0).sum(axis=0) > 1
    joined = stacked.max(axis=0)
    if not both.any():
        return step, joined
    worker, column = np.nonzero(both)
    new = len(step) + np.arange(len(worker))
    before, opened = stacked[:, worker, column].ravel(), np.tile(new, len(gates))
    joined[worker, column] = new
    pairs = before[before >= 0], opened[before >= 0]
    return add_events(step, nodes[worker], np.full(len(new), len(gates)), pairs), joined
