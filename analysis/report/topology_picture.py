"""Draws a network as an SVG: hosts and tiers of switches with counts, rates and oversubscription, and its busiest link.

A tier holds the switches of equal distance from the hosts. Of a large tier some switches are drawn, with what they are
connected to, so that a network of any size is a picture of about a hundred elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from gradwire.analysis.links import busy_shares, lost_packets
from gradwire.analysis.report.html_page import prose
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import SCENARIO_FILE
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.readable import count_text, rate_text, share_text
from gradwire.topology import Network, build_network, network_of

MOST_DRAWN = 16
"""Hosts, or switches of a tier, that are drawn one by one (our choice)."""
WIDTH, LEFT, RIGHT, LINE, TIER = 380, 132, 356, 15, 62
"""Pixels: of the picture, of the nodes' frame, between lines of text, and between tiers."""
MOST_LETTERS = 22
"""Letters of a line of text left of the nodes."""
ARCS = 30
"""Pixels above a tier whose switches are joined to each other."""
ROUNDING = 1.005
"""Oversubscription that rounding causes, of a rate to whole bits per second, or of the ratio's text."""
MOST_TIERS = 8
"""Tiers of switches; the last one holds all that are farther from the hosts as well (our choice)."""
TIER_NAMES = {
    "leaf": ("leaf", "leaves"),
    "spine": ("spine", "spines"),
    "rail": ("rail switch", "rail switches"),
    "edge": ("edge switch", "edge switches"),
    "agg": ("aggregation switch", "aggregation"),
    "core": ("core switch", "core switches"),
}
"""Names of a tier, one and several, by the names of its switches."""
HOSTS, SWITCHES = ("host", "hosts"), ("switch", "switches")


@dataclass(frozen=True)
class BusiestLink:
    """The port that sends for the largest share of a run, and what it dropped."""

    port: str
    busy: float
    dropped: int

    @property
    def text(self) -> str:
        """The caption."""
        lost = f"; it dropped {count_text(self.dropped)} packets" if self.dropped else ""
        return f"Busiest link: `{self.port}` sends {share_text(self.busy)} of the time{lost}."


