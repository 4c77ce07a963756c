"""Logs of collectives by hand, for tests of readers and of the diagnosis."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from gradwire.traces.collective_logs.records import KINDS, STATES, UNKNOWN, CollectiveLog, LogBuilder

NS = 1_000_000_000


def entry(sequence: int, name: str = "all_reduce", state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return an entry of a flight recorder, of 1,000 floats in the group of ranks 0 and 1."""
    return {
        "record_id": sequence, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": sequence,
        "p2p_seq_id": 0, "profiling_name": f"nccl:{name}", "time_created_ns": sequence * NS,
        "input_sizes": [[10, 100]], "input_dtypes": ["Float"], "output_sizes": [[20, 100]], "output_dtypes": ["Float"],
        "state": state, "duration_ms": 1.5, "is_p2p": False, "frames": [],
    } | more  # fmt: skip


def dump(entries: list[Any], version: str = "2.9", **more: Any) -> dict[str, Any]:
    """Return a dump of a job of two ranks."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": version, "nccl_version": "2.27.3", "pg_config": config, "entries": entries} | more


def write_dump(folder: Path, rank: int, content: Any) -> Path:
    """Write a dump as PyTorch does."""
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def inspector_line(rank: int, sequence: int, *, pid: int, coll: str = "AllReduce", **more: Any) -> str:
    """Return a line of the Inspector for a communicator of two ranks."""
    record = {
        "header": {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 1} | more.pop("header", {}),
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "a", "pid": pid, "dump_timestamp_us": 1},
        "coll_perf": {"coll": coll, "coll_sn": sequence, "coll_msg_size_bytes": 4000, "coll_exec_time_us": 100} | more,
    }
    return json.dumps(record)


def log_of(calls: list[tuple[int, str, int, dict[int, float | None]]], groups: list[tuple[int, ...]]) -> CollectiveLog:
    """Return a log of calls (group, kind, bytes, {rank: milliseconds, None for a call that has not ended})."""
    builder = LogBuilder("flight_recorder")
    for members in groups:
        for rank in members:
            builder.add_rank(rank, f"rank {rank}")
    numbers = [builder.group(f"g{n}", f"g{n}", "", members, "test") for n, members in enumerate(groups)]
    sequences = [0] * len(groups)
    for position, (group, kind, nbytes, durations) in enumerate(calls):
        sequences[group] += 1
        for rank, millis in durations.items():
            state = STATES.index("scheduled" if millis is None else "completed")
            builder.add(
                rank, numbers[group], sequences[group], KINDS.index(kind), nbytes, position * NS, UNKNOWN, UNKNOWN,
                UNKNOWN if millis is None else round(millis * 1e6), state,
            )  # fmt: skip
    return builder.finish("test")
