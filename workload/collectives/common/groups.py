"""Divides the workers of a split model into tensor, context, expert and data-parallel groups.

Workers are numbered with tensor parallelism innermost, then context and expert parallelism, then the rest of data
parallelism, as in Megatron-LM [recalled]; with consecutive placement, workers that share a layer's matrices, which
communicate most, are on one host. With sizes T, C, E and D (N = T D workers, C E divides D) worker n is member n mod T
of its tensor group, has part n / T mod C of its samples, and the experts of index n / (T C) mod E:

    tensor       T consecutive workers
    context      C workers with the same index in their tensor groups, in steps of T
    expert       E workers with the same index in both, in steps of T C
    data         D workers with the same index in their tensor groups: copies of all but the experts
    expert_data  D/E of these with the same experts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.topology import HostCards
from gradwire.traces.parts import group_members

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace

ONE_STAGE_EXPECTED = (
    "1, which plays the trace as one stage; the exchange graph plays all stages, from a workload imported with --ranks"
)


ALGORITHM_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of communications that use the chosen algorithm."""


@dataclass(frozen=True)
class ModelGroups:
    """Sizes of a split model's groups: workers per part of a layer, per set of experts, copies of the model, and
    workers per sample."""

    tensor: int
    expert: int
    data: int
    context: int = 1

    @classmethod
    def of(cls, job: Any, trace: Trace, where: str = "job") -> ModelGroups:
        """Return the groups of a [[job]] with a table `parallel` that replays a trace; absent sizes come from the
        trace.

        Raises ScenarioError if the sizes do not multiply to the workers, or pipeline stages would be played.
        """
        table, captured = job.parallel, trace.parallel
        sizes = {name: getattr(table, name) or captured[name] for name in captured}
        tensor, context, expert, pipeline = sizes.values()
        origin = {name: "" if getattr(table, name) else f" (of the trace {trace.name})" for name in sizes}
        path = f"{where}.parallel"
        if not trace.communications:
            what = f"has nothing to play: the trace {trace.name} contains gradients only"
            raise ScenarioError(what, path, "an imported trace with other collectives, or no table `parallel`")
        if pipeline > 1:
            what = f"{pipeline} pipeline stages{origin['pipeline']} cannot be played"
            raise ScenarioError(what, f"{path}.pipeline", ONE_STAGE_EXPECTED)
        if job.workers % tensor:
            what = f"{tensor} workers to a tensor group{origin['tensor']} do not divide {job.workers} workers"
            raise ScenarioError(what, f"{path}.tensor", "groups of a size that divides them")
        data = left = job.workers // tensor
        for name, noun, groups in (("context", "a context", "tensor"), ("expert", "an expert", "context")):
            if left % sizes[name]:
                group = f"{sizes[name]} workers to {noun} group{origin[name]}"
                what = f"{group} do not divide {left}, one of every {groups} group"
                raise ScenarioError(what, f"{path}.{name}", f"a number that divides {left}")
            left //= sizes[name]
        return cls(tensor, expert, data, context)

    def size(self, dimension: str) -> int:
        """Return the number of members of a group."""
        return int(self.members(dimension).shape[1])

    def members(self, dimension: str) -> Ints:
        """Return the workers of every group: int64[groups, members]."""
        return group_members(dimension, self.tensor, self.expert, self.data, self.context)

    def misfits(self, job: Any, trace: Trace, where: str) -> Iterator[Mistake]:
        """Yield a mistake if no group has two members, or if the algorithm does not work for a group's size."""
        gradients = {"data" if self.expert == 1 else info.group for info in trace.tensors}
        if all(self.size(name) == 1 for name in gradients | {call.group for call in trace.communications}):
            what = "leaves nothing to send: all groups that communicate have one worker"
            yield Mistake(f"{where}.parallel", what, expected="groups of two or more in some dimension")
        if job.parallel.algorithm != "halving":
            return
        for dimension in sorted({call.group for call in trace.communications if call.kind in ALGORITHM_KINDS}):
            if (size := self.size(dimension)) & (size - 1):
                what = f"does not work for the {size} workers of groups of dimension {dimension}"
                yield Mistake(f"{where}.parallel.algorithm", what, "halving", "a power of two; or ring or all_to_all")

    def check_machines(self, workers: Sequence[int], cards: HostCards, where: str = "job") -> None:
        """Raise ScenarioError if a tensor group spans more machines of accelerators than it needs.

        workers : the hosts of all workers.
        """
        if cards.machines is None:
            return
        machines = cards.machines[list(workers)][self.members("tensor")]
        least = -(-self.tensor // cards.per_machine)
        for group, hosts in enumerate(machines):
            if (spanned := len(np.unique(hosts))) > least:
                what = f"tensor group {group} spans {spanned} hosts, and fits on {least}"
                expected = "a size that fits into host.gpus or is a multiple of it, and workers placed host by host"
                raise ScenarioError(what, f"{where}.parallel.tensor", expected)
