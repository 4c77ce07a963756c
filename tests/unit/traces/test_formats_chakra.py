"""Chakra execution traces and Perfetto timelines: round trips, a file by protobuf itself, damaged ones."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from formats_cases import SAMPLES
from trace_cases import small_trace

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import export_trace, import_trace
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.trace import Trace, load_trace

US = 10**6


def same_tensors(first: Trace, second: Trace) -> bool:
    def described(trace: Trace) -> list[object]:
        return [(t.name, t.shape, t.dtype, t.layer) for t in trace.tensors]

    return first.layers == second.layers and described(first) == described(second)


@pytest.mark.parametrize("name", ["small", "resnet50"])
def test_chakra_round_trip_is_exact_to_a_microsecond(name: str):
    trace = load_trace(name) if name != "small" else small_trace(seed=1, tensors=7)
    chosen = [0, 3]
    files = export_trace(trace, "deep/job", format="chakra", iterations=chosen, ranks=3)
    assert [f.name for f in files] == ["job.0.et", "job.1.et", "job.2.et"]
    again = import_trace(files[2])
    assert same_tensors(trace, again)
    for index, after in zip(chosen, again.iterations, strict=True):
        before = trace.iterations[index]
        assert np.abs(after.ready_ps - before.ready_ps).max() <= US // 2
        ends = np.maximum.accumulate(before.forward_end_ps)
        assert np.abs(after.forward_end_ps - ends).max() <= US // 2
        assert abs(after.backward_end_ps - before.backward_end_ps) <= US // 2
        assert abs(after.optimizer_ps - before.optimizer_ps) <= US
    assert again.manifest["source"]["skipped"] == {}


def test_chakra_nodes_depend_on_earlier_nodes_and_have_astra_sim_attributes():
    trace = small_trace(seed=2, tensors=6)
    (path,) = export_trace(trace, "job", format="chakra")
    data, at, nodes = path.read_bytes(), 0, []
    while at < len(data):
        size, at = pb.varint(data, at)
        nodes.append(list(pb.fields(data[at : at + size])))
        at += size
    seen: set[object] = set()
    for node in nodes[1:]:
        (ident,) = [value for number, _, value in node if number == 1]
        deps = [dep for number, wire, value in node if number in (4, 5) for dep in pb.numbers(wire, value)]
        assert set(deps) <= seen
        seen.add(ident)
        names = {{n: v for n, _, v in pb.fields(value)}[1] for number, _, value in node if number == 10}
        (kind,) = [value for number, _, value in node if number == 3]
        assert b"is_cpu_op" in names
        if kind == 7:
            assert {b"comm_type", b"comm_size", b"comm_priority"} <= names
    assert len(seen) == len(nodes) - 1


def test_chakra_ranks_replay_their_own_iterations():
    trace = small_trace(seed=4, iterations=4, tensors=4)
    iterations = [dataclasses.replace(i, rank=n % 2, phase="all") for n, i in enumerate(trace.iterations)]
    both = Trace(trace.manifest, trace.layers, trace.tensors, iterations, trace._mean, trace._max)
    files = export_trace(both, "job", format="chakra", iterations=[0, 1, 2, 3], ranks=3)
    assert files[0].read_bytes() == files[2].read_bytes() != files[1].read_bytes()
    after = import_trace(files[1]).iterations
    assert [abs(a.backward_end_ps - iterations[n].backward_end_ps) <= US for a, n in zip(after, (1, 3), strict=True)]
    with pytest.raises(TraceError, match="different numbers of iterations"):
        export_trace(both, "other", format="chakra", iterations=[0, 1, 2])
    assert not list(Path().glob("other*"))


def test_foreign_chakra_file_gives_hand_computed_times():
    trace = import_trace(SAMPLES / "foreign.0.et")
    # Forward 100 + 50 us, backward of layer 1 70, its input gradient 30, backward of layer 0 20, then the step.
    assert [t.bytes for t in trace.tensors] == [8000, 4000]
    (iteration,) = trace.iterations
    assert iteration.ready_ps.tolist() == [270 * US, 220 * US]
    assert iteration.forward_end_ps.max() == 150 * US
    assert (iteration.backward_end_ps, iteration.optimizer_ps) == (270 * US, 11 * US)
    assert trace.manifest["source"]["skipped"] == {
        "ALL_REDUCE of activations": 1,
        "COMM_SEND_NODE": 1,
        "MEM_LOAD_NODE": 1,
    }


def node(ident: int, kind: int, *, deps: tuple[int, ...] = (), micros: int = 0, name: str = "n", **told: int) -> bytes:
    data = pb.put(1, ident) + pb.put(2, name) + pb.put(3, kind) + pb.put_packed(4, deps) + pb.put(7, micros)
    for key, value in told.items():
        data += pb.put(10, pb.put(1, key) + pb.put(9, value))
    return pb.put_message(data)


GRAPH = node(0, 4, micros=6) + node(1, 7, deps=(0,), comm_type=0, comm_size=1 << 20)


def test_chakra_compute_nodes_run_serially_and_communication_takes_no_time():
    # Two chains that could overlap if the GPU did two things at once, and an unnamed forward pass.
    data = GRAPH + node(2, 4, micros=10) + node(3, 7, deps=(2, 1), comm_type=7, comm_size=64)
    Path("g.et").write_bytes(data)
    trace = import_trace("g.et")
    assert trace.iterations[0].ready_ps.tolist() == [16 * US, 6 * US]
    assert trace.manifest["timing"] == "estimated"
    assert "version" not in trace.manifest["source"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (GRAPH[:-3], "ends within message 2"),
        (GRAPH + b"\xff" * 11, "message 3 has no length"),
        (GRAPH + pb.put_varint(1 << 30), "message 3 has 1073741824 bytes"),
        (GRAPH + pb.put_message(b"\x0b\x00"), "message 3: not a Chakra node .wire type 3"),
        (GRAPH + pb.put_message(b"\x12\x50abc"), "message 3: not a Chakra node"),
        (GRAPH + node(1, 4), "duplicate node id 1"),
        (node(0, 4, deps=(1,), micros=1) + node(1, 7, deps=(0,), comm_type=0, comm_size=99), "cycle"),
        (node(0, 4, micros=1 << 63), "not a Chakra node"),
        (pb.put_message(pb.put(1, "0.0.4")), "has no node"),
        (node(0, 4, micros=5), "no gradient"),
        (node(0, 7, comm_type=2, comm_size=512), "no gradient.*ALL_GATHER"),
        (node(0, 7, comm_type=0, comm_size=4), "no gradient.*8 bytes or less"),
        (node(0, 7, comm_size=400), "no gradient.*without comm_type"),
    ],
)
def test_damaged_chakra_files_are_refused(data: bytes, what: str):
    Path("bad.et").write_bytes(data)
    with pytest.raises(TraceError, match=what):
        import_trace("bad.et")


def test_chakra_dependencies_on_missing_nodes_are_counted():
    Path("g.et").write_bytes(GRAPH + node(5, 4, deps=(77,), micros=1))
    assert import_trace("g.et").manifest["source"]["skipped"] == {"dependencies on nodes that are not there": 1}


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1])
def test_varints_round_trip_and_truncated_varints_raise(value: int):
    data = pb.put_varint(value)
    assert pb.varint(data, 0) == (value, len(data))
    for end in range(len(data)):
        with pytest.raises(ValueError):
            pb.varint(data[:end], 0)


def test_signed_and_zigzag_integers_are_decoded():
    assert [pb.signed(pb.varint(pb.put_varint(n), 0)[0]) for n in (-1, 5, -(2**63))] == [-1, 5, -(2**63)]
    assert [pb.zigzag(n) for n in (0, 1, 2, 3)] == [0, -1, 1, -2]


def test_perfetto_round_trip_is_exact():
    trace = small_trace(seed=6, tensors=7)
    export_trace(trace, "timeline.json", format="perfetto", iterations=[1, 3])
    again = import_trace("timeline.json")
    assert again.manifest["source"]["format"] == "perfetto"
    assert same_tensors(trace, again)
    for index, after in zip((1, 3), again.iterations, strict=True):
        before = trace.iterations[index]
        assert (after.step, after.phase, after.end_ps) == (before.step, before.phase, before.end_ps)
        for times in ("ready_ps", "forward_start_ps", "forward_end_ps"):
            assert getattr(after, times).tolist() == getattr(before, times).tolist()


def test_perfetto_spans_of_a_track_do_not_overlap():
    trace = small_trace(seed=6, tensors=5)
    export_trace(trace, "timeline.json", format="perfetto", iterations=[0, 1])
    events = json.loads(Path("timeline.json").read_text())["traceEvents"]
    assert all(e["ph"] in "XiCM" and "name" in e and "pid" in e for e in events)
    spans = [e for e in events if e["ph"] == "X"]
    # spans of one track neither overlap nor run backwards, or the viewer would stack them
    for track in {e["tid"] for e in spans}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == track)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in itertools.pairwise(own))
    counters = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert max(counters) == trace.total_bytes


@pytest.mark.parametrize("control", [False, True])
def test_cycle_error_states_whether_control_dependencies_close_the_cycle(control: bool):
    """Field 4 of a node holds control dependencies, field 5 those on data."""
    kind = 4 if control else 5
    about = pb.put(3, 4) + pb.put(7, 1)
    data = b"".join(
        pb.put_message(pb.put(1, ident) + pb.put(2, "A") + about + pb.put_packed(kind, [1 - ident])) for ident in (0, 1)
    )
    Path("job.0.et").write_bytes(data)
    with pytest.raises(TraceError, match="cycle") as refusal:
        import_trace("job.0.et")
    assert ("data dependencies are acyclic" in str(refusal.value)) is control


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"layer": 0, "start_ps"', '"layer": [0], "start_ps"'),
        ('"tensor": 0', '"tensor": {}'),
        ('"numel": ', '"numel": 1e999, "x": '),
        ('"shape": [', '"shape": [1e999, '),
        ('"tensors": [', '"tensors": [[], '),
        ('"dtype": "float32"', '"dtype": ["float32"]'),
        ('"pid": 0', '"pid": 1e999'),
        ('"pid": 0', '"pid": null'),
        ('"step": ', '"step": 1e999, "x": '),
    ],
)
def test_perfetto_files_with_wrong_value_types_are_refused(old: str, new: str):
    export_trace(small_trace(), "timeline.json", format="perfetto")
    text = Path("timeline.json").read_text()
    assert old in text
    Path("timeline.json").write_text(text.replace(old, new))
    with pytest.raises(TraceError, match="missing or damaged"):
        import_trace("timeline.json")


@pytest.mark.parametrize("lost", ["layers", "tensors", "ready_ps", "optimizer_ps", "end_ps"])
def test_perfetto_files_with_missing_fields_are_refused(lost: str):
    export_trace(small_trace(), "timeline.json", format="perfetto")
    Path("timeline.json").write_text(Path("timeline.json").read_text().replace(f'"{lost}"', '"lost"'))
    with pytest.raises(TraceError, match="missing or damaged"):
        import_trace("timeline.json")


def chain(ident: int, kind: int, **more: object) -> bytes:
    data = pb.put(1, ident) + pb.put(2, str(more.get("name", "gemm"))) + pb.put(3, kind)
    data += pb.put_packed(4, more.get("control", ())) + pb.put_packed(5, more.get("deps", ()))  # type: ignore[arg-type]
    data += pb.put(7, int(str(more.get("micros", 0))))
    for key in ("is_cpu_op", "stream", "comm_type", "comm_size"):
        if key in more:
            data += pb.put(10, pb.put(1, key) + pb.put(9, int(str(more[key]))))
    return pb.put_message(data)


def test_chakra_kernels_wait_for_their_stream_and_collectives_for_computing() -> None:
    """CPU nodes 1, 3, 5, 7 launch: two kernels of 100 us on stream 7, one of 40 on stream 9, and an all-reduce."""
    nodes = [chain(1, 4, micros=5, is_cpu_op=1, name="launch")]
    for ident, micros, stream in ((2, 100, 7), (4, 100, 7), (6, 40, 9)):
        nodes.append(chain(ident, 4, deps=(ident - 1,), micros=micros, is_cpu_op=0, stream=stream))
        nodes.append(chain(ident + 1, 4, control=(ident - 1,), micros=5, is_cpu_op=1, name="launch"))
    nodes.append(chain(8, 7, deps=(7,), is_cpu_op=0, stream=20, comm_type=0, comm_size=4000))
    Path("job.0.et").write_bytes(b"".join(nodes))
    trace = import_trace("job.0.et")
    # One kernel at a time computes; the collective waits for both of stream 7, whichever of them is later.
    assert trace.iterations[0].ready_ps.tolist() == [200 * US + 40 * US]
    doubtful = trace.manifest["source"]["doubtful"]
    assert doubtful == {"nodes of the GPU that depend on their launcher alone: chained by stream": 3}


def test_chakra_graph_with_kernel_dependencies_is_not_chained_by_stream() -> None:
    Path("g.et").write_bytes(GRAPH)
    assert "doubtful" not in import_trace("g.et").manifest["source"]


def circle(kind: str) -> bytes:
    first = chain(0, 4, micros=10, **{kind: (2,)}, name="FWD")
    return first + chain(1, 4, micros=20, deps=(0,)) + chain(2, 7, deps=(1,), comm_type=0, comm_size=4000)


def test_repair_option_drops_control_dependencies_that_close_a_cycle() -> None:
    Path("job.0.et").write_bytes(circle("control"))
    with pytest.raises(TraceError, match="expected an acyclic graph, or --repair"):
        import_trace("job.0.et")
    trace = import_trace("job.0.et", repair=True)
    assert trace.iterations[0].ready_ps.tolist() == [30 * US]
    assert trace.manifest["source"]["doubtful"] == {"control dependencies that close cycles: left out": 1}
    Path("job.0.et").write_bytes(circle("deps"))
    with pytest.raises(TraceError, match="data dependencies close a cycle"):
        import_trace("job.0.et", repair=True)
