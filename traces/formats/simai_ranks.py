"""Graphs of all ranks from a SimAI workload, whose rows are those of one rank: the header says what follows for others.

AICB divides the layers of a model by the stages and writes what a rank of any stage computes and calls, the rows of a
micro-batch `ga` times one behind the other, and in the header what a micro-batch sends to the next stage, `pp_comm`
[code: workload_generator, SIMAI_workload]. SimAI adds a formula for stages and plays no transfer [its issues 18, 62];
here they are played, by one forward, one backward (1F1B):

* N ranks, `all_gpus`; of them T, `model_parallel_NPU_group`, follow one another as a tensor group, and stages are
  outermost, as Megatron-LM numbers them [recalled]: rank n is member n mod T of its tensor group, copy
  (n mod N/P) / T of the model, and in stage n / (N/P).
* A stage begins with as many forward passes as there are stages behind it, goes on with a forward and a backward pass
  by turns, and ends with the backward passes that are left (Narayanan et al., "Efficient Large-Scale Language Model
  Training on GPU Clusters Using Megatron-LM", SC '21, without interleaving).
* A rank sends `pp_comm` bytes to the one in its place of the next stage behind a micro-batch's forward pass, and to
  that of the stage before behind its backward pass, and goes on; the other one waits for them.

Our choices: all stages have the rows of the file, an embedding and a loss among them, as the file is of any stage and
SimAI's formula has it. What stands before the rows of the first micro-batch goes before the first forward pass and,
backward, behind the last backward pass; what stands behind those of the last one goes behind the last forward pass,
backward too. Collectives of weight gradients are called behind the weight gradient and not waited for; the update, all
rows' together, waits for them. `vpp` is not heeded: AICB writes the number of layers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import PS_PER_NS
from gradwire.traces.graphs import ROLES, SEND, Call, Graphs
from gradwire.traces.parts import group_members
from gradwire.traces.room import refuse_beyond

NODE_BYTES = 700
"""Memory of a node while graphs are made, measured."""
FORWARD, BACKWARD, OTHER = (ROLES.index(role) for role in ("forward", "backward", "other"))


class Row(NamedTuple):
    """One line: compute in nanoseconds, collectives and bytes, each for the three passes."""

    name: str
    compute: tuple[int, int, int]
    collective: tuple[str, str, str]
    size: tuple[int, int, int]
    update: int


class Collective(NamedTuple):
    """A collective of a row: its kind, one of `gradwire.traces.parts.COLLECTIVES`, among whom, and bytes of a whole
    buffer."""

    kind: str
    dimension: str
    nbytes: int


Calls = tuple[Collective | None, Collective | None, Collective | None]
"""Those of a row: of its forward pass, its input gradient and its weight gradient."""


class Shape(NamedTuple):
    """How ranks share a model, and what a micro-batch sends from stage to stage."""

    tensor: int
    expert: int
    copies: int
    stages: int
    micros: int
    transfer: int

    @property
    def stage_ranks(self) -> int:
        """Of one stage."""
        return self.tensor * self.copies

    @classmethod
    def of(cls, header: dict[str, int], where: str) -> Shape:
        """That of a workload's header. TraceError where it says too little or what does not fit."""
        said = {"ep": 1, "pp": 1, "ga": 1, "pp_comm": 0, **header}
        for key in ("model_parallel_NPU_group", "all_gpus"):
            if key not in said:
                raise TraceError(f"does not say {key}", f"{where}, line 1", "it, as AICB writes it")
        tensor, expert, stages, micros, ranks = (
            said[key] for key in ("model_parallel_NPU_group", "ep", "pp", "ga", "all_gpus")
        )
        if min(tensor, expert, stages, micros, ranks) < 1:
            raise TraceError("a size below 1", f"{where}, line 1", "1 or more of each")
        copies, left = divmod(ranks, tensor * stages)
        if left or copies % expert:
            what = f"{ranks} ranks in {stages} stages, {tensor} to a tensor group, {expert} to an expert group"
            raise TraceError(what, f"{where}, line 1", "sizes that divide the ranks")
        if stages > 1 and said["pp_comm"] < 1:
            what = f"{stages} stages, and pp_comm is {said['pp_comm']}"
            raise TraceError(what, f"{where}, line 1", "the bytes that a micro-batch sends from stage to stage")
        return cls(tensor, expert, copies, stages, micros, said["pp_comm"])


