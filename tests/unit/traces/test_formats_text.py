"""PipeDream graphs, SimAI workloads and CSV tables: worked cases, round trips, real files, mistakes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats_cases import CSV, PIPEDREAM, SHARED, SIMAI
from trace_cases import small_trace

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import export_trace, import_trace
from gradwire.traces.formats.source import Source
from gradwire.traces.trace import load_trace

MS, US, NS = 10**9, 10**6, 10**3
needs_data = pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data with real workloads")


def imported(text: str, **options: Any) -> Any:
    Path("file.txt").write_text(text)
    return import_trace("file.txt", **options)


def skipped(trace: Any) -> dict[str, int]:
    return trace.manifest["source"]["skipped"]


@pytest.mark.parametrize(
    "text",
    [
        CSV.replace("fc.weight", "f\xe4c"),
        PIPEDREAM.replace("Input", "Eing\xe4nge"),
        SIMAI.replace("\n3\n", "\n3\n\xe4"),
    ],
)
def test_text_with_invalid_utf8_is_refused_with_line_and_byte(text: str):
    """The error names line, byte and the expected encoding; no replacement character enters a name."""
    Path("file.txt").write_bytes(text.encode("latin-1"))
    line, rest = next((n, line) for n, line in enumerate(text.encode("latin-1").split(b"\n"), 1) if b"\xe4" in line)
    with pytest.raises(TraceError) as caught:
        import_trace("file.txt")
    at = rest.index(b"\xe4") + 1
    assert str(caught.value).startswith(f"file.txt, line {line}: byte {at} (0xe4) is not UTF-8; expected text in UTF-8")


def test_byte_order_marks_are_skipped_and_utf16_is_decoded():
    Path("file.txt").write_bytes(b"\xef\xbb\xbf" + CSV.encode())
    assert import_trace("file.txt").digest() == imported(CSV).digest()
    Path("file.txt").write_bytes(b"\xef\xbb\xbfn\xe4me,bytes\na,4\n")
    with pytest.raises(TraceError, match=r"line 1: byte 5 \(0xe4\) is not UTF-8"):
        import_trace("file.txt", format="csv")
    Path("file.txt").write_bytes(CSV.encode("utf-16"))
    wide = import_trace("file.txt")
    assert wide.manifest["source"]["doubtful"] == {"text in UTF-16, read as UTF-8": 1}
    assert [t.numel for t in wide.tensors] == [t.numel for t in imported(CSV).tensors]
    Path("file.txt").write_bytes(CSV.encode("utf-16")[:-1])
    with pytest.raises(TraceError, match="is damaged text"):
        import_trace("file.txt", format="csv")


def test_csv_with_duplicate_tensor_names_is_refused():
    twice = CSV.replace("fc.bias", "conv.weight")
    with pytest.raises(
        TraceError, match=r"file.txt, line 4: duplicate name 'conv.weight', also on line 2; expected each name once"
    ):
        imported(twice)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,3,400", "bytes is 400, but 12 by the rest of the row"),
        ("a,10x10,396", "bytes is 396, but 400 by the rest of the row"),
        ('"a,3,12', "unclosed quote"),
    ],
)
def test_csv_rows_with_conflicting_sizes_or_unclosed_quotes_are_refused(row, said):
    with pytest.raises(TraceError, match=rf"file.txt, line 2: {said}"):
        imported(f"name,shape,bytes\n{row}\n")
    assert imported("name,shape,bytes\na,10x10,400\n").tensors[0].numel == 100


def test_csv_export_numbers_duplicate_tensor_names():
    trace = imported(CSV)
    trace.tensors[2] = dataclasses.replace(trace.tensors[2], name="conv.weight")
    export_trace(trace, "out.csv", format="csv")
    assert [tensor.name for tensor in import_trace("out.csv").tensors] == [
        "conv.weight",
        "fc.weight",
        "conv.weight (2)",
    ]


def test_pipedream_nodes_run_in_topological_order():
    trace = imported(PIPEDREAM)
    assert [name.split()[0] for name in trace.layers] == ["node2", "node3"]
    assert [(t.layer, t.numel, t.dtype) for t in trace.tensors] == [(0, 112, "float32"), (1, 10, "float32")]
    (iteration,) = trace.iterations
    assert iteration.forward_end_ps.tolist() == [2 * MS, 2.5 * MS]
    # backward: node3 takes 1.5 ms, then node2 4.25
    assert iteration.ready_ps.tolist() == [8.25 * MS, 4 * MS]
    assert iteration.backward_end_ps == 8.25 * MS
    assert skipped(trace) == {
        "Input: loading a batch, 1 ms, is no computing": 1,
        "activation_size of a node": 3,
        "stage_id of a node": 3,
    }


@needs_data
def test_pipedream_batch_loading_does_not_count_as_computing():
    """The profile's Input node takes 635.9 of the 680.7 ms of AlexNet's forward pass."""
    trace = import_trace(SHARED / "workloads" / "pipedream_alexnet.txt")
    assert trace.iterations[0].forward_end_ps.max() == pytest.approx(44.8 * MS, rel=1e-2)
    assert "Input: loading a batch, 635.902 ms, is no computing" in skipped(trace)


@needs_data
@pytest.mark.parametrize(("name", "elements", "layers"), [("vgg16", 138_357_544, 40), ("resnet50", 25_557_032, 176)])
def test_pipedream_profiles_of_known_models_have_known_sizes(name: str, elements: int, layers: int):
    trace = import_trace(SHARED / "workloads" / f"pipedream_{name}.txt")
    assert sum(t.numel for t in trace.tensors) == elements
    assert len(trace.layers) == layers
    assert (np.diff(trace.iterations[0].ready_ps) <= 0).all()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("4.250", "fast"), "line 3: backward_compute_time is fast"),
        (("4.250", "-1"), "line 3: backward_compute_time is -1"),
        (("4.250", "nan"), "line 3"),
        (("parameter_size=448.000", "size=1"), "parameter_size is missing"),
        (("\tnode1 -- node2", "\tnode3 -- node2"), "cycle"),
        (("node2 -- Conv2d", "node1 -- Conv2d"), "duplicate node node1"),
        (("parameter_size=448.000", "parameter_size=0"), None),
    ],
)
def test_invalid_pipedream_graphs_are_refused(change: tuple[str, str], what: str | None):
    text = PIPEDREAM.replace(*change)
    assert text != PIPEDREAM
    if what is None:
        assert len(imported(text).tensors) == 1
    else:
        with pytest.raises(TraceError, match=what):
            imported(text)


def test_pipedream_nodes_without_order_run_by_ascending_number():
    line = "node{} -- L -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=4"
    edges = "\tnode1 -- node10\n\tnode1 -- node9\n\tnode9 -- node11\n\tnode10 -- node11\n\tnode1 -- node2\n"
    trace = imported("\n".join(line.format(n) for n in (11, 10, 2, 9, 1)) + "\n" + edges)
    assert [int(name.split()[0][4:]) for name in trace.layers] == [1, 2, 9, 10, 11]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_text_formats_accept_cr_lf_and_crlf_line_ends(monkeypatch: pytest.MonkeyPatch, end: str, block: int):
    monkeypatch.setattr("gradwire.traces.formats.source._BLOCK", block)
    monkeypatch.setattr(Source.read, "__defaults__", (block,))
    for text in (PIPEDREAM, SIMAI, CSV):
        assert imported(text.replace("\n", end)).digest() == imported(text).digest()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("\ufeff\r\r\r", "has only blank lines"),
        ("\r\r\r", "is empty"),
        ('name,bytes\n"' + "x" * 200_000 + '",4\n', "line 2: not a line of a table"),
        ("name,bytes\na\rb,4,4,4\n", "line 2"),
        ("name,bytes\nbig,1000000000000\nbigger,1000000000000\n", "elements would take|GiB of memory"),
    ],
)
def test_empty_malformed_and_oversized_tables_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, what: str):
    monkeypatch.setattr("gradwire.traces.storage.memory_limits.available_bytes", lambda: 2**30)
    with pytest.raises(TraceError, match=what):
        imported(text, format="csv")


@pytest.mark.parametrize("word", ["\u00b2", "9" * 5000, "\u0663", "--3", "-"])
def test_simai_header_with_invalid_numbers_uses_defaults_or_is_refused(word: str):
    trace = imported(SIMAI.replace("ep: 1", f"ep: {word}"), format="simai")
    assert trace.manifest["parallelism_header"]["pp"] == 1
    with pytest.raises(TraceError, match=r"line 2.*expected the number of rows"):
        imported(SIMAI.replace("\n3\n", f"\n{word}\n"), format="simai")


def test_aicb_collective_tables_are_refused_by_name():
    table = "[rank0 ~ rank127]\ncomm_type,comm_group,comm_group_size,msg_size,stage,dst,src\nCommType.all_reduce,CommGroup.dp_group,64,8,step,None,None\n"
    for text in (table, table.partition("\n")[2]):
        with pytest.raises(TraceError, match=r"AICB's table of collectives.*expected the workload for SimAI"):
            imported(text)


def test_line_longer_than_a_mebibyte_is_refused():
    with pytest.raises(TraceError, match="line 1 is longer than a MiB"):
        imported("x" * 3_000_000, format="pipedream")


def test_pipedream_counts_skipped_edges_and_lines():
    trace = imported(PIPEDREAM + "\tnode2 -- node9\nremark\n", dtype="float16")
    assert trace.tensors[0].numel == 224
    assert skipped(trace)["edges to or from a node that is not there"] == 1
    assert skipped(trace)["lines that are neither node nor edge"] == 1


def test_simai_weight_gradient_collectives_become_gradient_tensors():
    trace = imported(SIMAI)
    assert [(t.layer, t.bytes) for t in trace.tensors] == [(0, 4096), (1, 1000)]
    (iteration,) = trace.iterations
    assert iteration.forward_end_ps.tolist() == [100 * NS, 300 * NS, 300 * NS]
    # backward from the last row: gather 1 + 2, experts 30 + 40, embedding 10 + 20
    assert iteration.ready_ps.tolist() == [403 * NS, 373 * NS]
    assert (iteration.backward_end_ps, iteration.optimizer_ps) == (403 * NS, 10 * NS)
    assert skipped(trace) == {"weight gradient ALLGATHER (of activations or parameters)": 1}
    assert trace.manifest["parallelism_header"]["all_gpus"] == 16


def test_simai_data_parallelism_computes_weight_gradients_first():
    trace = imported(SIMAI.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "DATA"))
    assert trace.iterations[0].ready_ps.tolist() == [(300 + 3 + 70 + 20) * NS, (300 + 3 + 40) * NS]


@needs_data
def test_simai_llama_workload_has_known_layers_and_collectives():
    trace = import_trace(SHARED / "workloads" / "simai_llama7b_tp2.txt")
    assert len(trace.layers) == 76
    assert [t.bytes for t in trace.tensors] == [13_509_853_184]  # one reduce-scatter of everything
    assert trace.parallel == {"tensor": 2, "context": 1, "expert": 1, "pipeline": 1}
    forward = [each for each in trace.communications if each.turn == "forward" and each.kind == "all_reduce"]
    assert (len(forward), len(trace.communications), {each.group for each in forward}) == (73, 141, {"tensor"})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("\n3\n", "\n4\n"), "ends after 3 rows; expected 4"),
        (("\n3\n", "\nmany\n"), "line 2.*the number of rows"),
        (("-1 100  ALLREDUCE", "-1 soon  ALLREDUCE"), "column 3 is 'soon'"),
        ((" 100  ALLREDUCE 512", " 1e2  ALLREDUCE 512"), ""),
        (("ALLREDUCE 512 ", "ALLREDUCE "), "line 3"),
        (("ALLREDUCE 4096 7", "ALLREDUCE -4096 7"), "column 11 is '-4096'"),
        (("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "SOMETHING"), "no format|begins with"),
    ],
)
def test_invalid_simai_workloads_are_refused(change: tuple[str, str], what: str):
    text = SIMAI.replace(*change)
    assert text != SIMAI
    if what == "":
        assert imported(text).iterations[0].forward_end_ps[0] == 100 * NS
    else:
        with pytest.raises(TraceError, match=what):
            imported(text, format="simai")


def test_simai_round_trip_preserves_bytes_and_ready_times_of_layers():
    trace = small_trace(seed=3, tensors=9, iterations=2)
    export_trace(trace, "out/job.txt", format="simai", iterations=[1], ranks=16)
    lines = Path("out/job.txt").read_text().splitlines()
    assert "all_gpus: 16" in lines[0]
    assert lines[1] == str(len(trace.layers))
    assert all(len(line.split("\t")) == 12 for line in lines[2:])
    again = import_trace("out/job.txt")
    before, after = trace.iterations[1], again.iterations[0]
    sizes = [sum(t.bytes for t in trace.tensors if t.layer == layer) for layer in range(len(trace.layers))]
    assert [t.bytes for t in again.tensors] == sizes
    ready = [max(before.ready_ps[n] for n, t in enumerate(trace.tensors) if t.layer == layer) for layer in range(5)]
    assert np.abs(after.ready_ps - ready).max() <= NS // 2
    assert np.abs(after.forward_end_ps - before.forward_end_ps).max() <= NS // 2
    assert abs(after.optimizer_ps - before.optimizer_ps) <= NS


def test_csv_import_gives_hand_computed_tensors_and_times():
    trace = imported(CSV)
    assert trace.layers == ["conv", "fc"]
    assert [(t.name, t.shape, t.dtype, t.layer) for t in trace.tensors] == [
        ("conv.weight", (4, 3, 3, 3), "float32", 0),
        ("fc.weight", (2, 4), "bfloat16", 1),
        ("fc.bias", (2,), "bfloat16", 1),
    ]
    (iteration,) = trace.iterations
    assert iteration.forward_end_ps.tolist() == [10 * US, 15 * US]
    assert iteration.ready_ps.tolist() == [69 * US, 39 * US, 19 * US]
    assert skipped(trace) == {"column colour": 1}


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_accepts_semicolon_and_tab_separators(separator: str):
    text = "Name,Bytes,ready_ms,mean\na,4000,2,0.5\nb,1024,1,\n".replace(",", separator)
    trace = imported(text, dtype="float16")
    assert [t.numel for t in trace.tensors] == [2000, 512]
    assert trace.iterations[0].ready_ps.tolist() == [2 * MS, 1 * MS]
    assert trace.manifest["timing"] == "estimated"  # no forward pass
    assert trace.magnitudes(0, 0)[0].mean() == pytest.approx(0.5, rel=0.2)


def test_csv_without_times_has_estimated_timing():
    trace = imported("name,numel\na,10\nb.c,20\n")
    assert trace.iterations[0].end_ps == 0
    assert trace.manifest["timing"] == "estimated"
    assert "take none" in trace.manifest["timing_how"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name,numel\n", "no gradient"),
        ("name,numel\na,-1\n", "line 2: numel is '-1'"),
        ("name,numel\na,1.5\n", "line 2: numel is '1.5'"),
        ("name,numel\na,0\n", "line 2: 0 elements"),
        ("name,numel\na\n", "line 2: no size"),
        ("name,numel\na,1,2\n", "line 2: 3 cells"),
        ("name,shape\na,3*x*y\n", "line 2: shape"),
        ("name,numel,dtype\na,3,int8\n", "line 2: dtype 'int8'"),
        ("name,numel,ready_us\na,3,inf\n", "line 2: ready_us is 'inf'"),
        ("name,numel,numel\na,3,3\n", "each column once"),
    ],
)
def test_invalid_csv_tables_are_refused(text: str, what: str):
    with pytest.raises(TraceError, match=what):
        imported(text)


def test_csv_column_without_a_name_is_not_used_as_size():
    assert [tensor.numel for tensor in imported("name,bytes,\na,8,7\n", format="csv").tensors] == [2]
    with pytest.raises(TraceError, match="no size"):
        imported("name,bytes,\na,,7\n", format="csv")


def test_csv_round_trip_preserves_tensors_and_times():
    trace = small_trace(seed=5, tensors=6)
    export_trace(trace, "table.csv", format="csv", iterations=[2])
    again = import_trace("table.csv")
    assert again.layers == trace.layers
    assert [(t.name, t.shape, t.dtype, t.layer) for t in again.tensors] == [
        (t.name, t.shape, t.dtype, t.layer) for t in trace.tensors
    ]
    assert again.iterations[0].ready_ps.tolist() == trace.iterations[2].ready_ps.tolist()
    assert again.iterations[0].forward_end_ps.tolist() == trace.iterations[2].forward_end_ps.tolist()


def test_csv_round_trip_of_a_bundled_trace_preserves_bytes_and_ready_times():
    trace = load_trace("resnet50")
    export_trace(trace, "resnet50.csv", format="csv")
    again = import_trace("resnet50.csv")
    assert again.total_bytes == trace.total_bytes
    assert again.iterations[0].ready_ps.tolist() == trace.iterations[0].ready_ps.tolist()


def test_import_errors_escape_terminal_control_characters(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes("na\x1b[2Jme,shape\x85\x0b\n1,2\n".encode())
    with pytest.raises(TraceError) as caught:
        import_trace(file, format="csv")
    assert len(str(caught.value).splitlines()) == 1
    assert r"na\x1b[2jme" in str(caught.value) and "\x1b" not in str(caught.value)
