"""Torus: a grid of switches that is closed to a ring in every dimension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.experiment.topology.cables import (
    Cable,
    LinkSpec,
    Override,
    build,
    check,
    numbered,
    refuse_network,
)
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.topology import TopologyTable, given_or
from gradwire.scenarios.units import Rate, Time

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network

ALONE = 1
"""Hosts of a switch."""


class Torus(TopologyTable):
    """A grid of switches that is closed to a ring in every dimension; switches are named by their coordinates, s0_0,
    s0_1, ..."""

    circular = True

    kind: Literal["torus"]
    dims: Annotated[tuple[Annotated[int, Field(ge=2, strict=True)], ...], Field(min_length=2, max_length=3)]
    """Switches in each of two or three dimensions, such as [8, 8] or [4, 4, 8]; each at least 2."""
    hosts_per_switch: Count = ALONE
    """Hosts are numbered switch by switch, the last coordinate counting fastest."""
    switch_rate: Rate | None = None
    """Of a cable between switches; `link.rate` unless given."""
    switch_latency: Time | None = None
    """The same for its latency."""

    @property
    def size(self) -> tuple[int, int]:
        switches = prod(self.dims)
        return switches, self.host_count + sum(switches if size > 2 else switches // 2 for size in self.dims)

    @property
    def longest_path(self) -> int:
        return 1 + sum(size // 2 for size in self.dims)

    @property
    def host_count(self) -> int:
        return prod(self.dims) * self.hosts_per_switch

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((given_or(self.switch_rate, rate), given_or(self.switch_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return torus(link=link, overrides=overrides, **self.given())


def torus(
    dims: Sequence[int],
    link: LinkSpec,
    *,
    hosts_per_switch: int = ALONE,
    switch_rate: int | None = None,
    switch_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """A grid of switches that is closed to a ring in every dimension.

    Parameters
    ----------
    dims : how many switches there are in each dimension: two or three numbers (any other count works as well), each
        at least 2.
    link : of the host cables; the others share its loss, and by default its rate and latency.
    hosts_per_switch : 1 or more.
    switch_rate, switch_latency : bits per second and picoseconds of the cables between switches.
    overrides : other properties for single cables.

    Returns
    -------
    Network
        Hosts h0.. switch by switch; switches by their coordinates, s0_0_0, s0_0_1, ...: the last one counts
        fastest.

    Notes
    -----
    The diameter is the sum of the dims // 2.  Between switches that are d_i steps apart in dimension i there
    are (sum of d_i)! / product of (d_i!) shortest paths, twice as many for each dimension in which they are
    exactly opposite.  In a dimension of 2 the two neighbours are joined by one cable, not by two (our choice).
    All shortest paths are used, not dimension by dimension: with PFC, waiting in a circle is possible.

    References
    ----------
    Dally, Towles: "Principles and practices of interconnection networks", 2004, chapter 5.
    """
    check(link, hosts_per_switch=hosts_per_switch)
    dims = tuple(dims)
    if not dims or min(dims) < 2:
        refuse_network([Mistake("topology.dims", "is no torus", list(dims), "numbers of switches, each 2 or more")])
    switches = prod(dims)
    hosts = switches * hosts_per_switch
    cables = [Cable(host, hosts + host // hosts_per_switch, *link) for host in range(hosts)]
    spec = link.but(switch_rate, switch_latency)
    places = list(product(*map(range, dims)))
    for switch, place in enumerate(places):
        stride = switches
        for size, coordinate in zip(dims, place, strict=True):
            stride //= size
            if size > 2 or coordinate == 0:
                step = 1 if coordinate < size - 1 else 1 - size
                cables.append(Cable(hosts + switch, hosts + switch + step * stride, *spec))
    order = [
        node
        for s in range(switches)
        for node in (*range(s * hosts_per_switch, (s + 1) * hosts_per_switch), hosts + s)
    ]
    names = ["s" + "_".join(map(str, place)) for place in places]
    return build(numbered("h", hosts), names, cables, overrides, "torus", order)
