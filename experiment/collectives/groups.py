"""Groups of workers that share a model: who communicates with whom where a model is split.

Workers are numbered with tensor parallelism innermost, then expert parallelism, then what is left of data parallelism,
as Megatron-LM numbers its ranks [recalled]; placed one after the other, those that share a layer's matrices are in one
host, where they talk most. With T, E and D of them (N = T D workers, E divides D) worker n is member n mod T of its
tensor group and has the experts of place n / T mod E:

    tensor       T that follow one another
    expert       E of those with the same place in their tensor groups, that follow one another in steps of T
    data         D with the same place in their tensor groups: copies of all but the experts
    expert_data  D/E of these with the same experts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake, ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire.experiment.topology import Cards
    from gradwire.traces.trace import Trace

STAGES = (
    "1, which plays the trace as one stage by itself: it does not say what other stages compute and when, nor which of "
    "its layers is where"
)


HALVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds that go by the chosen algorithm."""


@dataclass(frozen=True)
class Groups:
    """How many workers have a part of a layer, how many of those groups share experts, and how many copies there are.
    """

    tensor: int
    expert: int
    data: int

    @classmethod
    def of(cls, job: Any, trace: Trace, where: str = "job") -> Groups:
        """Those of a [[job]] with a table `parallel` that replays a trace; what the table does not say, the trace does.

        Raises
        ------
        ScenarioError
            The sizes do not multiply to the workers, or stages would be played.
        """
        table, said = job.parallel, trace.parallel
        sizes = {name: getattr(table, name) or said[name] for name in ("tensor", "expert", "pipeline")}
        tensor, expert, pipeline = sizes.values()
        of = {name: "" if getattr(table, name) else f" (of the trace {trace.name})" for name in sizes}
        path = f"{where}.parallel"
        if not trace.communications:
            what = f"has nothing to play: the trace {trace.name} has gradients alone"
            raise ScenarioError(what, path, "an imported trace with other collectives, or to leave it out")
        if pipeline > 1:
            what = f"{pipeline} stages of a pipeline{of['pipeline']} cannot be played"
            raise ScenarioError(what, f"{path}.pipeline", STAGES)
        if job.workers % tensor:
            what = f"{tensor} workers to a tensor group{of['tensor']} do not divide {job.workers} workers"
            raise ScenarioError(what, f"{path}.tensor", "groups of a size that divides them")
        data = job.workers // tensor
        if data % expert:
            what = f"{expert} workers to an expert group{of['expert']} do not divide {data}, one of every tensor group"
            raise ScenarioError(what, f"{path}.expert", f"a number that divides {data}")
        return cls(tensor, expert, data)

    def size(self, dimension: str) -> int:
        """Members of a group."""
        return int(self.members(dimension).shape[1])

    def members(self, dimension: str) -> Ints:
        """int64[groups, members]: the workers of every group."""
        copies = self.data // self.expert
        grid = np.arange(self.tensor * self.data).reshape(copies, self.expert, self.tensor)
        return {
            "tensor": grid.reshape(-1, self.tensor),
            "expert": grid.transpose(0, 2, 1).reshape(-1, self.expert),
            "data": grid.transpose(2, 0, 1).reshape(-1, self.data),
            "expert_data": grid.transpose(2, 1, 0).reshape(-1, copies),
        }[dimension]

    def misfits(self, job: Any, trace: Trace, where: str) -> Iterator[Mistake]:
        """Groups of which none has anybody to send to; and those in which passes communicate by an algorithm that does
        not go among so many."""
        gradients = {"data" if self.expert == 1 else info.group for info in trace.tensors}
        if all(self.size(each) == 1 for each in gradients | {each.group for each in trace.communications}):
            what = "leaves nothing to send: all groups that communicate are of one worker"
            yield Mistake(f"{where}.parallel", what, expected="groups of two or more in some dimension")
        if job.parallel.algorithm != "halving":
            return
        for dimension in sorted({each.group for each in trace.communications if each.kind in HALVES}):
            if (size := self.size(dimension)) & (size - 1):
                what = f"does not go among the {size} workers of groups of dimension {dimension}"
                yield Mistake(f"{where}.parallel.algorithm", what, "halving", "a power of two; or ring or all_to_all")

    def check_machines(self, workers: Sequence[int], cards: Cards, where: str = "job") -> None:
        """Raise ScenarioError if a tensor group crosses between more machines of accelerators than it needs.

        workers : the hosts of all workers.
        """
        if cards.machines is None:
            return
        machines = cards.machines[list(workers)][self.members("tensor")]
        least = -(-self.tensor // cards.per_machine)
        for group, each in enumerate(machines):
            if (found := len(np.unique(each))) > least:
                what = f"tensor group {group} crosses between {found} hosts, and has room on {least}"
                raise ScenarioError(
                    what, f"{where}.parallel.tensor",
                    "a size that fits into host.gpus or is a multiple of it, and workers placed host by host",
                )  # fmt: skip
