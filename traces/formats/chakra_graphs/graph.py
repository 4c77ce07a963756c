"""`ChakraGraph` holds the nodes of a Chakra file; functions schedule them on one rank, and fill a draft trace."""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.chakra_graphs import COMM_COLL, COMP
from gradwire.traces.formats.draft import MAX_TIME_PS, PS_PER_US, Draft, Timing, estimate_forward, gradient_of_bytes
from gradwire.traces.parts import ELEMENT_BYTES

SENDS = (5, 6)  # a send and a receive
COLLECTIVES = {
    0: "ALL_REDUCE",
    1: "REDUCE",
    2: "ALL_GATHER",
    3: "GATHER",
    4: "SCATTER",
    5: "BROADCAST",
    6: "ALL_TO_ALL",
    7: "REDUCE_SCATTER",
    8: "REDUCE_SCATTER_BLOCK",
    9: "BARRIER",
}
_GRADIENTS = (0, 7, 8)  # all-reduce and reduce-scatters
MIN_GRADIENT_BYTES = 8  # bytes; smaller collectives are losses or norms; our choice
FORWARD, INPUT, BACKWARD, OTHER = range(4)  # roles by a compute node's name
_ROLES = (
    (INPUT, re.compile(r"BWD_IG|input_grad", re.IGNORECASE)),
    (BACKWARD, re.compile(r"BWD|backward", re.IGNORECASE)),
    (FORWARD, re.compile(r"FWD|forward", re.IGNORECASE)),
)


@dataclass
class ChakraNode:
    """One node as in the file; fields that proto3 omits have their defaults."""

    id: int = 0
    name: str = ""
    type: int = 0
    micros: int = 0
    control: list[int] = field(default_factory=list)  # ids of control dependencies
    deps: list[int] = field(default_factory=list)  # ids of data dependencies
    attributes: dict[str, Any] = field(default_factory=dict)


class CommunicationNode(NamedTuple):
    """Collective that may carry a gradient, or a transfer: its position in the graph and its node."""

    place: int
    node: ChakraNode


class ChakraGraph:
    """All nodes in arrays, since there may be millions; only communication nodes are stored whole."""

    def __init__(self) -> None:
        self.ids = array("Q")
        self.durations = array("q")  # picoseconds; 0 for other than compute nodes
        self.roles = array("b")
        self.cpu = array("b")
        self.iterations = array("l")
        self.deps = array("Q")
        self.first_dep = array("q", [0])  # of each node; its control dependencies come first
        self.first_data = array("q")
        self.collectives: list[CommunicationNode] = []
        self.called: list[CommunicationNode] = []  # collectives, sends and receives
        self.names: list[str] | None = None  # set to a list to record names
        self.layers: dict[int, tuple[int, str]] = {}  # position of a forward node: layer and its name
        self.place: dict[int, int] = {}
        self.streams: dict[int, int] = {}  # by position, if in the file
        self.extra: dict[int, int] = {}  # position of a node: that of the previous one on its stream
        self.cut: set[tuple[int, int]] = set()  # a position, and one that it does not wait for
        self.timeless = 0  # compute nodes without a duration

    def add(self, node: ChakraNode) -> bool:
        """Add a node; return False if its id exists already."""
        if node.id in self.place:
            return False
        micros = node.micros if node.type == COMP else 0
        if micros * PS_PER_US > MAX_TIME_PS:
            raise ValueError(f"a duration of {micros} us")
        position = self.place[node.id] = len(self.ids)
        self.ids.append(node.id)
        if node.type == COMP and not micros and "num_ops" in node.attributes:
            self.timeless += 1
        self.durations.append(micros * PS_PER_US)
        role = next((r for r, pattern in _ROLES if node.type == COMP and pattern.search(node.name)), OTHER)
        self.roles.append(role)
        self.cpu.append(bool(node.attributes.get("is_cpu_op", False)))
        stream = node.attributes.get("stream")
        if isinstance(stream, int):
            self.streams[position] = stream
        mark = node.attributes.get("gradwire_iteration", 0)
        self.iterations.append(mark if isinstance(mark, int) and 0 <= mark < 2**31 else 0)
        self.deps.extend(node.control)
        self.first_data.append(len(self.deps))
        self.deps.extend(node.deps)
        self.first_dep.append(len(self.deps))
        if self.names is not None:
            self.names.append(node.name)
        if node.type == COMM_COLL:
            self.collectives.append(CommunicationNode(position, node))
        if node.type == COMM_COLL or node.type in SENDS:
            self.called.append(CommunicationNode(position, node))
        layer = node.attributes.get("gradwire_layer")
        if role == FORWARD and isinstance(layer, int):
            self.layers[position] = (layer, str(node.attributes.get("gradwire_layer_name", f"layer{layer}")))
        return True

    def dependencies(self, position: int, data_only: bool = False) -> list[int]:
        """Return the positions of the nodes that a node depends on, without missing ones."""
        first = (self.first_data if data_only else self.first_dep)[position]
        positions = (self.place.get(i) for i in self.deps[first : self.first_dep[position + 1]])
        return [p for p in positions if p is not None]

    def waits_for(self, position: int) -> set[int]:
        """Return the positions that a node waits for: with its stream's order, without cut dependencies."""
        needs = set(self.dependencies(position))
        if position in self.extra:
            needs.add(self.extra[position])
        return {before for before in needs if (position, before) not in self.cut} if self.cut else needs

    def followers(self, data_only: bool = False) -> tuple[list[list[int]], list[int]]:
        """Return (positions of the nodes that depend on each node, number of dependencies of each)."""
        followers: list[list[int]] = [[] for _ in self.ids]
        pending = [0] * len(self.ids)
        for position in range(len(self.ids)):
            for dependency in set(self.dependencies(position, True)) if data_only else self.waits_for(position):
                followers[dependency].append(position)
                pending[position] += 1
        return followers, pending


