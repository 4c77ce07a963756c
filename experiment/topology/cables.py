"""What generators and readers share: cables as a plain list, what they are like, exceptions for single ones, checks of
counts.

Nothing here imports NumPy before a network is built, because the generators stand beside the tables of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradwire.scenarios.errors import Mistake, ScenarioError

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network


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
    """what routing adds up: the cheapest paths are the shortest ones"""


class LinkSpec(NamedTuple):
    """What a cable is like: bits per second, picoseconds, probability of loss."""

    rate: int
    latency: int
    loss: float = 0.0

    def but(self, rate: int | None = None, latency: int | None = None) -> LinkSpec:
        """The same with another rate or latency; None keeps it."""
        return LinkSpec(
            self.rate if rate is None else rate, self.latency if latency is None else latency, self.loss
        )


class Override(NamedTuple):
    """Other properties for the cable(s) between two named nodes; None keeps what the cable had."""

    between: tuple[str, str]
    rate: int | None = None
    latency: int | None = None
    loss: float | None = None


def override_cables(
    names: Sequence[str], hosts: int, cables: list[Cable], overrides: Iterable[Override]
) -> tuple[list[Cable], list[Mistake]]:
    """The cables with the overrides applied, and one Mistake for every override that fits no cable.

    The first `hosts` names are hosts. One with several network cards may be named as a whole, or one card of it.
    """
    overrides = list(overrides)
    if not overrides:
        return cables, []
    mistakes = []
    known = set(names)
    places: dict[frozenset[str], list[int]] = {}
    for place, cable in enumerate(cables):
        places.setdefault(frozenset((names[cable.a], names[cable.b])), []).append(place)
    for host, mine in enumerate(cables_of(hosts, cables)):
        for number, place in enumerate(mine if len(mine) > 1 else ()):
            card, other = card_name(names[host], number), names[cables[place].a + cables[place].b - host]
            known.add(card)
            places.setdefault(frozenset((card, other)), []).append(place)
    cables = list(cables)
    for number, override in enumerate(overrides):
        where = f"link_override[{number}].between"
        unknown = [name for name in override.between if name not in known]
        if unknown:
            like = f"a name like {names[0]}"
            mistakes += [Mistake(where, "there is no such node", name, like) for name in unknown]
            continue
        pair = frozenset(override.between)
        if pair not in places:
            ends = " - ".join(override.between)
            mistakes.append(Mistake(where, "there is no such link", ends, "two neighbours"))
        changes = {key: value for key, value in override._asdict().items() if key in LinkSpec._fields}
        changes = {key: value for key, value in changes.items() if value is not None}
        for place in places.get(pair, ()):
            cables[place] = cables[place]._replace(**changes)
    return cables, mistakes


def cables_of(hosts: int, cables: Sequence[Cable]) -> list[list[int]]:
    """For every host: its cables (places in the list), in the order of its cards."""
    mine: list[list[int]] = [[] for _ in range(hosts)]
    for place, cable in enumerate(cables):
        for end in (cable.a, cable.b):
            if end < hosts:
                mine[end].append(place)
    for host, places in enumerate(mine):
        if len(places) > 1:
            places.sort(key=lambda place: cables[place].a + cables[place].b - host)
    return mine


def card_name(host: str, number: int) -> str:
    """What card `number` of a host with several is called."""
    return f"{host}.nic{number}"


def build(
    hosts: list[str],
    switches: list[str],
    cables: list[Cable],
    overrides: Iterable[Override],
    title: str,
    order: Sequence[int],
) -> Network:
    """The checked Network of a generator's nodes and cables, `overrides` applied."""
    from gradwire.experiment.topology.network import assemble

    cables, mistakes = override_cables(hosts + switches, len(hosts), cables, overrides)
    return assemble(hosts, switches, cables, title=title, order=order, mistakes=mistakes)


def numbered(prefix: str, count: int) -> list[str]:
    """Names such as leaf0, leaf1, ..."""
    return [f"{prefix}{number}" for number in range(count)]


def interleave(pods: Sequence[Sequence[int]], upper: Sequence[int]) -> list[int]:
    """Pods in turn, each followed by its share of the upper tier."""
    order: list[int] = []
    for pod, nodes in enumerate(pods):
        order += nodes
        order += upper[len(upper) * pod // len(pods) : len(upper) * (pod + 1) // len(pods)]
    return order


def check(link: LinkSpec, **counts: int) -> None:
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
    refuse_network(mistakes)


def refuse_network(mistakes: Sequence[Mistake]) -> None:
    """Raise one ScenarioError that carries all `mistakes`; return if there is none."""
    if mistakes:
        raise ScenarioError("the network cannot be built", mistakes=mistakes)
