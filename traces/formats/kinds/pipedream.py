"""The format `pipedream` reads PipeDream's profiler output, `graph.txt` (github.com/msr-fiddle/pipedream,
graph/graph.py).

One line per node, then one indented line per edge:

    node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.3, backward_compute_time=24.7,
        activation_size=1644167168.000, parameter_size=7168.000 -- stage_id=0
        node2 -- node3

(a node is all on one line). Times are milliseconds, sizes bytes. The graph has dependencies, but no execution order:
nodes run one at a time in topological order, of two ready ones the one with the smaller number first (our choice;
backward in reverse). A node's parameters are one gradient, ready when its backward ends. Activations and pipeline
stages are not gradients and are left out, and so are sources called Input, as in PipeDream's planner: their time is
that of loading a batch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import Format, ReadOptions
from gradwire.traces.formats.draft import PS_PER_MS, Draft, gradient_of_bytes, serial_timing
from gradwire.traces.formats.source import open_source

_FIELDS = ("forward_compute_time", "backward_compute_time", "parameter_size")
_VALUE = re.compile(r"(\w+)\s*=\s*(\[[^\]]*\]|[^,\s]+)")


class PipeDreamNode(NamedTuple):
    """One operation: times of both passes, and bytes of its parameters."""

    name: str
    forward_ps: int
    backward_ps: int
    parameter_bytes: int


class PipeDream(Format):
    """Output of PipeDream's profiler."""

    kind = "pipedream"
    title = "PipeDream graph.txt"
    offered = 20

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True if the first bytes look like a node."""
        return b" -- " in head and b"forward_compute_time" in head

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a graph: one iteration, a layer per node, a gradient per node with parameters. TraceError
        for invalid or negative numbers, duplicate nodes, or a cycle."""
        draft = Draft("pipedream", how="compute times as measured, layers one after the other")
        nodes: dict[str, PipeDreamNode] = {}
        edges: list[tuple[str, str]] = []
        with open_source(path, options.progress, options.notes) as source:
            for number, line in source.lines():
                parts = [part.strip() for part in re.split(r"\s--\s", line.strip())]
                if not line.strip():
                    continue
                if len(parts) == 2 and not any(name in line for name in _FIELDS):
                    edges.append((parts[0], parts[1]))
                elif len(parts) >= 3 and any("forward_compute_time" in part for part in parts):
                    _add_node(nodes, parts, f"{path}, line {number}", draft.skipped)
                else:
                    draft.skipped["lines that are neither node nor edge"] += 1
        targets = {after for _, after in edges}
        for key in [key for key, node in nodes.items() if node.name.startswith("Input") and key not in targets]:
            if not nodes[key].parameter_bytes:
                milliseconds = nodes.pop(key).forward_ps / PS_PER_MS
                draft.skipped[f"Input: loading a batch, {milliseconds:g} ms, is no computing"] += 1
                edges = [edge for edge in edges if edge[0] != key]
        order = _topological(nodes, edges, str(path), draft.skipped)
        draft.layers = [f"{key} {nodes[key].name}" for key in order]
        for layer, key in enumerate(order):
            if size := nodes[key].parameter_bytes:
                name = draft.layers[layer]
                draft.gradients.append(gradient_of_bytes(name, size, options.dtype, layer, draft.skipped))
        draft.iterations = [
            serial_timing(
                [nodes[key].forward_ps for key in order],
                [nodes[key].backward_ps for key in order],
                [gradient.layer for gradient in draft.gradients],
            )
        ]
        draft.understood = Counter(nodes=len(nodes), edges=len(edges), gradients=len(draft.gradients))
        return draft


def _add_node(nodes: dict[str, PipeDreamNode], parts: list[str], where: str, skipped: Counter[str]) -> None:
    at = next(i for i, part in enumerate(parts) if "forward_compute_time" in part)
    fields = dict(_VALUE.findall(parts[at]))
    values = []
    for name in _FIELDS:
        text = fields.get(name, "")
        if text.startswith("["):  # sizes of a node with several outputs
            numbers = [_number(item, name, where) for item in text.strip("[]").split(";")]
            values.append(math.fsum(numbers))
        else:
            values.append(_number(text, name, where))
    for extra in parts[at + 1 :]:
        skipped[f"{extra.split('=')[0]} of a node"] += 1
    if "activation_size" in fields:
        skipped["activation_size of a node"] += 1
    key = parts[0]
    if key in nodes:
        raise TraceError(f"duplicate node {key}", where, "each node once")
    description = " -- ".join(parts[1:at])
    forward, backward, size = values
    nodes[key] = PipeDreamNode(description, round(forward * PS_PER_MS), round(backward * PS_PER_MS), round(size))


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        raise TraceError(f"{name} is {text or 'missing'}", where, "a number from 0")
    return value


def _topological(
    nodes: dict[str, PipeDreamNode], edges: list[tuple[str, str]], where: str, skipped: Counter[str]
) -> list[str]:
    """Return the node keys in topological order, smaller numbers first."""
    import networkx

    known = {edge for edge in edges if edge[0] in nodes and edge[1] in nodes}
    skipped["edges to or from a node that is not there"] += len(set(edges) - known)
    graph = networkx.DiGraph(known)
    graph.add_nodes_from(nodes)
    order: list[str] = []
    try:
        for key in networkx.lexicographical_topological_sort(graph, key=_rank):
            order.append(key)  # up to the cycle, if there is one
    except networkx.NetworkXUnfeasible:
        stuck = min(set(nodes) - set(order))
        raise TraceError(f"dependency cycle at node {stuck}", where, "an acyclic graph") from None
    return order


def _rank(key: str) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", key)
    return (int(digits.group(1)) if digits else 0, key)
