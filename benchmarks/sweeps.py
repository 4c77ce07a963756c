"""Measures how a sweep's cost grows with its points and worker processes (`python -m gradwire.benchmarks.sweeps`).

Sweeps with increasing numbers of points of one small scenario (web search flows on a star, one compiled engine), each
in a new folder. Columns: wall time; the share of the workers' time in simulation, network and measuring (`wall_s` of
the points over that of all workers: the rest is starting them, dispatch, writing, and the table); CPU time of
everything per point; the time of table and plots at the end; the largest worker's memory. The share and the ratios do
not depend on the machine; seconds do.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gradwire.benchmarks.rows import Columns, Row, machine_title, markdown_header, markdown_line, print_json
from gradwire.studies.sweep.runner import sweep

POINTS, JOBS, FLOWS = (8, 32, 128), (1, 2), 400
COLUMNS: Columns = {
    "engine": lambda row: row["engine"],
    "jobs": lambda row: str(row["jobs"]),
    "points": lambda row: str(row["points"]),
    "wall s": lambda row: f"{row['wall_s']:.1f}",
    "share of the workers' time in runs": lambda row: f"{row['share']:.1%}",
    "CPU s a point": lambda row: f"{row['cpu_s'] / row['points']:.3f}",
    "again, all done: s": lambda row: f"{row['again_s']:.2f}",
    "MB, largest worker": lambda row: f"{row['peak_rss_bytes'] / 1e6:.0f}",
}


def sweep_tables(points: int, flows: int) -> dict[str, Any]:
    """Return a sweep of `points` points: loads from 0.1 to 0.8, in pairs of seeds."""
    return {
        "name": f"grows-{points}",
        "scenario": "websearch",
        "seeds": 2,
        "measures": ["slowdown_p99", "completion_mean_ps"],
        "set": {
            "topology": {"kind": "star", "hosts": 8},
            "transport": "dctcp",
            "switch": {"queues": 1},
            "traffic": {"flows": flows, "load": 0.5},
        },
        "axis": [{"key": "traffic.load", "range": {"from": 0.1, "to": 0.8, "count": points // 2}}],
        "plot": [{"name": "tail", "kind": "lines", "x": "load", "y": "slowdown_p99"}],
    }


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all its finished children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in usage)


def measure_sweep(engine: str, jobs: int, points: int, flows: int = FLOWS) -> Row:
    """Return one row. Seconds, bytes."""
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        output_dir, declared = Path(folder) / "sweep", sweep_tables(points, flows)
        begin, before = time.perf_counter(), cpu_s()
        result = sweep(declared, out=output_dir, engine=engine, jobs=jobs)
        wall, spent = time.perf_counter() - begin, cpu_s() - before
        begin = time.perf_counter()
        sweep(declared, out=output_dir, engine=engine, jobs=jobs)
        again = time.perf_counter() - begin
    assert result.complete, result.text
    inside = sum(record.wall_s for record in result.records.values())
    return {
        "engine": engine,
        "jobs": jobs,
        "points": points,
        "wall_s": wall,
        "share": inside / (jobs * wall),
        "cpu_s": spent,
        "again_s": again,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }


def main(arguments: list[str]) -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.benchmarks.sweeps", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--points", type=int, nargs="+", default=[*POINTS], help="even numbers")
    parser.add_argument("--jobs", type=int, nargs="+", default=[*JOBS])
    parser.add_argument("--engine", nargs="+", choices=("local", "ray"), default=["local"])
    parser.add_argument("--flows", type=int, default=FLOWS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    measure_sweep("local", 1, 4, 50)  # compiles the engine if it is new
    if not options.json:
        print(machine_title(), markdown_header(COLUMNS), sep="\n", flush=True)
    rows = []
    for points in options.points:
        for engine in options.engine:
            for jobs in options.jobs:
                rows.append(measure_sweep(engine, jobs, points, options.flows))
                if not options.json:
                    print(markdown_line(rows[-1], COLUMNS), flush=True)
    if options.json:
        print_json(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
