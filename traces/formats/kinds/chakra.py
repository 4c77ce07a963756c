"""The format `chakra` reads and writes Chakra execution traces (`.et`), as run by ASTRA-sim
(github.com/mlcommons/chakra, schema/protobuf/et_def.proto).

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
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import protobuf as pb
from gradwire.traces.formats.base import Format, ReadOptions, WriteOptions
from gradwire.traces.formats.chakra_graphs import COMM_COLL, COMP, STRING
from gradwire.traces.formats.draft import PS_PER_US, Draft
from gradwire.traces.formats.sink import write_files

if TYPE_CHECKING:
    from gradwire.traces.trace import Iteration, Trace

ALL_REDUCE = 0
PRIORITIES = 8
SCHEMA = "0.0.4"  # version written by ASTRA-sim's generators


class Chakra(Format):
    """Execution traces, as run by ASTRA-sim."""

    kind = "chakra"
    title = "Chakra execution trace"
    ranks = True
    offered = 50

    @staticmethod
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

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of one rank's graph; TraceError for truncated or foreign messages, and for cycles."""
        from gradwire.traces.formats.chakra_graphs.graph import fill_draft
        from gradwire.traces.formats.chakra_graphs.ranks import read_graphs
        from gradwire.traces.formats.chakra_graphs.reader import read_graph

        draft = Draft("chakra")
        fill_draft(read_graph(path, options, draft), draft, str(path), options.dtype)
        if options.ranks:
            draft.graphs = read_graphs(path, options, draft)
        return draft

    @staticmethod
    def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
        """Write `out`.RANK.et for each of `options.ranks`: data parallel workers, one all-reduce per tensor. Worker w
        replays the chosen iterations of the trace's rank w mod their number, as in a simulated job."""
        chosen = [trace.iterations[i] for i in options.iterations]
        by_rank = [[it for it in chosen if it.rank == rank] for rank in sorted({it.rank for it in chosen})]
        if len({len(iterations) for iterations in by_rank}) > 1:
            raise TraceError("the ranks have different numbers of iterations", trace.name, "equally many per rank")
        graphs = [b"".join(_graph(trace, iterations)) for iterations in by_rank]
        return write_files(
            {out.with_name(f"{out.name}.{worker}.et"): graphs[worker % len(graphs)] for worker in range(options.ranks)}
        )


def _graph(trace: Trace, iterations: list[Iteration]) -> Iterator[bytes]:
    from gradwire.traces.tagging import layer_priorities

    metadata = pb.put(1, "gradwire_trace") + pb.put(STRING, trace.name)
    yield pb.put_message(pb.put(1, SCHEMA) + pb.put(2, metadata))
    priorities = PRIORITIES - layer_priorities(trace, range(PRIORITIES))
    node_id = 0
    deps: list[int] = []
    for number, iteration in enumerate(iterations):
        mark = _int("gradwire_iteration", number)
        clock, collectives, ready = 0, [], iteration.ready_ps
        for layer, name in enumerate(trace.layers):
            moment = max(_micros(int(iteration.forward_end_ps[: layer + 1].max())), clock)
            attributes_of_layer = mark + _int("gradwire_layer", layer) + _text("gradwire_layer_name", name)
            yield _compute(node_id, f"COMP_NODE_{name}_FWD", moment - clock, deps, attributes_of_layer)
            clock, deps, node_id = moment, [node_id], node_id + 1
        for index in sorted(range(len(trace.tensors)), key=lambda t: (int(ready[t]), -t)):
            tensor = trace.tensors[index]
            moment = max(_micros(int(ready[index])), clock)
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
    return pb.put(10, pb.put(1, name) + pb.put(STRING, value))
