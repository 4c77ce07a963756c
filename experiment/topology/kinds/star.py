"""A star: all hosts around one switch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.experiment.topology.cables import Cable, LinkSpec, Override, build, check, numbered
from gradwire.scenarios.schema.topology import TopologyTable

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


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
    """One switch with all hosts on it.

    Parameters
    ----------
    hosts : number of hosts, named h0, h1, ...; the switch is called s0.
    link : of every cable.
    overrides : other properties for single cables.

    Returns
    -------
    Network

    Notes
    -----
    The smallest network with incast: N hosts sending to one share its down link.
    """
    check(link, hosts=hosts)
    cables = [Cable(host, hosts, *link) for host in range(hosts)]
    return build(numbered("h", hosts), ["s0"], cables, overrides, "star", list(range(hosts + 1)))
