"""Draws whole scenarios of every kind at random, small enough to be simulated packet by packet.

The engine is compiled for a combination of transports, load balancer and switch features, and that takes seconds. So a
`Combination` is drawn first, and many scenarios of it; within it everything else varies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import _drop, build_scenario
from gradwire.scenarios.loading.overrides import path_steps
from gradwire.scenarios.loading.registry import component, components
from gradwire.topology import Network, build_network, network_of
from tests.soak.scenario_files import graphs_trace, small_trace, write_files
from tests.soak.schema import ABSENT, SCHEMA, Drawer

TRANSPORTS = tuple(kind for kind, each in components("transport").items() if each.simulated)
TOPOLOGIES, TRAFFIC, FAULTS = (tuple(components(place)) for place in ("topology", "traffic", "fault"))
GROUPED = ("ring", "halving_doubling", "transpose", "sharded", "reduce_scatter")
COLLECTIVES = tuple(kind for kind in components("exchange") if kind != "parameter_server")
SCHEDULERS = tuple(components("scheduler"))
STILL = tuple(kind for kind, each in components("fault").items() if each.cuts or each.stops)
"""These need an engine that can do it."""


def model(place: str, kind: str) -> str:
    """What the schema calls the table of a component: where two have the same name, their modules stand before it."""
    owner = components(place)[kind]
    name = owner.__name__
    return name if name in SCHEMA["$defs"] else f"{owner.__module__.replace('.', '__')}__{name}"


FEATURES = {
    "shared_buffer": 0.25, "buffer_share": 0.15, "drr_quantum": 0.25, "trim_threshold": 0.2, "pfc": 0.25, "shortest_first": 0.1,
    "ecn_ceiling": 0.2, "aggregation_slots": 0.25,
}  # fmt: skip


@dataclass(frozen=True)
class Combination:
    """What an engine is compiled for."""

    transports: tuple[str, ...]
    balancing: str
    features: frozenset[str]
    faults: bool
    delays: bool


COMMON = Combination(("dctcp",), "ecmp", frozenset(), False, False)


def combination(rng: Random) -> Combination:
    """One at random; those that need something of switches get it most of the time."""
    kinds = tuple(rng.choice(TRANSPORTS) for _ in range(rng.choice((1, 1, 2, 3))))
    features = {name for name, odds in FEATURES.items() if rng.random() < odds}
    if rng.random() < 0.5:
        features -= {"trim_threshold", "shortest_first"}
    if kinds[0] == "pfabric":
        kinds, features = ("pfabric",) * len(kinds), {"shortest_first"}
    elif kinds[0] in ("ndp", "nscc"):
        kinds = tuple(rng.choice(("ndp", "nscc")) for _ in kinds)
        features = (features | {"trim_threshold"}) - {"pfc", "shortest_first"}
    else:
        kinds = tuple("dlcp" if kind in ("ndp", "nscc", "pfabric") else kind for kind in kinds)
        features -= {"trim_threshold", "shortest_first"}
    if "pfc" in features:
        features -= {"trim_threshold", "shortest_first"}
    return Combination(
        kinds,
        rng.choice(list(components("load_balancing"))),
        frozenset(features),
        rng.random() < 0.3,
        rng.random() < 0.2,
    )


class Scenarios:
    """Scenarios of a combination, with the files that they name in `folder`.

    `odd`: the share of values from the edges of what may be written, or beyond.
    """

    def __init__(self, folder: Path, combination: Combination) -> None:
        self.folder, self.combination = folder, combination
        if not (folder / "trace0").exists():
            for number in range(3):
                small_trace(number).save(folder / f"trace{number}")
            graphs_trace().save(folder / "ranks")
            write_files(folder)

    def tables(self, seed: int, odd: float = 0.0) -> dict[str, Any]:
        """One scenario, as `tomllib` would return it."""
        rng = Random(seed)
        draw = Drawer(rng, odd, rng.choice((0.1, 0.3, 0.6)))
        wanted = self.combination
        host = draw.table("HostTable", {"gpus": rng.choice((ABSENT, ABSENT, 1, 2, 2, 3, 4))})
        topology, link, network = self._network(rng, draw, host)
        transports = [self._transport(draw, kind) for kind in wanted.transports]
        tables: dict[str, Any] = {
            "name": "soak", "seed": rng.choice((0, 1, 7, 2**40 + 3)), "topology": topology, "transport": transports[0],
            "load_balancing": wanted.balancing, "switch": self._switch(rng, draw, transports),
        }  # fmt: skip
        if link is not ABSENT:
            tables["link"] = link
        hosts = len(network.cards.hosts) if network else 4
        jobs = rng.choice((0, 0, 1, 1, 2)) if hosts > 5 else rng.choice((0, 1))
        others = max(rng.choice((0, 1, 1, 2)), len(transports) - jobs, 1 - jobs)
        carriers = [transports[i] if i < len(transports) else rng.choice(transports) for i in range(jobs + others)]
        tables["job"] = [self._job(rng, draw, network, n, carriers[n]) for n in range(jobs)]
        tables["traffic"] = [self._traffic(rng, draw, network, n, carriers[jobs + n]) for n in range(others)]
        if wanted.faults:
            kinds = [rng.choice(STILL), *(rng.choice(FAULTS) for _ in range(rng.choice((0, 0, 1, 2))))]
        else:
            kinds = [rng.choice(("link_degraded", "gray_loss", "host_slow")) for _ in range(rng.choice((0, 0, 0, 1)))]
        tables["fault"] = [self._fault(rng, draw, network, kind) for kind in kinds]
        if rng.random() < 0.3:
            tables["link_override"] = [self._override(rng, draw, network) for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.15:
            tables["duration"] = draw.value("duration", {})
        tables["host"] = host
        pins = {
            "delays": wanted.delays, "packet_log": rng.choice((ABSENT, False)),
            "sample_ports": ABSENT,
        }  # fmt: skip
        if rng.random() < 0.1:
            names = [table["name"] for table in (*tables["job"], *tables["traffic"]) if "name" in table]
            pins["packet_log"] = rng.choice((True, names))
        if network and rng.random() < 0.1:
            pins |= {"sample_ports": [rng.choice(network.names)], "queue_samples": "7us"}
        tables["output"] = draw.table("Output", pins)
        if not odd:
            return self._settled(tables)
        if rng.random() < odd:
            tables["policy"] = [draw.table("Policy", {"set": {"link": draw.table("Link")}})]
        for field, what in SCHEMA["properties"].items():  # all that has no place above, such as [emulation]
            if field not in tables and field != "policy" and rng.random() < odd:
                tables[field] = draw.value(field, what)
        return tables

    def _settled(self, tables: dict[str, Any]) -> dict[str, Any]:
        """The same without the fields that do not fit the others."""
        for _ in range(6):
            try:
                build_scenario(tables)
            except ScenarioError as error:
                for mistake in error.mistakes:
                    _drop(tables, path_steps(mistake.path))
            else:
                break
        return tables

    def _network(self, rng: Random, draw: Drawer, host: dict[str, Any]) -> tuple[dict[str, Any], Any, Network | None]:
        """Topology, links, and the network of both if they make one."""
        for _ in range(50):
            kind = rng.choice(TOPOLOGIES)
            pins: dict[str, Any] = {}
            if kind in ("graph", "hpcc", "htsim"):
                ending = {"graph": "graphml", "hpcc": "txt", "htsim": "topo"}[kind]
                pins["file"] = f"{kind}{rng.randrange(3)}.{ending}"
            if kind == "graph":
                pins["hosts_per_switch"] = rng.choice((ABSENT, 1, 2))
                if pins["hosts_per_switch"] is not ABSENT:
                    pins["file"] = "switches.graphml"
            if kind == "leaf_spine" and rng.random() < 0.1:
                pins["hosts_per_leaf"] = 1
            if kind == "rail":
                if rng.random() < 0.2:
                    pins["hosts_per_group"] = 1
                if rng.random() < 0.2:
                    pins["spines"] = 0
            topology = draw.table(model("topology", kind), pins)
            link = draw.table("Link") if kind not in ("hpcc", "htsim") and rng.random() < 0.8 else ABSENT
            tables = {"name": "n", "topology": topology, "host": host, "link": {} if link is ABSENT else link, "traffic": [
                {"name": "t", "kind": "permutation", "size": "1kB"}]}  # fmt: skip
            if link is ABSENT:
                del tables["link"]
            try:
                scenario = build_scenario(tables).at(self.folder)
                network, self._cabled = network_of(scenario), build_network(scenario.topology, scenario.link)
            except ScenarioError:
                if draw.odd and rng.random() < 0.3:
                    return topology, link, None
                continue
            if len(network.cards.hosts) <= 16 and network.link_count <= 160:
                return topology, link, network
        host.pop("gpus", None)
        return {"kind": "star", "hosts": 4}, ABSENT, None

    def _transport(self, draw: Drawer, kind: str) -> dict[str, Any]:
        table = draw.table(model("transport", kind), {"kind": kind})
        ticks = table.get("timers", "ticks" if table.get("preset") == "linux" else "exact") == "ticks"
        if ticks and not draw.odd and "min_rto" in table:
            table["min_rto"] = draw.rng.choice(("2ms", "5ms"))
        return table

    def _switch(self, rng: Random, draw: Drawer, transports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        wanted = self.combination.features
        off = {"pfc": False, "shortest_first": False, "aggregation_slots": 0}
        pins: dict[str, Any] = {
            name: off[name] if name in off and rng.random() < 0.3 else ABSENT for name in FEATURES if name not in wanted
        }
        pins |= {name: True for name in ("pfc", "shortest_first") if name in wanted}
        for name in (
            "shared_buffer",
            "buffer_share",
            "drr_quantum",
            "trim_threshold",
            "ecn_ceiling",
            "aggregation_slots",
        ):
            if name in wanted:
                pins[name] = draw.value(name, SCHEMA["$defs"]["Switch"]["properties"][name])
        if "ecn_ceiling" in wanted:
            pins["ecn_threshold"] = rng.choice(("60B", "3kB", "9100B"))
        if "trim_threshold" in wanted:
            pins["buffer"] = "60kB"
            for transport in transports:
                transport.setdefault("payload", "1460B")
        table = draw.table("Switch", pins | {"override": ABSENT})
        if rng.random() < 0.3:
            table["override"] = self._overrides(rng, draw, table)
        if not draw.odd and "pfc_classes" in table:
            table["pfc_classes"] = [each for each in table["pfc_classes"] if each < table.get("queues", 8)] or [0]
        if not draw.odd and "path_entropies" in table:
            if component("load_balancing", self.combination.balancing).numbers_paths:
                table["path_entropies"] = rng.choice((1, 4, 64, 128))
        return table

    def _overrides(self, rng: Random, draw: Drawer, switch: dict[str, Any]) -> list[dict[str, Any]]:
        """Settings of some ports, among those that the switch has."""
        keys = [key for key in ("ecn_threshold", "ecn_ceiling", "trim_threshold") if key in switch]
        if not {"shared_buffer", "buffer_share"} & switch.keys():
            keys.append("buffer")
        overrides = []
        for _ in range(rng.choice((1, 1, 2))):
            changes = {key: draw.value(key, {}) for key in keys if rng.random() < 0.5}
            if "buffer" in changes and "trim_threshold" in switch and not draw.odd:
                changes["buffer"] = "60kB"
            if rng.random() < 0.2:
                changes = {"ecn": False} | {key: changes[key] for key in ("buffer", "trim_threshold") if key in changes}
            elif changes and rng.random() < 0.3:
                changes["ecn"] = True
            if changes or draw.odd:
                overrides.append({"ports": draw.value("ports", {}), **changes})
        return overrides

    def _job(self, rng: Random, draw: Drawer, network: Network | None, number: int, carrier: Any) -> dict[str, Any]:
        hosts = len(network.cards.hosts) // (1 + number) if network else 4
        ring = rng.random() < 0.6 and hosts > 1
        kind = rng.choice(COLLECTIVES if ring else ("parameter_server",))
        workers = rng.choice((2, 2, 3, 4)) if hosts > 5 else min(2, hosts - 1 + ring)
        inner: dict[str, Any] = {"kind": kind}
        gpus = network.cards.per_machine if network else 1
        if kind == "hierarchical" or (kind in ("fsdp", "sharded") and rng.random() < 0.3):
            workers = 4 if hosts > 3 else workers
            if kind == "hierarchical":
                inner["group"] = 2 if gpus != 2 or rng.random() < 0.5 else ABSENT
            elif gpus > 1:
                workers = max(workers // gpus, 2) * gpus if hosts >= 2 * gpus else workers
                inner["algorithm"] = "hierarchical"
        exchange = draw.table(model("exchange", kind), inner)
        pins: dict[str, Any] = {
            "name": f"job{number}", "trace": f"./trace{rng.randrange(3)}", "transport": carrier,
            "workers": workers,
            "servers": 0 if ring else rng.choice((1, 1, 2)) if hosts > 6 else 1,
            "exchange": exchange,
        }  # fmt: skip
        if rng.random() < 0.4:
            pins |= {
                "scheduler": self._scheduler(rng, draw, ring, exchange),
                "order": ABSENT,
                "credit": ABSENT,
                "credit_per": ABSENT,
            }
        else:
            pins["scheduler"] = ABSENT
        names = list(network.cards.hosts) if network else ["h0", "h1", "h2"]
        chosen = rng.random()
        if chosen < 0.2 and len(names) >= pins["workers"] + pins["servers"]:
            places = rng.sample(names, pins["workers"] + pins["servers"])
            pins["placement"] = {"workers": places[: pins["workers"]], "servers": places[pins["workers"] :]}
        else:
            pins["placement"] = rng.choice(("packed", "spread", "random", "rails"))
        lossy = carrier["kind"] in ("dlcp", "ltp", "constant_rate")
        if kind in ("overlapped", "graph"):  # all of what it sends arrives, in an order of its own
            lossy, pins["accumulate"], pins["scheduler"] = False, ABSENT, ABSENT
        if kind == "graph":
            pins |= {"trace": "./ranks", "workers": 2, "order": ABSENT, "tagging": ABSENT}
            pins["placement"] = "packed"
        pins["parallel"] = ABSENT
        scheduler = pins["scheduler"]
        if kind in GROUPED and pins["trace"] != "./trace0" and rng.random() < 0.3:
            sizes = {
                "tensor": rng.choice((1, 2)),
                "context": rng.choice((1, 1, 2)),
                "expert": rng.choice((1, 2)),
                "algorithm": rng.choice(("ring", "all_to_all", "halving")),
            }
            if rng.random() < 0.3:
                sizes["pipeline"] = 1
            pins |= {"parallel": sizes, "order": ABSENT}
            if scheduler is not ABSENT and components("scheduler")[scheduler["kind"]].holds_back:
                pins["scheduler"] = ABSENT
        for bound in ("push_bound", "pull_bound"):
            pins[bound] = self._bound(rng, draw, int(pins["trace"][-1])) if lossy and kind != "graph" else ABSENT
        if draw.odd:
            for field in [field for field in pins if rng.random() < draw.odd and field != "transport"]:
                del pins[field]
        return draw.table("Job", pins)

    def _bound(self, rng: Random, draw: Drawer, trace: int) -> Any:
        """A bound on loss: a share, or a table of one rule for the layers of small trace `trace`."""
        shares = (0.0, 0.1, 0.29, 1.0)
        rule = rng.choice(("number", "number", "share", "layers", "front"))
        if rule == "number":
            return rng.choice(shares)
        pins: dict[str, Any] = dict.fromkeys(("share", "layers", "front", "back", "critical"), ABSENT)
        if rule == "layers":
            pins["layers"] = [rng.choice(shares) for _ in range(1 + 2 * trace)]
        elif rule == "share":
            pins["share"] = rng.choice(shares)
        else:
            pins |= {"front": rng.choice(shares), "back": rng.choice(shares)}
        if rng.random() < 0.4:
            pins["critical"] = rng.choice((0.0, 0.1))
        return draw.table("Bound", pins)

    def _scheduler(self, rng: Random, draw: Drawer, ring: bool, exchange: dict[str, Any]) -> dict[str, Any]:
        """One that the exchange can have; what forward waits for, and sizes, are then its own."""
        kind = rng.choice([each for each in SCHEDULERS if each != ("tictac" if ring else "ddp")])
        for key in ("forward", "pull", *(("bucket", "partition") if components("scheduler")[kind].unit_key else ())):
            exchange.pop(key, None)
        return draw.table(model("scheduler", kind), {"kind": kind})

    def _traffic(self, rng: Random, draw: Drawer, network: Network | None, number: int, carrier: Any) -> dict[str, Any]:
        kind = rng.choice(TRAFFIC)
        names = list(network.cards.hosts) if network else ["h0", "h1", "h2"]
        pins: dict[str, Any] = {"name": f"traffic{number}", "kind": kind, "transport": carrier}
        few = rng.sample(names, min(len(names), rng.choice((2, 3, 4))))
        pins["hosts"] = few if rng.random() < 0.4 and len(few) > 1 else rng.choice((ABSENT, "all"))
        if kind == "storage":
            pins["storage"] = rng.sample(names, rng.randint(1, max(1, min(3, len(names) - 1))))
            pins["hosts"] = (
                ABSENT
                if rng.random() < 0.5
                else rng.choice(("all", [name for name in names if name not in pins["storage"]]))
            )
        if kind == "poisson":
            pins["flows"] = rng.choice((1, 3, 12))
            pins["sizes"] = rng.choice(("100B", "5kB", "20kB", "sizes.txt"))
        elif kind in ("flows", "matrix"):
            pins["file"] = f"{kind}{rng.randrange(3)}.txt"
            if kind == "matrix":
                pins["start_unit"] = rng.choice(("ps", "us"))
                if pins["start_unit"] == "us":
                    pins["file"] = "matrix-us.txt"
        else:
            pins["rounds"] = rng.choice((ABSENT, 1, 2))
            pins["period"] = rng.choice(("1us", "77us")) if pins["rounds"] == 2 else ABSENT
            if kind == "incast":
                pins["receiver"] = rng.choice(names) if rng.random() < 0.4 else ABSENT
                pins["fan_in"] = rng.randint(1, max(1, min(4, (len(few) if pins["hosts"] is few else len(names)) - 1)))
        lossy = carrier["kind"] in ("dlcp", "ltp", "constant_rate")
        pins["bound"] = rng.choice((0.0, 0.1, 0.29, 1.0)) if lossy else ABSENT
        if draw.odd:
            for field in [field for field in pins if rng.random() < draw.odd and field not in ("transport", "flows")]:
                del pins[field]
        return draw.table(model("traffic", kind), pins)

    def _fault(self, rng: Random, draw: Drawer, network: Network | None, kind: str) -> dict[str, Any]:
        pins: dict[str, Any] = {"kind": kind}
        if network is not None and rng.random() >= draw.odd:
            pins["between"] = self._cable(rng, network)
            pins["host"] = rng.choice(network.cards.hosts)
            pins["switch"] = rng.choice(network.names[network.host_count :])
        if kind == "link_degraded":
            pins["rate"] = rng.choice(("1Gbps", "100Mbps"))
        if rng.random() < 0.97:  # what never ends may stall a run, which takes long to be found
            pins["until"] = rng.choice(("60us", "100us", "3ms"))
        return draw.table(model("fault", kind), pins)

    def _override(self, rng: Random, draw: Drawer, network: Network | None) -> dict[str, Any]:
        pins: dict[str, Any] = {"rate": rng.choice(("1Gbps", "10Gbps", "400Gbps"))}
        if network is not None:  # accelerators' own cables have keys of their own
            pins["between"] = self._cable(rng, self._cabled)
        return draw.table("LinkOverride", pins)

    def _cable(self, rng: Random, network: Network) -> list[str]:
        link = rng.randrange(network.link_count)
        return [network.names[int(network.link_src[link])], network.names[int(network.link_dst[link])]]


def accepted(first: int = 0) -> Iterator[dict[str, Any]]:
    """Valid scenarios without end, each of another combination."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in count(first):
            tables = Scenarios(Path(folder), combination(Random(seed))).tables(seed)
            try:
                build_scenario(tables)
            except ScenarioError:
                continue
            yield tables