def cyclic_nodes(graph: ChakraGraph, data_only: bool = False) -> list[int]:
    """Return the positions of nodes in dependency cycles, or behind them."""
    followers, pending = graph.followers(data_only)
    ready = [position for position, count in enumerate(pending) if not count]
    for position in ready:  # grows during the loop
        for follower in followers[position]:
            pending[follower] -= 1
            if not pending[follower]:
                ready.append(follower)
    return [position for position, count in enumerate(pending) if count]


def schedule(graph: ChakraGraph, where: str) -> tuple[Ints, Ints]:
    """Return (start, end) of each node in picoseconds, scheduled as in `gradwire.traces.formats.kinds.chakra`.
    TraceError if nodes wait for each other in a cycle."""
    count = len(graph.ids)
    followers, pending = graph.followers()
    start, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    ready_at = [0] * count
    queue = [(0, graph.ids[position], position) for position in range(count) if not pending[position]]
    heapq.heapify(queue)
    free = [0, 0]  # times since which GPU and CPU are idle
    done = 0
    while queue:
        moment, _, position = heapq.heappop(queue)
        duration = graph.durations[position]
        if duration:
            unit = graph.cpu[position]
            moment = max(moment, free[unit])
            if moment + duration > MAX_TIME_PS:
                raise TraceError("computes for more than 50 days", where, "times of some iterations")
            free[unit] = moment + duration
        start[position], end[position] = moment, moment + duration
        done += 1
        for follower in followers[position]:
            ready_at[follower] = max(ready_at[follower], moment + duration)
            pending[follower] -= 1
            if not pending[follower]:
                heapq.heappush(queue, (ready_at[follower], graph.ids[follower], follower))
    if done < count:
        stuck = next(graph.ids[position] for position in range(count) if pending[position])
        what, expected = f"dependency cycle at node {stuck}", "an acyclic graph"
        if not cyclic_nodes(graph, data_only=True):
            what += "; its data dependencies are acyclic, its control dependencies close the cycle"
            expected += ", or --repair, which leaves out control dependencies that close cycles"
        raise TraceError(what, where, expected)
    return start, end


def fill_draft(graph: ChakraGraph, draft: Draft, where: str, dtype: str) -> None:
    """Fill in the draft: gradients from collectives, times from one run of the graph."""
    missing = sum(ident not in graph.place for ident in graph.deps)
    if missing:
        draft.skipped["dependencies on nodes that are not there"] += missing
    if graph.timeless:
        draft.skipped["COMP_NODE without a duration (num_ops only): takes no time"] += graph.timeless
    start, end = schedule(graph, where)
    marks = np.array(graph.iterations)
    members: dict[int, list[CommunicationNode]] = {}
    for collective in graph.collectives:
        if _is_gradient(collective, graph, draft.skipped):
            members.setdefault(int(marks[collective.place]), []).append(collective)
    if not members:
        return
    for collectives in members.values():  # by gradwire's numbers, else last ready first
        collectives.sort(key=lambda c: (c.node.attributes.get("gradwire_tensor", 0), -start[c.place], -c.node.id))
    order = sorted(members)
    _describe(graph, members[order[0]], draft, dtype, where)
    expected = [c.node.attributes["comm_size"] for c in members[order[0]]]
    roles, durations = np.array(graph.roles), np.array(graph.durations)
    # A graph of launches starts with its first kernel, as a profile does.
    kernels = (durations > 0) & (np.array(graph.cpu) == 0)
    origin = int(start[kernels].min()) if graph.extra and kernels.any() else 0
    for mark in order:
        if [c.node.attributes["comm_size"] for c in members[mark]] == expected:
            inside = np.flatnonzero((marks == mark) & (durations > 0))
            moments = np.array([start[c.place] for c in members[mark]]) - origin
            passes = _Passes(roles[inside], start[inside] - origin, end[inside] - origin)
            draft.iterations.append(_timing(graph, draft, moments.tolist(), passes, start, end, origin, mark))
        else:
            draft.skipped["iterations with other gradients than the first"] += 1
        origin = int(end[marks == mark].max())
    draft.understood["iterations"] = len(draft.iterations)


