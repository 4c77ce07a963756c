"""A dumbbell: two switches, joined by the cable that is the bottleneck."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from gradwire.experiment.topology.cables import Cable, LinkSpec, Override, build, check, numbered
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.topology import TopologyTable, given_or
from gradwire.scenarios.units import Rate, Time

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


class Dumbbell(TopologyTable):
    """Two switches, `left` and `right`, with hosts on both, joined by one cable: the bottleneck."""

    kind: Literal["dumbbell"]
    left: Count
    """Hosts h0, h1, ... on the switch `left`."""
    right: Count | None = None
    """Hosts on the switch `right`, numbered after those; as many as on the left unless given."""
    bottleneck_rate: Rate | None = None
    """Of the cable between the switches; `link.rate` unless given."""
    bottleneck_latency: Time | None = None
    """The same for its latency."""

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
        return self.left + given_or(self.right, self.left)

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((given_or(self.bottleneck_rate, rate), given_or(self.bottleneck_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        right = given_or(self.right, self.left)
        return dumbbell(self.left, right, link, overrides=overrides, **self.given("left", "right"))


def dumbbell(
    left: int,
    right: int,
    link: LinkSpec,
    *,
    bottleneck_rate: int | None = None,
    bottleneck_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Two switches with hosts on both, joined by one cable: the bottleneck.

    Parameters
    ----------
    left, right : hosts on the switches `left` and `right`; h0.. are on the left, the others follow.
    link : of the host cables; the bottleneck shares its loss, and by default its rate and latency.
    bottleneck_rate : bits per second.
    bottleneck_latency : picoseconds.
    overrides : other properties for single cables.

    Returns
    -------
    Network

    Notes
    -----
    All that congestion control is about in the smallest network that has it: n flows from left to right share
    one queue, the one at the port left->right, and a fair share is bottleneck_rate / n.
    """
    check(link, left=left, right=right)
    hosts = left + right
    sides = [hosts if host < left else hosts + 1 for host in range(hosts)]
    cables = [Cable(host, side, *link) for host, side in enumerate(sides)]
    cables.append(Cable(hosts, hosts + 1, *link.but(bottleneck_rate, bottleneck_latency)))
    order = [*range(left), hosts, *range(left, hosts), hosts + 1]
    return build(numbered("h", hosts), ["left", "right"], cables, overrides, "dumbbell", order)
