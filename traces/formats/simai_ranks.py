"""Builds the graphs of all ranks, with pipeline stages, from a SimAI workload, whose rows are those of one rank.

AICB divides the layers of a model by the stages and writes what a rank of any stage computes and calls, the rows of a
micro-batch `ga` times in a row, and in the header the bytes that a micro-batch sends to the next stage, `pp_comm`
[code: workload_generator, SIMAI_workload]. SimAI adds a formula for stages and simulates no transfer [its issues 18,
62]; here transfers are simulated, by one forward, one backward (1F1B):

* N ranks, `all_gpus`; T consecutive ones, `model_parallel_NPU_group`, form a tensor group, and stages are outermost, as
  Megatron-LM numbers them [recalled]: rank n is member n mod T of its tensor group, copy (n mod N/P) / T of the model,
  and in stage n / (N/P).
* A stage begins with as many forward passes as there are stages behind it, alternates forward and backward passes, and
  ends with the remaining backward passes (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
  Clusters Using Megatron-LM", SC '21, without interleaving).
* After a micro-batch's forward pass a rank sends `pp_comm` bytes to its counterpart in the next stage, and after its
  backward pass to that of the previous stage, without waiting; the receiver waits for them.

Our choices: all stages have the rows of the file, including an embedding and a loss, as the file is of any stage and
SimAI's formula has it. Rows before those of the first micro-batch go before the first forward pass and, backward, after
the last backward pass; rows after those of the last one go after the last forward pass, backward too. Collectives of
weight gradients are called after the weight gradient without waiting; the update of all rows together waits for them.
`vpp` is ignored: AICB writes the number of layers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np
from gradwire.traces.formats.draft import PS_PER_NS
from gradwire.traces.parts import DIMENSIONS, group_members
from gradwire.traces.rank_graphs import ROLES, SEND, RankCall, RankGraphs
from gradwire.traces.storage.memory_limits import refuse_beyond

NODE_BYTES = 700
"""Memory of a node during construction [measured]."""
FORWARD, BACKWARD, OTHER = (ROLES.index(role) for role in ("forward", "backward", "other"))


class WorkloadRow(NamedTuple):
    """One line: compute in nanoseconds, collectives and bytes, each for the three passes."""

    name: str
    compute: tuple[int, int, int]
    collective: tuple[str, str, str]
    size: tuple[int, int, int]
    update: int


class RowCollective(NamedTuple):
    """Collective of a row: kind (of `gradwire.traces.parts.COLLECTIVES`), dimension, and bytes of a whole buffer."""

    kind: str
    dimension: str
    nbytes: int


Calls = tuple[RowCollective | None, RowCollective | None, RowCollective | None]
"""Collectives of a row: of its forward pass, its input gradient and its weight gradient."""


class ParallelShape(NamedTuple):
    """Division of a model over ranks, and the bytes that a micro-batch sends from stage to stage."""

    tensor: int
    context: int
    expert: int
    copies: int
    stages: int
    micros: int
    transfer: int

    @property
    def stage_ranks(self) -> int:
        """Number of ranks of one stage."""
        return self.tensor * self.copies

    @classmethod
    def of(cls, header: dict[str, int], where: str) -> ParallelShape:
        """Return the shape in a workload's header; TraceError if sizes are missing or do not fit."""
        sizes = {"cp": 1, "ep": 1, "pp": 1, "ga": 1, "pp_comm": 0, **header}
        for key in ("model_parallel_NPU_group", "all_gpus"):
            if key not in sizes:
                raise TraceError(f"has no {key}", f"{where}, line 1", "its value, as written by AICB")
        tensor, context, expert, stages, micros, ranks = (
            sizes[key] for key in ("model_parallel_NPU_group", "cp", "ep", "pp", "ga", "all_gpus")
        )
        if min(tensor, context, expert, stages, micros, ranks) < 1:
            raise TraceError("a size below 1", f"{where}, line 1", "1 or more of each")
        copies, remainder = divmod(ranks, tensor * stages)
        if remainder or copies % (context * expert):
            what = f"{ranks} ranks in {stages} stages, {tensor} to a tensor group, {expert} to an expert group"
            what += f", {context} to a context group" if context > 1 else ""
            raise TraceError(what, f"{where}, line 1", "sizes that divide the ranks")
        if stages > 1 and sizes["pp_comm"] < 1:
            what = f"{stages} stages, and pp_comm is {sizes['pp_comm']}"
            raise TraceError(what, f"{where}, line 1", "the bytes that a micro-batch sends from stage to stage")
        return cls(tensor, context, expert, copies, stages, micros, sizes["pp_comm"])


