"""The [topology] table of a scenario: one model per kind; `gradwire.experiment.topology` builds them.

Names of nodes in the built-in topologies: hosts are h0, h1, ...; each model says what its switches are called. A graph
file brings its own names. Cables are like [link] unless their tier has a rate or latency of its own here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.schema.base import Count, Natural, Table, refuse
from gradwire.scenarios.units import Rate, Time

MAX_HOSTS = 65_536
"""What the simulator can address; hosts with several network cards count by their cards."""

MAX_SWITCHES = 16_384
"""Routing keeps what every switch knows of every other one: 1.6 GB for so many."""

MAX_CABLES = 1_000_000
"""The simulator keeps about 2 kB for each."""


class TopologyTable(Table, ABC):
    """What all kinds answer."""

    @property
    @abstractmethod
    def host_count(self) -> int | None:
        """None where it is unknown before a file has been read."""

    @property
    def card_count(self) -> int | None:
        """Network cards of all hosts; None where it is unknown before a file has been read."""
        return self.host_count

    @property
    def size(self) -> tuple[int, int] | None:
        """(switches, cables), at least roughly; None where it is unknown before a file has been read."""
        return None

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        """Rate and latency of the cables between switches, by tier, when [link] has `rate` and `latency`."""
        return ()


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


class Star(TopologyTable):
    """Hosts around one switch, s0."""

    kind: Literal["star"]
    hosts: Annotated[int, Field(ge=2, strict=True)]

    @property
    def size(self) -> tuple[int, int]:
        return 1, self.hosts

    @property
    def host_count(self) -> int:
        return self.hosts


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
    def size(self) -> tuple[int, int]:
        return 2, self.host_count + 1

    @property
    def host_count(self) -> int:
        return self.left + _or(self.right, self.left)

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((_or(self.bottleneck_rate, rate), _or(self.bottleneck_latency, latency)),)


class LeafSpine(TopologyTable):
    """Leaves with hosts below and every spine above them: a two-layer Clos network."""

    kind: Literal["leaf_spine"]
    leaves: Count
    hosts_per_leaf: Count
    spines: Count
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
        return ((self.resolved_uplink_rate(rate), _or(self.uplink_latency, latency)),)


class Rail(TopologyTable):
    """Rail-optimised, for hosts with several network cards: card i of every host of a group hangs on the group's rail
    switch i, and every rail switch on every spine. Switches are rail0_0, rail0_1, ... (group 0, cards 0 and 1) and
    spine0..; cards are h0.nic0, h0.nic1, ... A message leaves and enters by cards of the same number."""

    kind: Literal["rail"]
    hosts: Annotated[int, Field(ge=2, strict=True)]
    """Jobs and traffic are placed on these, whatever their cards."""
    cards: Count
    """Network cards of every host, and rail switches of every group."""
    hosts_per_group: Count | None = None
    """Hosts that share rail switches; all unless given. The last group may be smaller."""
    spines: Natural
    """With one group there may be none: messages stay on their rail."""
    uplink_rate: Rate | None = None
    """Rate of each cable between a rail switch and a spine; `link.rate` unless given."""
    uplink_latency: Time | None = None
    """The same for its latency."""

    @model_validator(mode="after")
    def _joined(self) -> Rail:
        if not self.spines and self.hosts_per_group is not None and self.hosts_per_group < self.hosts:
            raise refuse(
                "spines", "is zero, but the groups have to be joined", 0, "at least one, or one group"
            )
        return self

    @property
    def size(self) -> tuple[int, int]:
        rails = self.cards * -(-self.hosts // _or(self.hosts_per_group, self.hosts))
        return rails + self.spines, self.card_count + rails * self.spines

    @property
    def host_count(self) -> int:
        return self.hosts

    @property
    def card_count(self) -> int:
        return self.hosts * self.cards

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        if not self.spines:
            return ()
        return ((_or(self.uplink_rate, rate), _or(self.uplink_latency, latency)),)


def edge_ports(k: int, oversubscription: float) -> tuple[int, int] | None:
    """How an edge switch of k ports divides them into (down, up) so that down / up is `oversubscription`, to a
    thousandth of it; None if no division does."""
    up = round(k / (1 + oversubscription))
    if not 1 <= up < k or abs((k - up) / up - oversubscription) > oversubscription / 1000:
        return None
    return k - up, up


def edge_ratios(k: int) -> str:
    """The values of `oversubscription` that k ports allow, for a message."""
    return ", ".join(f"{(k - up) / up:.4g}" for up in range(k - 1, 0, -1))


class FatTree(TopologyTable):
    """The fat-tree of k-port switches of Al-Fares et al. (SIGCOMM 2008): edge0.., agg0.. and core0.., in k pods, k^3/4
    hosts; or, with two tiers, k edge switches under k/2 cores, k^2/2 hosts."""

    kind: Literal["fat_tree"]
    k: Annotated[int, Field(ge=2, le=128, strict=True)]
    tiers: Literal[2, 3] = 3
    """3: edge, aggregation and core switches; 2: edge switches and cores."""
    oversubscription: Annotated[float, Field(gt=0, le=1000, strict=True)] = 1.0
    """Ports of an edge switch that lead to hosts over those that lead up. 3.0 has 3k/4 hosts on an edge switch and
    k/4 uplinks, and half as many aggregation and core switches."""
    uplink_rate: Rate | None = None
    """Of a cable that leaves an edge switch upwards; `link.rate` unless given."""
    uplink_latency: Time | None = None
    """The same for its latency."""
    core_rate: Rate | None = None
    """Of a cable between an aggregation and a core switch; `link.rate` unless given."""
    core_latency: Time | None = None
    """The same for its latency."""

    @model_validator(mode="after")
    def _ports(self) -> FatTree:
        if self.k % 2:
            raise refuse("k", "is odd, and half of a switch's k ports go up", self.k, "an even number")
        if edge_ports(self.k, self.oversubscription) is None:
            what = f"is no division of an edge switch's {self.k} ports"
            raise refuse("oversubscription", what, self.oversubscription, f"one of {edge_ratios(self.k)}")
        for field in ("core_rate", "core_latency"):
            if self.tiers == 2 and getattr(self, field) is not None:
                what = "needs aggregation switches, which a tree of two tiers does not have"
                raise refuse(field, what, None, f"uplink_{field[5:]}, or tiers = 3")
        return self

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
        uplink = _or(self.uplink_rate, rate), _or(self.uplink_latency, latency)
        core = _or(self.core_rate, rate), _or(self.core_latency, latency)
        return (uplink, core) if self.tiers == 3 else (uplink,)


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
        a, h = _or(self.a, 2 * self.p), _or(self.h, self.p)
        return a, h, _or(self.groups, a * h + 1)

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
        local = _or(self.local_rate, rate), _or(self.local_latency, latency)
        return local, (_or(self.global_rate, rate), _or(self.global_latency, latency))


class Torus(TopologyTable):
    """A grid of switches that is closed to a ring in every dimension; switches are named by their coordinates, s0_0,
    s0_1, ..."""

    kind: Literal["torus"]
    dims: Annotated[tuple[Annotated[int, Field(ge=2, strict=True)], ...], Field(min_length=2, max_length=3)]
    """Switches in each of two or three dimensions, such as [8, 8] or [4, 4, 8]; each at least 2."""
    hosts_per_switch: Count = 1
    """Hosts are numbered switch by switch, the last coordinate counting fastest."""
    switch_rate: Rate | None = None
    """Of a cable between switches; `link.rate` unless given."""
    switch_latency: Time | None = None
    """The same for its latency."""

    @property
    def size(self) -> tuple[int, int]:
        switches = prod(self.dims)
        return switches, self.host_count + sum(switches if size > 2 else switches // 2 for size in self.dims)

    @property
    def host_count(self) -> int:
        return prod(self.dims) * self.hosts_per_switch

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        return ((_or(self.switch_rate, rate), _or(self.switch_latency, latency)),)


class GraphFile(TopologyTable):
    """A topology whose nodes and cables are in a file."""

    file: Annotated[str, Field(min_length=1)]

    @property
    def host_count(self) -> int | None:
        """Unknown before the file has been read."""
        return None


class Graph(GraphFile):
    """Any connected graph from a file: GraphML (.graphml), GML (.gml) or an edge list (any other ending).

    Node attribute `kind` is "host" or "switch" (unless given, nodes of degree 1 are hosts); a host with several edges
    has as many network cards; edge attributes `rate`,
    `latency` ("100Gbps", "1us") and `loss` take the place of `[link]`, and `cost` is what routing adds up. The path is
    relative to the scenario file.
    """

    kind: Literal["graph"]
    hosts_per_switch: Count | None = None
    """Hang so many hosts h0, h1, ... on every switch, for a graph of switches alone; a switch's attribute `hosts` goes
    before. Nodes without `kind` are then switches."""


class Hpcc(GraphFile):
    """A `topology.txt` of the HPCC and ConWeave simulators: "nodes switches links", the switches' numbers, then
    `src dst rate delay loss` per cable. Hosts are h<number>, switches s<number>; there is no `[link]`."""

    kind: Literal["hpcc"]


Topology = Annotated[
    Star | Dumbbell | LeafSpine | Rail | FatTree | Dragonfly | Torus | Graph | Hpcc,
    Field(discriminator="kind"),
]
