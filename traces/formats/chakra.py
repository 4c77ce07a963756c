"""Chakra execution traces, `.et`, as run by ASTRA-sim (github.com/mlcommons/chakra, schema/protobuf/et_def.proto).

A file is one rank's graph: a GlobalMetadata message, then one Node per operation, each preceded by its length. Nodes
compute (with a duration in microseconds), communicate, or load and store memory, and depend on each other by id.

Reading schedules the graph once, on one rank with a network that takes no time: one compute node runs at a time on the
GPU and one on the CPU (as in ASTRA-sim), in the order in which their dependencies are met, of several the one with the
smallest id. A gradient is an all-reduce or reduce-scatter of more than a few bytes; it is ready when all its
dependencies are done. A collective whose nearest compute node is part of a forward pass (its name holds FWD) or of an
input gradient (BWD_IG) carries activations and is left out, as are all other communication and memory nodes. Names
identify the forward pass; without such names, two thirds of the computing before the first gradient is ready count as
backward (our choice). A graph without marks of iterations is one iteration.

Writing makes a chain of compute nodes per iteration: forward by layer, then backward from one gradient's readiness to
the next, then the optimizer, which waits for every collective. The format cannot hold magnitudes, losses, pauses in the
forward pass, or times finer than a microsecond (boundaries are rounded, so errors do not add up). `comm_priority`
carries the priority of the tensor's layer in 8 groups of about equal bytes (`layer_priorities`), as 8 for the front
group down to 1: ASTRA-sim serves larger numbers first, with "scheduling-policy": "EXPLICIT". Attributes that begin with
"gradwire_" name layer, tensor and dtype; other tools ignore them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.formats.chakra_graphs.graph import COMM_COLL, COMP, ChakraGraph, ChakraNode, fill_draft
from gradwire.traces.formats.chakra_graphs.repair import chain_streams, cut_cycles
from gradwire.traces.formats.draft import PS_PER_US, Draft
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import Source, open_source

if TYPE_CHECKING:
    from gradwire.traces.formats.base import ReadOptions, WriteOptions
    from gradwire.traces.trace import Iteration, Trace

ALL_REDUCE = 0
PRIORITIES = 8
SCHEMA = "0.0.4"  # version written by ASTRA-sim's generators
_NODE_TYPES = {
    0: "INVALID_NODE",
    1: "METADATA_NODE",
    2: "MEM_LOAD_NODE",
    3: "MEM_STORE_NODE",
    4: "COMP_NODE",
    5: "COMM_SEND_NODE",
    6: "COMM_RECV_NODE",
    7: "COMM_COLL_NODE",
}
# Field numbers of AttributeProto's values, by encoding.
_PLAIN, _SIGNED, _ZIGZAG, _FIXED, _SFIXED, _REAL = {11, 13, 27}, {7, 9}, {15, 17}, {19, 21}, {23, 25}, {3, 5}
_STRING, _BOOL_LIST = 29, 28


def recognise(path: Path, head: bytes) -> bool:
    """Return True for the suffix .et, or if the first message parses as one of Chakra's."""
    if path.name.removesuffix(".gz").endswith(".et"):
        return True
    try:
        length, at = pb.varint(head, 0)
        if at + length > len(head):
            return False
        seen = [(number, wire) for number, wire, _ in pb.fields(head[at : at + length])]
    except ValueError:
        return False
    return bool(seen) and all(0 < number <= 11 for number, _ in seen) and b"\n" not in head[:1]


def read(path: Path, options: ReadOptions) -> Draft:
    """Return the draft of one rank's graph; TraceError for truncated or foreign messages, and for cycles."""
    draft = Draft("chakra")
    graph = ChakraGraph()
    with open_source(path, options.progress, options.notes) as source:
        for number, data in enumerate(pb.messages(source)):
            read_message(data, number, source, graph, draft)
    if not len(graph.ids):
        raise TraceError("has no nodes", str(path), "a Chakra execution trace")
    if options.repair:
        cut_cycles(graph, str(path), draft.doubtful)
    chain_streams(graph, draft.doubtful)
    fill_draft(graph, draft, str(path), options.dtype)
    if options.ranks:
        from gradwire.traces.formats.chakra_graphs.ranks import read_graphs

        draft.graphs = read_graphs(path, options, draft)
    return draft


