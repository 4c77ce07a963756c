"""Reads and writes dumps of PyTorch's flight recorder: one file per rank, a pickle or JSON.

    {"version": "2.9", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "pg_status": {...},
     "entries": [{"process_group": ("0", "default_pg"), "collective_seq_id": 7, "profiling_name": "nccl:all_reduce",
                  "input_sizes": [[4096]], "input_dtypes": ["Float"], "state": "completed", "duration_ms": 1.5,
                  "time_created_ns": ..., "time_discovered_started_ns": ..., "time_discovered_completed_ns": ...}]}

The ring buffer of a rank holds its latest entries (2,000 by default). `duration_ms` exists only with
TORCH_NCCL_ENABLE_TIMING=1, and is the time of the kernel by events of the GPU. The times of "discovered" are those at
which a watchdog looked, every 100 ms [ProcessGroupNCCL.cpp], so they are not used. Known versions: 2.0 to 2.10; older
ones have `seq_id`, newer ones `comm_lib_version` in place of `nccl_version`. `write` makes such dumps of a log.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import TraceError, shorten
from gradwire.traces.collective_logs.pickle_data import load_plain
from gradwire.traces.collective_logs.records import KINDS, POINT_TO_POINT, STATES, UNKNOWN, CollectiveLog, LogBuilder
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import open_source

KIND, TITLE = "flight_recorder", "PyTorch flight recorder dump"
SUPPORTED = re.compile(r"2\.(\d|10)")
MAX_BYTES = 1 << 30
"""Largest size of a dump, which has some hundred bytes per call."""
_OTHERS = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"')
"""Keys of profiles, whose header has process groups, too."""
_RANK = re.compile(r"(\d{1,7})(\.(json|pickle|pkl|pt))?(\.gz)?$")
_NAMES = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "barrier": "barrier",
    "all_gather": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
WIDTHS = {
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Double": 8,
    "Int": 4,
    "Long": 8,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
}
"""Bytes of an element, by the type's name in a dump."""


def recognise(head: bytes) -> bool:
    """Return True if a file begins like a dump."""
    if head[:1] == b"\x80":
        return b"entries" in head or b"pg_config" in head or b"version" in head
    is_object = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and not _OTHERS.search(head)
    return is_object and re.search(rb'"(pg_config|pg_status|entries|nccl_comm_state)"', head) is not None


def read(path: Path, builder: LogBuilder) -> None:
    """Add one rank's dump to a log. TraceError for a damaged file, an unknown version, or a name without the rank."""
    where, dump = str(path), _load(path)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise TraceError("has no list of entries", where, "a dump of PyTorch's flight recorder")
    version = dump.get("version")
    if not isinstance(version, str) or not SUPPORTED.fullmatch(version):
        raise TraceError(f"has version {shorten(version)}", where, "2.0 to 2.10")
    rank = _rank_of(path, dump)
    builder.add_rank(rank, where)
    builder.about["version"] = version
    library = dump.get("comm_lib_version", dump.get("nccl_version"))
    if isinstance(library, str):
        builder.about["NCCL"] = library[:40]
    if isinstance(dump.get("host_name"), str):
        builder.hosts[rank] = dump["host_name"][:80]
    members = _members(dump.get("pg_config"), builder)
    for entry in dump["entries"]:
        if isinstance(entry, dict):
            _add(entry, rank, members, builder, where)
        else:
            builder.skipped["entries that are no dictionaries"] += 1


def _load(path: Path) -> Any:
    with open_source(path) as source:
        blocks, size = [], 0
        while block := source.read():
            blocks.append(block)
            size += len(block)
            if size > MAX_BYTES:
                raise TraceError("has more than a GiB", str(path), "a dump of one rank")
    data = b"".join(blocks)
    if data[:1] == b"\x80":
        return load_plain(data, str(path))
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is neither a pickle nor JSON ({str(error)[:80]})", str(path), "a dump") from None


def _rank_of(path: Path, dump: dict[str, Any]) -> int:
    """Return the rank in the dump or in the file's name, such as nccl_trace_rank_12."""
    rank = dump.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10**7:
        return rank
    match = _RANK.search(path.name)
    if match is None:
        raise TraceError("has no rank in its name", str(path), "a name that ends in it, such as nccl_trace_rank_12")
    return int(match[1])


