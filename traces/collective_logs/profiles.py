"""Reads several PyTorch profiles (Kineto) of one job: its collectives, and what each rank's accelerator did.

A file holds one rank, named by `distributedInfo` or by the file's name (rank-3, rank_3, rank3). A collective is a
kernel with `Collective name` (PyTorch 2.2 or later), or one with NCCL's name, whose group is then its stream. Ranks
are matched by process group and `Seq`, where the profile has it; otherwise by the group, the number of the
`ProfilerStep#` in which the kernel begins, and its position in that step, since recordings begin at different calls.
Kernels outside of steps then have no number.

`RankActivity` measures what HolisticTraceAnalysis calls the temporal breakdown and the overlap of computation and
communication [hta/analyzers/breakdown_analysis.py, communication_analysis.py]: kernels and copies of all streams,
merged, from the first start to the last end.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np
from gradwire.traces.collective_logs.records import KINDS, STATES, UNKNOWN, LogBuilder
from gradwire.traces.formats.profile.json_events import events
from gradwire.traces.formats.profile.values import kernel_collective, number, type_name
from gradwire.traces.formats.source import open_source

KIND, TITLE = "kineto", "PyTorch profiler JSON"
_RANK = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_COMMUNICATION = re.compile(r"(?:one|[a-z]{1,2})?ccl(?:Dev)?Kernel|.*ccl", re.IGNORECASE)
_WIDTHS = {
    "float": 4,
    "half": 2,
    "bfloat16": 2,
    "double": 8,
    "int": 4,
    "long": 8,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_KINDS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
_KERNELS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "other",
}
"""Kinds by the name of NCCL's kernel, for profiles that name no collective; SendRecv may be an all-to-all."""
_STEP_CALLS = 10**6
"""Sequence numbers made from steps: the step times this, plus the position in it."""


@dataclass(frozen=True)
class RankActivity:
    """Activity of a rank's accelerator, in microseconds from its first kernel to the end of its last.

    span : all of it. busy : at least one kernel or copy runs. compute : at least one compute kernel runs.
    communication : at least one communication kernel runs. overlap : both run.
    """

    rank: int
    span: float
    busy: float
    compute: float
    communication: float
    overlap: float
    steps: int = 0

    @property
    def idle(self) -> float:
        """Time in which nothing runs."""
        return self.span - self.busy

    @property
    def overlap_share(self) -> float:
        """Part of the communication that is hidden behind computing; 0 without communication."""
        return self.overlap / self.communication if self.communication else 0.0


class _Kernel(NamedTuple):
    begin: float
    end: float
    group: str
    name: str
    args: dict[str, Any]


@dataclass
class _Profile:
    """Records of a file: spans of computing, communication and copies, collectives, steps (begin, end, number)."""

    compute: list[tuple[float, float]] = field(default_factory=list)
    communication: list[tuple[float, float]] = field(default_factory=list)
    copies: list[tuple[float, float]] = field(default_factory=list)
    kernels: list[_Kernel] = field(default_factory=list)
    steps: list[tuple[float, float, int]] = field(default_factory=list)
    called: dict[float, float] = field(default_factory=dict)  # external id: time of record_param_comms


def recognise(head: bytes) -> bool:
    """Return True if a file begins like a Chrome trace of the profiler."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and (
        re.search(rb'"(schemaVersion|traceEvents|distributedInfo|deviceProperties)"', head) is not None
    )


def read(
    paths: Iterable[Path], builder: LogBuilder, progress: Callable[[float, str], None] | None = None
) -> list[RankActivity]:
    """Add the profiles of a job to a log, and return the activity of each rank that has kernels."""
    activities = []
    for path in paths:
        header: dict[str, Any] = {}
        profile = _Profile()
        with open_source(path, progress) as source:
            for event in events(source, header, builder.skipped):
                _sort(event, profile)
        rank, descriptions = _about(header, path, builder)
        builder.add_rank(rank, str(path))
        if profile.compute or profile.communication:
            activities.append(_activity(rank, profile))
        _add(rank, profile, descriptions, builder, str(path))
    return sorted(activities, key=lambda activity: activity.rank)


def _sort(event: dict[str, Any], profile: _Profile) -> None:
    if event.get("ph") != "X":
        return
    category, name = event.get("cat"), event.get("name")
    begin, duration = number(event.get("ts")), number(event.get("dur", 0))
    if not isinstance(name, str) or not begin > 0 or not duration >= 0:
        return
    args = event.get("args") if isinstance(event.get("args"), dict) else {}
    assert isinstance(args, dict)
    if category in _DEVICE:
        span = (begin, begin + duration)
        if category not in ("kernel", "Kernel"):
            profile.copies.append(span)
        elif _COMMUNICATION.match(name) or "Collective name" in args:
            profile.communication.append(span)
            if "Collective name" in args:
                group = str(args.get("Process Group Name", ""))[:200] or "default"
            else:
                group = f"stream {str(event.get('tid'))[:40]}"
            profile.kernels.append(_Kernel(*span, group, kernel_collective(name), args))
        else:
            profile.compute.append(span)
    elif category == "user_annotation" and (step := _STEP.search(name)):
        profile.steps.append((begin, begin + duration, int(step[1])))
    elif name == "record_param_comms" and (identifier := number(args.get("External id"))) >= 0:
        profile.called[identifier] = begin


def _about(
    header: dict[str, Any], path: Path, builder: LogBuilder
) -> tuple[int, dict[str, tuple[str, tuple[int, ...]]]]:
    """Return the rank, and (description, ranks) of the process groups by name."""
    job = _parsed(header.get("distributedInfo"))
    job = job if isinstance(job, dict) else {}
    rank = job.get("rank")
    match = _RANK.search(path.name)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < 10**7:
        if match is None:
            what = "has no rank: neither distributedInfo nor its name holds one"
            raise TraceError(what, str(path), "a profile of a distributed job, or a name such as rank-3.json")
        rank = int(match[1])
    devices = _parsed(header.get("deviceProperties"))
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        builder.about["GPU"] = str(devices[0].get("name", ""))[:80]
    if isinstance(job.get("world_size"), int):
        builder.about["world_size"] = str(job["world_size"])[:20]
    groups = {}
    config = _parsed(job.get("pg_config"))
    for group in config if isinstance(config, list) else ():
        if isinstance(group, dict):
            groups[str(group.get("pg_name", ""))[:200]] = (
                str(group.get("pg_desc", ""))[:200],
                _ranks(group.get("ranks")),
            )
    return rank, groups


def _parsed(value: Any) -> Any:
    """Return a header's value, which some versions write as text."""
    if not isinstance(value, str) or len(value) > 1 << 22:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group; empty if they are cut off, as beyond 30 of them."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = re.findall(r"\d{1,7}", value)
    values = value if isinstance(value, list) else []
    whole = [
        int(rank) for rank in values if isinstance(rank, (int, str)) and str(rank).isdecimal() and len(str(rank)) < 8
    ]
    return tuple(dict.fromkeys(whole)) if len(whole) == len(values) else ()


