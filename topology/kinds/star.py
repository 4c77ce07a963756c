"""Declares the topology table `star`, and builds its network of hosts around one switch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.network.topology import TopologyTable
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, numbered
from gradwire.topology.network import Network, assemble


class Star(TopologyTable):
    """Hosts around one switch, s0."""

    kind: Literal["star"]
    hosts: Annotated[int, Field(ge=2, strict=True)]
    """Hosts h0, h1, ... around s0; at least two."""

    @property
    def several_paths(self) -> bool:
        return False

    @property
    def racks(self) -> tuple[int, ...]:
        return (self.hosts,)

    @property
    def size(self) -> tuple[int, int]:
        return 1, self.hosts

    @property
    def host_count(self) -> int:
        return self.hosts

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return star(self.hosts, link, overrides)


def star(hosts: int, link: LinkSpec, overrides: Iterable[Override] = ()) -> Network:
    """Build a star: one switch, s0, with all hosts (h0, h1, ...) on it. `link`: properties of every cable; `overrides`:
    of single cables. It is the smallest network with incast: N hosts that send to one share its down link."""
    check_counts(link, hosts=hosts)
    cables = [Cable(host, hosts, *link) for host in range(hosts)]
    return assemble(
        numbered("h", hosts), ["s0"], cables, title="star", order=list(range(hosts + 1)), overrides=overrides
    )