class Drawing:
    """A network whose cards are merged into hosts.

    names : of hosts, then switches. tier : of each, 0 for hosts.
    lower, upper, rate : of every cable the node of the lower tier, the other, and bit/s.
    """

    def __init__(self, network: Network) -> None:
        hosts = len(network.cards.hosts)
        switches = hosts + np.arange(network.switch_count)
        merged = np.concatenate((np.repeat(np.arange(hosts), network.cards.counts), switches))
        self.names = [*network.cards.hosts, *network.names[network.host_count :]]
        one, other = merged[network.link_src[::2]], merged[network.link_dst[::2]]
        self.tier = np.where(np.arange(len(self.names)) < hosts, 0, -1)
        level = 0
        while (self.tier < 0).any():
            for near, far in ((one, other), (other, one)):
                self.tier[far[(self.tier[near] == level) & (self.tier[far] < 0)]] = level + 1
            level += 1
        level = min(level, MOST_TIERS)
        self.tier = np.minimum(self.tier, MOST_TIERS)
        swap = self.tier[one] > self.tier[other]
        self.lower, self.upper = np.where(swap, other, one), np.where(swap, one, other)
        self.rate = network.link_rate[::2]
        self.tiers: list[list[int]] = [np.flatnonzero(self.tier == number).tolist() for number in range(level + 1)]

    def rates(self, low: int, high: int) -> dict[int, int]:
        """Return the number of cables between two tiers by their rate, the most frequent first."""
        between = (self.tier[self.lower] == low) & (self.tier[self.upper] == high)
        rates, counts = np.unique(self.rate[between], return_counts=True)
        pairs = zip(rates.tolist(), counts.tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: (-pair[1], -pair[0])))

    def oversubscription(self, level: int) -> float:
        """Return the ratio of a tier's rate from below to its rate upwards; 0 if nothing is above it."""
        below, above = (
            sum(rate * count for rate, count in self.rates(*pair).items())
            for pair in ((level - 1, level), (level, level + 1))
        )
        return below / above if above else 0.0

    def tier_name(self, level: int) -> str:
        """Return the number and name of a tier: "8 spines"."""
        nodes = self.tiers[level]
        prefixes = {re.split(r"\d", self.names[node])[0] for node in nodes}
        names = TIER_NAMES.get(prefixes.pop() if len(prefixes) == 1 else "", SWITCHES) if level else HOSTS
        return f"{len(nodes):,} {names[len(nodes) != 1]}"

    @cached_property
    def neighbours(self) -> dict[int, list[int]]:
        """Nodes joined by cables."""
        found: dict[int, list[int]] = {}
        for a, b in zip(self.lower.tolist(), self.upper.tolist(), strict=True):
            found.setdefault(a, []).append(b)
            found.setdefault(b, []).append(a)
        return found

    @cached_property
    def number(self) -> dict[str, int]:
        """Nodes by name."""
        return {name: node for node, name in enumerate(self.names)}

    def ends_of(self, port: str) -> list[int]:
        """Return the nodes of a port's two ends; cards and accelerators are those of their host."""
        ends = port.split("->")
        return [self.number[end] if end in self.number else self.number[end.split(".")[0]] for end in ends]

    def drawn(self, wanted: Sequence[int]) -> list[list[int]]:
        """Return the nodes of each tier that are drawn: those `wanted`, and such that are joined to drawn ones."""
        chosen: dict[int, list[int]] = {}
        for level in (*range(1, len(self.tiers)), 0):
            nodes, most = self.tiers[level], MOST_DRAWN
            if len(nodes) > MOST_DRAWN:
                by_node = [
                    [node for node in self.neighbours[near] if self.tier[node] == level]
                    for near in (chosen.get(level - 1, []) if level else chosen[1])
                ]
                in_turn = (node for group in zip_longest(*by_node) for node in group if node is not None)
                order = dict.fromkeys(chain((node for node in wanted if self.tier[node] == level), in_turn, nodes))
                nodes, most = list(order), MOST_DRAWN // 2 if level else MOST_DRAWN
            chosen[level] = sorted(nodes[:most])
        return [chosen[level] for level in range(len(self.tiers))]


def topology_picture(tables: Mapping[str, Any], result: Result | None = None) -> str:
    """Return a picture of a scenario's network, and its caption; "" if the network cannot be built any more.

    result : of the scenario, to mark its busiest link.
    """
    try:
        scenario = build_scenario({key: value for key, value in tables.items() if key != "policy"}, SCENARIO_FILE)
        network, whole = build_network(scenario.topology, scenario.link, scenario.link_override), network_of(scenario)
    except (GradwireError, OSError):
        return ""
    drawing = Drawing(network)
    busiest = busiest_link(drawing, whole, result) if result else None
    inside = [f"{scenario.host.gpus} GPUs each"] if scenario.host.inside else []
    title = (
        f"{scenario.topology.kind.replace('_', '-')}: {', '.join(map(drawing.tier_name, range(len(drawing.tiers))))}"
    )
    picture = "".join(_svg(drawing, busiest.port if busiest else "", inside, title))
    caption = prose(f"{title}. {busiest.text}" if busiest else f"{title}.")
    return f'<div class="topology">{picture}<p>{caption}</p></div>'


def busiest_link(drawing: Drawing, network: Network, result: Result) -> BusiestLink | None:
    """Return the link outside of hosts that sends for the largest share of a run; None if nothing was sent."""
    shares = busy_shares(network, result)
    busy = {port: share for port, share in shares.items() if share and len(set(drawing.ends_of(port))) > 1}
    if not busy:
        return None
    port = max(busy, key=busy.__getitem__)
    return BusiestLink(port, busy[port], lost_packets(result)[port])


