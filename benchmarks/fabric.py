"""Speed of the packet engine: `gradwire bench fabric`.

Two kinds of traffic on fat-trees of 100 Gbps links with 1 us of latency and packets of 4096 bytes of payload:

* `permutation`: every host sends to one other and receives from one other (seeded): 10 MB each on 128 and 432 hosts,
  1 MB each on 1024;
* `incast`: 32 hosts send 20 MB each to one.

A packet-hop is one packet, data or acknowledgement, crossing one link. Every row runs five times, of which the median
counts, each time in a process of its own, so that peak memory and processor time are its own; rows that differ in the
number of threads alone take turns, so that a machine whose speed drifts does not favour one of them. The clock runs
from the first packet to the last delivery, after the engine has been compiled (`compile_s`, from the cache if it is
there) and the network built. The last row, `oracle`, is the event-per-packet model of the tests on a small case, for
scale; it is there when run from a checkout.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scenarios.errors import GradwireError

MEGABYTE = 1_000_000
PERMUTATIONS = {128: 10 * MEGABYTE, 432: 10 * MEGABYTE, 1024: MEGABYTE}
ARITY = {128: 8, 432: 12, 1024: 16}
INCAST_SENDERS, INCAST_BYTES = 32, 20 * MEGABYTE
TRANSPORTS = ("tcp_newreno", "dctcp", "dlcp")
BALANCING = {"tcp_newreno": "ecmp", "dctcp": "ecmp", "dlcp": "spray_random"}
RATE, LATENCY = 100_000_000_000, 1_000_000
BUFFER, THRESHOLD = 512 * 1024, 100 * 1024
SEED = 1
REPEATS = 5
PATIENCE = 1_000_000_000_000  # ps: no job waits for deliveries here, so none of them has to stop the engine
ROW_TIMEOUT_S = 900
COLUMNS = ("case", "hosts", "transport", "threads", "packet_hops", "wall_s", "cpu_s", "hops_per_s", "peak_rss_bytes",
           "compile_s")  # fmt: skip


class BenchmarkError(GradwireError):
    """A row that did not end, or ended badly."""

    exit_code = 1


def bench_fabric(
    *, case: str | None, hosts: int | None, transport: str | None, threads: int | None, as_json: bool
) -> None:
    """Run the rows that fit the filters and print them as a table, or as one JSON object.

    Raises
    ------
    GradwireError
        A filter that names nothing there is.
    """
    asked = list(_rows(case, hosts, transport, threads))
    if not asked:
        raise GradwireError(
            "no such benchmark", "bench fabric",
            f"--case permutation or incast, --hosts {', '.join(map(str, ARITY))}, --transport {', '.join(TRANSPORTS)}",
        )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for title, group in itertools.groupby(asked, _title):
        print(f"{len(rows) + 1}/{len(asked)}: {title}", file=sys.stderr, flush=True)
        rows += _medians(list(group))
    if case is None and hosts is None and transport is None:
        rows += _oracle()
    if as_json:
        print(json.dumps({"machine": machine(), "rows": rows}))
    else:
        _print(rows)


def _rows(case: str | None, hosts: int | None, transport: str | None, threads: int | None) -> Any:
    counts = [threads] if threads is not None else [n for n in (1, 2) if n <= (os.cpu_count() or 1)]
    for name in ("permutation", "incast"):
        for size in PERMUTATIONS if name == "permutation" else (128,):
            for kind in TRANSPORTS:
                for count in counts:
                    if case in (None, name) and hosts in (None, size) and transport in (None, kind):
                        yield {"case": name, "hosts": size, "transport": kind, "threads": count}


def _title(row: dict[str, Any]) -> str:
    return f"{row['case']} {row['hosts']} hosts {row['transport']}"


def _medians(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run rows by turns, `REPEATS` times; of each the run of median wall time."""
    rounds = [[_in_own_process(row) for row in group] for _ in range(REPEATS)]
    return [
        sorted(runs, key=lambda run: float(run["wall_s"]))[REPEATS // 2] for runs in zip(*rounds, strict=True)
    ]


def _in_own_process(row: dict[str, Any]) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "benchmarks.fabric", json.dumps(row)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ROW_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no end after {ROW_TIMEOUT_S} s", _title(row), "a faster machine") from error
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-2000:], _title(row), "a run that ends")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_row(case: str, hosts: int, transport: str, threads: int) -> dict[str, Any]:
    """Run one row once, in this process. Times in seconds, memory in bytes."""
    import resource

    import numpy as np

    from scenarios import schema_transport
    from sim.fabric.fabric import Fabric
    from sim.routing import build_routing
    from sim.topology.generators import LinkSpec, fat_tree

    models = {"tcp_newreno": "TcpNewReno", "dctcp": "Dctcp", "dlcp": "Dlcp"}
    table = getattr(schema_transport, models[transport])(kind=transport)
    network = fat_tree(ARITY[hosts], LinkSpec(RATE, LATENCY))
    switch = SimpleNamespace(
        queues=1, buffer=BUFFER, thresholds=lambda: (THRESHOLD,), ramp=lambda: None, shared=lambda: None,
        quanta=lambda: None, selective_drop=False, flowlet_gap=0,
    )  # fmt: skip
    fabric = Fabric(
        network, build_routing(network), switch=switch, transports=[table], balancing=BALANCING[transport],
        seed=SEED, threads=threads, host_latency_ps=PATIENCE,
    )  # fmt: skip
    random = np.random.default_rng(SEED)
    if case == "permutation":
        pairs = list(enumerate(_derangement(hosts, random).tolist()))
        size = PERMUTATIONS[hosts]
    else:
        pairs = [(int(source), 0) for source in 1 + random.permutation(hosts - 1)[:INCAST_SENDERS]]
        size = INCAST_BYTES
    for source, destination in pairs:
        fabric.send(0, source, destination, size)
    wall, cpu = time.perf_counter(), time.process_time()
    delivered = 0
    while delivered < len(pairs):
        delivered += len(fabric.run(fabric.now + PATIENCE))
        if fabric.stalled:
            raise BenchmarkError(fabric.stalled, case, "a run that ends")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    hops = fabric.packet_hops
    fabric.close()
    return {
        "case": case, "hosts": hosts, "transport": transport, "threads": threads, "packet_hops": hops,
        "wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "hops_per_s": round(hops / wall),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compile_s": round(fabric.compile_s, 3),
    }  # fmt: skip


