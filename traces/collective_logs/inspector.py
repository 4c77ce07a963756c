"""Reads and writes JSON lines of the NCCL Inspector, format v4.0 [NCCL, plugins/profiler/inspector].

    {"header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1},
     "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": ..., "hostname": ..., "pid": ...},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
                   "coll_busbw_gbs": 485.1, "event_trace_ts": {"coll_start_ts": ..., "kernel_events": [...]}}}

A line is one collective of one communicator at one process, a file the lines of one process or of several. `rank` is
that of the communicator: a process is known by its host and process id, and its global rank is the one in the largest
communicator, which must have all processes. `coll_msg_size_bytes` is the count times the size of an element: of an
all-gather and a reduce-scatter each rank's share. Start and end exist only with NCCL_INSPECTOR_DUMP_VERBOSE=1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.scenarios.errors import TraceError, shorten
from gradwire.traces.collective_logs.records import KINDS, STATES, UNKNOWN, CollectiveLog, LogBuilder, bus_factor
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import open_source

KIND, TITLE = "inspector", "NCCL Inspector JSON lines"
VERSION = "v4.0"
_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}
_WRITTEN = {kind: name for name, kind in _KINDS.items() if name not in ("AllGatherV", "AllToAll")}
SHARES = ("all_gather", "reduce_scatter")
"""Kinds whose message size is that of each rank's share."""
_US = 1000


class InspectorCall(NamedTuple):
    """A line: communicator and its size, rank in it, process, and the values of the call; times in microseconds."""

    communicator: str
    name: str
    n_ranks: int
    rank: int
    process: tuple[str, int]
    kind: str
    sequence: int
    nbytes: int
    exec_us: int
    enqueue_us: int
    start_us: int
    end_us: int


