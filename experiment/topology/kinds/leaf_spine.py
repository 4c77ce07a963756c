"""Leaf-spine: a two-layer Clos network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from gradwire.experiment.topology.cables import (
    Cable,
    LinkSpec,
    Override,
    build,
    check,
    interleave,
    numbered,
    refuse_network,
)
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, refuse
from gradwire.scenarios.schema.topology import TopologyTable, given_or
from gradwire.scenarios.units import Rate, Time

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


class LeafSpine(TopologyTable):
    """Leaves with hosts below and every spine above them: a two-layer Clos network."""

    kind: Literal["leaf_spine"]
    leaves: Count
    """Switches leaf0, leaf1, ... with hosts below."""
    hosts_per_leaf: Count
    """h0, h1, ... counted leaf by leaf."""
    spines: Count
    """Switches spine0, spine1, ..., each with a cable to every leaf."""
    uplink_rate: Rate | None = None
    """Rate of each leaf-spine cable; `link.rate` unless given here or by `oversubscription`."""
    uplink_latency: Time | None = None
    """Latency of each leaf-spine cable; `link.latency` unless given."""
    oversubscription: Annotated[float, Field(gt=0, le=1000, strict=True)] | None = None
    """Bandwidth of a leaf's hosts over that of its uplinks: 4.0 means four times too little upwards.
    A rate that comes out as no whole number of bit/s is rounded to the nearest one."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> LeafSpine:
        if self.uplink_rate is not None and self.oversubscription is not None:
            raise refuse(
                "oversubscription", "is given together with uplink_rate, which it would contradict",
                self.oversubscription, "one of the two, or neither",
            )  # fmt: skip
        return self

    @property
    def several_paths(self) -> bool:
        return self.leaves > 1 and self.spines > 1

    @property
    def racks(self) -> tuple[int, ...]:
        return (self.hosts_per_leaf,) * self.leaves

    @property
    def size(self) -> tuple[int, int]:
        return self.leaves + self.spines, self.leaves * (self.hosts_per_leaf + self.spines)

    @property
    def host_count(self) -> int:
        return self.leaves * self.hosts_per_leaf

    def resolved_uplink_rate(self, host_rate: int) -> int:
        """Bits per second of one leaf-spine cable when hosts have `host_rate`."""
        if self.uplink_rate is not None:
            return self.uplink_rate
        if self.oversubscription is not None:
            return max(1, round(self.hosts_per_leaf * host_rate / (self.spines * self.oversubscription)))
        return host_rate

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((self.resolved_uplink_rate(rate), given_or(self.uplink_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return leaf_spine(link=link, overrides=overrides, **self.given())


def leaf_spine(
    leaves: int,
    hosts_per_leaf: int,
    spines: int,
    link: LinkSpec,
    *,
    uplink_rate: int | None = None,
    uplink_latency: int | None = None,
    oversubscription: float | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Two tiers: every leaf is joined to every spine by one cable.

    Parameters
    ----------
    leaves, hosts_per_leaf, spines : counts; nodes are named h0.., leaf0.., spine0...
    link : of the host cables; the uplinks share its loss, and by default its rate and latency.
    uplink_rate, uplink_latency : bits per second and picoseconds of a leaf-spine cable.
    oversubscription : ratio of what the hosts of a leaf can send to what its uplinks can carry; gives
        ``uplink_rate = hosts_per_leaf * host rate / (spines * oversubscription)``.
    overrides : other properties for single cables.

    Returns
    -------
    Network

    Notes
    -----
    9 leaves x 16 hosts with 4 spines is the simulated network of DLCP and its relatives [notes].
    There are `spines` shortest paths between hosts of different leaves.
    """
    check(link, leaves=leaves, hosts_per_leaf=hosts_per_leaf, spines=spines)
    if uplink_rate is not None and oversubscription is not None:
        what = "uplink_rate and oversubscription are both given"
        refuse_network([Mistake("topology", what, expected="one of the two: each follows from the other")])
    if oversubscription is not None:
        if oversubscription <= 0:
            where = "topology.oversubscription"
            refuse_network([Mistake(where, "is not positive", oversubscription, "a ratio such as 2.0")])
        uplink_rate = round(hosts_per_leaf * link.rate / (spines * oversubscription))
    uplink = link.but(uplink_rate, uplink_latency)
    hosts = leaves * hosts_per_leaf
    first_spine = hosts + leaves
    cables = [Cable(host, hosts + host // hosts_per_leaf, *link) for host in range(hosts)]
    cables += [
        Cable(hosts + leaf, first_spine + spine, *uplink) for leaf in range(leaves) for spine in range(spines)
    ]
    pods = [
        [*range(leaf * hosts_per_leaf, (leaf + 1) * hosts_per_leaf), hosts + leaf] for leaf in range(leaves)
    ]
    order = interleave(pods, range(first_spine, first_spine + spines))
    switches = numbered("leaf", leaves) + numbered("spine", spines)
    return build(numbered("h", hosts), switches, cables, overrides, "leaf_spine", order)