def _add(
    rank: int, profile: _Profile, groups: dict[str, tuple[str, tuple[int, ...]]], builder: LogBuilder, where: str
) -> None:
    steps = sorted(profile.steps)
    begins = [step[0] for step in steps]
    positions: dict[tuple[str, int], int] = {}
    for kernel in sorted(profile.kernels, key=lambda kernel: kernel.begin):
        named = kernel.args.get("Collective name")
        kind = _KINDS.get(re.sub(r"[^a-z]", "", str(named).lower())) if named else _KERNELS.get(kernel.name)
        if kind is None:
            builder.skipped["communication kernels without a known collective"] += 1
            continue
        described, ranks = groups.get(kernel.group, (str(kernel.args.get("Process Group Description", ""))[:200], ()))
        ranks = ranks or _ranks(kernel.args.get("Process Group Ranks"))
        key = f"{kernel.group}|{ranks}" if ranks else kernel.group
        sequence = number(kernel.args.get("Seq"))
        index = bisect_right(begins, kernel.begin) - 1
        if not sequence >= 0:
            inside = index >= 0 and kernel.begin < steps[index][1]
            step = steps[index][2] if inside else -1
            position = positions[key, step] = positions.get((key, step), -1) + 1
            sequence = step * _STEP_CALLS + position if step >= 0 else (UNKNOWN if steps else position)
            builder.skipped["collectives outside of every step, not matched"] += sequence == UNKNOWN
        called = profile.called.get(number(kernel.args.get("External id")), -1.0)
        builder.add(
            rank,
            builder.group(key, kernel.group, described, ranks, where),
            int(sequence),
            KINDS.index(kind),
            _bytes(kernel.args, kind),
            _ns(called),
            _ns(kernel.begin),
            _ns(kernel.end),
            _ns(kernel.end - kernel.begin),
            STATES.index("completed"),
        )


def _bytes(args: dict[str, Any], kind: str) -> int:
    side = "Out" if kind in ("all_gather", "gather", "recv") else "In"
    count, width = number(args.get(f"{side} msg nelems")), _WIDTHS.get(type_name(args.get("dtype")))
    return int(count) * width if count >= 0 and width else UNKNOWN


def _ns(micros: float) -> int:
    return round(micros * 1000) if micros >= 0 else UNKNOWN


def _activity(rank: int, profile: _Profile) -> RankActivity:
    compute, communication = _merged(profile.compute), _merged(profile.communication)
    busy = _merged([*profile.compute, *profile.communication, *profile.copies])
    both = _merged([*profile.compute, *profile.communication])
    busy_time, compute_time, communication_time, either = (
        float((spans[:, 1] - spans[:, 0]).sum()) for spans in (busy, compute, communication, both)
    )
    return RankActivity(
        rank,
        span=float(busy[-1, 1] - busy[0, 0]),
        busy=busy_time,
        compute=compute_time,
        communication=communication_time,
        overlap=compute_time + communication_time - either,
        steps=len({step[2] for step in profile.steps}),
    )


def _merged(spans: list[tuple[float, float]]) -> Floats:
    """Return the union of spans, float64[n, 2], in order."""
    if not spans:
        return np.zeros((0, 2))
    ordered = np.array(sorted(spans))
    ends = np.maximum.accumulate(ordered[:, 1])
    is_new = np.concatenate([[True], ordered[1:, 0] > ends[:-1]])
    return np.stack(
        [ordered[is_new, 0], ends[np.concatenate([np.flatnonzero(is_new)[1:] - 1, [len(ends) - 1]])]], axis=1
    )
