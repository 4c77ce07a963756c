"""Declares the topology table `dumbbell`, and builds its two switches, joined by the bottleneck cable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, numbered
from gradwire.topology.network import Network, assemble


class Dumbbell(TopologyTable):
    """Two switches, `left` and `right`, with hosts on both, joined by one cable: the bottleneck."""

    kind: Literal["dumbbell"]
    left: Count
    """Hosts h0, h1, ... on the switch `left`."""
    right: Count | None = None
    """Hosts on the switch `right`, numbered after those of `left`; by default as many as there."""
    bottleneck_rate: Rate | None = None
    """Rate of the cable between the switches; by default `link.rate`."""
    bottleneck_latency: Time | None = None
    """Latency of the cable between the switches; by default `link.latency`."""

    @property
    def several_paths(self) -> bool:
        return False

    @property
    def racks(self) -> tuple[int, ...]:
        return self.left, self.host_count - self.left

    @property
    def size(self) -> tuple[int, int]:
        return 2, self.host_count + 1

    @property
    def host_count(self) -> int:
        return self.left + value_or(self.right, self.left)

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((value_or(self.bottleneck_rate, rate), value_or(self.bottleneck_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        right = value_or(self.right, self.left)
        return dumbbell(self.left, right, link, overrides=overrides, **self.parameters("left", "right"))


def dumbbell(
    left: int,
    right: int,
    link: LinkSpec,
    *,
    bottleneck_rate: int | None = None,
    bottleneck_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Build two switches with hosts on both, joined by one cable: the bottleneck.

    Parameters are the fields of `Dumbbell`, rates in bits per second and latencies in picoseconds. `link`: properties
    of the host cables; the bottleneck shares its loss, and by default its rate and latency. `overrides`: properties of
    single cables. It is the smallest network with congestion: n flows from left to right share the queue of port
    left->right, and a fair share is bottleneck_rate / n.
    """
    check_counts(link, left=left, right=right)
    hosts = left + right
    sides = [hosts if host < left else hosts + 1 for host in range(hosts)]
    cables = [Cable(host, side, *link) for host, side in enumerate(sides)]
    cables.append(Cable(hosts, hosts + 1, *link.replace(bottleneck_rate, bottleneck_latency)))
    order = [*range(left), hosts, *range(left, hosts), hosts + 1]
    return assemble(numbered("h", hosts), ["left", "right"], cables, title="dumbbell", order=order, overrides=overrides)
