"""PipeDream's profiler output, `graph.txt` (github.com/msr-fiddle/pipedream, graph/graph.py).

One line per node, then one indented line per edge:

    node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.3, backward_compute_time=24.7,
        activation_size=1644167168.000, parameter_size=7168.000 -- stage_id=0
        node2 -- node3

(a node is all on one line). Times are milliseconds, sizes bytes. The
graph says what depends on what, not in which order one device runs it: nodes run one at a time in topological
order, of two that could run the one with the smaller number first (our choice; backward in reverse). A
node's parameters are one gradient, ready when its backward ends. Activations and pipeline stages are no
gradients and are left out, and so are sources called Input, as in PipeDream's own planner: their time is that of
loading a batch.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import PS_PER_MS, Draft, gradient_of_bytes, serial
from gradwire.traces.formats.source import opened

if TYPE_CHECKING:
    from gradwire.traces.formats.base import ReadOptions

_FIELDS = ("forward_compute_time", "backward_compute_time", "parameter_size")
_VALUE = re.compile(r"(\w+)\s*=\s*(\[[^\]]*\]|[^,\s]+)")


class Node(NamedTuple):
    name: str
    forward_ps: int
    backward_ps: int
    parameter_bytes: int


def recognise(path: Path, head: bytes) -> bool:
    return b" -- " in head and b"forward_compute_time" in head


def read(path: Path, options: ReadOptions) -> Draft:
    """The draft of a graph: one iteration, a layer per node, a gradient per node with parameters.

    TraceError for numbers that are none or negative, two nodes of one name, a cycle.
    """
    draft = Draft("pipedream", how="compute times as measured, layers one after the other")
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    with opened(path, options.progress, options.notes) as source:
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
    behind = {after for _, after in edges}
    for key in [key for key, node in nodes.items() if node.name.startswith("Input") and key not in behind]:
        if not nodes[key].parameter_bytes:
            milliseconds = nodes.pop(key).forward_ps / PS_PER_MS
            draft.skipped[f"Input: loading a batch, {milliseconds:g} ms, is no computing"] += 1
            edges = [edge for edge in edges if edge[0] != key]
    order = _topological(nodes, edges, str(path), draft.skipped)
    draft.layers = [f"{key} {nodes[key].name}" for key in order]
    for layer, key in enumerate(order):
        if nodes[key].parameter_bytes:
            draft.gradients.append(
                gradient_of_bytes(
                    draft.layers[layer], nodes[key].parameter_bytes, options.dtype, layer, draft.skipped
                )
            )
    draft.iterations = [
        serial(
            [nodes[key].forward_ps for key in order],
            [nodes[key].backward_ps for key in order],
            [gradient.layer for gradient in draft.gradients],
        )
    ]
    draft.understood = Counter(nodes=len(nodes), edges=len(edges), gradients=len(draft.gradients))
    return draft


def _add_node(nodes: dict[str, Node], parts: list[str], where: str, skipped: Counter[str]) -> None:
    at = next(i for i, part in enumerate(parts) if "forward_compute_time" in part)
    fields = dict(_VALUE.findall(parts[at]))
    values = []
    for name in _FIELDS:
        text = fields.get(name, "")
        if text.startswith("["):  # as activation sizes are when a node has several outputs
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
        raise TraceError(f"node {key} for the second time", where, "each node once")
    description = " -- ".join(parts[1:at])
    forward, backward, size = values
    nodes[key] = Node(description, round(forward * PS_PER_MS), round(backward * PS_PER_MS), round(size))


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        raise TraceError(f"{name} is {text or 'missing'}", where, "a number from 0")
    return value


def _topological(
    nodes: dict[str, Node], edges: list[tuple[str, str]], where: str, skipped: Counter[str]
) -> list[str]:
    """Names of the nodes, each behind all that it depends on."""
    following: dict[str, list[str]] = {key: [] for key in nodes}
    waiting = dict.fromkeys(nodes, 0)
    for before, after in set(edges):
        if before not in nodes or after not in nodes:
            skipped["edges to or from a node that is not there"] += 1
            continue
        following[before].append(after)
        waiting[after] += 1
    free = [(_rank(key), key) for key, count in waiting.items() if count == 0]
    heapq.heapify(free)
    order = []
    while free:
        _, key = heapq.heappop(free)
        order.append(key)
        for after in following[key]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(free, (_rank(after), after))
    if len(order) < len(nodes):
        stuck = min(key for key, count in waiting.items() if count)
        raise TraceError(f"the nodes depend on each other in a circle ({stuck})", where, "an acyclic graph")
    return order


def _rank(key: str) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", key)
    return (int(digits.group(1)) if digits else 0, key)
