"""Gives damaged files to every reader of traces, networks, flows and TOML, which must read or refuse them.

Good files of every format are changed (`tests.soak.damage`) by bytes (flipped, cut, repeated, numbers beyond measure)
and by structure (values of JSON, cells of tables, protobuf fields, columns of Parquet). Whatever is read must be a whole
trace that can be replayed; whatever is not must be refused by one of gradwire's own errors. A reader works as on a
machine with 64 MiB of memory to spare.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random

import networkx
import numpy as np

import gradwire.traces.storage.memory_limits
from gradwire.analysis.diagnosis.diagnosis import diagnose_log
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.explain import MAX_EXPLAINED
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.preparation import check_variants, extents
from gradwire.studies.sweep.schema import load_sweep
from gradwire.topology.cables import LinkSpec
from gradwire.topology.kinds.graph import read_graph
from gradwire.topology.kinds.hpcc import read_hpcc
from gradwire.topology.kinds.htsim import read_htsim
from gradwire.topology.nccl_topology import read_nccl_topology
from gradwire.traces.collective_logs import flight_recorder, inspector
from gradwire.traces.collective_logs.example_job import Fault, JobShape, example_job
from gradwire.traces.collective_logs.loading import load_logs
from gradwire.traces.formats import export_trace, import_trace, importers
from gradwire.traces.tagging import layer_priorities
from gradwire.traces.trace import Iteration, TensorInfo, Trace, load_trace
from gradwire.workload.traffic import flows, matrix, poisson
from tests.soak.damage import by_bytes, by_fields, by_json, by_lines, by_numbers, by_table, by_toml

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "data" / "formats"
SHARED = ROOT.parent / "shared" / "data"
LIBRARY = ROOT / "scenarios" / "library"
SCENARIOS = (
    "four-hosts",
    "incast",
    "websearch",
    "faults",
    "train-tiny",
    "telemetry",
    "storage",
    "rails",
    "accelerators",
)
TEXTS_OF_SCENARIOS = ("hpcc", "htsim", "nccl", "flows", "matrix", "sizes", "graph", "scenario", "sweep")
LOGS = ("recorder", "inspector", "profiles")
"""Logs of running jobs, of one rank each."""
PATIENCE_S = 20
"""Seconds of a processor that a case may take."""
ROOM = 2**26  # bytes that a reader is told are available
LARGEST = 5_000  # bytes of a good file: a case should take milliseconds


# Good files ----------------------------------------------------------------------------------------------------------------


@cache
def good() -> dict[str, list[tuple[str, bytes]]]:
    """Files that are read, by kind: (name, content) of each. Real ones are cut to a size that is quick to read."""
    found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in (*importers(), *TEXTS_OF_SCENARIOS, *LOGS)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for number, name in enumerate(("perfetto", "simai", "csv", "chakra")):
            for seed in (1, 2):
                out = place / f"{number}{seed}"
                (file,) = export_trace(
                    small(seed), out, format=name, iterations=[0, 1] if name in ("perfetto", "chakra") else [0]
                )
                found[name].append((f"own{seed}{'.0.et' if name == 'chakra' else ''}", file.read_bytes()))
    for path in sorted(SAMPLES.iterdir()):
        if path.suffix in (".gz", ".et"):
            kind = "chakra" if path.suffix == ".et" else "kineto"
            found[kind].append((path.name.removesuffix(".gz"), _short(kind, _plain(path))))
    for path in sorted((SHARED / "traces").glob("*.json.gz")):
        found["kineto"].append((path.name.removesuffix(".gz"), _short("kineto", _plain(path))))
    for path in sorted((SHARED / "workloads").glob("*_*.txt")):
        kind = path.name.partition("_")[0]
        if kind in found:
            found[kind].append((path.name, _short(kind, path.read_bytes())))
    text = (
        "num_ranks 2\nrank 0 {\nl1: calc 8000\nl2: send 4096b to 1 tag 7 cpu 1\nl2 requires l1\nl3: recv 8b from 1\n}\n"
    )
    text += "rank 1 {\na: recv 4096b from 0 tag 7\nb: send 8b to 0\nb irequires a\n}\n"
    found["goal"].append(("job.goal", text.encode()))
    nodes = [(0, 3, 0, 8000, 0, 1, 0), (1, 1, 1, 4096, 7, 0, 1), (0, 2, 0, 4096, 7, 0, 1)]
    packed = [struct.pack("<IBIQIBBIIII", *node[:5], 0, 0, *node[5:], 0, 0) for node in nodes]
    ranks = [
        struct.pack("<III", 2, 1, 0) + packed[0] + packed[1] + struct.pack("<I", 1),
        struct.pack("<III", 1, 1, 0) + packed[2],
    ]
    ends = 38 + len(ranks[0]), 38 + len(ranks[0]) + len(ranks[1])
    head = struct.pack("<QIBBQQQQ", 4223, 2, 0, 0, 38, ends[0], *ends)
    found["goal"].append(("job.bin", head + ranks[0] + ranks[1]))
    found["profiles"].append(("rank-1.json", json.dumps(_profile()).encode()))
    found["csv"].append(
        ("plain", b"name,layer,shape,dtype,forward_us,backward_us\na.w,a,4x3,float32,1,2\na.b,a,4,float16,,3\n")
    )
    found["pipedream"].append(
        ("plain", b"node1 -- Linear(4, 2) -- forward_compute_time=0.5, backward_compute_time=1.5, activation_size=[1.0; 8.0], "
         b"parameter_size=40.000 -- stage_id=1\nnode2 -- Linear -- forward_compute_time=1, backward_compute_time=2, "
         b"activation_size=1, parameter_size=8\n\tnode1 -- node2\n")
    )  # fmt: skip
    for name in SCENARIOS:
        found["scenario"].append((f"{name}.toml", (LIBRARY / f"{name}.toml").read_bytes()))
    for path in sorted((LIBRARY / "sweeps").glob("*.toml")):
        found["sweep"].append((path.name, path.read_bytes()))
    graph = networkx.star_graph(4)
    networkx.set_node_attributes(graph, {0: "switch", **dict.fromkeys(range(1, 5), "host")}, "kind")
    networkx.set_edge_attributes(
        graph, {edge: {"rate": "25Gbps", "latency": "2us", "loss": 0.0, "cost": 1} for edge in graph.edges}
    )
    found["graph"].append(("star.graphml", "\n".join(networkx.generate_graphml(graph)).encode()))
    found["graph"].append(("star.gml", "\n".join(networkx.generate_gml(graph)).encode()))
    found["graph"].append(("star.edges", "\n".join(networkx.generate_edgelist(graph)).encode()))
    found["matrix"].append(
        ("matrix.cm", b"Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 0 size 2000 send_done_trigger 1\n"
         b"1->2 id 2 trigger 1 size 1000\n2->3 start 5 size 4096\ntrigger id 1 oneshot\n")
    )  # fmt: skip
    for path in sorted((SHARED / "workloads").glob("*_CDF.txt")):
        found["sizes"].append((path.name, path.read_bytes()))
    found["sizes"].append(("sizes", b"0 0\n1000 0.5\n2000 0.9\n100000 1\n"))
    found["hpcc"].append(
        ("network", b"5 1 4\n4\n0 4 100Gbps 0.001ms 0.0\n1 4 100Gbps 1us 0\n2 4 25Gb/s 1us 0\n3 4 40Gbps 1us 0.01\n")
    )
    found["hpcc"].append(
        ("simai", b"7 2 2 1 8 H100\n4 5 6\n0 4 2Tbps 25ns 0\n1 4 2Tbps 25ns 0\n2 5 2Tbps 25ns 0\n3 5 2Tbps 25ns 0\n"
         b"0 6 4Gbps 1us 0\n1 6 4Gbps 1us 0\n2 6 4Gbps 1us 0\n3 6 4Gbps 1us 0\n")
    )  # fmt: skip
    gpu = '<pci busid="{0}" class="0x030200" link_speed="16 GT/s" link_width="16">\n'
    gpu += '<gpu dev="{0}" sm="80">\n<nvlink target="x" count="12"/></gpu>\n</pci>\n'
    nic = '<nic>\n<net name="m{0}" speed="200000"/>\n</nic>\n'
    cpus = "".join(f'<cpu numaid="{n}">\n{gpu.format(n)}{nic.format(n)}</cpu>\n' for n in range(2))
    found["nccl"].append(("topo.xml", f'<system version="1">\n{cpus}</system>\n'.encode()))
    found["htsim"].append(
        ("tree.topo", b"Nodes 8\nTiers 2\nPodsize 8\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 4\nRadix_Up 2\n"
         b"Oversubscribed 2\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nSwitch_Latency_ns 5\n")
    )  # fmt: skip
    job = example_job(JobShape(ranks=16, iterations=1, layers=1, buckets=(1_000_000,)), Fault("straggler", 3, 2.0), 1)
    with tempfile.TemporaryDirectory() as folder:
        for kind, files in (
            ("recorder", flight_recorder.write(job, Path(folder) / "a")),
            ("recorder", flight_recorder.write(job, Path(folder) / "b", as_json=True)),
            ("inspector", inspector.write(job, Path(folder) / "c")),
        ):
            found[kind].append((files[0].name, files[0].read_bytes()))
    found["flows"].append(("flows", b"3\n0 1 3 100 20000 0.000001\n2 1 3 100 20000 0.0000015\n3 0 3 900 2\n"))
    return found


def _profile() -> dict[str, object]:
    """A profile of one rank of two: steps with a compute kernel and an all-reduce each."""
    events: list[dict[str, object]] = []
    for step in range(4):
        at = 1000 * step + 10.0
        comm = {
            "Collective name": "allreduce",
            "In msg nelems": 100,
            "dtype": "Float",
            "Process Group Name": "0",
            "Seq": step,
        }
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 900},
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at + 5, "dur": 100.5, "tid": 7, "args": {"stream": 7}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce",
                "ts": at + 200,
                "dur": 80,
                "tid": 9,
                "args": comm,
            },
        ]
    config = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    job = {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": config}
    return {"schemaVersion": 1, "distributedInfo": job, "traceEvents": events}


def small(seed: int) -> Trace:
    """A trace of a few tensors, iterations and ranks, that takes a few kilobytes."""
    draw = np.random.default_rng(seed)
    infos = [TensorInfo(f"l{n // 2}.t{n}", (n + 1, 90), 90 * n + 90, "float32", n // 2) for n in range(5)]
    iterations = []
    for index in range(4):
        ends = np.cumsum(draw.integers(1, 10**9, 3)).astype(np.int64)
        ready = (ends[-1] + np.cumsum(draw.integers(1, 10**9, 5))[::-1]).astype(np.int64)
        last = int(ready.max())
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        iterations.append(
            Iteration(index, "early", index, 0.5, starts, ends, np.ascontiguousarray(ready), last, 7, last + 7)
        )
    chunks = sum(info.chunks for info in infos)
    mean = draw.lognormal(0, 1, (4, chunks)).astype(np.float16)
    groups = [{"kind": "ddp_bucket", "tensors": [0, 1]}, {"kind": "ddp_bucket", "tensors": [2, 3, 4]}]
    return Trace({"name": "small", "groups": groups}, ["l0", "l1", "l2"], infos, iterations, mean, mean * 2, mean)


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _short(kind: str, data: bytes) -> bytes:
    """A file of the same kind with as much of `data` as is quick to read, and still good if that can be."""
    if kind == "kineto":
        whole = json.loads(data)
        events = whole["traceEvents"] if isinstance(whole, dict) else whole
        said = ("Step#", "Optimizer", "Backward", "AccumulateGrad", "c10d::", "record_param_comms", "nccl", "Kernel")
        chosen = [e for e in events if any(word in str(e.get("name", "")) for word in said)][:50]
        ids = {e.get("args", {}).get("correlation") for e in chosen}
        chosen += [e for e in events if e.get("args", {}).get("correlation") in ids and e not in chosen][:40]
        return json.dumps({"traceEvents": chosen}).encode()
    if kind in ("pipedream", "simai"):
        return data if len(data) < LARGEST else data[: data.index(b"\n", LARGEST) + 1]
    return data[:LARGEST]


# Ways of damage ----------------------------------------------------------------------------------------------------------


WAYS: dict[str, tuple[Callable[[bytes, Random], bytes], ...]] = {
    "perfetto": (by_json, by_json, by_bytes, by_numbers),
    "kineto": (by_json, by_json, by_bytes, by_numbers),
    "pipedream": (by_lines, by_bytes, by_numbers),
    "simai": (by_lines, by_bytes, by_numbers),
    "csv": (by_lines, by_bytes, by_numbers),
    "chakra": (by_fields, by_fields, by_bytes),
    "goal": (by_lines, by_bytes, by_numbers),
    "hpcc": (by_lines, by_bytes, by_numbers),
    "flows": (by_lines, by_bytes, by_numbers),
    "matrix": (by_lines, by_bytes, by_numbers),
    "sizes": (by_lines, by_bytes, by_numbers),
    "graph": (by_lines, by_bytes, by_numbers),
    "htsim": (by_lines, by_bytes, by_numbers),
    "nccl": (by_lines, by_bytes, by_numbers),
    "recorder": (by_bytes, by_bytes, by_numbers),
    "inspector": (by_lines, by_bytes, by_numbers),
    "profiles": (by_json, by_json, by_bytes, by_numbers),
    "scenario": (by_toml, by_toml, by_lines, by_bytes, by_numbers),
    "sweep": (by_toml, by_toml, by_lines, by_bytes, by_numbers),
}


# Trace directories ---------------------------------------------------------------------------------------------------------

PARTS = ("manifest.json", "layers.parquet", "tensors.parquet", "iterations.parquet", "chunks.parquet")


@cache
def directories() -> list[dict[str, bytes]]:
    """Whole traces as their files."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (3, 4):
            saved = small(seed).save(Path(folder) / str(seed))
            found.append({name: (saved / name).read_bytes() for name in PARTS})
    return found


