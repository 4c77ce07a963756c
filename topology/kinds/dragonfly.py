"""Declares the topology table `dragonfly`, and builds its fully connected groups of switches, with cables between all
groups."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, single_mistake
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, numbered, refuse_network
from gradwire.topology.network import Network, assemble


class Dragonfly(TopologyTable):
    """The dragonfly of Kim et al. (ISCA 2008): groups of `a` fully connected switches, and h cables per switch to other
    groups. Switches are s0, s1, ..., group by group; routes are minimal."""

    kind: Literal["dragonfly"]
    p: Count
    """Hosts per switch."""
    a: Count | None = None
    """Switches per group; by default 2p, which balances the load."""
    h: Count | None = None
    """Global cables per switch; by default p, which balances the load."""
    groups: Annotated[int, Field(ge=2, strict=True)] | None = None
    """At most a * h + 1, which is the default; fewer groups are joined by several cables each."""
    local_rate: Rate | None = None
    """Rate of the cables inside a group; by default `link.rate`."""
    local_latency: Time | None = None
    """Latency of the cables inside a group; by default `link.latency`."""
    global_rate: Rate | None = None
    """Rate of the cables between groups; by default `link.rate`."""
    global_latency: Time | None = None
    """Latency of the cables between groups; by default `link.latency`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Switches per group, global cables per switch, groups."""
        a, h = value_or(self.a, 2 * self.p), value_or(self.h, self.p)
        return a, h, value_or(self.groups, a * h + 1)

    @model_validator(mode="after")
    def _enough_ports(self) -> Dragonfly:
        a, h, groups = self.shape
        if groups > a * h + 1:
            what = f"is more than {a} switches with {h} global cables each can join"
            raise single_mistake("groups", what, groups, f"at most {a * h + 1} (a * h + 1)")
        return self

    @property
    def size(self) -> tuple[int, int]:
        a, h, groups = self.shape
        return a * groups, self.host_count + groups * a * (a - 1) // 2 + groups * a * h // 2

    @property
    def host_count(self) -> int:
        a, _, groups = self.shape
        return self.p * a * groups

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        local = value_or(self.local_rate, rate), value_or(self.local_latency, latency)
        return local, (value_or(self.global_rate, rate), value_or(self.global_latency, latency))

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return dragonfly(link=link, overrides=overrides, **self.parameters())


GLOBAL_COST = 3
"""Cost of a global cable, where a local one costs 1. The path local-global-local (5) is then cheaper than any path with
two global cables (6)."""


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
    """Build groups of fully connected switches, with cables between all groups.

    Parameters are the fields of `Dragonfly`, rates in bits per second and latencies in picoseconds. `link`: properties
    of the host cables; the others share its loss, and by default its rate and latency. `overrides`: properties of
    single cables. With the defaults of a and h the network is balanced (a = 2p = 2h): it carries any load that is
    spread evenly over all hosts [recalled].

    Returns
    -------
    Network
        ``p * a * groups`` hosts h0.. and switches s0.., group by group: switch i of group g is s(g * a + i), its hosts
        are h(p * (g * a + i)) and the next ones.

    Notes
    -----
    Global port n of a group belongs to its switch n // h and leads to the group n % (groups - 1) + 1 further on, around
    the circle of groups: the *relative* arrangement of the ports [recalled].  If a * h is a multiple m of groups - 1,
    there are m cables between any two groups; otherwise the remaining ports stay empty, so that all pairs of groups are
    joined equally (our choice).

    Routes are minimal as in the paper: one global cable and at most two local ones, three switch-to-switch hops in all.
    Global cables therefore cost 3, not 1: by hops alone, paths through a third group (global, local, global) would be
    just as short.

    References
    ----------
    Kim, Dally, Scott, Abts: "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
    Hastings et al.: "Comparing global link arrangements for dragonfly networks", CLUSTER 2015.
    """
    a = 2 * p if a is None else a
    h = p if h is None else h
    check_counts(link, p=p, a=a, h=h)
    most = a * h + 1
    groups = most if groups is None else groups
    if not 2 <= groups <= most:
        what = f"does not fit {a * h} global cables per group"
        refuse_network([Mistake("topology.groups", what, groups, f"2 to {most} (a * h + 1)")])
    local, far = link.replace(local_rate, local_latency), link.replace(global_rate, global_latency)
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
            port, partner_port = turn * others + offset - 1, turn * others + groups - offset - 1
            near_end, far_end = hosts + group * a + port // h, hosts + partner * a + partner_port // h
            cables.append(Cable(near_end, far_end, *far, cost=GLOBAL_COST))
    order = [node for s in range(switches) for node in (*range(s * p, (s + 1) * p), hosts + s)]
    return assemble(
        numbered("h", hosts), numbered("s", switches), cables, title="dragonfly", order=order, overrides=overrides
    )
