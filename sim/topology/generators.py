"""Regular topologies: star, leaf-spine and fat-tree.

Every generator takes a `LinkSpec` for the cables it lays and returns a checked `Network` whose `order`
goes pod by pod.  Switches of the upper tiers belong to no pod; they are spread evenly between the pods in
that order, so that equal pieces of it hold equal shares of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scenarios.errors import Mistake
from sim.topology.network import Cable, Network, assemble, refuse


class LinkSpec(NamedTuple):
    """What a cable is like: bits per second, picoseconds, probability of loss."""

    rate: int
    latency: int
    loss: float = 0.0


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
    _check(link, hosts=hosts)
    cables = [Cable(host, hosts, *link) for host in range(hosts)]
    return _build(_names("h", hosts), ["s0"], cables, overrides, "star", list(range(hosts + 1)))


def leaf_spine(
    leaves: int,
    hosts_per_leaf: int,
    spines: int,
    link: LinkSpec,
    *,
    uplink_rate: int | None = None,
    oversubscription: float | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Two tiers: every leaf is joined to every spine by one cable.

    Parameters
    ----------
    leaves, hosts_per_leaf, spines : counts; nodes are named h0.., leaf0.., spine0...
    link : of the host cables; the uplinks share its latency and loss.
    uplink_rate : bits per second of a leaf-spine cable, by default the host rate.
    oversubscription : ratio of what the hosts of a leaf can send to what its uplinks can carry; gives
        ``uplink_rate = hosts_per_leaf * host rate / (spines * oversubscription)``.

    Returns
    -------
    Network

    Notes
    -----
    9 leaves x 16 hosts with 4 spines is the simulated network of DLCP and its relatives [notes].
    """
    _check(link, leaves=leaves, hosts_per_leaf=hosts_per_leaf, spines=spines)
    if uplink_rate is not None and oversubscription is not None:
        what = "uplink_rate and oversubscription are both given"
        refuse([Mistake("topology", what, expected="one of the two: each follows from the other")])
    if oversubscription is not None:
        if oversubscription <= 0:
            where = "topology.oversubscription"
            refuse([Mistake(where, "is not positive", oversubscription, "a ratio such as 2.0")])
        uplink_rate = round(hosts_per_leaf * link.rate / (spines * oversubscription))
    uplink = link if uplink_rate is None else link._replace(rate=uplink_rate)
    hosts = leaves * hosts_per_leaf
    first_spine = hosts + leaves
    cables = [Cable(host, hosts + host // hosts_per_leaf, *link) for host in range(hosts)]
    cables += [
        Cable(hosts + leaf, first_spine + spine, *uplink) for leaf in range(leaves) for spine in range(spines)
    ]
    pods = [
        [*range(leaf * hosts_per_leaf, (leaf + 1) * hosts_per_leaf), hosts + leaf] for leaf in range(leaves)
    ]
    order = _interleave(pods, range(first_spine, first_spine + spines))
    switches = _names("leaf", leaves) + _names("spine", spines)
    return _build(_names("h", hosts), switches, cables, overrides, "leaf_spine", order)


def fat_tree(k: int, link: LinkSpec, overrides: Iterable[Override] = ()) -> Network:
    """The three-tier fat-tree of k-port switches: k pods, k^3/4 hosts, full bisection bandwidth.

    Parameters
    ----------
    k : ports per switch, even.  k = 8, 12, 16 give 128, 432, 1024 hosts.
    link : of every cable.

    Returns
    -------
    Network
        Hosts h0.. pod by pod; switches edge0.., agg0.. (k/2 of each per pod) and core0.. ((k/2)^2).

    Notes
    -----
    Aggregation switch j of every pod is joined to the cores ``j * k/2 .. (j + 1) * k/2 - 1``, so that there
    are (k/2)^2 shortest paths between hosts of different pods, one per core.

    References
    ----------
    Al-Fares, Loukissas, Vahdat: "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """
    if k < 2 or k % 2:
        refuse([Mistake("topology.k", "is no even number of ports", k, "2, 4, 6, ...")])
    _check(link)
    half = k // 2
    hosts, edges = k * half * half, k * half
    first_edge, first_agg, first_core = hosts, hosts + edges, hosts + 2 * edges
    cables = [Cable(host, first_edge + host // half, *link) for host in range(hosts)]
    pods = []
    for pod in range(k):
        pod_edges = range(first_edge + pod * half, first_edge + (pod + 1) * half)
        pod_aggs = range(first_agg + pod * half, first_agg + (pod + 1) * half)
        cables += [Cable(edge, agg, *link) for edge in pod_edges for agg in pod_aggs]
        for j, agg in enumerate(pod_aggs):
            cables += [Cable(agg, first_core + j * half + c, *link) for c in range(half)]
        pod_hosts = range(pod * half * half, (pod + 1) * half * half)
        racks = [(*pod_hosts[e * half : (e + 1) * half], edge) for e, edge in enumerate(pod_edges)]
        pods.append([*(node for rack in racks for node in rack), *pod_aggs])
    order = _interleave(pods, range(first_core, first_core + half * half))
    switches = _names("edge", edges) + _names("agg", edges) + _names("core", half * half)
    return _build(_names("h", hosts), switches, cables, overrides, "fat_tree", order)


class Override(NamedTuple):
    """Other properties for the cable(s) between two named nodes; None keeps what the cable had."""

    between: tuple[str, str]
    rate: int | None = None
    latency: int | None = None
    loss: float | None = None


def override_cables(
    names: Sequence[str], cables: list[Cable], overrides: Iterable[Override]
) -> tuple[list[Cable], list[Mistake]]:
    """The cables with the overrides applied, and one Mistake for every override that fits no cable."""
    overrides = list(overrides)
    if not overrides:
        return cables, []
    mistakes = []
    index = {name: node for node, name in enumerate(names)}
    places: dict[frozenset[int], list[int]] = {}
    for place, cable in enumerate(cables):
        places.setdefault(frozenset((cable.a, cable.b)), []).append(place)
    cables = list(cables)
    for number, override in enumerate(overrides):
        where = f"link_override[{number}].between"
        unknown = [name for name in override.between if name not in index]
        if unknown:
            like = f"a name like {names[0]}"
            mistakes += [Mistake(where, "there is no such node", name, like) for name in unknown]
            continue
        pair = frozenset(index[name] for name in override.between)
        if pair not in places:
            ends = " - ".join(override.between)
            mistakes.append(Mistake(where, "there is no such link", ends, "two neighbours"))
        changes = {key: value for key, value in override._asdict().items() if key in LinkSpec._fields}
        changes = {key: value for key, value in changes.items() if value is not None}
        for place in places.get(pair, ()):
            cables[place] = cables[place]._replace(**changes)
    return cables, mistakes


def _build(
    hosts: list[str],
    switches: list[str],
    cables: list[Cable],
    overrides: Iterable[Override],
    title: str,
    order: list[int],
) -> Network:
    cables, mistakes = override_cables(hosts + switches, cables, overrides)
    return assemble(hosts, switches, cables, title=title, order=order, mistakes=mistakes)


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _interleave(pods: Sequence[Sequence[int]], upper: Sequence[int]) -> list[int]:
    """Pods in turn, each followed by its share of the upper tier."""
    order: list[int] = []
    for pod, nodes in enumerate(pods):
        order += nodes
        order += upper[len(upper) * pod // len(pods) : len(upper) * (pod + 1) // len(pods)]
    return order


def _check(link: LinkSpec, **counts: int) -> None:
    """Refuse what would otherwise be reported once per cable."""
    mistakes = [
        Mistake(f"topology.{name}", "is too small", count, "1 or more")
        for name, count in counts.items()
        if count < 1
    ]
    if link.rate <= 0:
        mistakes.append(Mistake("link.rate", "is not positive", f"{link.rate}bps", 'such as "100Gbps"'))
    if link.latency < 0:
        mistakes.append(Mistake("link.latency", "is negative", f"{link.latency}ps", 'such as "1us"'))
    if not 0.0 <= link.loss < 1.0:
        mistakes.append(Mistake("link.loss", "is no probability", link.loss, "0 to below 1"))
    refuse(mistakes)
