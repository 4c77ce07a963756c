"""Declares the topology table `torus`, and builds its grid of switches that wraps around in every dimension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, numbered, refuse_network
from gradwire.topology.network import Network, assemble

DEFAULT_HOSTS = 1
"""Default number of hosts per switch."""


class Torus(TopologyTable):
    """A grid of switches that wraps around in every dimension; switches are named by their coordinates, s0_0, s0_1,
    ..."""

    circular = True

    kind: Literal["torus"]
    dims: Annotated[tuple[Annotated[int, Field(ge=2, strict=True)], ...], Field(min_length=2, max_length=3)]
    """Switches in each of two or three dimensions, such as [8, 8] or [4, 4, 8]; each at least 2."""
    hosts_per_switch: Count = DEFAULT_HOSTS
    """Hosts are numbered switch by switch, the last coordinate counting fastest."""
    switch_rate: Rate | None = None
    """Rate of the cables between switches; by default `link.rate`."""
    switch_latency: Time | None = None
    """Latency of the cables between switches; by default `link.latency`."""

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
        return ((value_or(self.switch_rate, rate), value_or(self.switch_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return torus(link=link, overrides=overrides, **self.parameters())


def torus(
    dims: Sequence[int],
    link: LinkSpec,
    *,
    hosts_per_switch: int = DEFAULT_HOSTS,
    switch_rate: int | None = None,
    switch_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Build a grid of switches that wraps around in every dimension.

    Parameters are the fields of `Torus`, rates in bits per second and latencies in picoseconds; `dims` may have any
    number of dimensions. `link`: properties of the host cables; the others share its loss, and by default its rate and
    latency. `overrides`: properties of single cables.

    Returns
    -------
    Network
        Hosts h0.. switch by switch; switches by their coordinates, s0_0_0, s0_0_1, ...: the last one counts fastest.

    Notes
    -----
    The diameter is the sum of the dims // 2.  Between switches that are d_i steps apart in dimension i there are (sum
    of d_i)! / product of (d_i!) shortest paths, twice as many for each dimension in which they are exactly opposite.
    In a dimension of 2 one cable joins the two neighbours, not two (our choice). All shortest paths are used, not
    dimension by dimension: with PFC, a circular wait is possible.

    References
    ----------
    Dally, Towles: "Principles and practices of interconnection networks", 2004, chapter 5.
    """
    check_counts(link, hosts_per_switch=hosts_per_switch)
    dims = tuple(dims)
    if not dims or min(dims) < 2:
        refuse_network([Mistake("topology.dims", "is not a torus", list(dims), "numbers of switches, each 2 or more")])
    switches = prod(dims)
    hosts = switches * hosts_per_switch
    cables = [Cable(host, hosts + host // hosts_per_switch, *link) for host in range(hosts)]
    spec = link.replace(switch_rate, switch_latency)
    coordinates = list(product(*map(range, dims)))
    for switch, position in enumerate(coordinates):
        stride = switches
        for size, coordinate in zip(dims, position, strict=True):
            stride //= size
            if size > 2 or coordinate == 0:
                step = 1 if coordinate < size - 1 else 1 - size
                cables.append(Cable(hosts + switch, hosts + switch + step * stride, *spec))
    order = [
        node for s in range(switches) for node in (*range(s * hosts_per_switch, (s + 1) * hosts_per_switch), hosts + s)
    ]
    names = ["s" + "_".join(map(str, position)) for position in coordinates]
    return assemble(numbered("h", hosts), names, cables, title="torus", order=order, overrides=overrides)
