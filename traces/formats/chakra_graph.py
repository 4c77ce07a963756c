"""The graph of a Chakra file, and what follows from running it: the second half of `gradwire.traces.formats.chakra`."""

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

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import (
    LONGEST_PS,
    PS_PER_US,
    Draft,
    Timing,
    gradient_of_bytes,
    spread_forward,
)
from gradwire.traces.parts import ELEMENT_BYTES

COMP, COMM_COLL = 4, 7  # of NodeType
SENDS = (5, 6)  # a send and a receive
COLLECTIVES = {
    0: "ALL_REDUCE", 1: "REDUCE", 2: "ALL_GATHER", 3: "GATHER", 4: "SCATTER", 5: "BROADCAST", 6: "ALL_TO_ALL",
    7: "REDUCE_SCATTER", 8: "REDUCE_SCATTER_BLOCK", 9: "BARRIER",
}  # fmt: skip
_GRADIENTS = (0, 7, 8)  # all-reduce and reduce-scatters
SMALLEST = 8  # bytes; a collective of no more is a loss or a norm, no gradient; our choice
FORWARD, INPUT, BACKWARD, OTHER = range(4)  # what a compute node's name says
_ROLES = (
    (INPUT, re.compile(r"BWD_IG|input_grad", re.IGNORECASE)),
    (BACKWARD, re.compile(r"BWD|backward", re.IGNORECASE)),
    (FORWARD, re.compile(r"FWD|forward", re.IGNORECASE)),
)


@dataclass
class Node:
    """One node as it stands in the file; what proto3 leaves out has its default."""

    id: int = 0
    name: str = ""
    type: int = 0
    micros: int = 0
    control: list[int] = field(default_factory=list)  # ids that it waits for, without their data
    deps: list[int] = field(default_factory=list)  # ids whose data it needs
    attributes: dict[str, Any] = field(default_factory=dict)


class Collective(NamedTuple):
    """A collective that may carry a gradient, or a transfer: its place in the graph, and what it says."""

    place: int
    node: Node


class Graph:
    """All nodes in arrays, since there may be millions; only collectives are kept as they are."""

    def __init__(self) -> None:
        self.ids = array("Q")
        self.durations = array("q")  # picoseconds; 0 for what is not computing
        self.roles = array("b")
        self.cpu = array("b")
        self.iterations = array("l")
        self.deps = array("Q")
        self.first_dep = array("q", [0])  # of each node; its control dependencies come first
        self.first_data = array("q")
        self.collectives: list[Collective] = []
        self.called: list[Collective] = []  # these, sends and receives
        self.names: list[str] | None = None  # for who wants them
        self.layers: dict[int, tuple[int, str]] = {}  # place of a forward node: layer and its name
        self.place: dict[int, int] = {}
        self.streams: dict[int, int] = {}  # by place, where the file says it
        self.extra: dict[int, int] = {}  # place of a node, and of the one before it on its stream
        self.cut: set[tuple[int, int]] = set()  # a place, and one that it does not wait for
        self.timeless = 0  # compute nodes without a duration

    def add(self, node: Node) -> bool:
        """Whether the node is new."""
        if node.id in self.place:
            return False
        micros = node.micros if node.type == COMP else 0
        if micros * PS_PER_US > LONGEST_PS:
            raise ValueError(f"a duration of {micros} us")
        place = self.place[node.id] = len(self.ids)
        self.ids.append(node.id)
        if node.type == COMP and not micros and "num_ops" in node.attributes:
            self.timeless += 1
        self.durations.append(micros * PS_PER_US)
        role = next((r for r, pattern in _ROLES if node.type == COMP and pattern.search(node.name)), OTHER)
        self.roles.append(role)
        self.cpu.append(bool(node.attributes.get("is_cpu_op", False)))
        stream = node.attributes.get("stream")
        if isinstance(stream, int):
            self.streams[place] = stream
        mark = node.attributes.get("gradwire_iteration", 0)
        self.iterations.append(mark if isinstance(mark, int) and 0 <= mark < 2**31 else 0)
        self.deps.extend(node.control)
        self.first_data.append(len(self.deps))
        self.deps.extend(node.deps)
        self.first_dep.append(len(self.deps))
        if self.names is not None:
            self.names.append(node.name)
        if node.type == COMM_COLL:
            self.collectives.append(Collective(place, node))
        if node.type == COMM_COLL or node.type in SENDS:
            self.called.append(Collective(place, node))
        layer = node.attributes.get("gradwire_layer")
        if role == FORWARD and isinstance(layer, int):
            self.layers[place] = (layer, str(node.attributes.get("gradwire_layer_name", f"layer{layer}")))
        return True

    def dependencies(self, place: int, data_only: bool = False) -> list[int]:
        """Places of the nodes that a node depends on, those that are not there left out."""
        first = (self.first_data if data_only else self.first_dep)[place]
        found = (self.place.get(i) for i in self.deps[first : self.first_dep[place + 1]])
        return [p for p in found if p is not None]

    def waits_for(self, place: int) -> set[int]:
        """Return the places that a node waits for: with its stream's order, without what closes circles."""
        needs = set(self.dependencies(place))
        if place in self.extra:
            needs.add(self.extra[place])
        return {before for before in needs if (place, before) not in self.cut} if self.cut else needs

    def followers(self, data_only: bool = False) -> tuple[list[list[int]], list[int]]:
        """(places of the nodes that depend on each node, how many each depends on)."""
        following: list[list[int]] = [[] for _ in self.ids]
        waiting = [0] * len(self.ids)
        for place in range(len(self.ids)):
            for before in set(self.dependencies(place, True)) if data_only else self.waits_for(place):
                following[before].append(place)
                waiting[place] += 1
        return following, waiting

    def acyclic_data(self) -> bool:
        """Whether no node waits for itself by its data dependencies."""
        following, waiting = self.followers(data_only=True)
        free = [place for place, count in enumerate(waiting) if not count]
        for place in free:  # which grows meanwhile
            for after in following[place]:
                waiting[after] -= 1
                if not waiting[after]:
                    free.append(after)
        return len(free) == len(self.ids)


