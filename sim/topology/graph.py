"""Any network at all: from a networkx graph, or from a GraphML, GML or edge-list file.

Nodes may carry `kind` ("host" or "switch"); without it a node of degree 1 is a host and every other one a
switch.  Edges may carry `rate`, `latency` and `loss`, as text with a unit ("25Gbps", "2us") or as plain
numbers in bits per second, picoseconds and probability; what is missing comes from the scenario's [link].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.errors import Mistake, ScenarioError
from scenarios.units import UnitError, parse_rate, parse_time
from sim.topology.generators import LinkSpec, Override, override_cables
from sim.topology.network import HOST, SWITCH, Cable, Network, assemble

if TYPE_CHECKING:
    import networkx


def from_networkx(
    graph: networkx.Graph,
    link: LinkSpec,
    *,
    overrides: Iterable[Override] = (),
    title: str = "graph",
    where: str = "topology",
) -> Network:
    """Build a Network from an undirected networkx graph.

    Parameters
    ----------
    graph : networkx.Graph or MultiGraph
        A directed graph is refused: every cable works both ways here.
    link : what edges without attributes are like.
    overrides : other properties for single cables, after the attributes.
    where : how messages call the graph, such as its file.

    Returns
    -------
    Network
        Hosts and switches each in the order of the graph.

    Raises
    ------
    ScenarioError
        With all faults of the graph: see `assemble`, and unknown kinds and unreadable attributes.
    """
    if graph.is_directed():
        raise ScenarioError("the graph is directed", where=where, expected="an undirected graph")
    mistakes: list[Mistake] = []
    hosts: list[Any] = []
    switches: list[Any] = []
    for node, data in graph.nodes(data=True):
        kind = data.get("kind", HOST if graph.degree(node) == 1 else SWITCH)
        if kind not in (HOST, SWITCH):
            mistakes.append(Mistake(f"{where}.{node}", "unknown kind of node", kind, '"host" or "switch"'))
        (hosts if kind == HOST else switches).append(node)
    index = {node: number for number, node in enumerate((*hosts, *switches))}
    cables = []
    for a, b, data in graph.edges(data=True):
        at = f"{where}.{a}-{b}"
        # A host comes first, so that its even link leads up, as in the generators.
        first, second = sorted((index[a], index[b]))
        cables.append(
            Cable(
                first,
                second,
                _attribute(data, "rate", link.rate, parse_rate, at, mistakes),
                _attribute(data, "latency", link.latency, parse_time, at, mistakes),
                _attribute(data, "loss", link.loss, _loss, at, mistakes),
            )
        )
    names = [str(node) for node in (*hosts, *switches)]
    cables, unfit = override_cables(names, cables, overrides)
    return assemble(
        names[: len(hosts)], names[len(hosts) :], cables, title=title, where=where, mistakes=mistakes + unfit
    )


def read_graph(path: str | Path, link: LinkSpec, *, overrides: Iterable[Override] = ()) -> Network:
    """Read a network from a file.

    Parameters
    ----------
    path : ``.graphml`` or ``.xml``: GraphML; ``.gml``: GML; anything else: an edge list, one edge per line as
        ``a b`` or ``a b {'rate': '25Gbps', 'latency': '2us'}``, ``#`` starts a comment.

    Raises
    ------
    ScenarioError
        The file is missing or cannot be read as what its name says, or the network has faults.
    """
    try:
        import networkx
    except ImportError as error:
        raise ScenarioError(
            "reading a graph needs networkx, which is not installed",
            where=str(path),
            expected="pip install networkx",
        ) from error
    path = Path(path)
    if not path.is_file():
        raise ScenarioError("there is no such file", where=str(path), expected="a GraphML, GML or edge list")
    readers: dict[str, tuple[str, Callable[[Path], networkx.Graph]]] = {
        ".graphml": ("GraphML", networkx.read_graphml),
        ".xml": ("GraphML", networkx.read_graphml),
        ".gml": ("GML", networkx.read_gml),
    }
    form, reader = readers.get(path.suffix.lower(), ("edge list", networkx.read_edgelist))
    try:
        graph = reader(path)
    except Exception as error:  # the readers raise whatever their parsers do
        raise ScenarioError(
            f"cannot be read: {error}", where=str(path), expected=f"a well-formed {form} file"
        ) from error
    if form == "edge list" and not graph.number_of_edges():
        raise ScenarioError("the file lists no edge", where=str(path), expected="lines such as: h0 s0")
    return from_networkx(graph, link, overrides=overrides, title=path.stem, where=path.name)


def _attribute(
    data: dict[str, Any],
    name: str,
    default: Any,
    parse: Callable[[str], Any],
    at: str,
    mistakes: list[Mistake],
) -> Any:
    """One edge attribute: text through its parser, numbers as they are, the default where there is none."""
    value = data.get(name)
    if value is None:
        return default
    try:
        if isinstance(value, str):
            return parse(value)
        return _loss(value) if name == "loss" else _whole(name, value)
    except UnitError as error:
        mistakes.append(Mistake(at, f"{name} {error.what}", value, error.expected))
        return default


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise UnitError("is no whole number", f"a {name} with its unit")
    return int(value)


def _loss(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UnitError("is no number", "a probability such as 0.01") from None
