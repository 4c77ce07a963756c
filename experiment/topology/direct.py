"""Direct networks, in which every switch has hosts: dragonfly and torus.

As in the trees, `order` keeps what is close together: group by group, or line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

from gradwire.experiment.topology.cables import LinkSpec, Override, build, check, numbered
from gradwire.experiment.topology.network import Cable, Network, refuse
from gradwire.scenarios.errors import Mistake

GLOBAL_COST = 3
"""Of a dragonfly's global cable, where a local one costs 1: the way local-global-local (5) is cheaper than any
that crosses two global cables (6)."""


def dragonfly(
    p: int,
    link: LinkSpec,
    *,
    a: int | None = None,
    h: int | None = None,
    groups: int | None = None,
    local_rate: int | None = None,
    local_latency: int | None = None,
    global_rate: int | None = None,
    global_latency: int | None = None,
    overrides: Iterable[Override] = (),
) -> Network:
    """Groups of switches, all joined to each other inside a group, and groups joined to each other.

    Parameters
    ----------
    p : hosts per switch.
    link : of the host cables; the others share its loss, and by default its rate and latency.
    a : switches per group, by default 2p.
    h : global cables per switch, by default p.  With both defaults the network is balanced (a = 2p = 2h): it
        carries any load that is spread evenly over all hosts [recalled].
    groups : by default as many as there can be, a * h + 1; at least 2.
    local_rate, local_latency : bits per second and picoseconds of the cables inside a group.
    global_rate, global_latency : of the cables between groups.
    overrides : other properties for single cables.

    Returns
    -------
    Network
        ``p * a * groups`` hosts h0.. and switches s0.., group by group: switch i of group g is s(g * a + i), its
        hosts are h(p * (g * a + i)) and those that follow.

    Notes
    -----
    Global port n of a group belongs to its switch n // h and leads to the group n % (groups - 1) + 1 further
    on, around the circle of groups: the *relative* arrangement of the ports [recalled].  Where a * h is a
    multiple m of groups - 1 there are m cables between any two groups; ports that are left over when it is not
    stay empty, so that all pairs of groups are joined equally (our choice).

    Routes are minimal as the paper has it: they cross one global cable, so at most two local ones besides, three
    switch-to-switch hops in all.  Global cables therefore cost 3, not 1: by hops alone, ways through a third
    group (global, local, global) would be just as short.

    References
    ----------
    Kim, Dally, Scott, Abts: "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
    Hastings et al.: "Comparing global link arrangements for dragonfly networks", CLUSTER 2015.
    """
    a = 2 * p if a is None else a
    h = p if h is None else h
    check(link, p=p, a=a, h=h)
    most = a * h + 1
    groups = most if groups is None else groups
    if not 2 <= groups <= most:
        what = f"does not fit {a * h} global cables per group"
        refuse([Mistake("topology.groups", what, groups, f"2 to {most} (a * h + 1)")])
    local, far = link.but(local_rate, local_latency), link.but(global_rate, global_latency)
    switches = a * groups
    hosts = p * switches
    cables = [Cable(host, hosts + host // p, *link) for host in range(hosts)]
    for group in range(groups):
        members = range(hosts + group * a, hosts + (group + 1) * a)
        cables += [Cable(one, other, *local) for one, other in combinations(members, 2)]
    others = groups - 1
    for group, turn, offset in product(range(groups), range(a * h // others), range(1, groups)):
        partner = (group + offset) % groups
        if group < partner:
            mine, its = turn * others + offset - 1, turn * others + groups - offset - 1
            here, there = hosts + group * a + mine // h, hosts + partner * a + its // h
            cables.append(Cable(here, there, *far, cost=GLOBAL_COST))
    order = [node for s in range(switches) for node in (*range(s * p, (s + 1) * p), hosts + s)]
    return build(numbered("h", hosts), numbered("s", switches), cables, overrides, "dragonfly", order)


def torus(
    dims: Sequence[int],
    link: LinkSpec,
    *,
    hosts_per_switch: int = 1,
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
        refuse([Mistake("topology.dims", "is no torus", list(dims), "numbers of switches, each 2 or more")])
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
