"""Converts user programs' iteration marks and exit statuses to a Result's tables, and saves the ranks' output files.

A mark is a line of JSON in a rank's file (`gradwire.studies.iteration_markers`): {"time_ns": ..., "step": ..., further
values}. An iteration lasts from one mark to the next and has the number of the later one.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.user_programs import rank_environment
from gradwire.emu.user_programs.player import OUTPUT
from gradwire.emu.user_programs.programs import Programs
from gradwire.scenarios.arrays import Columns
from gradwire.scenarios.json_data import Json

PS = 1000
PASSES = ("forward_ns", "backward_ns")
"""Keys of a mark: ends of an iteration's passes, in ns since the previous mark."""
QUOTED_CHARS = 40
"""Characters quoted of an invalid line; our choice."""
KEPT_OUTPUT, KEPT_MARKS = "ranks", "marks.csv"
"""Files beside the Result's tables: a folder with the output of ranks, and a table of all marks."""


def read_marks(left: Path, ranks: int, began_ns: int) -> tuple[list[Json], list[str]]:
    """Return all marks, rank by rank, and messages about lines that are not marks. A mark is {"rank", "step", "time_ns"
    since the beginning, further values}. Any process may write to the file, so other lines are ignored, and a mark may
    name its rank. An unfinished last line is ignored without a message."""
    marks: list[Json] = []
    messages: list[str] = []
    for rank in range(ranks):
        try:
            text = (left / rank_environment.MARKS / str(rank)).read_text(errors="replace")
        except OSError:
            continue
        invalid_lines: list[str] = []
        for line in text.splitlines(keepends=True):
            try:
                entry = json.loads(line)
                time_ns = int(entry.pop("time_ns")) - began_ns
            except (ValueError, KeyError, TypeError, AttributeError):
                invalid_lines += [line.strip()] if line.endswith("\n") and line.strip() else []
                continue
            mark_rank = entry.pop("rank", rank)
            mark_rank = mark_rank if isinstance(mark_rank, int) else rank
            marks.append({"rank": mark_rank, "step": entry.pop("step", None), "time_ns": time_ns, **entry})
        if invalid_lines:
            shown = f"{invalid_lines[0][:QUOTED_CHARS]!r}" + (
                f" and {len(invalid_lines) - 1} more" if invalid_lines[1:] else ""
            )
            messages.append(f'rank {rank}: lines are not marks such as {{"time_ns": 81234567}}: {shown}')
    return sorted(marks, key=lambda mark: mark["rank"]), messages


def iterations(marks: Sequence[Json], job: str) -> Columns:
    """Return the Result's table of iterations.

    Compute time is known where it was slept: at the mark, or at the ends of the passes of a paced model. Otherwise the
    whole iteration counts as waiting.
    """
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    last: dict[int, Json] = {}
    counted: dict[int, int] = {}
    for mark in marks:
        rank = mark["rank"]
        previous = last.get(rank)
        last[rank] = mark
        if previous is None:
            continue
        counted[rank] = counted.get(rank, -1) + 1
        step = mark["step"] if isinstance(mark["step"], int) else counted[rank]
        start, computed = previous["time_ns"] * PS, int(mark.get("computed_ns", 0)) * PS
        passes = [start + int(mark[key]) * PS if key in mark else start + computed for key in PASSES]
        rows.append((rank, step, start, mark["time_ns"] * PS, computed, *passes))
    rows.sort()
    ranks, steps, starts, ends, computes, forward, backward = ([row[column] for row in rows] for column in range(7))
    return {
        "job": [job] * len(rows),
        "worker": ranks,
        "iteration": steps,
        "start_ps": starts,
        "forward_end_ps": forward,
        "backward_end_ps": backward,
        "end_ps": ends,
        "compute_ps": computes,
        "exposed_ps": [end - start - compute for start, end, compute in zip(starts, ends, computes, strict=True)],
    }


def job_name(programs: Programs) -> str:
    """Return the command's name: that of the script an interpreter runs, otherwise that of the program."""
    scripts = [PurePath(word).stem for word in programs.command[1:] if word.endswith(".py")]
    return scripts[0] if scripts else PurePath(programs.command[0]).name


def summary(plan: TestbedPlan, programs: Programs, raw: RawResults, clock: str) -> Json:
    return {
        "command": list(programs.command),
        "compute": programs.compute if clock == "virtual" else "real",
        "scale": programs.scale,
        **({"trace": programs.trace} if programs.trace else {}),
        "ranks": [
            {
                "rank": rank.number,
                "host": rank.host,
                "address": rank.address,
                "status": end.status,
                "ended_ps": end.time_ns * PS if end.time_ns >= 0 else -1,
                "made_to_end": end.ended,
            }
            for rank, end in zip(programs.ranks, raw.ends, strict=True)
        ],
        "marks": [
            {"rule": number, "packets": packets, "bytes": size}
            for number, (packets, size) in sorted(raw.marked.items())
        ],
        "congestion": {plan.names[node]: name for node, name in sorted(programs.congestion.items())},
    }


def failures(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return messages about ranks that failed by themselves, the earliest first."""
    failed = [rank for rank in ranks if rank["status"] not in (0, None) and not rank["made_to_end"]]
    failed.sort(key=lambda rank: (rank["ended_ps"], rank["rank"]))
    return [f"rank {rank['rank']} at {rank['host']} {status_text(rank['status'])}" for rank in failed]


def status_text(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def save_rank_files(left: Path, target: Path, marks: Sequence[Json]) -> list[str]:
    """Copy the ranks' output, all marks as one table, and their captures to a folder; return error messages."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if (left / OUTPUT).is_dir():
            shutil.copytree(left / OUTPUT, target / KEPT_OUTPUT)
        if marks:
            write_marks(marks, target / KEPT_MARKS)
        for path in sorted(left.glob(f"{rank_environment.TRACE}*")):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, target / path.name)  # type: ignore[operator]
    except OSError as error:
        return [f"{target}: cannot be written: {error.strerror or error}"]
    return []


def write_marks(marks: Sequence[Json], path: Path) -> None:
    """Write a line per mark: rank, step, seconds since the beginning, and a column per further value."""
    values = list(dict.fromkeys(key for mark in marks for key in mark if key not in ("rank", "step", "time_ns")))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rank", "step", "time_s", *values])
        for mark in marks:
            row = [mark["rank"], mark["step"], f"{mark['time_ns'] / 1e9:.9f}"]
            writer.writerow([*row, *(mark.get(key, "") for key in values)])