def _is_gradient(collective: CommunicationNode, graph: ChakraGraph, skipped: Counter[str]) -> bool:
    attributes = collective.node.attributes
    kind, size = attributes.get("comm_type"), attributes.get("comm_size")
    if not isinstance(kind, int):
        skipped["COMM_COLL_NODE without comm_type"] += 1
        return False
    name = COLLECTIVES.get(kind, f"collective {kind}")
    if kind not in _GRADIENTS:
        skipped[name] += 1
    elif not isinstance(size, int) or not MIN_GRADIENT_BYTES < size < 2**53:
        skipped[f"{name} of {MIN_GRADIENT_BYTES} bytes or less, or without comm_size"] += 1
    elif any(graph.roles[before] in (FORWARD, INPUT) for before in graph.dependencies(collective.place)):
        skipped[f"{name} of activations"] += 1
    else:
        return True
    return False


def _describe(graph: ChakraGraph, collectives: list[CommunicationNode], draft: Draft, dtype: str, where: str) -> None:
    """Add layers and gradients by gradwire's own attributes, else one layer per collective, last one first."""
    has_layers = bool(graph.layers) and all("gradwire_tensor" in c.node.attributes for c in collectives)
    if has_layers:
        names = dict(graph.layers.values())
        draft.layers = [names.get(n, f"layer{n}") for n in range(max(names) + 1)]
    for index, collective in enumerate(collectives):
        attributes = collective.node.attributes
        kind = str(attributes.get("gradwire_dtype", dtype))
        name = str(attributes.get("gradwire_tensor_name") or collective.node.name or f"collective{index}")
        layer = attributes.get("gradwire_layer") if has_layers else index
        if (
            not isinstance(layer, int)
            or kind not in ELEMENT_BYTES
            or (has_layers and not 0 <= layer < len(draft.layers))
        ):
            raise TraceError(f"{name} is {kind} of layer {layer}", where, "a dtype, and a layer with a forward node")
        gradient = gradient_of_bytes(name, attributes["comm_size"], kind, layer, draft.skipped)
        shape = tuple(int(n) for n in re.findall(r"\d+", str(attributes.get("gradwire_shape", ""))))
        if shape and math.prod(shape) == gradient.numel:
            gradient = replace(gradient, shape=shape)
        draft.gradients.append(gradient)
        if not has_layers:
            draft.layers.append(name)
        draft.understood[f"gradients: {COLLECTIVES[attributes['comm_type']]}"] += 1


class _Passes(NamedTuple):
    """Compute nodes of one iteration, times in picoseconds since its start; all arrays are [nodes]."""

    role: NDArray[np.int8]
    start: Ints
    end: Ints


def _timing(
    graph: ChakraGraph, draft: Draft, ready: list[int], passes: _Passes, start: Ints, end: Ints, origin: int, mark: int
) -> Timing:
    """Return the times of one iteration; work after the last gradient and not called backward is the optimizer's."""
    draft.how = "compute times as the graph says, run on one GPU with a network that takes no time"
    late = (passes.start >= max(ready)) & (passes.role != FORWARD)
    backward = passes.end[late & (passes.role != OTHER)]
    optimizer = late & (passes.role == OTHER)
    optimizer_ps = int((passes.end - passes.start)[optimizer].sum())
    backward_end = max([max(ready), *backward.tolist()])
    forward = passes.end[passes.role == FORWARD]
    if graph.layers:
        starts, ends = [0] * len(draft.layers), [0] * len(draft.layers)
        for position, (layer, _) in graph.layers.items():
            if graph.iterations[position] == mark and 0 <= layer < len(ends):
                starts[layer], ends[layer] = int(start[position]) - origin, int(end[position]) - origin
        return Timing(starts, ends, ready, backward_end, optimizer_ps, mark)
    early = forward[forward <= min(ready)]
    if len(early) < len(forward):
        draft.how += "; forward nodes behind the first gradient, of other micro-batches, are none of it"
    middle = int(early.max()) if len(early) else min(max(ready) // 3, min(ready))
    if not len(forward):
        draft.timing = "estimated"
        draft.how += "; it names no forward pass, taken as a third of the time to the last gradient or up to the first"
    draft.how += "; forward times of single layers estimated from their share of the backward pass"
    starts, ends = estimate_forward(ready, middle, middle)
    return Timing(starts, ends, ready, backward_end, optimizer_ps, mark)