def read_message(data: bytes, number: int, source: Source, graph: ChakraGraph, draft: Draft) -> None:
    """Add a message of a file to a graph: a node, or first the metadata; TraceError if it is neither."""
    where = f"{source.where}, message {number + 1}"
    try:
        parsed = list(pb.fields(data))
        if number == 0 and not any(field == 3 for field, _, _ in parsed):
            # GlobalMetadata has a version and attributes, no field 3; every node but an invalid one has a type.
            version = next((v for f, w, v in parsed if f == 1 and w == pb.BYTES), b"")
            if isinstance(version, bytes) and version[:40].isascii() and version.decode().isprintable():
                draft.about["chakra_version"] = version[:40].decode()
            draft.understood["GlobalMetadata"] += 1
            return
        node = _node(parsed, draft)
        is_new = graph.add(node)
    except (ValueError, UnicodeDecodeError) as error:
        raise TraceError(f"not a Chakra node ({error})", where, "a message of et_def.proto") from error
    if not is_new:
        raise TraceError(f"duplicate node id {node.id}", where, "each id once")
    name = _NODE_TYPES.get(node.type, f"node type {node.type}")
    if node.type in (COMP, COMM_COLL):
        draft.understood[name] += 1
    else:
        draft.skipped[name] += 1


def _node(parsed: list[pb.Field], draft: Draft) -> ChakraNode:
    node = ChakraNode()
    for number, wire, value in parsed:
        if number in (4, 5):
            (node.control if number == 4 else node.deps).extend(pb.numbers(wire, value))
        elif number in (1, 3, 7) and isinstance(value, int):
            setattr(node, {1: "id", 3: "type", 7: "micros"}[number], value)
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode("utf-8")
        elif number == 10 and isinstance(value, bytes):
            name, content = _attribute(value)
            if content is None:
                draft.skipped[f"attribute {name[:40]} of a type that is not used here"] += 1
            else:
                node.attributes[name] = content
        elif number not in (6, 8, 9):  # start time, inputs and outputs
            draft.skipped[f"field {number} of a node"] += 1
        if number in (1, 3, 4, 5, 7) and wire not in (pb.VARINT, pb.BYTES):
            raise ValueError(f"field {number} has wire type {wire}")
    return node


def _attribute(data: bytes) -> tuple[str, Any]:
    """Return (name, value) of an AttributeProto; the value is None if it is a list of anything but booleans."""
    name = ""
    content: Any = None
    for number, wire, value in pb.fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8")
        elif isinstance(value, int):
            if number in _SIGNED:
                content = pb.signed(value)
            elif number in _ZIGZAG:
                content = pb.zigzag(value)
            elif number in _PLAIN:
                content = value
        elif number in _FIXED or number in _SFIXED:
            content = int.from_bytes(value, "little", signed=number in _SFIXED)
        elif number in _REAL and wire in (pb.FOUR, pb.EIGHT):
            content = pb.real(value)
        elif number == _STRING:
            content = value.decode("utf-8")
        elif number == _BOOL_LIST:
            content = [flag for n, w, v in pb.fields(value) if n == 1 for flag in pb.numbers(w, v)]
    return name, content


def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
    """Write `out`.RANK.et for each of `options.ranks`: data parallel workers, one all-reduce per tensor. Worker w
    replays the chosen iterations of the trace's rank w mod their number, as in a simulated job."""
    ranks = sorted({trace.iterations[i].rank for i in options.iterations})
    by_rank = {
        rank: b"".join(
            _graph(trace, [trace.iterations[i] for i in options.iterations if trace.iterations[i].rank == rank])
        )
        for rank in ranks
    }
    lengths = {len([i for i in options.iterations if trace.iterations[i].rank == rank]) for rank in ranks}
    if len(lengths) > 1:
        raise TraceError("the ranks have different numbers of iterations", trace.name, "equally many per rank")
    return write_files(
        {
            out.with_name(f"{out.name}.{worker}.et"): by_rank[ranks[worker % len(ranks)]]
            for worker in range(options.ranks)
        }
    )


