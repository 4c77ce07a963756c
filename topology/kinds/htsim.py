"""Declares the topology table `htsim`, and reads its fat tree from a `.topo` file of htsim.

    Nodes 1024
    Tiers 2
    Podsize 1024
    Tier 0                       edge switches: their cables down lead to hosts
    Downlink_speed_Gbps 100
    Radix_Down 32
    Radix_Up 4
    Downlink_Latency_ns 1000
    Switch_Latency_ns 0
    Oversubscribed 8
    Tier 1 ...

Names of settings are read in any case, and lines that begin with # are skipped, as in htsim
[code: fat_tree_topology.cpp]. Numbers of switches follow from the radixes; ratios of a bundle (parallel cables) and an
oversubscription must agree with them. Queue_up and Queue_down are checked and left out: [switch] has the buffers. A
switch's latency is added to its cables, half to each of the two that a packet takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.network.topology import MAX_CABLES, MAX_HOSTS, MAX_SWITCHES, CableFile
from gradwire.scenarios.units import MAX_INNER, parse_whole
from gradwire.topology.cables import Cable, LinkSpec, Override, interleave, numbered
from gradwire.topology.network import Network, assemble
from gradwire.topology.topology_file import refuse_listed, rows_of

if TYPE_CHECKING:
    pass

HEADERS = ("nodes", "tiers", "podsize")
SETTINGS = (
    "downlink_speed_gbps",
    "radix_up",
    "radix_down",
    "queue_up",
    "queue_down",
    "oversubscribed",
    "bundle",
    "switch_latency_ns",
    "downlink_latency_ns",
)
TIERS = ("edge", "agg", "core")
PS_PER_NS, BPS_PER_GBPS = 1000, 10**9
Settings = dict[str, int]


class HtsimTopology(CableFile):
    """A fat tree from a `.topo` file of htsim. Hosts are h0, h1, ..., switches edge0, agg0, core0, ... as in
    `fat_tree`; there is no `[link]`."""

    kind: Literal["htsim"]
    file: Annotated[str, Field(min_length=1)]
    """Relative to the scenario file. `Queue_up` and `Queue_down` in it are left out: `[switch]` has the buffers."""

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        return read_htsim(self.file, overrides=overrides)


def read_htsim(path: str | Path, *, overrides: Iterable[Override] = ()) -> Network:
    """Read a `.topo` file: hosts pod by pod, edge switches, aggregation switches (three tiers), core switches.

    With two tiers every edge switch is joined to every switch above. With three, the switches of a pod are joined, and
    aggregation switch j of every pod to the cores j, j + A, j + 2 A, ..., where a pod has A of them [code].

    Raises
    ------
    ScenarioError
        With all errors, each with its line: unknown or repeated settings, missing ones, and numbers that do not agree.
    """
    return read_tiers(path).network(overrides)


def read_tiers(path: str | Path) -> TopoReader:
    """Read the settings of a `.topo` file. Raises ScenarioError for unknown, repeated or missing ones."""
    reader = TopoReader(Path(path))
    reader.read()
    return reader


class TopoReader:
    """A parser of one file; `tiers` holds the settings of each tier by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[Mistake] = []
        self.header: Settings = {}
        self.tiers: dict[int, Settings] = {}

    def read(self) -> None:
        tier = -1
        for line, words in rows_of(self.path, "a .topo file of htsim"):
            name, number = words[0].lower(), parse_whole(words[1]) if len(words) > 1 else None
            if number is None or len(words) > 2 or number >= MAX_INNER // BPS_PER_GBPS:
                self.wrong(line, "is not a setting and a number", " ".join(words), "such as: Radix_Down 32")
            elif name == "tier":
                tier = number
                if tier > 2 or tier in self.tiers:
                    self.wrong(line, "is not a new tier", number, "0, 1 and 2, each once")
                self.tiers.setdefault(tier, {})
            elif name in (HEADERS if tier < 0 else SETTINGS):
                settings = self.header if tier < 0 else self.tiers[tier]
                if name in settings:
                    self.wrong(line, f"repeats {words[0]}", number, "each setting once in a tier")
                settings[name] = number
            else:
                self.wrong(line, "is not a setting", words[0], ", ".join(HEADERS if tier < 0 else SETTINGS))
        for name in HEADERS:
            if self.header.get(name, 0) < 1:
                self.wrong(0, f"has no {name}", self.header.get(name), f"{name} 1 or more, before the first tier")
        self.refuse()
        self._check_tiers()

    def _check_tiers(self) -> None:
        count = self.header["tiers"]
        if count not in (2, 3):
            self.wrong(0, "is not a number of tiers", count, "2 or 3")
        elif sorted(self.tiers) != list(range(count)):
            self.wrong(0, "describes the tiers", ", ".join(map(str, sorted(self.tiers))), f"0 to {count - 1}")
        self.refuse()
        for tier, settings in self.tiers.items():
            needed = ("downlink_speed_gbps", "radix_down", *(("radix_up",) if tier < count - 1 else ()))
            for name in needed:
                if settings.get(name, 0) < 1:
                    self.wrong(0, f"tier {tier} has no {name}", settings.get(name), "1 or more")
            if settings.setdefault("bundle", 1) < 1 or settings.setdefault("oversubscribed", 1) < 1:
                self.wrong(0, f"tier {tier} has a bundle or an oversubscription of 0", None, "1 or more")
        self.refuse()

    def network(self, overrides: Iterable[Override]) -> Network:
        """Return the network of the settings, after checks of their numbers."""
        edge, upper, hosts, pod = self.tiers[0], self.tiers[1], self.header["nodes"], self.header["podsize"]
        core = self.tiers.get(2)
        self.divides(hosts, pod, "nodes", "podsize")
        self.divides(pod, edge["radix_down"], "podsize", "radix_down of tier 0")
        self.divides(edge["radix_up"], upper["bundle"], "radix_up of tier 0", "bundle of tier 1")
        self.refuse()
        pods, edges = hosts // pod, hosts // edge["radix_down"]
        down, up = edge["radix_down"] * edge["downlink_speed_gbps"], edge["radix_up"] * upper["downlink_speed_gbps"]
        self.agrees(down, up * edge["oversubscribed"], "tier 0", "oversubscribed")
        self.divides(edges * edge["radix_up"], pods * upper["radix_down"], "uplinks of tier 0", "radix_down of tier 1")
        self.refuse()
        aggs = edges * edge["radix_up"] // upper["radix_down"]
        joined = aggs // pods if core else aggs
        if joined * upper["bundle"] != edge["radix_up"]:
            what = f"{joined} switches of tier 1 above a switch of tier 0, bundles of {upper['bundle']}"
            self.wrong(0, f"has {what}", edge["radix_up"], "radix_up of tier 0 equal to their product")
        cores = self._cores(upper, core, aggs, pods) if core else 0
        self.refuse()
        if (
            hosts > MAX_HOSTS
            or edges + aggs + cores > MAX_SWITCHES
            or 2 * hosts + edges * edge["radix_up"] > MAX_CABLES
        ):
            self.wrong(
                0, "is too large", f"{hosts} hosts, {edges + aggs + cores} switches", f"at most {MAX_HOSTS} hosts"
            )
            self.refuse()
        first_edge, first_agg, first_core = hosts, hosts + edges, hosts + edges + aggs
        cables = [Cable(host, first_edge + host // edge["radix_down"], *self.link(0)) for host in range(hosts)]
        per_pod, per_pod_edges = joined, edges // pods
        for number in range(edges):
            first = number // per_pod_edges * per_pod if core else 0
            above = (agg for agg in range(first, first + per_pod) for _ in range(upper["bundle"]))
            cables += [Cable(first_edge + number, first_agg + agg, *self.link(1)) for agg in above]
        if core:
            for agg in range(aggs):
                for index in range(upper["radix_up"] // core["bundle"]):
                    top = first_core + agg % per_pod + per_pod * index
                    cables += [Cable(first_agg + agg, top, *self.link(2))] * core["bundle"]
        names = [*numbered("edge", edges), *numbered("agg" if core else "core", aggs), *numbered("core", cores)]
        order = self._order(pods, hosts, edges, aggs, cores, bool(core))
        return assemble(
            numbered("h", hosts), names, cables, title="htsim", where=self.path.name, order=order, overrides=overrides
        )

    def _cores(self, upper: Settings, core: Settings, aggs: int, pods: int) -> int:
        down, up = upper["radix_down"] * upper["downlink_speed_gbps"], upper["radix_up"] * core["downlink_speed_gbps"]
        self.agrees(down, up * upper["oversubscribed"], "tier 1", "oversubscribed")
        self.divides(upper["radix_up"], core["bundle"], "radix_up of tier 1", "bundle of tier 2")
        self.divides(aggs * upper["radix_up"], core["radix_down"], "uplinks of tier 1", "radix_down of tier 2")
        self.refuse()
        cores = aggs * upper["radix_up"] // core["radix_down"]
        if aggs // pods * (upper["radix_up"] // core["bundle"]) != cores:
            what = f"has {cores} switches of tier 2, and {aggs // pods} of tier 1 in a pod"
            self.wrong(0, what, upper["radix_up"], "a radix_up of tier 1 that reaches each once, in bundles")
        return cores

    def link(self, tier: int) -> tuple[int, int, float]:
        """Return rate, latency and loss of the cables below a tier's switches."""
        settings = self.tiers[tier]
        halves = settings.get("switch_latency_ns", 0)
        halves += self.tiers[tier - 1].get("switch_latency_ns", 0) if tier else 0
        latency = settings.get("downlink_latency_ns", 0) * PS_PER_NS + halves * PS_PER_NS // 2
        return settings["downlink_speed_gbps"] * BPS_PER_GBPS, latency, 0.0

    def _order(self, pods: int, hosts: int, edges: int, aggs: int, cores: int, has_core: bool) -> list[int]:
        """Return the locality order: racks with their edge switch, pods with their aggregation switches."""
        rack, per_pod = hosts // edges, edges // pods
        groups = []
        for pod in range(pods):
            nodes = []
            for edge in range(pod * per_pod, (pod + 1) * per_pod):
                nodes += [*range(edge * rack, (edge + 1) * rack), hosts + edge]
            groups.append([*nodes, *self._own(pod, aggs // pods if has_core else 0, hosts + edges)])
        first = hosts + edges
        return interleave(groups, range(first + aggs, first + aggs + cores) if has_core else range(first, first + aggs))

    def _own(self, pod: int, count: int, first: int) -> range:
        return range(first + pod * count, first + (pod + 1) * count)

    def divides(self, whole: int, part: int, what: str, by: str) -> None:
        if whole % part:
            self.wrong(0, f"{what} is not a multiple of {by}", f"{whole} and {part}", "whole numbers of switches")

    def agrees(self, down: int, up: int, tier: str, name: str) -> None:
        if down != up:
            expected = f"equal to {name} times the rate up"
            self.wrong(0, f"{tier} has {down} Gbit/s down", f"{up} Gbit/s", expected)

    def wrong(self, line: int, what: str, value: object = None, expected: str = "") -> None:
        where = f"{self.path.name}: line {line}" if line else self.path.name
        self.mistakes.append(Mistake(where, what, value, expected))

    def refuse(self) -> None:
        refuse_listed(self.mistakes, self.path.name)
        if not self.header and not self.tiers:
            raise ScenarioError("is empty", where=str(self.path), expected="a .topo file of htsim")