class Blocks(NamedTuple):
    """Where the rows of micro-batches are: `length` rows for each, from `start` on."""

    start: int
    length: int


def graphs_of(
    rows: Sequence[Row], calls: Sequence[Calls], header: dict[str, int], data_parallel: bool, where: str
) -> Graphs:
    """The graphs of all ranks of a workload.

    Parameters
    ----------
    calls : of each row. header : its "key: value" pairs.
    data_parallel : whether the weight gradient of a row comes before its input gradient.

    Raises
    ------
    TraceError
        The header says too little; rows do not repeat as often as it says; there is no memory for so many nodes.
    """
    shape = Shape.of(header, where)
    blocks = _blocks(rows, shape.micros, where)
    nodes = shape.stages * shape.stage_ranks * (6 * len(rows) + 4 * shape.micros)
    refuse_beyond(nodes * NODE_BYTES, f"graphs of up to {nodes} nodes", where)
    return _Maker(rows, calls, shape, blocks, data_parallel).made()


def _blocks(rows: Sequence[Row], micros: int, where: str) -> Blocks:
    """The longest run of rows that comes `micros` times, one behind the other."""
    if micros == 1:
        return Blocks(0, len(rows))
    known: dict[Row, int] = {}
    numbers = np.array([known.setdefault(row, len(known)) for row in rows], dtype=np.int64)
    for length in range(len(rows) // micros, 0, -1):
        same = np.concatenate([[0], np.cumsum(numbers[:-length] == numbers[length:])])
        wanted = (micros - 1) * length
        found = np.flatnonzero(same[wanted:] - same[:-wanted] == wanted)
        if len(found):
            return Blocks(int(found[0]), length)
    what = f"ga is {micros}, and no rows come {micros} times one behind the other"
    raise TraceError(what, where, "the rows of every micro-batch, as AICB writes them")


def turns(stage: int, stages: int, micros: int) -> list[tuple[bool, int]]:
    """What a stage does one after the other: (whether backward, number of the micro-batch)."""
    ahead = min(stages - 1 - stage, micros)
    found = [(False, micro) for micro in range(ahead)]
    for micro in range(ahead, micros):
        found += [(False, micro), (True, micro - ahead)]
    return found + [(True, micro) for micro in range(micros - ahead, micros)]


class _Maker:
    """Adds nodes in an order in which they could run: all ranks of a stage go through a pass together."""

    def __init__(
        self, rows: Sequence[Row], calls: Sequence[Calls], shape: Shape, blocks: Blocks, data_parallel: bool
    ) -> None:
        self.rows, self.row_calls, self.shape = rows, calls, shape
        self.blocks, self.weights_first = blocks, data_parallel
        ranks = shape.stages * shape.stage_ranks
        self.names: list[str] = []
        self.columns: list[tuple[int, int, int, int]] = []  # rank, role, effort, call
        self.needs: list[list[int]] = []
        self.calls: list[Call] = []
        self.last: list[list[int]] = [[] for _ in range(ranks)]  # what a rank's next node needs
        self.loose: list[list[int]] = [[] for _ in range(ranks)]  # calls that only the update waits for
        self.sent: dict[tuple[int, bool, int], int] = {}  # the first call of what a stage waits for before a turn
        self.groups = {
            name: group_members(name, shape.tensor, shape.expert, shape.copies).tolist()
            for name in ("tensor", "expert", "data", "expert_data")
        }

    def made(self) -> Graphs:
        shape = self.shape
        left = [turns(stage, shape.stages, shape.micros)[::-1] for stage in range(shape.stages)]
        while any(left):
            for stage, several in enumerate(left):
                while several and self._may(stage, *several[-1]):
                    self._turn(stage, *several.pop())
        update = sum(row.update for row in self.rows) * PS_PER_NS
        for rank in range(len(self.last) if update else 0):
            self._node("update", rank, OTHER, update, -1, [*self.last[rank], *self.loose[rank]])
        rank, role, effort, call = np.array(self.columns, dtype=np.int64).T
        return Graphs(
            self.names, rank, np.zeros_like(rank), role, effort, call,
            np.concatenate([[0], np.cumsum([len(each) for each in self.needs])]).astype(np.int64),
            np.array([each for several in self.needs for each in several], dtype=np.int64), self.calls,
        )  # fmt: skip

    def _may(self, stage: int, back: bool, micro: int) -> bool:
        end = self.shape.stages - 1 if back else 0
        return stage == end or (stage, back, micro) in self.sent

    def _turn(self, stage: int, back: bool, micro: int) -> None:
        """A pass of a micro-batch: what it waits for, its rows, and what it sends."""
        self._receive(stage, back, micro)
        start, length = self.blocks
        begin, last = start + micro * length, micro == self.shape.micros - 1
        mine = range(begin, begin + length)
        before, behind = range(start), range(start + self.shape.micros * length, len(self.rows))
        if back:
            self._backward(stage, [*mine[::-1], *(before[::-1] if last else ())])
        else:
            self._forward(stage, [*(() if micro else before), *mine, *(behind if last else ())])
            self._backward(stage, behind[::-1] if last else ())
        other = stage - 1 if back else stage + 1
        if 0 <= other < self.shape.stages:
            self._send(stage, other, back, micro)

    def _forward(self, stage: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            row = self.rows[number]
            self._compute(stage, f"{row.name}.{number} forward", FORWARD, row.compute[0])
            self._call(stage, number, 0)

    def _backward(self, stage: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            row = self.rows[number]
            for column in (2, 1) if self.weights_first else (1, 2):
                name = f"{row.name}.{number} {'input' if column == 1 else 'weight'} gradient"
                self._compute(stage, name, BACKWARD, row.compute[column])
                self._call(stage, number, column)

    def _ranks(self, stage: int) -> range:
        return range(stage * self.shape.stage_ranks, (stage + 1) * self.shape.stage_ranks)

    def _node(self, name: str, rank: int, role: int, effort: int, call: int, needs: list[int]) -> int:
        self.names.append(name)
        self.columns.append((rank, role, effort, call))
        self.needs.append(sorted(needs))
        return len(self.names) - 1

    def _compute(self, stage: int, name: str, role: int, spent_ns: int) -> None:
        for rank in self._ranks(stage) if spent_ns else ():
            self.last[rank] = [self._node(name, rank, role, spent_ns * PS_PER_NS, -1, self.last[rank])]

    def _call(self, stage: int, number: int, column: int) -> None:
        """The collective of a row's pass, in all groups of a stage that have anybody to talk to."""
        asked = self.row_calls[number][column]
        if asked is None:
            return
        begin, name = stage * self.shape.stage_ranks, f"{self.rows[number].name}.{number} {asked.kind}"
        for group in self.groups[asked.dimension]:
            if len(group) == 1:
                continue
            members = tuple(begin + each for each in group)
            self.calls.append(Call(asked.kind, members, asked.nbytes))
            for rank in members:
                node = self._node(name, rank, OTHER, 0, len(self.calls) - 1, self.last[rank])
                if column == 2:
                    self.loose[rank].append(node)
                else:
                    self.last[rank] = [node]

    def _send(self, stage: int, other: int, back: bool, micro: int) -> None:
        self.sent[other, back, micro] = len(self.calls)
        for rank in self._ranks(stage):
            across = rank + (other - stage) * self.shape.stage_ranks
            self._node(f"send {micro} to stage {other}", rank, OTHER, 0, len(self.calls), self.last[rank])
            self.calls.append(Call(SEND, (rank, across), self.shape.transfer))

    def _receive(self, stage: int, back: bool, micro: int) -> None:
        first = self.sent.pop((stage, back, micro), None)
        if first is None:
            return
        source = stage + 1 if back else stage - 1
        for place, rank in enumerate(self._ranks(stage)):
            node = self._node(f"receive {micro} from stage {source}", rank, OTHER, 0, first + place, [])
            self.last[rank] = [*self.last[rank], node]