def recognise(head: bytes) -> bool:
    """Return True if a file begins with a line of the Inspector."""
    return re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"(header|metadata|coll_perf)"\s*:\s*\{', head) is not None


def read(paths: Iterable[Path], builder: LogBuilder, progress: Callable[[float, str], None] | None = None) -> None:
    """Add the files of all processes of a job to a log. TraceError for lines that are not of the Inspector, and if no
    communicator has all processes."""
    calls: list[InspectorCall] = []
    first_where = ""
    for path in paths:
        first_where = first_where or str(path)
        before = len(calls)
        with open_source(path, progress) as source:
            for number, line in source.lines():
                if line.strip():
                    call = _parse(line, f"{path}, line {number}", builder)
                    calls += [call] if call is not None else []
        if len(calls) == before:
            builder.skipped["files without collectives"] += 1
    ranks = _global_ranks(calls, first_where)
    members: dict[str, dict[int, int]] = {}
    for call in calls:
        members.setdefault(call.communicator, {})[call.rank] = ranks[call.process]
    for process, rank in ranks.items():
        builder.add_rank(rank, f"process {process[1]} of {process[0]}")
        builder.hosts[rank] = process[0]
    builder.about["version"] = VERSION
    for call in calls:
        known = members[call.communicator]
        complete = tuple(known[rank] for rank in sorted(known)) if len(known) == call.n_ranks else ()
        group = builder.group(call.communicator, call.name or call.communicator, "", complete, first_where)
        nbytes = call.nbytes * call.n_ranks if call.kind in SHARES and call.nbytes >= 0 else call.nbytes
        builder.add(
            ranks[call.process],
            group,
            call.sequence,
            KINDS.index(call.kind),
            nbytes,
            _ns(call.enqueue_us),
            _ns(call.start_us),
            _ns(call.end_us),
            _ns(call.exec_us),
            STATES.index("completed"),
        )


def _ns(micros: int) -> int:
    return micros * _US if micros >= 0 else UNKNOWN


def _parse(line: str, where: str, builder: LogBuilder) -> InspectorCall | None:
    """Return the call of a line; None, and counted, for other operations."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is not JSON ({str(error)[:80]})", where, "a line of the NCCL Inspector") from None
    header, metadata = (record.get(key) if isinstance(record, dict) else None for key in ("header", "metadata"))
    if not isinstance(header, dict) or not isinstance(metadata, dict):
        raise TraceError("has no header and metadata", where, "a line of the NCCL Inspector")
    version = metadata.get("inspector_output_format_version")
    if version != VERSION:
        raise TraceError(f"has format version {shorten(version)}", where, VERSION)
    part = "p2p" if "p2p_perf" in record else "coll"
    values = record.get(f"{part}_perf")
    if not isinstance(values, dict):
        builder.skipped["lines without coll_perf or p2p_perf"] += 1
        return None
    kind = _KINDS.get(str(values.get(part)))
    if kind is None:
        builder.skipped[f"operation {str(values.get(part))[:60]}"] += 1
        return None
    rank, n_ranks = _count(header.get("rank")), _count(header.get("n_ranks"))
    sequence = _count(values.get(f"{part}_sn"))
    if not 0 <= rank < n_ranks <= 10**7 or sequence < 0 or _count(metadata.get("pid")) < 0:
        raise TraceError(
            f"has rank {rank} of {n_ranks}, sequence number {sequence}", where, "rank, n_ranks, pid and coll_sn"
        )
    trace = values.get("event_trace_ts")
    enqueue, start, end = _times(trace if isinstance(trace, dict) else {}, part)
    name = header.get("comm_name", "")
    return InspectorCall(
        str(header.get("id"))[:80],
        str(name)[:80] if name != "unknown" else "",
        n_ranks,
        rank,
        (str(metadata.get("hostname", ""))[:80], metadata["pid"]),
        kind,
        sequence,
        _count(values.get(f"{part}_msg_size_bytes")),
        _count(values.get(f"{part}_exec_time_us")),
        enqueue,
        start,
        end,
    )


def _times(trace: dict[str, Any], part: str) -> tuple[int, int, int]:
    """Return (call, start of the first channel's kernel, end of the last) in microseconds, UNKNOWN without them."""
    events = trace.get("kernel_events")
    channels = [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    starts = [moment for event in channels if (moment := _count(event.get("kernel_start_ts"))) > 0]
    ends = [moment for event in channels if (moment := _count(event.get("kernel_stop_ts"))) > 0]
    called = _count(trace.get(f"{part}_start_ts"))
    return called if called > 0 else UNKNOWN, min(starts, default=UNKNOWN), max(ends, default=UNKNOWN)


def _global_ranks(calls: Iterable[InspectorCall], where: str) -> dict[tuple[str, int], int]:
    """Return the global rank of each process: that of the largest communicator."""
    largest = max(calls, key=lambda call: (call.n_ranks, call.communicator), default=None)
    ranks = {call.process: call.rank for call in calls if largest and call.communicator == largest.communicator}
    if len(set(ranks.values())) < len(ranks):
        raise TraceError("several processes have the same rank of a communicator", where, "files of one job")
    for call in calls:
        if call.process not in ranks:
            what = f"process {call.process[1]} of {call.process[0]} is in no communicator of all processes"
            raise TraceError(what, where, "a communicator of all processes, such as that of init_process_group")
    return ranks


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else UNKNOWN


def write(log: CollectiveLog, folder: Path) -> list[Path]:
    """Write the completed calls of known duration as one file per rank in a new folder; return the files.
    The members of a group must be known. Point-to-point calls are left out: the log does not name their peers."""
    contents: dict[Path, bytes] = {}
    index_of = [{rank: index for index, rank in enumerate(group.members)} for group in log.groups]
    lines: dict[int, list[str]] = {rank: [] for rank in log.ranks}
    columns = (log.rank, log.group, log.sequence, log.kind, log.nbytes, log.enqueue_ns, log.start_ns, log.end_ns)
    for rank, group, sequence, kind_index, nbytes, enqueue, start, end, duration in zip(
        *(column.tolist() for column in columns), log.duration_ns.tolist(), strict=True
    ):
        kind, members = KINDS[kind_index], log.groups[group].members
        if kind in _WRITTEN and kind not in ("send", "recv") and min(duration, nbytes) >= 0 and rank in index_of[group]:
            name = log.groups[group].name
            header = {
                "id": f"0x{group + 1:x}",
                "comm_name": name,
                "rank": index_of[group][rank],
                "n_ranks": len(members),
            }
            header["nnodes"] = len({log.hosts.get(member, str(member)) for member in members})
            values = _values(kind, sequence, nbytes, duration, len(members))
            if start >= 0:
                values["event_trace_ts"] = {
                    "coll_start_ts": max(enqueue, 0) // _US,
                    "coll_stop_ts": max(enqueue, 0) // _US,
                    "kernel_events": [
                        {"channel_id": 0, "kernel_start_ts": start // _US, "kernel_stop_ts": max(end, 0) // _US}
                    ],
                }
            lines[rank].append(
                json.dumps({"header": header, "metadata": _metadata(log, rank, end), "coll_perf": values})
            )
    for rank, text in lines.items():
        contents[folder / f"{log.hosts.get(rank, f'host{rank}')}-pid{rank + 1}.log"] = "".join(
            f"{t}\n" for t in text
        ).encode()
    return write_files(contents)


def _metadata(log: CollectiveLog, rank: int, end: int) -> dict[str, Any]:
    return {
        "inspector_output_format_version": VERSION,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": max(end, 0) // _US,
        "hostname": log.hosts.get(rank, f"host{rank}"),
        "pid": rank + 1,
    }


def _values(kind: str, sequence: int, nbytes: int, duration_ns: int, members: int) -> dict[str, Any]:
    exec_us = round(duration_ns / _US)
    algorithm_gbs = nbytes / (exec_us * 1e3) if exec_us else 0.0
    return {
        "coll": _WRITTEN[kind],
        "coll_sn": sequence,
        "coll_msg_size_bytes": nbytes // members if kind in SHARES else nbytes,
        "coll_exec_time_us": exec_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(algorithm_gbs, 6),
        "coll_busbw_gbs": round(algorithm_gbs * bus_factor(kind, members), 6),
    }
