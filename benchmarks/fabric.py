"""Runs `gradwire bench fabric`, which measures the packet engine's packet-hops per second on fat-trees and prints a
table.

Two kinds of traffic on fat-trees of 100 Gbps links with 1 us of latency and packets of 4096 bytes of payload:

* `permutation`: every host sends to one other and receives from one other (seeded): 10 MB each on 128 and 432 hosts,
  1 MB each on 1024;
* `incast`: 32 hosts send 20 MB each to one.

A packet-hop is one packet, data or acknowledgement, crossing one link. Every row runs five times, and the median
counts, each time in a separate process with its own peak memory and CPU time; rows that differ only in the number of
threads alternate, so that a drifting machine does not favour one of them. The clock runs from the first packet to the
last delivery, after the engine has been compiled (`compile_s`, from the cache if possible) and the network built. The
last row, `oracle`, is `gradwire.testing.oracle` on a small case, for scale.

Three transports are measured by default; any transport of scenarios, or "all", can be selected. A `feature` is a switch
feature (`FEATURES`), an option of the engine (`ENGINE_OPTIONS`), or a load balancer. Rows other than the three default
transports alternate with plain `dctcp`, and `of_plain` is their speed relative to it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from gradwire.benchmarks.rows import BenchmarkError, Columns, Row, print_json, print_table, run_module
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.units import Ps

MEGABYTE = 1_000_000
PERMUTATIONS = {128: 10 * MEGABYTE, 432: 10 * MEGABYTE, 1024: MEGABYTE}
ARITY = {128: 8, 432: 12, 1024: 16}
INCAST_SENDERS, INCAST_BYTES = 32, 20 * MEGABYTE
TRANSPORTS = ("tcp_newreno", "dctcp", "dlcp")
PLAIN = ("dctcp", "")
SPRAYED = ("dlcp", "ndp", "nscc")  # the others use ECMP
FEATURES: dict[str, dict[str, Any]] = {
    "pfc": {"pfc": True},
    "red": {"ecn_ceiling": "400KiB", "ecn_probability": 0.2},
    "shared_buffer": {"shared_buffer": "4MiB"},
    "shortest_first": {"shortest_first": True},
    "trimming": {"trim_threshold": "33312B"},  # eight full packets
    "turns": {"queues": 4, "drr_quantum": "8KiB"},
}
ENGINE_OPTIONS = ("delays", "faults")  # options of `Fabric`: waiting times, failures
RATE, LATENCY = 100_000_000_000, 1_000_000
SWITCH = {"queues": 1, "buffer": "512KiB", "ecn_threshold": "100KiB"}
SEED = 1
ORACLE_HOSTS, ORACLE_BYTES = 16, 500_000
REPEATS = 5
RUN_STEP_PS = Ps(1_000_000_000_000)  # ps: no job waits for deliveries here, so the engine need not stop
ROW_TIMEOUT_S = 900
COLUMNS: Columns = {
    "case": lambda row: row["case"],
    "hosts": lambda row: str(row["hosts"]),
    "transport": lambda row: row["transport"],
    "threads": lambda row: str(row["threads"]),
    "M hops": lambda row: f"{row['packet_hops'] / 1e6:.2f}",
    "wall s": lambda row: f"{row['wall_s']:.2f}",
    "cpu s": lambda row: f"{row['cpu_s']:.2f}",
    "M hops/s": lambda row: f"{row['hops_per_s'] / 1e6:.3g}",
    "peak MB": lambda row: f"{row['peak_rss_bytes'] / 1e6:.0f}",
}
COMPILED: Columns = {"compile s": lambda row: f"{row['compile_s']:.2f}"}
COMPARED: Columns = {
    "feature": lambda row: row.get("feature", ""),
    "of plain": lambda row: f"{row.get('of_plain', 1):.2f}",
}


def bench_fabric(
    *,
    case: str | None,
    hosts: int | None,
    transport: str | None,
    threads: int | None,
    as_json: bool,
    feature: str | None = None,
) -> None:
    """Run the rows that match the filters and print them as a table, or as one JSON object.

    Raises GradwireError if a filter matches nothing; or, after all others have been printed, rows failed.
    """
    groups = list(_groups(case, hosts, transport, threads, feature))
    if not groups:
        raise GradwireError(
            "no such benchmark",
            "bench fabric",
            f"--case permutation or incast (128 hosts), --hosts {', '.join(map(str, ARITY))}",
        )
    rows: list[Row] = []
    failed: list[str] = []
    for number, group in enumerate(groups, 1):
        print(f"{number}/{len(groups)}: {_title(group)}", file=sys.stderr, flush=True)
        try:
            rows += _against_plain(medians(group, "gradwire.benchmarks.fabric", REPEATS))
        except BenchmarkError as error:
            if len(groups) == 1:
                raise
            failed.append(str(error))
    if case is hosts is transport is feature is None:
        rows.append(oracle_row())
    (print_json if as_json else _print)(rows)
    if failed:
        raise BenchmarkError("\n".join(failed), f"{len(failed)} of {len(groups)} rows", "runs that end")


def _groups(
    case: str | None, hosts: int | None, transport: str | None, threads: int | None, feature: str | None
) -> Iterator[list[Row]]:
    """Yield groups of rows that alternate. Raise GradwireError for an unknown transport or feature."""
    counts = [threads] if threads is not None else [n for n in (1, 2) if n <= (os.cpu_count() or 1)]
    kinds = [*TRANSPORTS] if transport is None else [transport]
    features = [""] if feature is None else [feature]
    if transport == "all":
        kinds = _simulated()
    elif transport is not None and transport not in _simulated() and ":" not in transport:
        raise GradwireError(f"no transport {transport}", "--transport", f'{", ".join(_simulated())}, or "all"')
    if feature == "all":
        features = [*FEATURES, *ENGINE_OPTIONS, *(name for name in components("load_balancing") if name != "ecmp")]
    elif feature is not None and feature not in (*FEATURES, *ENGINE_OPTIONS, *components("load_balancing")):
        known = ", ".join((*FEATURES, *ENGINE_OPTIONS, *components("load_balancing")))
        raise GradwireError(f"no feature {feature}", "--feature", f'{known}, or "all"')
    for name in ("permutation", "incast"):
        for size in PERMUTATIONS if name == "permutation" else (128,):
            for kind, extra in itertools.product(kinds, features):
                if case not in (None, name) or hosts not in (None, size):
                    continue
                is_default = kind in TRANSPORTS and not extra
                yield [
                    {"case": name, "hosts": size, "transport": one, "threads": count, "feature": more}
                    for one, more in ([] if is_default else [PLAIN]) + [(kind, extra)]
                    for count in counts
                ]


def _title(group: list[Row]) -> str:
    row = group[-1]
    words = (row.get("case", "permutation"), str(row["hosts"]), "hosts", row["transport"], row.get("feature"))
    return " ".join(filter(None, words))


def medians(group: list[Row], module: str, repeats: int) -> list[Row]:
    """Run rows of a module alternately, several times; return each row's run of median wall time."""
    rounds = [[_in_own_process(row, module) for row in group] for _ in range(repeats)]
    return [sorted(runs, key=lambda run: float(run["wall_s"]))[repeats // 2] for runs in zip(*rounds, strict=True)]


def _against_plain(rows: list[Row]) -> list[Row]:
    """Return the requested rows, with their speed relative to the plain one if that is among them."""
    plain = {row["threads"]: row for row in rows if (row["transport"], row["feature"]) == PLAIN}
    others = [row for row in rows if (row["transport"], row["feature"]) != PLAIN]
    if not plain or not others:
        return rows
    for row in others:
        row["of_plain"] = round(row["hops_per_s"] / plain[row["threads"]]["hops_per_s"], 3)
    return others


def _in_own_process(row: Row, module: str) -> Row:
    return run_module([module, json.dumps(row)], _title([row]), ROW_TIMEOUT_S)


def run_row(case: str, hosts: int, transport: str, threads: int, feature: str = "") -> Row:
    """Run one row once, in this process. Times in seconds, memory in bytes."""
    import numpy as np

    from gradwire.topology import LinkSpec, fat_tree

    fabric = make_fabric(fat_tree(ARITY[hosts], LinkSpec(RATE, LATENCY)), transport, threads, feature)
    if case == "permutation":
        pairs, size = permutation(hosts), PERMUTATIONS[hosts]
    else:
        senders = 1 + np.random.default_rng(SEED).permutation(hosts - 1)[:INCAST_SENDERS]
        pairs, size = [(int(source), 0) for source in senders], INCAST_BYTES
    return {
        "case": case,
        "hosts": hosts,
        "transport": transport,
        "threads": threads,
        "feature": feature,
        **time_messages(fabric, pairs, size, case),
    }


def _simulated() -> list[str]:
    return [kind for kind, owner in components("transport").items() if owner.simulated]


def make_fabric(network: Any, transport: str, threads: int, feature: str = "") -> Any:
    """Return the engine on a network, with the switch features that the transport needs."""
    from pydantic import TypeAdapter

    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.scenarios.schema.network.transport import AnyTransport
    from gradwire.sim.engine.fabric import Fabric
    from gradwire.topology.routing import build_routing

    table: Any = TypeAdapter(AnyTransport).validate_python(transport)
    needs = {
        "trimming": getattr(table, "wants_trimming", False),
        "shortest_first": getattr(table, "wants_shortest_first", False),
        "pfc": getattr(table, "wants_pfc", False),
    }
    switch = {**SWITCH, "queues": 8 if transport == "pias" else 1}
    for name in [*(name for name, is_needed in needs.items() if is_needed), feature]:
        switch |= FEATURES.get(name, {})
    options: dict[str, Any] = {feature: True} if feature in ENGINE_OPTIONS else {}
    default = "spray_random" if transport in SPRAYED else "ecmp"
    return Fabric(
        network,
        build_routing(network),
        switch=Switch.model_validate(switch),
        transports=[table],
        balancing=feature if feature in components("load_balancing") else default,
        seed=SEED,
        threads=threads,
        host_latency_ps=RUN_STEP_PS,
        **options,
    )


def time_messages(fabric: Any, pairs: list[tuple[int, int]], nbytes: int, title: str) -> Row:
    """Send a message for every pair (source, destination), all at time 0, until all are delivered."""
    import resource

    for source, destination in pairs:
        fabric.send(0, source, destination, nbytes)
    wall, cpu = time.perf_counter(), time.process_time()
    delivered = 0
    while delivered < len(pairs):
        delivered += len(fabric.run(fabric.now + RUN_STEP_PS))
        if fabric.stalled:
            raise BenchmarkError(fabric.stalled, title, "a run that ends")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    hops = fabric.packet_hops
    fabric.close()
    return {
        "packet_hops": hops,
        "wall_s": round(wall, 4),
        "cpu_s": round(cpu, 4),
        "hops_per_s": round(hops / wall),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compile_s": round(fabric.compile_s, 3),
    }


def oracle_row() -> dict[str, Any]:
    """Run sixteen hosts on a leaf-spine in the oracle, which each send half a megabyte to the fifth next host."""
    import resource

    from gradwire.protocols.transports.tcp.dctcp import Dctcp
    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.testing.oracle import Case, MessageSpec, run_oracle
    from gradwire.topology import LinkSpec, leaf_spine

    case = Case(
        leaf_spine(4, 4, 2, LinkSpec(10**11, 10**6)),
        [Dctcp.model_validate({"kind": "dctcp"})],
        [MessageSpec(0, host, (host + 5) % ORACLE_HOSTS, ORACLE_BYTES) for host in range(ORACLE_HOSTS)],
        Switch.model_validate({"ecn_threshold": "100KiB"}),
    )
    wall, cpu = time.perf_counter(), time.process_time()
    hops = len(run_oracle(case).transmissions)
    wall = time.perf_counter() - wall
    return {
        "case": "oracle",
        "hosts": ORACLE_HOSTS,
        "transport": "dctcp",
        "threads": 1,
        "packet_hops": hops,
        "wall_s": wall,
        "cpu_s": time.process_time() - cpu,
        "hops_per_s": hops / wall,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compile_s": 0.0,
    }


def permutation(hosts: int) -> list[tuple[int, int]]:
    """Return pairs (source, destination) of a random permutation without fixed points."""
    import numpy as np

    random = np.random.default_rng(SEED)
    while ((order := random.permutation(hosts)) == range(hosts)).any():
        pass
    return list(enumerate(order.tolist()))


def _print(rows: list[Row]) -> None:
    compared = any("of_plain" in row for row in rows)
    print_table(rows, {**COLUMNS, **(COMPARED if compared else COMPILED)}, ("case", "transport", "feature"))


if __name__ == "__main__":
    print(json.dumps(run_row(**json.loads(sys.argv[1]))))
