"""Dragonfly: groups of switches, all joined to each other, and groups joined to each other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from gradwire.experiment.topology.cables import (
    Cable,
    LinkSpec,
    Override,
    build,
    check,
    numbered,
    refuse_network,
)
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, refuse
from gradwire.scenarios.schema.topology import TopologyTable, given_or
from gradwire.scenarios.units import Rate, Time

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


class Dragonfly(TopologyTable):
    """The dragonfly of Kim et al. (ISCA 2008): groups of a switches that are all joined to each other, and groups
    joined to each other by h cables per switch. Switches are s0, s1, ..., group by group; routes are minimal."""

    kind: Literal["dragonfly"]
    p: Count
    """Hosts per switch."""
    a: Count | None = None
    """Switches per group; 2p unless given, which balances the load."""
    h: Count | None = None
    """Global cables per switch; p unless given, which balances the load."""
    groups: Annotated[int, Field(ge=2, strict=True)] | None = None
    """At most a * h + 1, and so many unless given; fewer groups are joined by several cables each."""
    local_rate: Rate | None = None
    """Of a cable inside a group; `link.rate` unless given."""
    local_latency: Time | None = None
    """The same for its latency."""
    global_rate: Rate | None = None
    """Of a cable between groups; `link.rate` unless given."""
    global_latency: Time | None = None
    """The same for its latency."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Switches per group, global cables per switch, groups."""
        a, h = given_or(self.a, 2 * self.p), given_or(self.h, self.p)
        return a, h, given_or(self.groups, a * h + 1)

    @model_validator(mode="after")
    def _enough_ports(self) -> Dragonfly:
        a, h, groups = self.shape
        if groups > a * h + 1:
            raise refuse(
                "groups", f"is more than {a} switches with {h} global cables each can join", groups,
                f"at most {a * h + 1} (a * h + 1)",
            )  # fmt: skip
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
        local = given_or(self.local_rate, rate), given_or(self.local_latency, latency)
        return local, (given_or(self.global_rate, rate), given_or(self.global_latency, latency))

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return dragonfly(link=link, overrides=overrides, **self.given())


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
        refuse_network([Mistake("topology.groups", what, groups, f"2 to {most} (a * h + 1)")])
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
