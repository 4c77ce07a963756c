"""Declares the topology table `fat_tree`, and builds its fat-tree of k-port switches, with two or three tiers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.base import single_mistake
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, interleave, numbered, refuse_network
from gradwire.topology.network import Network, assemble

TIERS: Literal[2, 3] = 3
NO_OVERSUBSCRIPTION = 1.0
"""Oversubscription with as many ports up as down."""


class FatTree(TopologyTable):
    """The fat-tree of k-port switches of Al-Fares et al. (SIGCOMM 2008): edge0.., agg0.. and core0.., in k pods, k^3/4
    hosts; or, with two tiers, k edge switches under k/2 cores, k^2/2 hosts."""

    kind: Literal["fat_tree"]
    k: Annotated[int, Field(ge=2, le=128, strict=True)]
    """Ports per switch, even; k^3/4 hosts."""
    tiers: Literal[2, 3] = TIERS
    """3: edge, aggregation and core switches; 2: edge switches and cores."""
    oversubscription: Annotated[float, Field(gt=0, le=1000, strict=True)] = NO_OVERSUBSCRIPTION
    """Ratio of an edge switch's ports to hosts over its uplinks. With 3.0, an edge switch has 3k/4 hosts and k/4
    uplinks, and there are half as many aggregation and core switches."""
    uplink_rate: Rate | None = None
    """Rate of the cables from an edge switch upwards; by default `link.rate`."""
    uplink_latency: Time | None = None
    """Latency of the cables from an edge switch upwards; by default `link.latency`."""
    core_rate: Rate | None = None
    """Rate of the cables between aggregation and core switches; by default `link.rate`."""
    core_latency: Time | None = None
    """Latency of the cables between aggregation and core switches; by default `link.latency`."""

    @model_validator(mode="after")
    def _ports(self) -> FatTree:
        if self.k % 2:
            raise single_mistake("k", "is odd, but half of a switch's k ports go up", self.k, "an even number")
        if edge_ports(self.k, self.oversubscription) is None:
            what = f"does not divide an edge switch's {self.k} ports"
            raise single_mistake("oversubscription", what, self.oversubscription, f"one of {edge_ratios(self.k)}")
        for field in ("core_rate", "core_latency"):
            if self.tiers == 2 and getattr(self, field) is not None:
                what = "needs aggregation switches, which a tree of two tiers does not have"
                raise single_mistake(field, what, None, f"uplink_{field[5:]}, or tiers = 3")
        return self

    @property
    def several_paths(self) -> bool:
        _, up = edge_ports(self.k, self.oversubscription) or (0, 0)
        return up > 1 or (self.tiers == 3 and self.k > 2)

    @property
    def size(self) -> tuple[int, int]:
        _, up = edge_ports(self.k, self.oversubscription) or (0, 0)
        if self.tiers == 2:
            return self.k + up, self.host_count + self.k * up
        half = self.k // 2
        return self.k * (half + up) + half * up, self.host_count + 2 * self.k * half * up

    @property
    def host_count(self) -> int:
        down, _ = edge_ports(self.k, self.oversubscription) or (0, 0)
        return down * self.k * (self.k // 2 if self.tiers == 3 else 1)

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        uplink = value_or(self.uplink_rate, rate), value_or(self.uplink_latency, latency)
        core = value_or(self.core_rate, rate), value_or(self.core_latency, latency)
        return (uplink, core) if self.tiers == 3 else (uplink,)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return fat_tree(link=link, overrides=overrides, **self.parameters())


def edge_ports(k: int, oversubscription: float) -> tuple[int, int] | None:
    """Return the (down, up) ports of an edge switch of k ports with down / up = `oversubscription`, or None. The ratio
    has to be met to a thousandth."""
    up = round(k / (1 + oversubscription))
    if not 1 <= up < k or abs((k - up) / up - oversubscription) > oversubscription / 1000:
        return None
    return k - up, up


def edge_ratios(k: int) -> str:
    """Return the values of `oversubscription` that k ports allow, for a message."""
    return ", ".join(f"{(k - up) / up:.4g}" for up in range(k - 1, 0, -1))


def fat_tree(
    k: int,
    link: LinkSpec,
    overrides: Iterable[Override] = (),
    *,
    tiers: int = TIERS,
    oversubscription: float = NO_OVERSUBSCRIPTION,
    uplink_rate: int | None = None,
    uplink_latency: int | None = None,
    core_rate: int | None = None,
    core_latency: int | None = None,
) -> Network:
    """Build the fat-tree (folded Clos network) of k-port switches, with two or three tiers.

    Parameters are the fields of `FatTree`, rates in bits per second and latencies in picoseconds. `link`: properties of
    the host cables; the others share its loss, and by default its rate and latency. `overrides`: properties of single
    cables.

    Returns
    -------
    Network
        Hosts h0.. pod by pod; switches edge0.., agg0.. (three tiers only) and core0...

    Notes
    -----
    With three tiers k = 8, 16, 32 give 128, 1024, 8192 hosts. An oversubscription of 1 is full bisection bandwidth; 3
    gives 1.5 times as many hosts. Aggregation switch j of every pod is joined to the cores ``j * k/2 .. (j + 1) * k/2 -
    1``, so that with u uplinks per edge switch there are u * k/2 shortest paths between hosts of different pods, one
    per core, and u between edge switches of one pod.  With two tiers there are u between any two edge switches. This
    builds oversubscription by ports; for oversubscription by rates, set `uplink_rate` (our choice to offer both).

    References
    ----------
    Al-Fares, Loukissas, Vahdat: "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """
    if k < 2 or k % 2:
        refuse_network([Mistake("topology.k", "is not an even number of ports", k, "2, 4, 6, ...")])
    if tiers not in (2, 3):
        refuse_network([Mistake("topology.tiers", "is not a number of tiers", tiers, "2 or 3")])
    ports = edge_ports(k, oversubscription) if oversubscription > 0 else None
    if ports is None:
        what, ratios = f"does not divide an edge switch's {k} ports", edge_ratios(k)
        mistake = Mistake("topology.oversubscription", what, oversubscription, f"one of {ratios}")
        raise ScenarioError("the network cannot be built", mistakes=[mistake])
    if tiers == 2 and (core_rate is not None or core_latency is not None):
        what = "core_rate and core_latency need aggregation switches"
        refuse_network([Mistake("topology", what, expected="uplink_rate and uplink_latency with two tiers")])
    check_counts(link)
    uplink = link.replace(uplink_rate, uplink_latency)
    if tiers == 2:
        hosts, switches, cables, order = _two_tiers(k, *ports, link, uplink)
    else:
        hosts, switches, cables, order = _three_tiers(k, *ports, link, uplink, link.replace(core_rate, core_latency))
    return assemble(numbered("h", hosts), switches, cables, title="fat_tree", order=order, overrides=overrides)