def damaged_directory(files: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """The files of a trace, of which one or two are changed or missing."""
    files = dict(files)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(files) or [PARTS[0]])
        if rng.random() < 0.02:
            files.pop(name, None)
        elif rng.random() < 0.02:
            files[name] = rng.choice(directories())[rng.choice(PARTS)]
        elif name in files:
            if name.endswith(".json"):
                files[name] = rng.choice((by_json, by_bytes))(files[name], rng)
            else:
                files[name] = rng.choice((by_table, by_bytes))(files[name], rng)
    return files


# Cases ---------------------------------------------------------------------------------------------------------------------


def cases(seed: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """(label, thunk) without end; a thunk answers "ok" or "refused", and raises whatever should not have happened."""
    for number in itertools.count():
        label = f"{seed}:{number}"
        yield f"readers {label}", partial(one, label)


def one(label: str) -> str:
    """Try the file of a label, "seed:number"."""
    rng = Random(f"readers {label}")
    kinds = [*good(), "directory"]
    kind = rng.choice(kinds)
    place = scratch()
    gradwire.traces.storage.memory_limits.available_bytes = lambda: ROOM
    try:
        if kind == "directory":
            _read_directory(place, damaged_directory(rng.choice(directories()), rng))
        else:
            name, data = rng.choice(good()[kind])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # notes on a scenario
                _read_file(place, kind, name, damaged(kind, data, rng), rng)
    except GradwireError as error:
        most = MAX_EXPLAINED + 5 if kind in ("scenario", "sweep") else 40  # their mistakes are listed, each in its line
        if len(str(error).splitlines()) > most or not error.what:
            raise AssertionError(f"no message for people: {error}") from error
        return "refused"
    return "ok"


def damaged(kind: str, data: bytes, rng: Random) -> bytes:
    """A good file of a kind, changed once or several times, now and then packed."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(WAYS[kind])(data, rng) or b"\x00"
    if rng.random() < 0.03:
        data = gzip.compress(data, 1)
        data = by_bytes(data, rng) if rng.random() < 0.5 else data
    return data


def _read_file(place: Path, kind: str, name: str, data: bytes, rng: Random) -> None:
    path = place / name
    path.write_bytes(data)
    if kind == "hpcc":
        read_hpcc(path)
    elif kind == "nccl":
        host = read_nccl_topology(path)
        assert all(host.nearest_nics(gpu) or not host.nics for gpu in host.gpus) and host.tables()
    elif kind == "htsim":
        read_htsim(path)
    elif kind in LOGS:
        diagnosis = diagnose_log(load_logs([path]).log)
        json.dumps([finding.as_dict() for finding in diagnosis.findings], allow_nan=False)
    elif kind == "flows":
        flows.read_flow_list(path, "traffic[0].file", rng.choice((None, 4)))
    elif kind == "matrix":
        matrix.read_matrix(path, "traffic[0].file", rng.choice((None, 4)))
    elif kind == "sizes":
        poisson.read_distribution(path, "traffic[0].sizes")
    elif kind == "graph":
        read_graph(path, LinkSpec(100 * 10**9, 10**6, 0.0))
    elif kind == "scenario":
        variants = load_scenario(path).variants()
        extents(variants, check_variants(variants))
    elif kind == "sweep":
        load_sweep(path)
    else:
        trace = import_trace(path, format=rng.choice(("auto", kind, kind)), dtype=rng.choice(("float32", "float16")))
        _use(trace)


def _read_directory(place: Path, files: dict[str, bytes]) -> None:
    folder = place / "trace"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    _use(load_trace(folder))


def _use(trace: Trace) -> None:
    """What everything that replays a trace relies on."""
    last = trace.iterations[-1]
    assert last.forward_end_ps.max() <= last.backward_end_ps <= last.end_ps
    assert (last.ready_ps >= last.forward_end_ps[[t.layer for t in trace.tensors]]).all()
    assert all(
        np.isfinite(values).all() for t in range(min(len(trace.tensors), 3)) for values in trace.magnitudes(0, t)
    )
    layer_priorities(trace, range(8))
    json.dumps(trace.manifest)


@cache
def scratch() -> Path:
    """A folder of this process, in memory where there is such a place."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = tempfile.TemporaryDirectory(prefix="gradwire-readers-", dir=root)
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
