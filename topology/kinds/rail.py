"""Declares the topology table `rail`, and builds its rail-optimised leaf-spine for hosts with several network cards."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Natural, single_mistake
from gradwire.scenarios.schema.network.topology import TopologyTable, value_or
from gradwire.scenarios.units import Rate, Time
from gradwire.topology.cables import Cable, LinkSpec, Override, check_counts, interleave, numbered, refuse_network
from gradwire.topology.network import Network, assemble


class Rail(TopologyTable):
    """A rail-optimised network for hosts with several network cards. Card i of every host of a group is on the group's
    rail switch i, and every rail switch is on every spine. Switches are rail0_0, rail0_1, ... (group 0, cards 0 and 1)
    and spine0..; cards are h0.nic0, h0.nic1, ... A message leaves and enters by cards of the same number."""

    kind: Literal["rail"]
    hosts: Annotated[int, Field(ge=2, strict=True)]
    """Hosts of jobs and traffic, each with all its cards."""
    cards: Count
    """Network cards of every host, and rail switches of every group."""
    hosts_per_group: Count | None = None
    """Hosts that share rail switches; by default all. The last group may be smaller."""
    spines: Natural
    """Number of spine switches; may be 0 with one group, as messages stay on their rail."""
    uplink_rate: Rate | None = None
    """Rate of each cable between a rail switch and a spine; by default `link.rate`."""
    uplink_latency: Time | None = None
    """Latency of each cable between a rail switch and a spine; by default `link.latency`."""

    @model_validator(mode="after")
    def _joined(self) -> Rail:
        if not self.spines and self.hosts_per_group is not None and self.hosts_per_group < self.hosts:
            raise single_mistake("spines", "is zero, but the groups have to be joined", 0, "at least one, or one group")
        return self

    @property
    def size(self) -> tuple[int, int]:
        rails = self.cards * -(-self.hosts // value_or(self.hosts_per_group, self.hosts))
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
        return ((value_or(self.uplink_rate, rate), value_or(self.uplink_latency, latency)),)

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return rail(link=link, overrides=overrides, **self.parameters())


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
    """Build a rail-optimised network: card i of every host of a group is on the group's rail switch i. All rail
    switches are joined to every spine by one cable.

    Parameters are the fields of `Rail`, rates in bits per second and latencies in picoseconds. `link`: properties of
    the cards' cables; the uplinks share its loss, and by default its rate and latency. `overrides`: properties of
    single cables. Without spines every rail is a separate network ("rail-only"). A single card of h3 is called h3, not
    h3.nic0.

    Notes
    -----
    Between cards of one rail there is 1 shortest path inside a group and `spines` between groups; messages stay on
    their rail (`gradwire.topology.multi_nic_hosts`), so the spines carry only traffic between groups.  NVIDIA's DGX
    SuperPOD with B200 of 128 hosts is ``rail(128, 8, 16, link, hosts_per_group=32)`` with uplinks of twice the rate: 32
    rail switches, 16 spines, 1024 cables up from the hosts and two from each rail switch to each spine [its reference
    architecture].  In Alibaba's HPN (Qian et al., SIGCOMM 2024) a card has two ports, to two switches [recalled]; they
    would be two cards here.

    References
    ----------
    "NVIDIA DGX SuperPOD: next generation scalable infrastructure for AI leadership", reference architecture, 2023 ff.
    Wang et al.: "Rail-only: a low-cost high-performance network for training LLMs with trillion parameters", 2023, for
    rails without spines [recalled].
    """
    group_size = hosts if hosts_per_group is None else hosts_per_group
    check_counts(link, hosts=hosts, cards=cards, hosts_per_group=group_size)
    groups = -(-hosts // group_size)
    if spines < (groups > 1):
        refuse_network([Mistake("topology.spines", "are too few to join the groups", spines, "1 or more")])
    uplink = link.replace(uplink_rate, uplink_latency)
    first_spine = hosts + groups * cards
    all_spines = range(first_spine, first_spine + spines)
    ends = product(range(hosts), range(cards))
    cables = [Cable(host, hosts + host // group_size * cards + card, *link) for host, card in ends]
    cables += [Cable(leaf, spine, *uplink) for leaf, spine in product(range(hosts, first_spine), all_spines)]
    members = (range(first, min(hosts, first + group_size)) for first in range(0, hosts, group_size))
    leaves = (range(first, first + cards) for first in range(hosts, first_spine, cards))
    order = interleave([[*pod, *switches] for pod, switches in zip(members, leaves, strict=True)], all_spines)
    switches = [f"rail{group}_{card}" for group in range(groups) for card in range(cards)]
    switches += numbered("spine", spines)
    return assemble(numbered("h", hosts), switches, cables, title="rail", order=order, overrides=overrides)
