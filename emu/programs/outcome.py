"""What ranks have left: iterations from their marks, how each ended, and what is kept of it for the user.

A mark is a line of JSON in a rank's file (`gradwire.marking`): {"time_ns": ..., "step": ..., further values}. From one
to the next is an iteration, with the number of the later one.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from gradwire.emu.planning.plan import Plan
from gradwire.emu.programs import told
from gradwire.emu.programs.described import Programs
from gradwire.emu.programs.player import OUTPUT
from gradwire.emu.system.raw import Raw
from gradwire.scenarios.arrays import Columns
from gradwire.scenarios.json_data import Json

PS = 1000
PASSES = ("forward_ns", "backward_ns")
"""Of a mark: when an iteration's passes ended, in ns since the mark before."""
SHOWN = 40
"""Letters of a line that is no mark; our choice."""
KEPT_OUTPUT, KEPT_MARKS = "ranks", "marks.csv"
"""What the user finds beside the Result's tables: a folder with what ranks have printed, and all marks."""


def read_marks(left: Path, ranks: int, began_ns: int) -> tuple[list[Json], list[str]]:
    """All marks, rank by rank: {"rank", "step", "time_ns" since the beginning, further values}; and, in words, where
    lines are no marks, which are left out: anybody may write into the file. A mark that says its own rank is that
    one's. A last line that does not end was being written."""
    found: list[Json] = []
    wrong: list[str] = []
    for rank in range(ranks):
        try:
            text = (left / told.MARKS / str(rank)).read_text(errors="replace")
        except OSError:
            continue
        others: list[str] = []
        for line in text.splitlines(keepends=True):
            try:
                entry = json.loads(line)
                time_ns = int(entry.pop("time_ns")) - began_ns
            except (ValueError, KeyError, TypeError, AttributeError):
                others += [line.strip()] if line.endswith("\n") and line.strip() else []
                continue
            own = entry.pop("rank", rank)
            own = own if isinstance(own, int) else rank
            found.append({"rank": own, "step": entry.pop("step", None), "time_ns": time_ns, **entry})
        if others:
            shown = f"{others[0][:SHOWN]!r}" + (f" and {len(others) - 1} more" if others[1:] else "")
            wrong.append(f'rank {rank}: no marks, which are lines such as {{"time_ns": 81234567}}: {shown}')
    return sorted(found, key=lambda mark: mark["rank"]), wrong


def iterations(marks: Sequence[Json], job: str) -> Columns:
    """The Result's table of iterations. What a rank has computed is known where it was slept: at the mark, or where a
    model is paced, when its passes ended, too. Otherwise all of an iteration counts as waiting."""
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    last: dict[int, Json] = {}
    counted: dict[int, int] = {}
    for mark in marks:
        rank = mark["rank"]
        before = last.get(rank)
        last[rank] = mark
        if before is None:
            continue
        counted[rank] = counted.get(rank, -1) + 1
        step = mark["step"] if isinstance(mark["step"], int) else counted[rank]
        start, computed = before["time_ns"] * PS, int(mark.get("computed_ns", 0)) * PS
        passes = [start + int(mark[key]) * PS if key in mark else start + computed for key in PASSES]
        rows.append((rank, step, start, mark["time_ns"] * PS, computed, *passes))
    rows.sort()
    ranks, steps, starts, ends, computes, forward, backward = ([row[at] for row in rows] for at in range(7))
    return {
        "job": [job] * len(rows),
        "worker": ranks,
        "iteration": steps,
        "start_ps": starts,
        "forward_end_ps": forward,
        "backward_end_ps": backward,
        "end_ps": ends,
        "compute_ps": computes,
        "exposed_ps": [end - start - each for start, end, each in zip(starts, ends, computes, strict=True)],
    }


def job_name(programs: Programs) -> str:
    """The command's name: of the script that an interpreter runs, otherwise of what is run."""
    scripts = [PurePath(word).stem for word in programs.command[1:] if word.endswith(".py")]
    return scripts[0] if scripts else PurePath(programs.command[0]).name


def summary(plan: Plan, programs: Programs, raw: Raw, clock: str) -> Json:
    """What a Result says of the programs, besides tables."""
    return {
        "command": list(programs.command),
        "compute": programs.compute if clock == "virtual" else "real",
        "scale": programs.scale,
        **({"trace": programs.trace} if programs.trace else {}),
        "ranks": [
            {
                "rank": rank.number, "host": rank.host, "address": rank.address, "status": end.status,
                "ended_ps": end.time_ns * PS if end.time_ns >= 0 else -1, "made_to_end": end.ended,
            }
            for rank, end in zip(programs.ranks, raw.ends, strict=True)
        ],
        "marks": [
            {"rule": number, "packets": packets, "bytes": size}
            for number, (packets, size) in sorted(raw.marked.items())
        ],
        "congestion": {plan.names[node]: name for node, name in sorted(programs.congestion.items())},
    }  # fmt: skip


def failures(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks that failed by themselves, the first one first, in words."""
    failed = [each for each in ranks if each["status"] not in (0, None) and not each["made_to_end"]]
    failed.sort(key=lambda each: (each["ended_ps"], each["rank"]))
    return [f"rank {each['rank']} at {each['host']} {how(each['status'])}" for each in failed]


def how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def keep_left(left: Path, target: Path, marks: Sequence[Json]) -> list[str]:
    """Put what ranks have left into a folder: their output, all marks as one table, what they have captured. What
    cannot be kept, in words."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if (left / OUTPUT).is_dir():
            shutil.copytree(left / OUTPUT, target / KEPT_OUTPUT)
        if marks:
            write_marks(marks, target / KEPT_MARKS)
        for path in sorted(left.glob(f"{told.TRACE}*")):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, target / path.name)  # type: ignore[operator]
    except OSError as error:
        return [f"{target}: cannot be written: {error.strerror or error}"]
    return []


def write_marks(marks: Sequence[Json], path: Path) -> None:
    """A line per mark: rank, step, seconds since the beginning, and a column for each further value."""
    values = list(dict.fromkeys(key for mark in marks for key in mark if key not in ("rank", "step", "time_ns")))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rank", "step", "time_s", *values])
        for mark in marks:
            row = [mark["rank"], mark["step"], f"{mark['time_ns'] / 1e9:.9f}"]
            writer.writerow([*row, *(mark.get(key, "") for key in values)])
