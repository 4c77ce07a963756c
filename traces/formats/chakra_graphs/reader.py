"""Reads the messages of one Chakra file into the nodes of a `ChakraGraph`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.formats.base import ReadOptions
from gradwire.traces.formats.chakra_graphs import COMM_COLL, COMP, STRING
from gradwire.traces.formats.chakra_graphs.graph import ChakraGraph, ChakraNode
from gradwire.traces.formats.chakra_graphs.repair import chain_streams, cut_cycles
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.source import Source, open_source

_NODE_TYPES = dict(enumerate("INVALID METADATA MEM_LOAD MEM_STORE COMP COMM_SEND COMM_RECV COMM_COLL".split()))
# Field numbers of AttributeProto's values, by encoding.
_PLAIN, _SIGNED, _ZIGZAG, _FIXED, _SFIXED, _REAL = {11, 13, 27}, {7, 9}, {15, 17}, {19, 21}, {23, 25}, {3, 5}
_BOOL_LIST = 28


def read_graph(path: Path, options: ReadOptions, draft: Draft, with_names: bool = False) -> ChakraGraph:
    """Return the graph of a file, repaired by `options`, with its streams in order; count in `draft`. TraceError for
    truncated or foreign messages."""
    graph = ChakraGraph()
    graph.names = [] if with_names else None
    with open_source(path, options.progress, options.notes) as source:
        for number, data in enumerate(pb.messages(source)):
            _read_message(data, number, source, graph, draft)
    if not len(graph.ids):
        raise TraceError("has no nodes", str(path), "a Chakra execution trace")
    if options.repair:
        cut_cycles(graph, str(path), draft.doubtful)
    chain_streams(graph, draft.doubtful)
    return graph


def _read_message(data: bytes, number: int, source: Source, graph: ChakraGraph, draft: Draft) -> None:
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
    name = f"{_NODE_TYPES[node.type]}_NODE" if node.type in _NODE_TYPES else f"node type {node.type}"
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
        elif number == STRING:
            content = value.decode("utf-8")
        elif number == _BOOL_LIST:
            content = [flag for n, w, v in pb.fields(value) if n == 1 for flag in pb.numbers(w, v)]
    return name, content