def _graph(trace: Trace, iterations: list[Iteration]) -> Iterator[bytes]:
    from gradwire.traces.tagging import layer_priorities

    metadata = pb.put(1, "gradwire_trace") + pb.put(_STRING, trace.name)
    yield pb.put_message(pb.put(1, SCHEMA) + pb.put(2, metadata))
    priorities = PRIORITIES - layer_priorities(trace, range(PRIORITIES))
    node_id = 0
    deps: list[int] = []
    for number, iteration in enumerate(iterations):
        mark = _int("gradwire_iteration", number)
        clock, collectives = 0, []
        for layer, name in enumerate(trace.layers):
            moment = max(_micros(int(iteration.forward_end_ps[: layer + 1].max())), clock)
            attributes_of_layer = mark + _int("gradwire_layer", layer) + _text("gradwire_layer_name", name)
            yield _compute(node_id, f"COMP_NODE_{name}_FWD", moment - clock, deps, attributes_of_layer)
            clock, deps, node_id = moment, [node_id], node_id + 1
        order = np.lexsort((-np.arange(len(trace.tensors)), iteration.ready_ps))
        for index in order.tolist():
            tensor = trace.tensors[index]
            moment = max(_micros(int(iteration.ready_ps[index])), clock)
            if moment > clock:
                yield _compute(node_id, f"COMP_NODE_{tensor.name}_BWD_WG", moment - clock, deps, mark)
                clock, deps, node_id = moment, [node_id], node_id + 1
            attributes = mark + _int("gradwire_layer", tensor.layer) + _int("gradwire_tensor", index)
            attributes += _text("gradwire_tensor_name", tensor.name) + _text("gradwire_dtype", tensor.dtype)
            attributes += _text("gradwire_shape", "x".join(map(str, tensor.shape)))
            yield _all_reduce(node_id, tensor.name, tensor.bytes, int(priorities[index]), deps, attributes)
            collectives.append(node_id)
            node_id += 1
        moment = max(_micros(iteration.backward_end_ps), clock)
        if moment > clock:
            yield _compute(node_id, "COMP_NODE_BWD_END", moment - clock, deps, mark)
            clock, deps, node_id = moment, [node_id], node_id + 1
        duration = _micros(iteration.optimizer_ps)
        yield _compute(node_id, "COMP_NODE_OPTIMIZER", duration, [*deps, *collectives], mark)
        deps, node_id = [node_id], node_id + 1


def _micros(picoseconds: int) -> int:
    return (picoseconds + PS_PER_US // 2) // PS_PER_US


def _compute(node_id: int, name: str, micros: int, deps: list[int], attributes: bytes) -> bytes:
    return _put_node(node_id, name, COMP, deps, pb.put(7, micros) + _bool("is_cpu_op", False) + attributes)


def _all_reduce(node_id: int, name: str, size: int, priority: int, deps: list[int], attributes: bytes) -> bytes:
    encoded = _bool("is_cpu_op", False) + _int("comm_type", ALL_REDUCE) + _int("comm_size", size)
    encoded += pb.put(10, pb.put(1, "comm_priority") + pb.put(11, priority))  # uint32
    return _put_node(node_id, f"COMM_COLL_NODE_{name}_ALLREDUCE", COMM_COLL, deps, encoded + attributes)


def _put_node(node_id: int, name: str, kind: int, deps: list[int], attributes: bytes) -> bytes:
    data = pb.put(1, node_id) + pb.put(2, name) + pb.put(3, kind) + pb.put_packed(5, deps) + attributes
    return pb.put_message(data)


def _int(name: str, value: int) -> bytes:
    return pb.put(10, pb.put(1, name) + pb.put(9, value))  # int64


def _bool(name: str, value: bool) -> bytes:
    return pb.put(10, pb.put(1, name) + pb.put(27, int(value)))


def _text(name: str, value: str) -> bytes:
    return pb.put(10, pb.put(1, name) + pb.put(_STRING, value))