class LayerBlocks(NamedTuple):
    """Position of the micro-batches' rows: `length` rows for each, from `start` on."""

    start: int
    length: int


def graphs_of(
    rows: Sequence[WorkloadRow], calls: Sequence[Calls], header: dict[str, int], data_parallel: bool, where: str
) -> RankGraphs:
    """Return the graphs of all ranks of a workload. `calls` are those of each row, `header` its "key: value" pairs.
    With `data_parallel` the weight gradient of a row comes before its input gradient. TraceError if the header is
    incomplete, rows do not repeat as often as it says, or the nodes exceed the memory."""
    shape = ParallelShape.of(header, where)
    blocks = _blocks(rows, shape.micros, where)
    nodes = shape.stages * shape.stage_ranks * (6 * len(rows) + 4 * shape.micros)
    refuse_beyond(nodes * NODE_BYTES, f"graphs of up to {nodes} nodes", where)
    return _GraphBuilder(rows, calls, shape, blocks, data_parallel).build()


def _blocks(rows: Sequence[WorkloadRow], micros: int, where: str) -> LayerBlocks:
    """Return the longest run of rows that repeats `micros` times in succession."""
    if micros == 1:
        return LayerBlocks(0, len(rows))
    number_of_row: dict[WorkloadRow, int] = {}
    numbers = np.array([number_of_row.setdefault(row, len(number_of_row)) for row in rows], dtype=np.int64)
    for length in range(len(rows) // micros, 0, -1):
        matches = np.concatenate([[0], np.cumsum(numbers[:-length] == numbers[length:])])
        needed = (micros - 1) * length
        starts = np.flatnonzero(matches[needed:] - matches[:-needed] == needed)
        if len(starts):
            return LayerBlocks(int(starts[0]), length)
    what = f"ga is {micros}, but no rows repeat {micros} times in succession"
    raise TraceError(what, where, "the rows of every micro-batch, as written by AICB")


def pipeline_schedule(stage: int, stages: int, micros: int) -> list[tuple[bool, int]]:
    """Return the passes of a stage in order: (True if backward, number of the micro-batch)."""
    warmup = min(stages - 1 - stage, micros)
    passes = [(False, micro) for micro in range(warmup)]
    for micro in range(warmup, micros):
        passes += [(False, micro), (True, micro - warmup)]
    return passes + [(True, micro) for micro in range(micros - warmup, micros)]


class _GraphBuilder:
    """Builder of graphs in an order in which nodes could run: all ranks of a stage go through a pass together."""

    def __init__(
        self,
        rows: Sequence[WorkloadRow],
        calls: Sequence[Calls],
        shape: ParallelShape,
        blocks: LayerBlocks,
        data_parallel: bool,
    ) -> None:
        self.rows, self.row_calls, self.shape = rows, calls, shape
        self.blocks, self.weights_first = blocks, data_parallel
        ranks = shape.stages * shape.stage_ranks
        self.names: list[str] = []
        self.columns: list[tuple[int, int, int, int]] = []  # rank, role, effort, call
        self.needs: list[list[int]] = []
        self.calls: list[RankCall] = []
        self.last: list[list[int]] = [[] for _ in range(ranks)]  # dependencies of a rank's next node
        self.unawaited: list[list[int]] = [[] for _ in range(ranks)]  # calls that only the update waits for
        self.transfers: dict[tuple[int, bool, int], int] = {}  # first call that a stage's pass waits for
        self.groups = {
            name: group_members(name, shape.tensor, shape.expert, shape.copies, shape.context).tolist()
            for name in DIMENSIONS
        }

    def build(self) -> RankGraphs:
        shape = self.shape
        remaining = [pipeline_schedule(stage, shape.stages, shape.micros)[::-1] for stage in range(shape.stages)]
        while any(remaining):
            for stage, passes in enumerate(remaining):
                while passes and self._is_ready(stage, *passes[-1]):
                    self._add_pass(stage, *passes.pop())
        update = sum(row.update for row in self.rows) * PS_PER_NS
        for rank in range(len(self.last) if update else 0):
            self._node("update", rank, OTHER, update, -1, [*self.last[rank], *self.unawaited[rank]])
        rank, role, effort, call = np.array(self.columns, dtype=np.int64).T
        return RankGraphs(
            self.names,
            rank,
            np.zeros_like(rank),
            role,
            effort,
            call,
            np.concatenate([[0], np.cumsum([len(rows) for rows in self.needs])]).astype(np.int64),
            np.array([row for rows in self.needs for row in rows], dtype=np.int64),
            self.calls,
        )

    def _is_ready(self, stage: int, back: bool, micro: int) -> bool:
        end = self.shape.stages - 1 if back else 0
        return stage == end or (stage, back, micro) in self.transfers

    def _add_pass(self, stage: int, back: bool, micro: int) -> None:
        """Add a pass of a micro-batch: its receive, its rows, and its send."""
        self._receive(stage, back, micro)
        start, length = self.blocks
        begin, last = start + micro * length, micro == self.shape.micros - 1
        own_rows = range(begin, begin + length)
        before, after = range(start), range(start + self.shape.micros * length, len(self.rows))
        if back:
            self._backward(stage, [*own_rows[::-1], *(before[::-1] if last else ())])
        else:
            self._forward(stage, [*(() if micro else before), *own_rows, *(after if last else ())])
            self._backward(stage, after[::-1] if last else ())
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

    def _compute(self, stage: int, name: str, role: int, duration_ns: int) -> None:
        for rank in self._ranks(stage) if duration_ns else ():
            self.last[rank] = [self._node(name, rank, role, duration_ns * PS_PER_NS, -1, self.last[rank])]

    def _call(self, stage: int, number: int, column: int) -> None:
        """Add the collective of a row's pass, in all groups of a stage with more than one member."""
        collective = self.row_calls[number][column]
        if collective is None:
            return
        begin, name = stage * self.shape.stage_ranks, f"{self.rows[number].name}.{number} {collective.kind}"
        for group in self.groups[collective.dimension]:
            if len(group) == 1:
                continue
            members = tuple(begin + member for member in group)
            self.calls.append(RankCall(collective.kind, members, collective.nbytes))
            for rank in members:
                node = self._node(name, rank, OTHER, 0, len(self.calls) - 1, self.last[rank])
                if column == 2:
                    self.unawaited[rank].append(node)
                else:
                    self.last[rank] = [node]

    def _send(self, stage: int, other: int, back: bool, micro: int) -> None:
        self.transfers[other, back, micro] = len(self.calls)
        for rank in self._ranks(stage):
            receiver = rank + (other - stage) * self.shape.stage_ranks
            self._node(f"send {micro} to stage {other}", rank, OTHER, 0, len(self.calls), self.last[rank])
            self.calls.append(RankCall(SEND, (rank, receiver), self.shape.transfer))

    def _receive(self, stage: int, back: bool, micro: int) -> None:
        first = self.transfers.pop((stage, back, micro), None)
        if first is None:
            return
        source = stage + 1 if back else stage - 1
        for position, rank in enumerate(self._ranks(stage)):
            node = self._node(f"receive {micro} from stage {source}", rank, OTHER, 0, first + position, [])
            self.last[rank] = [*self.last[rank], node]
