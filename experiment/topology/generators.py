"""Trees: star, dumbbell, leaf-spine, fat-tree, and rails, a leaf-spine for hosts with several network cards.

Every generator takes a `LinkSpec` for the cables it lays and returns a checked `Network` whose `order`
goes pod by pod.  Switches of the upper tiers belong to no pod; they are spread evenly between the pods in
that order, so that equal pieces of it hold equal shares of work.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.experiment.topology.cables import LinkSpec, Override, build, check, interleave, numbered
from gradwire.experiment.topology.network import Cable, Network, refuse
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.topology import edge_ports, edge_ratios

__all__ = ["LinkSpec", "Override", "dumbbell", "fat_tree", "leaf_spine", "rail", "star"]


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
        refuse([Mistake("topology", what, expected="one of the two: each follows from the other")])
    if oversubscription is not None:
        if oversubscription <= 0:
            where = "topology.oversubscription"
            refuse([Mistake(where, "is not positive", oversubscription, "a ratio such as 2.0")])
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


def rail(
    hosts: int,
    cards: int,
    spines: int,
    link: LinkSpec,
    *,
    hosts_per_group: int | None = None,
    uplink_rate: int | None = None,
    uplink_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Rail-optimised: card i of every host of a group hangs on the group's rail switch i; all rail switches are joined
    to every spine by one cable.

    Parameters
    ----------
    hosts : number of hosts, named h0, h1, ...
    cards : network cards of each; card i of h3 is called h3.nic<i> (h3 where there is one).
    spines : named spine0...; rail switch i of group g is called rail<g>_<i>. With one group there may be none: then
        every rail is a network of its own ("rail-only").
    link : of the cables of the cards; the uplinks share its loss, and by default its rate and latency.
    hosts_per_group : all in one group unless given; the last group may be smaller.
    uplink_rate, uplink_latency : bits per second and picoseconds of a cable between rail switch and spine.
    overrides : other properties for single cables.

    Returns
    -------
    Network

    Notes
    -----
    Between cards of one rail there is 1 shortest path inside a group and `spines` between groups; messages stay on
    their rail (`gradwire.experiment.topology.cards`), so that the spines carry what goes between groups only.  NVIDIA's
    DGX SuperPOD with B200 of 128 hosts is ``rail(128, 8, 16, link, hosts_per_group=32)`` with uplinks of twice the
    rate: 32 rail switches, 16 spines, 1024 cables up from the hosts and two from each rail switch to each spine [its
    reference architecture].  In Alibaba's HPN (Qian et al., SIGCOMM 2024) a card has two ports, to two switches
    [recalled]: here those would be two cards.

    References
    ----------
    "NVIDIA DGX SuperPOD: next generation scalable infrastructure for AI leadership", reference architecture, 2023 ff.
    Wang et al.: "Rail-only: a low-cost high-performance network for training LLMs with trillion parameters", 2023,
    for rails without spines [recalled].
    """
    group_size = hosts if hosts_per_group is None else hosts_per_group
    check(link, hosts=hosts, cards=cards, hosts_per_group=group_size)
    groups = -(-hosts // group_size)
    if spines < (groups > 1):
        refuse([Mistake("topology.spines", "are too few to join the groups", spines, "1 or more")])
    uplink = link.but(uplink_rate, uplink_latency)
    first_spine = hosts + groups * cards
    cables = [
        Cable(host, hosts + host // group_size * cards + card, *link)
        for host in range(hosts)
        for card in range(cards)
    ]
    cables += [
        Cable(leaf, first_spine + spine, *uplink)
        for leaf in range(hosts, first_spine)
        for spine in range(spines)
    ]
    pods = [
        [
            *range(group * group_size, min(hosts, (group + 1) * group_size)),
            *range(hosts + group * cards, hosts + (group + 1) * cards),
        ]
        for group in range(groups)
    ]
    order = interleave(pods, range(first_spine, first_spine + spines))
    switches = [f"rail{group}_{card}" for group in range(groups) for card in range(cards)]
    switches += numbered("spine", spines)
    return build(numbered("h", hosts), switches, cables, overrides, "rail", order)


def fat_tree(
    k: int,
    link: LinkSpec,
    overrides: Iterable[Override] = (),
    *,
    tiers: int = 3,
    oversubscription: float = 1.0,
    uplink_rate: int | None = None,
    uplink_latency: int | None = None,
    core_rate: int | None = None,
    core_latency: int | None = None,
) -> Network:
    """The fat-tree (folded Clos network) of k-port switches, with two or three tiers.

    Parameters
    ----------
    k : ports per switch, even.  With three tiers k = 8, 16, 32 give 128, 1024, 8192 hosts (k^3/4), with two
        k^2/2.
    link : of the host cables; the others share its loss, and by default its rate and latency.
    overrides : other properties for single cables.
    tiers : 3: k pods of edge and aggregation switches, and cores; 2: edge switches and cores.
    oversubscription : ports of an edge switch that lead to hosts over those that lead up.  1 is full
        bisection bandwidth; 3 gives 3k/4 hosts and k/4 uplinks per edge switch, and with them half as many
        aggregation (per pod) and core switches and 1.5 times as many hosts.
    uplink_rate, uplink_latency : of the cables that leave an edge switch upwards.
    core_rate, core_latency : of the cables between aggregation and core switches; with three tiers only.

    Returns
    -------
    Network
        Hosts h0.. pod by pod; switches edge0.., agg0.. (three tiers only) and core0...

    Notes
    -----
    Aggregation switch j of every pod is joined to the cores ``j * k/2 .. (j + 1) * k/2 - 1``, so that with u
    uplinks per edge switch there are u * k/2 shortest paths between hosts of different pods, one per core, and u
    between edge switches of one pod.  With two tiers there are u between any two edge switches.
    Oversubscription by ports is what is built; by rates, set `uplink_rate` (our choice to offer both).

    References
    ----------
    Al-Fares, Loukissas, Vahdat: "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """
    if k < 2 or k % 2:
        refuse([Mistake("topology.k", "is no even number of ports", k, "2, 4, 6, ...")])
    if tiers not in (2, 3):
        refuse([Mistake("topology.tiers", "is no number of tiers", tiers, "2 or 3")])
    ports = edge_ports(k, oversubscription) if oversubscription > 0 else None
    if ports is None:
        what, ratios = f"is no division of an edge switch's {k} ports", edge_ratios(k)
        mistake = Mistake("topology.oversubscription", what, oversubscription, f"one of {ratios}")
        raise ScenarioError("the network cannot be built", mistakes=[mistake])
    if tiers == 2 and (core_rate is not None or core_latency is not None):
        what = "core_rate and core_latency need aggregation switches"
        refuse([Mistake("topology", what, expected="uplink_rate and uplink_latency with two tiers")])
    check(link)
    uplink = link.but(uplink_rate, uplink_latency)
    if tiers == 2:
        return _two_tiers(k, *ports, link, uplink, overrides)
    return _three_tiers(k, *ports, link, uplink, link.but(core_rate, core_latency), overrides)


def _two_tiers(
    k: int, down: int, up: int, link: LinkSpec, uplink: LinkSpec, overrides: Iterable[Override]
) -> Network:
    hosts = k * down
    first_core = hosts + k
    cables = [Cable(host, hosts + host // down, *link) for host in range(hosts)]
    cables += [Cable(hosts + edge, first_core + core, *uplink) for edge in range(k) for core in range(up)]
    pods = [[*range(edge * down, (edge + 1) * down), hosts + edge] for edge in range(k)]
    order = interleave(pods, range(first_core, first_core + up))
    switches = numbered("edge", k) + numbered("core", up)
    return build(numbered("h", hosts), switches, cables, overrides, "fat_tree", order)


def _three_tiers(
    k: int,
    down: int,
    up: int,
    link: LinkSpec,
    uplink: LinkSpec,
    trunk: LinkSpec,
    overrides: Iterable[Override],
) -> Network:
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
    switches = numbered("edge", edges) + numbered("agg", aggs) + numbered("core", cores)
    return build(numbered("h", hosts), switches, cables, overrides, "fat_tree", order)
