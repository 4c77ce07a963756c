"""Exchange of a job whose model is split: gradients inside of the groups that have the same part of it, by the exchange
that the job names, and beside them what passes wait for, inside of theirs (`gradwire.experiment.collectives.groups`).

A pass that comes to a communication of the trace asks for it and waits until it is over at its worker. All-reduces,
reduce-scatters and all-gathers go by the halves of `algorithm`, all-to-alls at once, broadcasts down a binomial tree.
On an idle network, where a message of m bytes takes a + m b, those of S bytes among g workers by rings take

    all-reduce 2(g - 1)(a + b S/g) · reduce-scatter, all-gather (g - 1)(a + b S/g) · all-to-all a + (g - 1) b S/g ·
    broadcast log2(g)(a + S b)

Nothing of them may be lost, all of their packets are important and in queue 0: a pass stands still for them (our
choice). In the Result they are "tensor_parallel", "expert_parallel" and "data_parallel" messages of their layer; their
values are none, since no file says them. Gradients of experts are summed up among those that have the same experts, in
buckets of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, Moment, lists, messages
from gradwire.experiment.collectives.buckets import Bucket
from gradwire.experiment.collectives.fsdp import Rounds
from gradwire.experiment.collectives.groups import Groups
from gradwire.experiment.collectives.halves import half, schedule, sent
from gradwire.experiment.collectives.merged import grown, merged
from gradwire.experiment.collectives.schedule import Transfers, grouped, transfers
from gradwire.experiment.collectives.setting import JobSetting
from gradwire.experiment.collectives.staged import Staged
from gradwire.experiment.collectives.walks import binomial, scattered
from gradwire.experiment.program import Importance, Ints, Lists, Messages, Step
from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.loss import Allowance
from gradwire.scenarios.result import KINDS
from gradwire.traces.parts import Communication
from gradwire.traces.trace import Trace

ELEMENT = 4
"""Bytes: segments of a communication are whole numbers of these (our choice)."""
KIND_OF = {
    "tensor": "tensor_parallel", "expert": "expert_parallel", "data": "data_parallel", "expert_data": "data_parallel",
}  # fmt: skip
"""What messages of each dimension are in the Result."""


def plan_of(kind: str, algorithm: Any, members: int, rails: int) -> Transfers:
    """The schedule of a communication of one of the kinds that a trace has, among so many."""
    if kind == "all_to_all":
        return transfers(scattered(members), members, rails)
    if kind == "broadcast":
        return transfers([row for row in binomial(members) if not row.adds], 1, rails)
    whole = schedule(algorithm, members, rails, 1)
    return whole if kind == "all_reduce" else half(whole, adds=kind == "reduce_scatter")


def sent_of(kind: str, algorithm: Any, members: int, rails: int) -> int:
    """How many transfers `plan_of` has."""
    if kind == "all_to_all":
        return members * (members - 1) * rails
    if kind == "broadcast":
        return (members - 1) * rails
    whole = sent(algorithm, members, rails, 1)
    return whole if kind == "all_reduce" else whole // 2


def messages_of(setting: JobSetting, groups: Groups) -> int | None:
    """How many messages an iteration of a split model has at the most, told without making them; None: nobody says."""
    found = [
        setting.table.exchange.messages_of(replace(setting, groups=groups.members(dimension), tensors=mine))
        for dimension, mine in _by_dimension(setting.trace, groups)
    ]
    calls = 0
    for each in setting.trace.communications:
        members = groups.members(each.group)
        calls += len(members) * sent_of(
            each.kind, setting.table.parallel.algorithm, members.shape[1], setting.rails
        )
    return None if None in found else sum(found) + calls * setting.table.accumulate


def _by_dimension(trace: Trace, groups: Groups) -> list[tuple[str, list[int]]]:
    """Dimensions in which gradients are exchanged, and the tensors whose gradients are."""
    dimensions = ["data" if groups.expert == 1 else info.group for info in trace.tensors]
    return [
        (dimension, [tensor for tensor, each in enumerate(dimensions) if each == dimension])
        for dimension in dict.fromkeys(dimensions)
        if groups.size(dimension) > 1
    ]


class Calls(Rounds):
    """Communications of one kind in one dimension, each of which begins when its workers ask for it."""

    one_by_one = False

    def __init__(self, context: JobContext, plan: Transfers, kind: str, called: Sequence[Communication]) -> None:
        self._kind = KINDS.index(kind)
        super().__init__(context, plan, [_bucket(each, plan.segments) for each in called])

    @property
    def in_turn(self) -> bool:
        return False

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        return tuple((0, bucket.offsets[-1]) for bucket in self.buckets)

    def _starts(self, layout: list[Bucket]) -> Ints:
        return np.ones((len(layout), 1), dtype=np.int64)

    def _earliest(self, layout: list[Bucket], ready: Ints) -> Ints:
        return np.zeros((len(layout), len(ready)), dtype=np.int64)

    def _fires(self, layout: list[Bucket], start: Ints) -> Lists:
        return nothing(start.shape[1] * len(self.context.trace.tensors))

    def _messages(self, iteration: int, bucket: Ints, column: Ints) -> Messages:
        plan, count = self.plan, self.plan.count[column]
        sizes = np.array([(each.segment_bytes, each.segment_elements, each.front) for each in self.buckets])
        segment_bytes, elements, layer = sizes[bucket].T
        sent = Importance.AS_SENT if self.context.tagger is None else Importance.ALL
        return messages(
            self.context, np.full(len(column), self._kind), Importance((), np.full(len(column), sent)),
            iteration=iteration, tensor=-1, layer=layer, part=bucket * plan.segments + plan.first[column],
            src=self._src[column], dst=self._dst[column], nbytes=count * segment_bytes, priority=0,
            loss=Allowance(0.0, 0.0), rank=0, captured=-1, first=plan.first[column] * elements,
        )  # fmt: skip

    def _contents(self, place: Ints, bucket: Ints, column: Ints) -> tuple[Lists, Flags]:
        return nothing(len(column)), np.zeros(len(column), dtype=np.bool_)


class SplitModel(Exchange):
    """The exchange of one job with a table `parallel`.

    Attributes
    ----------
    gradients : exchanges of gradients, one for each dimension in which there are any.
    calls : what passes wait for, by kind and dimension.
    """

    repeats = True

    def __init__(self, context: JobContext, where: str = "job") -> None:
        super().__init__(context)
        self.groups = Groups.of(context.table, context.trace, where)
        self.groups.check_machines(context.workers, context.cards, where)
        self.gradients: list[Staged] = []
        for dimension, mine in _by_dimension(context.trace, self.groups):
            inner = replace(context, groups=self.groups.members(dimension), tensors=mine)
            self.gradients.append(context.table.exchange.collective(inner))
        self._call()
        self.layerwise = any(each.layerwise for each in self.gradients)
        self.worker_optimizes = not self.gradients or any(each.worker_optimizes for each in self.gradients)

    def _call(self) -> None:
        """Schedules of communications; and which rounds a worker asks for at which, counted through all of them."""
        context, many = self.context, self.context.table.accumulate
        found: dict[tuple[str, str], list[int]] = {}
        for number, each in enumerate(context.trace.communications):
            if self.groups.size(each.group) > 1:
                found.setdefault((each.kind, each.group), []).append(number)
        self.calls: list[Calls] = []
        self._called: dict[tuple[int, int], Moment] = {}
        rounds = 0
        for (kind, dimension), numbers in found.items():
            members = self.groups.members(dimension)
            plan = plan_of(kind, context.table.parallel.algorithm, members.shape[1], context.rails)
            rows = [context.trace.communications[number] for number in numbers]
            self.calls.append(Calls(context, grouped(plan, members), KIND_OF[dimension], rows * many))
            for micro in range(many):
                for number in numbers:
                    self._called[micro, number] = Moment(asks=(rounds,), waits=rounds)
                    rounds += 1

    @property
    def parts(self) -> list[Staged]:
        return [*self.gradients, *self.calls]

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for each in self.parts for bucket in each.buckets]

    @property
    def buckets_and_segments(self) -> tuple[tuple[tuple[int, ...], ...], int]:
        """With communications behind the buckets, as such without tensors."""
        return tuple(bucket.tensors for bucket in self.buckets), max(each.plan.segments for each in self.parts)

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        cut = self.context.scheduling.cut is not None
        return tuple(each for part in self.parts for each in part.slices) if cut else ()

    @property
    def unit_bytes(self) -> int:
        return max(each.unit_bytes for each in self.parts)

    @property
    def bytes_per_iteration(self) -> int:
        return sum(each.bytes_per_iteration for each in self.parts)

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        made = [each.iteration(number, ready, last) for each in self.parts]
        rounds = [each.rounds for each in self.calls]
        step, numbers = self._merged([each.step for each in made])
        workers = len(self.context.workers)
        own = len(self.gradients)
        step, gates = _joined_gates(step, self.context.nodes, [
            np.where(each.gates >= 0, mine[each.gates], -1) for each, mine in zip(made[:own], numbers, strict=False)
        ] or [made[0].gates])  # fmt: skip
        fires = [
            (np.repeat(np.arange(len(each.fires[0]) - 1), np.diff(each.fires[0])), mine[each.fires[1]])
            for each, mine in zip(made, numbers, strict=True)
        ]
        asked = tuple(
            np.concatenate([np.zeros((0, workers), dtype=np.int64)] + [
                mine[each[end]] for each, mine in zip(rounds, numbers[own:], strict=True)
            ])
            for end in (0, 1)
        )  # fmt: skip
        return Exchanged(
            step, lists(fires, workers * len(self.context.trace.tensors)), gates, called=self._called,
            rounds=(asked[0], asked[1]), updates=self._updates(made[:own], numbers),
        )  # fmt: skip

    def _merged(self, steps: Sequence[Step]) -> tuple[Step, list[Ints]]:
        """One step of all, and the numbers that the events of each have there. Parts are counted through buckets."""
        segments, bucket = self.buckets_and_segments[1], 0
        renumbered = []
        for step, each in zip(steps, self.parts, strict=True):
            which, part = np.divmod(step.messages.part, each.plan.segments)
            rows = replace(step.messages, part=(which + bucket) * segments + part)
            renumbered.append(replace(step, messages=rows))
            bucket += len(each.buckets)
        whole, numbers = renumbered[0], [np.arange(len(renumbered[0]))]
        for step in renumbered[1:]:
            whole, (before, mine) = merged(whole, step)
            numbers = [*(before[each] for each in numbers), mine]
        return whole, numbers

    def _updates(self, made: Sequence[Exchanged], numbers: Sequence[Ints]) -> Ints | None:
        """Each of the exchanges of gradients updates its part of the parameters, in a share of the time by bytes; what
        nobody else has is updated by everybody at the end."""
        found, tensors, whole = [], self.context.trace.tensors, self.context.trace.total_bytes
        left = whole
        for part, each, mine in zip(self.gradients, made, numbers, strict=False):
            if each.updates is None:
                continue
            rows = each.updates.copy()
            rows[:, :, 0] = mine[rows[:, :, 0]]
            rows[:, :, 3] = np.where(rows[:, :, 3] >= 0, mine[rows[:, :, 3]], -1)
            own = sum(tensors[tensor].bytes for tensor in part.context.tensors or ())
            rows[:, :, 1] *= own
            rows[:, :, 2] *= whole
            left -= own
            found.append(rows)
        if found and left:  # behind what is waited for already
            rest = found[-1][:, -1:].copy()
            rest[:, :, 1:] = left, whole, -1
            found.append(rest)
        return np.concatenate(found, axis=1) if found else None


def nothing(owners: int) -> Lists:
    """Empty lists, of so many."""
    return np.zeros(owners + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _bucket(called: Communication, segments: int) -> Bucket:
    """What is sent of a communication, as a bucket of no tensors."""
    elements = -(-called.bytes // ELEMENT)
    return Bucket(
        runs=(), offsets=(0, elements), element_bytes=ELEMENT, priority=0, front=called.layer, layers=(called.layer,),
        segments=segments, segment_elements=-(-elements // segments),
    )  # fmt: skip


def _joined_gates(step: Step, nodes: Ints, gates: Sequence[Ints]) -> tuple[Step, Ints]:
    """Gates that open when those of all exchanges have, int64[workers, layers + 1]; -1 where none has one."""
    found = np.stack(gates)
    both = (found >= 0).sum(axis=0) > 1
    joined = found.max(axis=0)
    if not both.any():
        return step, joined
    worker, column = np.nonzero(both)
    new = len(step) + np.arange(len(worker))
    pairs = [(each[worker, column], new) for each in found]
    before, behind = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    joined[worker, column] = new
    return grown(step, nodes[worker], np.full(len(new), len(gates)), (before[before >= 0], behind[before >= 0])), joined