def _derangement(n: int, random: Any) -> Any:
    """A permutation in which nobody sends to itself."""
    while True:
        order = random.permutation(n)
        if not (order == range(n)).any():
            return order


def _oracle() -> list[dict[str, Any]]:
    """The oracle on a small case, if this is a checkout that has the tests."""
    root = Path(__file__).resolve().parent.parent
    for folder in (root, root / "tests"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        from tests.oracle.bench import run_row as oracle_row
    except ImportError:
        return []
    row: dict[str, Any] = oracle_row()
    return [row]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import platform

    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="{processor}, {cores} cores, Python {python}".format(**machine()))
    heads = ("case", "hosts", "transport", "threads", "M hops", "wall s", "cpu s", "M hops/s", "peak MB",
             "compile s")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head in ("case", "transport") else "right")
    for row in rows:
        table.add_row(
            row["case"], str(row["hosts"]), row["transport"], str(row["threads"]), f"{row['packet_hops'] / 1e6:.2f}",
            f"{row['wall_s']:.2f}", f"{row['cpu_s']:.2f}", f"{row['hops_per_s'] / 1e6:.3g}",
            f"{row['peak_rss_bytes'] / 1e6:.0f}", f"{row['compile_s']:.2f}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    print(json.dumps(run_row(**json.loads(sys.argv[1]))))
