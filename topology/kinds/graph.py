"""Declares the topology table `graph`, and builds its network from a networkx graph or a GraphML, GML or edge-list
file.

Nodes may carry `kind` ("host" or "switch"); without it a node of degree 1 is a host and every other one a switch. A
host with several edges has as many network cards (see `multi_nic_hosts.py`); nodes of kind "host" with the same
attribute `host` are one host of that name. A switch may carry `hosts`, the number of hosts to connect to it: so a graph
of switches alone (a random regular graph, a map of a provider's network) becomes a network.

Edges may carry `rate`, `latency` and `loss`, as text with a unit ("25Gbps", "2us") or as plain numbers in bits per
second, picoseconds and probability, with defaults from the scenario's [link]; and `cost` for routing, by default 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake, ScenarioError, truncate_middle
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.topology import GraphFile
from gradwire.scenarios.units import MAX_INNER, UnitError, parse_rate, parse_time
from gradwire.topology.cables import Cable, LinkSpec, Override, numbered
from gradwire.topology.network import HOST, SWITCH, Network, assemble

if TYPE_CHECKING:
    import networkx


class GraphTopology(GraphFile):
    """Any connected graph from a file: GraphML (.graphml), GML (.gml) or an edge list (any other ending). Node
    attribute `kind` is "host" or "switch" (by default, nodes of degree 1 are hosts); a host with several edges has as
    many network cards; edge attributes `rate`, `latency` ("100Gbps", "1us") and `loss` override `[link]`, and routing
    minimises the sum of `cost`. The path is relative to the scenario file."""

    kind: Literal["graph"]
    file: Annotated[str, Field(min_length=1)]
    """GraphML (.graphml), GML (.gml) or an edge list; relative to the scenario file."""
    hosts_per_switch: Count | None = None
    """Connect this many hosts h0, h1, ... to every switch, for a graph of switches alone; the attribute `hosts` of a
    switch takes precedence. Nodes without `kind` are then switches."""

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return read_graph(self.file, link, hosts_per_switch=self.hosts_per_switch, overrides=overrides)


def from_networkx(
    graph: networkx.Graph,
    link: LinkSpec,
    *,
    hosts_per_switch: int | None = None,
    overrides: Iterable[Override] = (),
    title: str = "graph",
    where: str = "topology",
) -> Network:
    """Build a Network from an undirected networkx graph; hosts and switches each keep the order of the graph.

    Parameters
    ----------
    graph : networkx.Graph or MultiGraph; a directed graph is refused, because cables work in both directions.
    link : defaults for edges without attributes, and properties of the cables of hosts added to switches.
    hosts_per_switch : number of hosts to add to every switch that has no attribute `hosts`.  Nodes without `kind` are
        then switches, whatever their degree.  The added hosts are named h0, h1, ... in the order of the graph's
        switches.
    overrides : properties of single cables, applied after the attributes.
    where : name of the graph in messages, such as its file.

    Raises
    ------
    ScenarioError
        With all errors of the graph: see `assemble`, and unknown kinds and unreadable attributes.
    """
    if graph.is_directed():
        raise ScenarioError("the graph is directed", where=where, expected="an undirected graph")
    mistakes: list[Mistake] = []
    owner: dict[Any, Any] = {}
    switches: list[Any] = []
    for node, data in graph.nodes(data=True):
        alone = graph.degree(node) == 1 and hosts_per_switch is None
        kind = data.get("kind", HOST if alone else SWITCH)
        if kind not in (HOST, SWITCH):
            mistakes.append(Mistake(f"{where}.{node}", "unknown kind of node", kind, '"host" or "switch"'))
        if kind == HOST and "hosts" in data:
            mistakes.append(Mistake(f"{where}.{node}.hosts", "adds hosts to a host", data["hosts"]))
        if kind == HOST:
            owner[node] = data.get("host", node)
        else:
            switches.append(node)
    hosts = list(dict.fromkeys(owner.values()))
    added = [_hosts_on(graph.nodes[node], hosts_per_switch, f"{where}.{node}", mistakes) for node in switches]
    names = [*map(str, hosts), *numbered("h", sum(added)), *map(str, switches)]
    first = len(hosts) + sum(added)
    number_of = {host: number for number, host in enumerate(hosts)}
    index = {node: number_of[host] for node, host in owner.items()}
    index.update({node: first + number for number, node in enumerate(switches)})
    below = (first + number for number, count in enumerate(added) for _ in range(count))
    cables = [Cable(host, switch, *link) for host, switch in enumerate(below, len(hosts))]
    parsers: list[tuple[str, Any, Callable[[str], Any]]] = [
        ("rate", link.rate, parse_rate),
        ("latency", link.latency, parse_time),
        ("loss", link.loss, _loss),
        ("cost", 1, _cost),
    ]
    for a, b, data in graph.edges(data=True):
        values = [_attribute(data, *parser, f"{where}.{a}-{b}", mistakes) for parser in parsers]
        # the host comes first, so that its even link leads up, as in the generators
        cables.append(Cable(*sorted((index[a], index[b])), *values))
    return assemble(
        names[:first], names[first:], cables, title=title, where=where, overrides=overrides, mistakes=mistakes
    )


def read_graph(
    path: str | Path, link: LinkSpec, *, hosts_per_switch: int | None = None, overrides: Iterable[Override] = ()
) -> Network:
    """Read a network from a file, with the other parameters of `from_networkx`.

    GraphML (``.graphml``, ``.xml``), GML (``.gml``), or an edge list (anything else): one edge per line as ``a b`` or
    ``a b {'rate': '25Gbps', 'latency': '2us'}``, ``#`` starts a comment. Raise ScenarioError if the file is missing or
    cannot be read in the format of its ending, or the network has errors.
    """
    try:
        import networkx
    except ImportError as error:
        raise ScenarioError(
            "reading a graph needs networkx, which is not installed", where=str(path), expected="pip install networkx"
        ) from error
    path = Path(path)
    if not path.is_file():
        raise ScenarioError("there is no such file", where=str(path), expected="a GraphML, GML or edge list")
    readers: dict[str, tuple[str, Callable[[Path], networkx.Graph]]] = {
        ".graphml": ("GraphML", networkx.read_graphml),
        ".xml": ("GraphML", networkx.read_graphml),
        ".gml": ("GML", networkx.read_gml),
    }
    edges = partial(networkx.read_edgelist, encoding="utf-8-sig")  # a byte-order mark may come first
    form, reader = readers.get(path.suffix.lower(), ("edge list", edges))
    try:
        graph = reader(path)
    except UnicodeDecodeError:
        raise ScenarioError("is not UTF-8 text", where=str(path), expected=f"a well-formed {form} file") from None
    except Exception as error:  # the readers raise whatever their parsers do
        what = f"cannot be read: {truncate_middle(str(error), 200)}"
        raise ScenarioError(what, where=str(path), expected=f"a well-formed {form} file") from error
    if form == "edge list" and not graph.number_of_edges():
        raise ScenarioError("the file lists no edge", where=str(path), expected="lines such as: h0 s0")
    return from_networkx(
        graph, link, hosts_per_switch=hosts_per_switch, overrides=overrides, title=path.stem, where=path.name
    )


def _hosts_on(data: dict[str, Any], default: int | None, at: str, mistakes: list[Mistake]) -> int:
    value = data.get("hosts", default or 0)
    try:
        count = _number("hosts", value)
    except UnitError:
        count = -1
    if count < 0:
        mistakes.append(Mistake(f"{at}.hosts", "is not a number of hosts", value, "0, 1, 2, ..."))
    return max(0, count)


def _attribute(
    data: dict[str, Any], name: str, default: Any, parse: Callable[[str], Any], at: str, mistakes: list[Mistake]
) -> Any:
    """Return an edge attribute: parsed text, a number as it is, or the default."""
    value = data.get(name)
    if value is None:
        return default
    try:
        if isinstance(value, str):
            return parse(value)
        return _loss(value) if name == "loss" else _number(name, value)
    except UnitError as error:
        mistakes.append(Mistake(at, f"{name} {error.what}", value, error.expected))
        return default


def _number(name: str, value: Any) -> int:
    expected = f"a whole number of {name}" if name in ("hosts", "cost") else f"a {name} with its unit"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:  # nan, inf
        raise UnitError("is not a whole number", expected)
    if abs(value) > MAX_INNER:
        raise UnitError("is too large", expected)
    return int(value)


def _cost(value: str) -> int:
    if not value.strip().isdigit():
        raise UnitError("is not a whole number", "a whole number of cost")
    return int(value)


def _loss(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UnitError("is not a number", "a probability such as 0.01") from None
