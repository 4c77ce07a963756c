"""The format `simai` reads and writes SimAI's text workloads, of AICB (github.com/aliyun/aicb) and ASTRA-sim 1.0's
older dialects.

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 16 ...
    2
    attention  -1  539986  ALLREDUCE  16777216  592000  ALLREDUCE  16777216  592000  NONE  0  100

The first line names the parallelism, the second the number of rows. A row is a layer: name, dependency; then three
times compute in nanoseconds, collective and bytes, for the forward pass, the input gradient and the weight gradient;
then the time of its update. Columns are separated by any blanks; a row of HYBRID_CUSTOMIZED has a thirteenth, its own
parallelism.

The gradients of data parallel training are the weight gradients' all-reduces and reduce-scatters, those of experts with
a suffix (_EP, _DP_EP). Collectives of the other two columns block their pass: they are communications of the trace,
among the tensor-parallel group unless a suffix names another (_DP, _EP, _DP_EP), as in SimAI [code: Workload.cc, which
has no _DP]; bytes are those of the whole buffer [code: AICB's generator]. Other weight-gradient collectives are left
out, by kind. Backward goes from the last row to the first: of a row the input gradient, its communication, and the
weight gradient; with pure data parallelism (DATA) the weight gradient comes first, as in Chakra's text converter.
AICB's Megatron workloads have one reduce-scatter of all gradients in their first rows, which is ready at the very end.
The graphs of all ranks, with pipeline stages, are computed by `gradwire.traces.formats.simai_ranks`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import Format, ReadOptions, WriteOptions
from gradwire.traces.formats.draft import PS_PER_NS, Draft, Timing, gradient_of_bytes
from gradwire.traces.formats.simai_ranks import Calls, RowCollective, WorkloadRow, graphs_of
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import open_source
from gradwire.traces.parts import Communication
from gradwire.traces.rank_graphs import RankGraphs

if TYPE_CHECKING:
    from gradwire.traces.trace import Iteration, Trace

COLUMNS = 12
PARALLELISMS = {
    "MICRO", "DATA", "MODEL", "TRANSFORMER", "TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED",
    "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "DLRM", "DISTRIBUTED_INFERENCE",
}  # fmt: skip
_TABLE = "comm_type,"  # start of the header of AICB's other output, a table of collectives without compute times
_COLLECTIVE = re.compile(r"(ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL|BROADCAST)(|_TP|_CP|_DP|_EP|_DP_EP)")
_KINDS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
}
_GROUPS = {"_TP": "tensor", "_CP": "context", "_DP": "data", "_EP": "expert", "_DP_EP": "expert_data"}
_OF_GRADIENTS = {"": "data", "_DP": "data", "_EP": "expert_data", "_DP_EP": "expert_data"}
_BOTH = ("ALLREDUCEALLTOALL", "ALLTOALLALLREDUCE")
_SIZES = {"tensor": "model_parallel_NPU_group", "context": "cp", "expert": "ep", "pipeline": "pp"}
"""Names of the dimensions in the header. SimAI has no context ranks: `cp` and the suffix `_CP` are ours."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_VALUE = re.compile(rf"({_INTEGER.pattern})(\.0*)?")
"""Header value: with sequence parallelism AICB divides pp_comm, and writes it with a decimal point."""
_PASSES = ("forward", "input gradient", "weight gradient")
TRANSFERS, NO_GRADIENT = "pipeline transfers (pp_comm)", " (of activations or parameters)"
"""Names under which parts are counted that only the graphs of all ranks include."""