Parts = tuple[int, list[str], list[Cable], list[int]]
"""Number of hosts, names of switches, cables, and locality order."""


def _two_tiers(k: int, down: int, up: int, link: LinkSpec, uplink: LinkSpec) -> Parts:
    hosts = k * down
    first_core = hosts + k
    cables = [Cable(host, hosts + host // down, *link) for host in range(hosts)]
    cables += [Cable(hosts + edge, first_core + core, *uplink) for edge in range(k) for core in range(up)]
    pods = [[*range(edge * down, (edge + 1) * down), hosts + edge] for edge in range(k)]
    order = interleave(pods, range(first_core, first_core + up))
    return hosts, numbered("edge", k) + numbered("core", up), cables, order


def _three_tiers(k: int, down: int, up: int, link: LinkSpec, uplink: LinkSpec, trunk: LinkSpec) -> Parts:
    half = k // 2
    edges, aggs, cores = k * half, k * up, up * half
    hosts = edges * down
    first_edge, first_agg, first_core = hosts, hosts + edges, hosts + edges + aggs
    cables = [Cable(host, first_edge + host // down, *link) for host in range(hosts)]
    pods = []
    for pod in range(k):
        pod_edges = range(first_edge + pod * half, first_edge + (pod + 1) * half)
        pod_aggs = range(first_agg + pod * up, first_agg + (pod + 1) * up)
        cables += [Cable(edge, agg, *uplink) for edge in pod_edges for agg in pod_aggs]
        for j, agg in enumerate(pod_aggs):
            cables += [Cable(agg, first_core + j * half + c, *trunk) for c in range(half)]
        first = pod * half * down
        racks = [(*range(first + e * down, first + (e + 1) * down), edge) for e, edge in enumerate(pod_edges)]
        pods.append([*(node for rack in racks for node in rack), *pod_aggs])
    order = interleave(pods, range(first_core, first_core + cores))
    return hosts, numbered("edge", edges) + numbered("agg", aggs) + numbered("core", cores), cables, order