def _members(config: Any, builder: LogBuilder) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return (description, ranks) of the process groups, by name."""
    members: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            builder.skipped["process groups that are no dictionaries"] += 1
            continue
        ranks = group.get("ranks", "")
        if isinstance(ranks, str):
            numbers = re.findall(r"\d{1,7}", ranks[: 1 << 24])
        else:
            numbers = ranks if isinstance(ranks, list) else []
        chosen = tuple(dict.fromkeys(int(n) for n in numbers if isinstance(n, (int, str)) and 0 <= int(n) < 10**7))
        members[str(group.get("name", name))[:200]] = str(group.get("desc", ""))[:200], chosen
    return members


def _add(
    entry: dict[str, Any], rank: int, members: dict[str, tuple[str, tuple[int, ...]]], builder: LogBuilder, where: str
) -> None:
    name, described = _group_of(entry)
    description, ranks = members.get(name, (described, ()))
    kind = _kind_of(entry)
    if kind == "other":
        builder.skipped[f"operation {str(entry.get('profiling_name'))[:60]}"] += 1
        return
    # Names of groups are counted on each rank, so that two groups may share one: their ranks tell them apart.
    key = f"{name}|{ranks}" if ranks else name
    group = builder.group(key, name, description or described, ranks, where)
    sequence = _count(entry.get("collective_seq_id", entry.get("seq_id")))
    if kind in POINT_TO_POINT:
        sequence = _count(entry.get("p2p_seq_id", entry.get("seq_id")))
    if sequence == UNKNOWN:
        builder.skipped["entries without a sequence number"] += 1
        return
    state = entry.get("state")
    if state not in STATES:
        builder.skipped[f"entries with the state {shorten(state)}"] += 1
        return
    duration = entry.get("duration_ms")
    duration_ns = UNKNOWN
    if isinstance(duration, (int, float)) and not isinstance(duration, bool) and 0 <= duration < 1e12:
        duration_ns = round(duration * 1e6)
    elif duration is not None:
        builder.skipped["durations that are no times"] += 1
    nbytes, created = _bytes_of(entry, kind, builder), _count(entry.get("time_created_ns"))
    builder.add(
        rank, group, sequence, KINDS.index(kind), nbytes, created, UNKNOWN, UNKNOWN, duration_ns, STATES.index(state)
    )


def _group_of(entry: dict[str, Any]) -> tuple[str, str]:
    """Return (name, description) of an entry's process group."""
    group = entry.get("process_group")
    if isinstance(group, (tuple, list)) and group:
        return str(group[0])[:200], str(group[1])[:200] if len(group) > 1 else ""
    return str(entry.get("pg_name", entry.get("pg_id", "")))[:200], ""


def _kind_of(entry: dict[str, Any]) -> str:
    name = entry.get("profiling_name")
    words = name.rpartition(":")[2].split() if isinstance(name, str) else []
    return _NAMES.get(words[0].lower(), "other") if words else "other"


def _bytes_of(entry: dict[str, Any], kind: str, builder: LogBuilder) -> int:
    """Return the bytes of a rank's whole buffer, UNKNOWN if they are not in the entry."""
    side = "output" if kind in ("all_gather", "gather", "recv") else "input"
    sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, (list, tuple)) or not isinstance(types, (list, tuple)) or len(sizes) != len(types):
        builder.skipped["entries without sizes"] += 1
        return UNKNOWN
    total = 0
    for shape, dtype in zip(sizes, types, strict=True):
        width = WIDTHS.get(dtype) if isinstance(dtype, str) else None
        if width is None or not isinstance(shape, (list, tuple)) or not all(_count(n) >= 0 for n in shape):
            builder.skipped["entries with sizes or types that are not known"] += 1
            return UNKNOWN
        total += math.prod(min(n, 2**62) for n in shape) * width
        if total >= 2**62:
            builder.skipped["entries with sizes or types that are not known"] += 1
            return UNKNOWN
    return total


def _count(value: Any) -> int:
    """Return a number from 0 to 2**62, else UNKNOWN."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else UNKNOWN


WRITTEN_VERSION = "2.10"
_WRITTEN = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
_SHARES = {"all_gather": "input", "reduce_scatter": "output"}
"""Sides of a call that hold only the rank's share of the buffer."""


def write(log: CollectiveLog, folder: Path, *, as_json: bool = False) -> list[Path]:
    """Write a log as one dump per rank, rank_0, rank_1, ..., in a new folder, and return the files. Buffers become
    tensors of bytes; point-to-point calls are left out, since a log does not name their peers."""
    config = {
        group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.members))}
        for group in log.groups
    }
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in log.ranks}
    columns = (log.rank, log.group, log.sequence, log.kind, log.nbytes, log.enqueue_ns, log.duration_ns, log.state)
    for rank, group, sequence, kind, nbytes, created, duration, state in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if KINDS[kind] not in POINT_TO_POINT:
            entry = _entry(log, group, sequence, KINDS[kind], max(nbytes, 0))
            entry |= {"record_id": len(entries[rank]), "time_created_ns": created, "state": STATES[state]}
            entries[rank].append(entry | ({"duration_ms": duration / 1e6} if duration >= 0 else {}))
    contents = {}
    for rank, own in entries.items():
        dump: dict[str, Any] = {
            "version": WRITTEN_VERSION,
            "comm_lib_version": "2.27.3",
            "pg_config": config,
            "pg_status": {},
        }
        dump |= {"entries": own, "host_name": log.hosts.get(rank, ""), "rank": rank}
        name = f"rank_{rank}" + ".json" * as_json
        contents[folder / name] = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
    return write_files(contents)


def _entry(log: CollectiveLog, group: int, sequence: int, kind: str, nbytes: int) -> dict[str, Any]:
    """Return the fields of an entry that all ranks share."""
    sizes = {"input": nbytes, "output": nbytes}
    if kind in _SHARES:
        sizes[_SHARES[kind]] = nbytes // max(len(log.groups[group].members), 1)
    return {
        "pg_id": group,
        "process_group": (log.groups[group].name, log.groups[group].description),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{_WRITTEN.get(kind, kind)}",
        "input_sizes": [[sizes["input"]]],
        "input_dtypes": ["Byte"],
        "output_sizes": [[sizes["output"]]],
        "output_dtypes": ["Byte"],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": [],
    }