class SimAi(Format):
    """Workload for SimAI, written by AICB."""

    kind = "simai"
    title = "SimAI text workload"
    ranks = True
    offered = 30

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True for a header with a known parallelism and a row count, or AICB's table header."""
        lines = head.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines()
        first = lines[0].split() if lines else []
        has_parallelism = bool(first) and first[0] in PARALLELISMS
        has_count = len(lines) > 1 and _INTEGER.fullmatch(lines[1].strip()) is not None
        return (has_parallelism and has_count) or any(line.startswith(_TABLE) for line in lines[:2])

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a workload: one iteration, a layer per row. TraceError for invalid rows and for more or
        fewer rows than the second line says."""
        draft = Draft("simai")
        rows: list[WorkloadRow] = []
        with open_source(path, options.progress, options.notes) as source:
            lines = ((number, line) for number, line in source.lines() if line.strip())
            number, first = next(lines, (1, ""))
            header = first.split()
            number, second = next(lines, (2, ""))
            if _TABLE in (first[: len(_TABLE)], second[: len(_TABLE)]):
                what = "is AICB's table of collectives, which has no compute times"
                raise TraceError(what, str(path), "the workload for SimAI (.txt) that AICB also writes")
            if not header or header[0] not in PARALLELISMS:
                raise TraceError(f"begins with {first[:60]!r}", str(path), "one of " + ", ".join(sorted(PARALLELISMS)))
            if not second.split() or not _INTEGER.fullmatch(second.split()[0]):
                raise TraceError(f"{second[:60]!r}", f"{path}, line {number}", "the number of rows")
            expected = int(second.split()[0])
            for number, line in lines:
                if len(rows) == expected:
                    draft.skipped["lines behind the last row"] += 1
                else:
                    rows.append(_row(line, f"{path}, line {number}", draft.skipped))
        if len(rows) < expected:
            raise TraceError(f"ends after {len(rows)} rows", str(path), f"{expected}, as its second line says")
        draft.about = _header(header, draft.skipped)
        data_parallel = header[0] in ("DATA", "MICRO")
        _build(draft, rows, options.dtype, data_parallel)
        if options.ranks:
            draft.graphs = _graphs(draft, rows, data_parallel, str(path))
        return draft

    @staticmethod
    def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
        """Write a data parallel workload of the first chosen iteration for `options.ranks` GPUs, a row per layer.

        The format cannot hold single tensors of a layer (their bytes are added up), their dtype, gradients that are
        ready in another order than back to front (a row's is ready no earlier than those behind it), communications
        other than those of gradients, pauses in the forward pass, more than one iteration, and magnitudes. Times are
        whole nanoseconds; SimAI needs at least one for each step.
        """
        iteration = trace.iterations[options.iterations[0]]
        header = (
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: 1 pp: 1 vpp: 1 ga: 1 "
            f"all_gpus: {options.ranks} checkpoints: 0 checkpoint_initiates: 0"
        )
        rows = _rows(trace, iteration)
        text = "\n".join([header, str(len(rows)), *("\t".join(map(str, row)) for row in rows)]) + "\n"
        return write_files({out: text.encode()})


def _graphs(draft: Draft, rows: list[WorkloadRow], data_parallel: bool, where: str) -> RankGraphs:
    """Return the graphs of all ranks, and count as understood what they contain."""

    def calls(row: WorkloadRow) -> Calls:
        collectives = [
            RowCollective(*meaning, size) if meaning is not None and size else None
            for meaning, size in zip(map(_meaning, row.collective, range(3)), row.size, strict=True)
        ]
        return collectives[0], collectives[1], collectives[2]

    header: dict[str, int] = draft.about["parallelism_header"]  # type: ignore[assignment]
    graphs = graphs_of(rows, [calls(row) for row in rows], header, data_parallel, where)
    draft.understood["graphs of ranks"] = graphs.ranks
    for left_out in [name for name in draft.skipped if name.endswith((TRANSFERS, NO_GRADIENT))]:
        draft.understood[left_out.removesuffix(NO_GRADIENT)] += draft.skipped.pop(left_out)
    return graphs


def _meaning(collective: str, column: int) -> tuple[str, str] | None:
    """Return (kind, dimension) of the collective in a column, 0 to 2; None if there is none, or two in one."""
    match = _COLLECTIVE.fullmatch(collective)
    if match is None:
        return None
    group = _GROUPS.get(match[2], "tensor")
    return _KINDS[match[1]], _OF_GRADIENTS.get(match[2], group) if column == 2 else group


def _header(words: list[str], skipped: Counter[str]) -> dict[str, object]:
    """Return the header's parallelism and "key: value" pairs, for the manifest."""
    pairs = {}
    for key, value in itertools.pairwise(words[1:]):
        match = _VALUE.fullmatch(value)
        if not _VALUE.fullmatch(key) and match:
            pairs[key.rstrip(":")] = int(match[1])
    if pairs.get("pp_comm"):
        skipped[TRANSFERS] += 1
    parallel = {name: pairs[key] for name, key in _SIZES.items() if pairs.get(key, 0) > 0}
    return {"parallelism": words[0], "parallelism_header": pairs, "split": parallel}


def _row(line: str, where: str, skipped: Counter[str]) -> WorkloadRow:
    cells = line.split()
    if len(cells) < COLUMNS:
        raise TraceError(f"{len(cells)} columns", where, f"{COLUMNS}")
    if len(cells) > COLUMNS:
        skipped["columns beyond the twelfth"] += len(cells) - COLUMNS
    if cells[1] != "-1":
        skipped["dependencies of single rows"] += 1
    numbers = [_whole_number(cells[at], at, where) for at in (2, 4, 5, 7, 8, 10, 11)]
    collectives = (cells[3].upper(), cells[6].upper(), cells[9].upper())
    for name in collectives:
        if name not in ("NONE", *_BOTH) and not _COLLECTIVE.fullmatch(name):
            known = f"NONE, or {', '.join(_KINDS)}, with suffix {', '.join(_GROUPS)} or none"
            raise TraceError(f"collective {name[:40]!r}", where, known)
    return WorkloadRow(
        cells[0], (numbers[0], numbers[2], numbers[4]), collectives, (numbers[1], numbers[3], numbers[5]), numbers[6]
    )


def _whole_number(text: str, column: int, where: str) -> int:
    try:
        value = float(text)  # some generators write 1e6
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**53:
        raise TraceError(f"column {column + 1} is {text!r}", where, "a whole number from 0")
    return int(value)


def _build(draft: Draft, rows: list[WorkloadRow], dtype: str, data_parallel: bool) -> None:
    start: list[int] = []
    end: list[int] = []
    call_times: list[int] = []
    clock = 0
    for number, row in enumerate(rows):
        draft.layers.append(f"{number} {row.name}")
        _gradient(draft, row, number, dtype)
        start.append(clock)
        clock += row.compute[0] * PS_PER_NS
        end.append(clock)
        call_times += _add_communication(draft, row, number, 0, clock)
    ready = [0] * len(rows)
    for number in range(len(rows) - 1, -1, -1):
        row = rows[number]
        _, inputs, weights = (nanoseconds * PS_PER_NS for nanoseconds in row.compute)
        ready[number] = clock + (weights if data_parallel else inputs + weights)
        call_times += _add_communication(draft, row, number, 1, clock + inputs + (weights if data_parallel else 0))
        clock += inputs + weights
    update = sum(row.update for row in rows) * PS_PER_NS
    moments = [ready[gradient.layer] for gradient in draft.gradients]
    draft.iterations = [Timing(start, end, moments, clock, update, asked=call_times)]
    draft.understood["rows"] = len(rows)
    if draft.communications and not draft.gradients:
        draft.advice = (
            "a collective in the column of weight gradients; this workload has "
            f"{len(draft.communications)} communications of other passes alone (a collective by itself is traffic)"
        )
    draft.how = "compute times as the workload says, rows one after the other, communication without time"


def _gradient(draft: Draft, row: WorkloadRow, number: int, dtype: str) -> None:
    """Add the gradient of a row, if it has one."""
    collective, size = row.collective[2], row.size[2]
    if collective == "NONE" or not size:
        _count_empty(draft, collective, 2)
        return
    match = _COLLECTIVE.fullmatch(collective)
    group = _OF_GRADIENTS.get(match[2]) if match and match[1] in ("ALLREDUCE", "REDUCESCATTER") else None
    if group is None:
        draft.skipped[f"{_PASSES[2]} {collective}{NO_GRADIENT}"] += 1
        return
    draft.gradients.append(gradient_of_bytes(f"{row.name}.{number}", size, dtype, number, draft.skipped, group))
    draft.understood[f"{_PASSES[2]} {collective}"] += 1


def _count_empty(draft: Draft, collective: str, column: int) -> None:
    if collective != "NONE":
        draft.skipped[f"{_PASSES[column]} {collective} of 0 bytes"] += 1


def _add_communication(draft: Draft, row: WorkloadRow, number: int, column: int, clock: int) -> list[int]:
    """Add the communication of a row's pass, and return the list of its call times: one, or none."""
    collective, size = row.collective[column], row.size[column]
    if collective == "NONE" or not size:
        _count_empty(draft, collective, column)
        return []
    meaning = _meaning(collective, column)
    if meaning is None:
        draft.skipped[f"{_PASSES[column]} {collective} (two collectives in one)"] += 1
        return []
    kind, group = meaning
    turn = "backward" if column else "forward"
    draft.communications.append(Communication(f"{row.name}.{number}", number, turn, kind, group, size))
    draft.understood[f"{_PASSES[column]} {collective} of {group} groups"] += 1
    return [clock]


def _rows(trace: Trace, iteration: Iteration) -> list[list[object]]:
    count = len(trace.layers)
    sizes, ready = trace.layer_bytes.tolist(), trace.layer_ready(iteration.index).tolist()
    rows: list[list[object]] = []
    # Boundaries are rounded, not durations, so that errors do not add up.
    ends = itertools.accumulate(iteration.forward_end_ps.tolist(), max)
    forward = [max(round(end / PS_PER_NS), number) for number, end in enumerate(ends, 1)]
    update = max(round(iteration.optimizer_ps / PS_PER_NS), 0)
    clock = forward[-1]
    for layer in range(count - 1, -1, -1):
        # Without a gradient (-1), its backward is part of the next layer's.
        moment = max(round(ready[layer] / PS_PER_NS), clock + 2)
        spent = forward[layer] - (forward[layer - 1] if layer else 0)
        kind = "ALLREDUCE" if sizes[layer] else "NONE"
        name = "_".join(trace.layers[layer].split()) or f"layer{layer}"
        cells = [name, -1, max(spent, 1), "NONE", 0, 1, "NONE", 0, moment - clock - 1, kind, sizes[layer]]
        rows.append([*cells, update if layer == 0 else 0])
        clock = moment
    return rows[::-1]
