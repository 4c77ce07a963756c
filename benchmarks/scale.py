"""Measures how the packet engine's time and memory grow with the network (`python -m gradwire.benchmarks.scale`).

A permutation on fat-trees of 128 to 8192 hosts, 8 GB in all whatever their number, so that every row does about the
same work and differences are the cost of size itself. With `--hosts 65536`, a fat-tree as well, and `--hosts 262144`,
leaf and spine, every host sends 64 kB. Links, packets and switches are those of `gradwire.benchmarks.fabric`. Rows that
differ in the number of threads alternate, each run in a separate process; the run of median time counts. `build s`:
network, routes and engine, whose code is loaded and not compiled. `ns per hop`: CPU time of all threads together,
including waits for each other.
"""

from __future__ import annotations

import argparse
import os
import time

from gradwire.benchmarks import rows as tables
from gradwire.benchmarks.fabric import LATENCY, RATE, make_fabric, medians, permutation, time_messages

ARITY = {128: 8, 432: 12, 1024: 16, 2000: 20, 8192: 32, 65536: 64}
TWO_TIERS = {262144: (1024, 256, 256)}
"""Leaves, hosts per leaf, spines."""
DEFAULT_HOSTS = (128, 432, 1024, 2000, 8192)
TRANSPORTS = ("dctcp", "dlcp")
ALL_BYTES = 8192 * 1_000_000
LEAST_BYTES = 64_000
REPEATS = 3
LARGEST = 8192
BUILD_S, PEAK_BYTES, HOPS_PER_S = 20.0, 6e9, 8e6
"""Limits at 8192 hosts: maximum build time, maximum memory, and minimum speed with two threads."""
COLUMNS: tables.Columns = {
    "hosts": lambda row: str(row["hosts"]),
    "links": lambda row: str(row["links"]),
    "transport": lambda row: row["transport"],
    "threads": lambda row: str(row["threads"]),
    "build s": lambda row: f"{row['build_s']:.2f}",
    "M packet-hops": lambda row: f"{row['packet_hops'] / 1e6:.1f}",
    "wall s": lambda row: f"{row['wall_s']:.2f}",
    "CPU s": lambda row: f"{row['cpu_s']:.2f}",
    "**M hops/s**": lambda row: f"{row['hops_per_s'] / 1e6:.1f}",
    "ns per hop": lambda row: f"{1e9 * row['cpu_s'] / row['packet_hops']:.0f}",
    "peak MB": lambda row: f"{row['peak_rss_bytes'] / 1e6:.0f}",
}


def run_row(hosts: int, transport: str, threads: int, nbytes: int) -> tables.Row:
    """Run one row once, in this process: `nbytes` bytes from every host. Times in seconds, memory in bytes."""
    from gradwire.topology import LinkSpec, fat_tree, leaf_spine

    begin = time.perf_counter()
    link = LinkSpec(RATE, LATENCY)
    network = fat_tree(ARITY[hosts], link) if hosts in ARITY else leaf_spine(*TWO_TIERS[hosts], link)
    fabric = make_fabric(network, transport, threads)
    build_s = time.perf_counter() - begin
    return {
        "hosts": hosts,
        "links": network.link_count // 2,
        "transport": transport,
        "threads": threads,
        "build_s": round(build_s, 3),
        **time_messages(fabric, permutation(hosts), nbytes, f"{hosts} hosts"),
    }


def check_limits(rows: list[tables.Row]) -> list[str]:
    """Return a description of the met and missed limits; [] if the largest network was not measured."""
    lines = []
    for row in rows:
        if row["hosts"] != LARGEST:
            continue
        checks = {
            f"built in {row['build_s']:.1f} s (limit {BUILD_S:.0f})": row["build_s"] < BUILD_S,
            f"{row['peak_rss_bytes'] / 1e9:.2f} GB (limit {PEAK_BYTES / 1e9:.0f})": row["peak_rss_bytes"] < PEAK_BYTES,
        }
        if row["threads"] == 2:
            speed = f"{row['hops_per_s'] / 1e6:.1f} M hops/s (limit {HOPS_PER_S / 1e6:.0f})"
            checks[speed] = row["hops_per_s"] >= HOPS_PER_S
        words = "; ".join(f"{text}: {'met' if met else 'MISSED'}" for text, met in checks.items())
        lines.append(f"{row['transport']}, {row['threads']} threads: {words}")
    return lines


def main(arguments: list[str]) -> int:
    """Print the table, or one JSON object; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.benchmarks.scale", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, nargs="+", choices=[*ARITY, *TWO_TIERS], default=[*DEFAULT_HOSTS])
    parser.add_argument("--transport", nargs="+", default=[*TRANSPORTS])
    parser.add_argument("--threads", type=int, nargs="+", default=[n for n in (1, 2) if n <= (os.cpu_count() or 1)])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[tables.Row] = []
    smallest = min(options.hosts)
    for transport in options.transport:  # compiles the engine if it is new
        medians([_row(smallest, transport, options.threads[0], 1_000)], "gradwire.benchmarks.scale", 1)
    if not options.json:
        print(tables.machine_title(), tables.markdown_header(COLUMNS), sep="\n", flush=True)
    for hosts in options.hosts:
        for transport in options.transport:
            group = [
                _row(hosts, transport, threads, max(LEAST_BYTES, ALL_BYTES // hosts)) for threads in options.threads
            ]
            rows += medians(group, "gradwire.benchmarks.scale", options.repeats)
            if not options.json:
                print(*(tables.markdown_line(row, COLUMNS) for row in rows[-len(group) :]), sep="\n", flush=True)
    if options.json:
        tables.print_json(rows)
    else:
        print("", *check_limits(rows), sep="\n")
    return int(any("MISSED" in text for text in check_limits(rows)))


def _row(hosts: int, transport: str, threads: int, nbytes: int) -> tables.Row:
    return {"hosts": hosts, "transport": transport, "threads": threads, "nbytes": nbytes}


if __name__ == "__main__":
    tables.run_command(run_row, main)