def run(graph: Graph, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(start, end) of each node in picoseconds, by the module docstring of `gradwire.traces.formats.chakra`.

    TraceError if nodes wait for each other in a circle.
    """
    count = len(graph.ids)
    following, waiting = graph.followers()
    start, end = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    met = [0] * count
    queue = [(0, graph.ids[place], place) for place in range(count) if not waiting[place]]
    heapq.heapify(queue)
    free = [0, 0]  # since when the GPU and the CPU have nothing to compute
    done = 0
    while queue:
        moment, _, place = heapq.heappop(queue)
        spent = graph.durations[place]
        if spent:
            unit = graph.cpu[place]
            moment = max(moment, free[unit])
            if moment + spent > LONGEST_PS:
                raise TraceError("computes for more than 50 days", where, "times of some iterations")
            free[unit] = moment + spent
        start[place], end[place] = moment, moment + spent
        done += 1
        for after in following[place]:
            met[after] = max(met[after], moment + spent)
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(queue, (met[after], graph.ids[after], after))
    if done < count:
        stuck = next(graph.ids[place] for place in range(count) if waiting[place])
        what, expected = f"nodes wait for each other in a circle (node {stuck})", "an acyclic graph"
        if graph.acyclic_data():
            what += "; its data dependencies alone are acyclic, its control dependencies make the circle"
            expected += ", or --repair, which leaves control dependencies out that close circles"
        raise TraceError(what, where, expected)
    return start, end


def build(graph: Graph, draft: Draft, where: str, dtype: str) -> None:
    """Fill in the draft: gradients from collectives, times from running the graph once."""
    missing = sum(ident not in graph.place for ident in graph.deps)
    if missing:
        draft.skipped["dependencies on nodes that are not there"] += missing
    if graph.timeless:
        draft.skipped["COMP_NODE without a duration (num_ops only): takes no time"] += graph.timeless
    start, end = run(graph, where)
    marks = np.array(graph.iterations)
    members: dict[int, list[Collective]] = {}
    for collective in graph.collectives:
        if _is_gradient(collective, graph, draft.skipped):
            members.setdefault(int(marks[collective.place]), []).append(collective)
    if not members:
        return
    for called in members.values():  # as gradwire numbers them, else what is ready last first
        called.sort(key=lambda c: (c.node.attributes.get("gradwire_tensor", 0), -start[c.place], -c.node.id))
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


def _is_gradient(collective: Collective, graph: Graph, skipped: Counter[str]) -> bool:
    told = collective.node.attributes
    kind, size = told.get("comm_type"), told.get("comm_size")
    if not isinstance(kind, int):
        skipped["COMM_COLL_NODE without comm_type"] += 1
        return False
    name = COLLECTIVES.get(kind, f"collective {kind}")
    if kind not in _GRADIENTS:
        skipped[name] += 1
    elif not isinstance(size, int) or not SMALLEST < size < 2**53:
        skipped[f"{name} of {SMALLEST} bytes or less, or without comm_size"] += 1
    elif any(graph.roles[before] in (FORWARD, INPUT) for before in graph.dependencies(collective.place)):
        skipped[f"{name} of activations"] += 1
    else:
        return True
    return False


def _describe(graph: Graph, called: list[Collective], draft: Draft, dtype: str, where: str) -> None:
    """Layers and gradients: as gradwire's own attributes say, else one layer per collective, last one first."""
    own = bool(graph.layers) and all("gradwire_tensor" in c.node.attributes for c in called)
    if own:
        names = dict(graph.layers.values())
        draft.layers = [names.get(n, f"layer{n}") for n in range(max(names) + 1)]
    for place, collective in enumerate(called):
        told = collective.node.attributes
        kind = str(told.get("gradwire_dtype", dtype))
        name = str(told.get("gradwire_tensor_name") or collective.node.name or f"collective{place}")
        layer = told.get("gradwire_layer") if own else place
        if (
            not isinstance(layer, int)
            or kind not in ELEMENT_BYTES
            or (own and not 0 <= layer < len(draft.layers))
        ):
            raise TraceError(
                f"{name} is {kind} of layer {layer}", where, "a dtype, and a layer with a forward node"
            )
        gradient = gradient_of_bytes(name, told["comm_size"], kind, layer, draft.skipped)
        shape = tuple(int(n) for n in re.findall(r"\d+", str(told.get("gradwire_shape", ""))))
        if shape and math.prod(shape) == gradient.numel:
            gradient = replace(gradient, shape=shape)
        draft.gradients.append(gradient)
        if not own:
            draft.layers.append(name)
        draft.understood[f"gradients: {COLLECTIVES[told['comm_type']]}"] += 1


class _Passes(NamedTuple):
    """Compute nodes of one iteration, times in picoseconds since its start; all arrays are [nodes]."""

    role: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


def _timing(
    graph: Graph,
    draft: Draft,
    ready: list[int],
    passes: _Passes,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    origin: int,
    mark: int,
) -> Timing:
    """Times of one iteration. What runs after the last gradient and is not called backward is the optimiser's."""
    draft.how = "compute times as the graph says, run on one GPU with a network that takes no time"
    late = (passes.start >= max(ready)) & (passes.role != FORWARD)
    backward = passes.end[late & (passes.role != OTHER)]
    optimizer = late & (passes.role == OTHER)
    spent = int((passes.end - passes.start)[optimizer].sum())
    backward_end = max([max(ready), *backward.tolist()])
    forward = passes.end[passes.role == FORWARD]
    if graph.layers:
        starts, ends = [0] * len(draft.layers), [0] * len(draft.layers)
        for place, (layer, _) in graph.layers.items():
            if graph.iterations[place] == mark and 0 <= layer < len(ends):
                starts[layer], ends[layer] = int(start[place]) - origin, int(end[place]) - origin
        return Timing(starts, ends, ready, backward_end, spent, mark)
    early = forward[forward <= min(ready)]
    if len(early) < len(forward):
        draft.how += "; forward nodes behind the first gradient, of other micro-batches, are none of it"
    middle = int(early.max()) if len(early) else min(max(ready) // 3, min(ready))
    if not len(forward):
        draft.timing = "estimated"
        draft.how += "; it names no forward pass, taken as a third of the time to the last gradient or up to the first"
    draft.how += "; forward times of single layers estimated from their share of the backward pass"
    starts, ends = spread_forward(ready, middle, middle)
    return Timing(starts, ends, ready, backward_end, spent, mark)
