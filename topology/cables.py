"""Declares a network's cables as plain named tuples, overrides the properties of single cables, and checks counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gradwire.scenarios.errors import Mistake, ScenarioError

MAX_LISTED = 8
"""Number of names or mistakes listed in a message before "and N more" (our choice)."""


class Cable(NamedTuple):
    """An undirected cable between nodes `a` and `b`; both directions have the same properties."""

    a: int
    b: int
    rate: int
    """bits per second"""
    latency: int
    """propagation delay, picoseconds"""
    loss: float = 0.0
    """probability that a packet is lost on the wire"""
    cost: int = 1
    """routing takes the paths with the smallest sum of costs"""


class LinkSpec(NamedTuple):
    """Properties of a cable: rate (bits per second), latency (picoseconds), probability of loss."""

    rate: int
    latency: int
    loss: float = 0.0

    def replace(self, rate: int | None = None, latency: int | None = None) -> LinkSpec:
        """Return the same properties with another rate or latency; None leaves the value."""
        return LinkSpec(self.rate if rate is None else rate, self.latency if latency is None else latency, self.loss)


class Override(NamedTuple):
    """Properties to override on the cables between two named nodes; None leaves the value."""

    between: tuple[str, str]
    rate: int | None = None
    latency: int | None = None
    loss: float | None = None


def override_cables(
    names: Sequence[str], hosts: int, cables: Sequence[Cable], overrides: Iterable[Override]
) -> tuple[Sequence[Cable], list[Mistake]]:
    """Apply overrides to cables; return the cables and one Mistake for every override that matches none. The first
    `hosts` names are hosts. A host with several network cards may be named as a whole or by card."""
    overrides = list(overrides)
    if not overrides:
        return cables, []
    mistakes = []
    known = set(names)
    cables_by_ends: dict[frozenset[str], list[int]] = {}
    for index, cable in enumerate(cables):
        cables_by_ends.setdefault(frozenset((names[cable.a], names[cable.b])), []).append(index)
    for host, indices in enumerate(cables_of(hosts, cables)):
        for number, index in enumerate(indices if len(indices) > 1 else ()):
            card, other = card_name(names[host], number), names[cables[index].a + cables[index].b - host]
            known.add(card)
            cables_by_ends.setdefault(frozenset((card, other)), []).append(index)
    cables = list(cables)
    for number, override in enumerate(overrides):
        where = f"link_override[{number}].between"
        unknown = [name for name in override.between if name not in known]
        if unknown:
            like = f"a name like {names[0]}"
            mistakes += [Mistake(where, "unknown node", name, like) for name in unknown]
            continue
        pair = frozenset(override.between)
        if pair not in cables_by_ends:
            ends = " - ".join(override.between)
            mistakes.append(Mistake(where, "unknown link", ends, "two adjacent nodes"))
        changes = {key: value for key in LinkSpec._fields if (value := getattr(override, key)) is not None}
        for index in cables_by_ends.get(pair, ()):
            cables[index] = cables[index]._replace(**changes)
    return cables, mistakes


def cables_of(hosts: int, cables: Sequence[Cable]) -> list[list[int]]:
    """Return the cables of every host, as indices into the list, in the order of its cards."""
    by_host: list[list[int]] = [[] for _ in range(hosts)]
    for index, cable in enumerate(cables):
        for end in (cable.a, cable.b):
            if end < hosts:
                by_host[end].append(index)
    for host, indices in enumerate(by_host):
        if len(indices) > 1:
            indices.sort(key=lambda index: cables[index].a + cables[index].b - host)
    return by_host


def card_name(host: str, number: int) -> str:
    """Return the name of card `number` of a host with several cards."""
    return f"{host}.nic{number}"


def numbered(prefix: str, count: int) -> list[str]:
    """Return names such as leaf0, leaf1, ..."""
    return [f"{prefix}{number}" for number in range(count)]


def interleave(pods: Sequence[Sequence[int]], upper: Sequence[int]) -> list[int]:
    """Return the pods in order, each followed by its share of the upper tier."""
    order: list[int] = []
    for pod, nodes in enumerate(pods):
        order += nodes
        order += upper[len(upper) * pod // len(pods) : len(upper) * (pod + 1) // len(pods)]
    return order


def check_counts(link: LinkSpec, **counts: int) -> None:
    """Raise ScenarioError for errors that would otherwise be reported once per cable."""
    mistakes = [
        Mistake(f"topology.{name}", "is too small", count, "1 or more") for name, count in counts.items() if count < 1
    ]
    if link.rate <= 0:
        mistakes.append(Mistake("link.rate", "is not positive", f"{link.rate}bps", 'such as "100Gbps"'))
    if link.latency < 0:
        mistakes.append(Mistake("link.latency", "is negative", f"{link.latency}ps", 'such as "1us"'))
    if not 0.0 <= link.loss < 1.0:
        mistakes.append(Mistake("link.loss", "is not a probability", link.loss, "0 to below 1"))
    refuse_network(mistakes)


def refuse_network(mistakes: Sequence[Mistake]) -> None:
    """Raise one ScenarioError with all `mistakes`; return if there are none."""
    if mistakes:
        raise ScenarioError("the network cannot be built", mistakes=mistakes)
