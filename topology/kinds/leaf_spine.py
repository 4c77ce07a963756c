"""Declares the topology table `leaf_spine`, and builds its two-layer Clos network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, single_mistake
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, interleave, numbered, refuse_network
from gradwire.topology.network import Network, assemble


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
    """Rate of each leaf-spine cable; by default `link.rate`, or as `oversubscription` requires."""
    uplink_latency: Time | None = None
    """Latency of each leaf-spine cable; by default `link.latency`."""
    oversubscription: Annotated[float, Field(gt=0, le=1000, strict=True)] | None = None
    """Ratio of the bandwidth of a leaf's hosts to that of its uplinks, such as 4.0. The rate is rounded to whole
    bit/s."""

    @model_validator(mode="after")
    def _check_exclusive_keys(self) -> LeafSpine:
        if self.uplink_rate is not None and self.oversubscription is not None:
            what = "is given together with uplink_rate, which it would contradict"
            raise single_mistake("oversubscription", what, self.oversubscription, "one of the two, or neither")
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
        """Return the bits per second of one leaf-spine cable when hosts have `host_rate`."""
        if self.uplink_rate is not None:
            return self.uplink_rate
        if self.oversubscription is not None:
            return max(1, round(self.hosts_per_leaf * host_rate / (self.spines * self.oversubscription)))
        return host_rate

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((self.resolved_uplink_rate(rate), value_or(self.uplink_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return leaf_spine(link=link, overrides=overrides, **self.parameters())


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
    """Build two tiers: every leaf is joined to every spine by one cable.

    Parameters are the fields of `LeafSpine`, rates in bits per second and latencies in picoseconds. `link`: properties
    of the host cables; the uplinks share its loss, and by default its rate and latency. `overrides`: properties of
    single cables. `oversubscription` gives ``uplink_rate = hosts_per_leaf * host rate / (spines * oversubscription)``.

    There are `spines` shortest paths between hosts of different leaves. 9 leaves x 16 hosts with 4 spines is the
    simulated network of DLCP and its relatives [notes].
    """
    check_counts(link, leaves=leaves, hosts_per_leaf=hosts_per_leaf, spines=spines)
    if uplink_rate is not None and oversubscription is not None:
        what = "uplink_rate and oversubscription are both given"
        refuse_network([Mistake("topology", what, expected="one of the two: each follows from the other")])
    if oversubscription is not None:
        if oversubscription <= 0:
            where = "topology.oversubscription"
            refuse_network([Mistake(where, "is not positive", oversubscription, "a ratio such as 2.0")])
        uplink_rate = round(hosts_per_leaf * link.rate / (spines * oversubscription))
    uplink = link.replace(uplink_rate, uplink_latency)
    hosts = leaves * hosts_per_leaf
    first_spine = hosts + leaves
    cables = [Cable(host, hosts + host // hosts_per_leaf, *link) for host in range(hosts)]
    cables += [Cable(hosts + leaf, first_spine + spine, *uplink) for leaf in range(leaves) for spine in range(spines)]
    pods = [[*range(leaf * hosts_per_leaf, (leaf + 1) * hosts_per_leaf), hosts + leaf] for leaf in range(leaves)]
    order = interleave(pods, range(first_spine, first_spine + spines))
    switches = numbered("leaf", leaves) + numbered("spine", spines)
    return assemble(numbered("h", hosts), switches, cables, title="leaf_spine", order=order, overrides=overrides)
