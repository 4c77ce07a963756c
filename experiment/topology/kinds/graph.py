"""Any network at all, from a GraphML, GML or edge-list file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.experiment.topology.cables import LinkSpec, Override
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.topology import GraphFile

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


class Graph(GraphFile):
    """Any connected graph from a file: GraphML (.graphml), GML (.gml) or an edge list (any other ending).

    Node attribute `kind` is "host" or "switch" (unless given, nodes of degree 1 are hosts); a host with several edges
    has as many network cards; edge attributes `rate`,
    `latency` ("100Gbps", "1us") and `loss` take the place of `[link]`, and `cost` is what routing adds up. The path is
    relative to the scenario file.
    """

    kind: Literal["graph"]
    file: Annotated[str, Field(min_length=1)]
    """GraphML (.graphml), GML (.gml) or an edge list; relative to the scenario file."""
    hosts_per_switch: Count | None = None
    """Hang so many hosts h0, h1, ... on every switch, for a graph of switches alone; a switch's attribute `hosts` goes
    before. Nodes without `kind` are then switches."""

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        from gradwire.experiment.topology.graph import read_graph

        return read_graph(self.file, link, hosts_per_switch=self.hosts_per_switch, overrides=overrides)
