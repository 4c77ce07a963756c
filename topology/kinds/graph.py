"""The topology kind `graph`: any network, from a GraphML, GML or edge-list file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.topology import GraphFile
from gradwire.topology.cables import LinkSpec, Override

if TYPE_CHECKING:
    from gradwire.topology.network import Network


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
        from gradwire.topology.kinds.graph_files import read_graph

        return read_graph(self.file, link, hosts_per_switch=self.hosts_per_switch, overrides=overrides)