def _svg(drawing: Drawing, busiest: str, inside: Sequence[str], title: str) -> Iterator[str]:
    """Yield the elements of the picture."""
    ends = set(drawing.ends_of(busiest)) if busiest else set()
    rows = drawing.drawn(sorted(ends))
    arcs = [drawing.rates(level, level) for level in range(len(rows))]
    tops, y = [0] * len(rows), 0
    for level in reversed(range(len(rows))):
        y += ARCS if arcs[level] else 0
        tops[level] = y + 8
        y += TIER
    high = tops[0] + LINE * (1 + len(inside))
    place: dict[int, tuple[float, int]] = {}
    for level, nodes in enumerate(rows):
        apart = (RIGHT - LEFT) / len(nodes)
        place |= {node: (LEFT + apart * (number + 0.5), tops[level]) for number, node in enumerate(nodes)}
    yield f'<svg viewBox="0 0 {WIDTH} {high}" role="img"><title>{escape(title)}</title>'
    yield "<desc>Tiers of switches above the hosts; lines are cables, the thick one is the busiest.</desc>"
    hot = ""
    for a, b in dict.fromkeys(zip(drawing.lower.tolist(), drawing.upper.tolist(), strict=True)):
        if a in place and b in place:
            path = f'<path class="{"hot" if {a, b} == ends else "cable"}" d="{_cable(place[a], place[b])}"/>'
            hot, path = (path, "") if {a, b} == ends else (hot, path)
            yield path
    yield hot
    for node, (x, y) in place.items():
        wide, tall = (
            (7, 7) if not drawing.tier[node] else (min(30.0, (RIGHT - LEFT) / len(rows[drawing.tier[node]]) - 3), 12)
        )
        box = f'x="{x - wide / 2:.1f}" y="{y - tall / 2:.1f}" width="{wide:.1f}" height="{tall}"'
        kind = "switch" if drawing.tier[node] else "host"
        yield f'<rect class="{kind}" rx="2" {box}><title>{escape(drawing.names[node])}</title></rect>'
    for level, nodes in enumerate(rows):
        yield _text(0, tops[level] + 4, drawing.tier_name(level), "strong")
        for number, line in enumerate(inside if not level else ()):
            yield _text(0, tops[0] + 4 + LINE * (number + 1), line)
        if len(nodes) < len(drawing.tiers[level]):
            yield _text(RIGHT + 2, tops[level] + 4, "…")
        if arcs[level]:
            yield _text(0, tops[level] - ARCS / 2, _rates(arcs[level]))
        if level + 1 < len(rows):
            ratio = drawing.oversubscription(level) if level else 0.0
            middle = (tops[level] + tops[level + 1]) // 2 + (6 if ratio <= ROUNDING else -3)
            yield _text(0, middle, _rates(drawing.rates(level, level + 1)))
            if ratio > ROUNDING:
                yield _text(0, middle + LINE, f"{ratio:.3g} : 1 oversubscribed")
    yield "</svg>"


def _cable(one: tuple[float, int], other: tuple[float, int]) -> str:
    """Return the path of a cable: a line between tiers, an arc within one."""
    (x1, y1), (x2, y2) = one, other
    if y1 != y2:
        return f"M{x1:.1f} {y1}L{x2:.1f} {y2}"
    height = min(2.0 * ARCS, 14 + abs(x2 - x1) / 3) - 4
    return f"M{x1:.1f} {y1}Q{(x1 + x2) / 2:.1f} {y1 - height:.1f} {x2:.1f} {y2}"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'


def _rates(rates: dict[int, int]) -> str:
    """Return numbers of cables and their rates: both of two if there is space, else the most frequent."""
    first, *more = [f"{count:,} × {rate_text(rate)}" for rate, count in rates.items()]
    both = ", ".join([first, *more])
    return both if len(more) < 2 and len(both) <= MOST_LETTERS else first + ", ..." * bool(more)
