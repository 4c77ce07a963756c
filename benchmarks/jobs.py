"""Measures the simulator's speed on large jobs and on many flows (`python -m gradwire.benchmarks.jobs`).

`spray`: 64 ranks, a ring, 20 iterations of 250 MB of gradients in buckets of 25 MB, at 400 Gbps, every packet sprayed.
`ranks`: 16,384 ranks on 2,048 machines of eight, all-reduce inside machines first, of the gradients of ResNet-50, over
rails at 400 Gbps. `--hosts` makes it smaller. `flows`: no job, but ten million flows of 4 kB, of 128 hosts of a
fat-tree that send one each to another every microsecond, at 100 Gbps; `--millions` sets their number. One run each, in
a separate process; CPU time is that of the whole run, from the call to the Result on disk, all threads together.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gradwire.benchmarks.rows import Columns, Row, machine_info, markdown_header, markdown_line, run_command, run_module

LAYERS, LAYER_BYTES = 25, 10_000_000
SPRAY: dict[str, Any] = {
    "name": "spray",
    "transport": "dctcp",
    "load_balancing": "spray_random",
    "topology": {"kind": "leaf_spine", "leaves": 8, "hosts_per_leaf": 8, "spines": 8},
    "link": {"rate": "400Gbps", "latency": "1us"},
    "switch": {"buffer": "2MiB", "ecn_threshold": "400KiB"},
}
RANKS: dict[str, Any] = {
    "name": "ranks",
    "transport": {"kind": "dctcp", "payload": "8960B"},
    "topology": {"kind": "rail", "cards": 8, "spines": 0},
    "host": {"gpus": 8, "scale_up_rate": "3600Gbps", "scale_up_latency": "500ns"},
    "link": {"rate": "400Gbps", "latency": "1us"},
    "switch": {"queues": 1, "buffer": "4MiB", "ecn_threshold": "200KiB"},
}
FLOWS: dict[str, Any] = {
    "name": "flows",
    "transport": "dctcp",
    "topology": {"kind": "fat_tree", "k": 8},
    "link": {"rate": "100Gbps", "latency": "1us"},
    "switch": {"queues": 1, "buffer": "512KiB", "ecn_threshold": "100KiB"},
}
FLOW_HOSTS = 128
CASES = ("spray", "ranks", "flows")
COLUMNS: Columns = {
    "case": lambda row: row["case"],
    "hosts or ranks": lambda row: str(row["ranks"]),
    "threads": lambda row: str(row["threads"]),
    "iterations simulated": lambda row: str(row["fast_forward"] or "all"),
    "M messages": lambda row: f"{row['messages'] / 1e6:.2f}",
    "M packet-hops": lambda row: f"{row['packet_hops'] / 1e6:.0f}",
    "set-up s": lambda row: f"{row['setup_s']:.1f}",
    "wall s": lambda row: f"{row['wall_s']:.0f}",
    "CPU s": lambda row: f"{row['cpu_s']:.0f}",
    "M hops/s of CPU": lambda row: f"{row['packet_hops'] / 1e6 / row['cpu_s']:.1f}",
    "peak MB": lambda row: f"{row['peak_rss_bytes'] / 1e6:.0f}",
    "MB written": lambda row: f"{row['written_bytes'] / 1e6:.0f}",
}
ROW_TIMEOUT_S = 86_400


def scenario_of(case: str, folder: Path, hosts: int, count: int) -> Any:
    """Return the scenario of a case, with its trace created in a folder. `count`: iterations, or flows."""
    from gradwire.scenarios.schema.scenario import Scenario

    job: dict[str, Any]
    if case == "flows":
        flows = {"name": "flows", "kind": "permutation", "size": "4kB", "period": "1us", "rounds": count // FLOW_HOSTS}
        return Scenario.model_validate({**FLOWS, "traffic": [flows]})
    if case == "spray":
        rows = [f"l{layer}.weight,{LAYER_BYTES // 4},100,200" for layer in range(LAYERS)]
        (folder / "layers.csv").write_text("\n".join(["name,shape,forward_us,backward_us", *rows]) + "\n")
        trace = folder / "trace"
        command = ["trace", "import", str(folder / "layers.csv"), "--out", str(trace), "--name", "layers"]
        subprocess.run([sys.executable, "-m", "gradwire", *command], check=True, stdout=subprocess.DEVNULL)
        exchange = {"kind": "ring", "bucket": "25MB"}
        job = {"trace": str(trace), "iterations": count, "workers": 64, "exchange": exchange}
        return Scenario.model_validate({**SPRAY, "job": [{"name": "job", **job}]})
    job = {
        "trace": "resnet50",
        "iterations": 1,
        "workers": 8 * hosts,
        "compute_scale": 0.0,
        "exchange": {"kind": "hierarchical", "across": "halving"},
    }
    topology = {**RANKS["topology"], "hosts": hosts}
    return Scenario.model_validate({**RANKS, "topology": topology, "job": [{"name": "job", **job}]})


def run_row(case: str, hosts: int, count: int, threads: int, fast: bool) -> Row:
    """Run one row once, in this process. Times in seconds, memory in bytes."""
    from gradwire.sim.simulate import simulate

    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_of(case, Path(folder), hosts, count)
        wall, cpu = time.perf_counter(), time.process_time()
        result = simulate(scenario, threads=threads, fast_forward=fast)
        output_dir = result.write(Path(folder) / "result")
        written = sum(path.stat().st_size for path in output_dir.rglob("*") if path.is_file())
    return {
        "case": case,
        "ranks": scenario.job[0].workers if scenario.job else FLOW_HOSTS,
        "threads": threads,
        "fast_forward": result.timing.get("fast_forward", ""),
        "messages": result.stored_rows("messages").num_rows,
        "packet_hops": result.timing["packet_hops"],
        "setup_s": result.timing["setup_s"],
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "written_bytes": written,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def main(arguments: list[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.benchmarks.jobs", description=__doc__)
    parser.add_argument("case", nargs="*", help=f"{', '.join(CASES)}; default: all")
    parser.add_argument("--hosts", type=int, default=2048, help="machines of eight ranks (`ranks`)")
    parser.add_argument("--iterations", type=int, default=20, help="iterations (`spray`)")
    parser.add_argument("--millions", type=float, default=10.0, help="millions of flows (`flows`)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-fast-forward", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := set(options.case) - set(CASES):
        parser.error(f"unknown case: got {', '.join(sorted(unknown))}; expected {', '.join(CASES)}")
    print(", ".join(f"{name} {value}" for name, value in machine_info().items()))
    print(markdown_header(COLUMNS))
    for case in options.case or CASES:
        count = round(1e6 * options.millions) if case == "flows" else options.iterations
        row = {"case": case, "hosts": options.hosts, "count": count, "threads": options.threads}
        row["fast"] = not options.no_fast_forward
        done = run_module(["gradwire.benchmarks.jobs", json.dumps(row)], case, ROW_TIMEOUT_S)
        print(markdown_line(done, COLUMNS), flush=True)
    return 0


if __name__ == "__main__":
    run_command(run_row, main)
