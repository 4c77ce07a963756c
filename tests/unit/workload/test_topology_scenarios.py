"""Topologies as a scenario names them: the table, what `gradwire check` says about it, and the engine on every kind."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from transport_bench import Flow, play

from gradwire.jit.records.constants import MAX_HOSTS as ENGINE_HOSTS
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.schema.network.topology import MAX_HOSTS
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import frame_bytes, serialisation_ps
from gradwire.sim.preparation import check_variants
from gradwire.testing import transport
from gradwire.topology import Network, build_network
from gradwire.topology.routing import build_routing

JOB = {"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}
GBPS, US = 10**9, 10**6


def scenario(topology: dict[str, Any], **fields: Any) -> Scenario:
    return build_scenario({"name": "x", "topology": topology, "job": [JOB], **fields})


def built(topology: dict[str, Any], **fields: Any) -> Network:
    made = scenario(topology, **fields)
    return build_network(made.topology, made.link, made.link_override)


KINDS = [
    ({"kind": "star", "hosts": 3}, 3),
    ({"kind": "dumbbell", "left": 3}, 6),
    ({"kind": "dumbbell", "left": 3, "right": 1, "bottleneck_rate": "10Gbps", "bottleneck_latency": "5us"}, 4),
    ({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2, "uplink_latency": "3us"}, 6),
    ({"kind": "rail", "hosts": 3, "cards": 2, "spines": 0}, 3),
    (
        {
            "kind": "rail",
            "hosts": 7,
            "cards": 3,
            "hosts_per_group": 4,
            "spines": 2,
            "uplink_rate": "200Gbps",
            "uplink_latency": "3us",
        },
        7,
    ),
    ({"kind": "fat_tree", "k": 4}, 16),
    ({"kind": "fat_tree", "k": 8, "oversubscription": 3, "core_rate": "400Gbps", "core_latency": "4us"}, 192),
    ({"kind": "fat_tree", "k": 4, "tiers": 2, "uplink_rate": "200Gbps"}, 8),
    ({"kind": "dragonfly", "p": 2}, 72),
    ({"kind": "dragonfly", "p": 1, "a": 3, "h": 2, "groups": 4, "global_latency": "2us", "local_rate": "1Tbps"}, 12),
    ({"kind": "torus", "dims": [4, 4]}, 16),
    ({"kind": "torus", "dims": [2, 3, 4], "hosts_per_switch": 2, "switch_rate": "400Gbps"}, 48),
]


@pytest.mark.parametrize(("topology", "hosts"), KINDS)
def test_topology_table_predicts_hosts_and_cables_of_the_built_network(topology, hosts):
    link = {"rate": "100Gbps", "latency": "1us"}
    network = built(topology, link=link)
    table = scenario(topology, link=link).topology
    assert table.host_count == len(network.cards.hosts) == hosts and table.card_count == network.host_count
    assert network.cards.hosts == tuple(f"h{host}" for host in range(hosts))
    cables = {*table.cables(100 * GBPS, US), (100 * GBPS, US)}
    assert set(zip(network.link_rate.tolist(), network.link_latency.tolist(), strict=True)) == cables


@pytest.mark.parametrize(("topology", "hosts"), KINDS)
def test_written_topology_table_has_the_original_keys_and_hosts(topology, hosts):
    written = scenario(topology).as_written()["topology"]
    assert len(built(written).cards.hosts) == hosts
    assert set(written) == set(topology)


def test_topology_page_lists_every_kind_and_its_examples_load():
    text = (Path(__file__).parents[3] / "docs" / "topologies.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) >= set(components("topology"))
    examples = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    assert len(examples) == 5
    tree = scenario(**examples[0])
    assert tree.topology.host_count == 1536
    made = scenario(examples[0]["topology"], link_override=examples[1]["link_override"])
    network = build_network(made.topology, made.link, made.link_override)
    assert network.switch_count == 16 * 8 + 16 * 4 + 4 * 8
    assert (network.link_rate == 10 * GBPS).sum() == 2
    pod = scenario(**examples[2]).topology
    assert (pod.host_count, pod.card_count) == (128, 1024)
    assert all(scenario(example["topology"]).topology.host_count is None for example in examples[3:])
    rows = re.findall(r"^\| (\d) \| (\d+), (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for p, a, h, hosts, switches, groups in (map(int, row) for row in rows):
        table = scenario({"kind": "dragonfly", "p": p}).topology
        assert table.shape == (a, h, groups) and table.host_count == hosts == p * switches


def test_cases_cover_every_topology_kind():
    assert {topology["kind"] for topology, _ in KINDS} | {"graph", "hpcc", "htsim"} == set(components("topology"))


@pytest.mark.parametrize(("topology", "hosts"), KINDS)
def test_packet_time_is_the_sum_of_latency_and_transmission_per_cable(topology, hosts):
    """The packet travels from the first host to the last."""
    network = built(topology)
    last = network.cards.node(hosts - 1, 0)
    path = next(build_routing(network).paths(0, last))
    outcome = play(network, [Flow(0, last, 1000)], transport("dctcp"))
    size = frame_bytes(1000, transport("dctcp").overhead)
    rates, latencies = network.link_rate[list(path)], network.link_latency[list(path)]
    assert outcome.ends == [int(sum(latencies)) + sum(serialisation_ps(size, int(rate)) for rate in rates)]
    assert outcome.sent == [1]


@pytest.mark.parametrize("topology", [topology for topology, hosts in KINDS if hosts > 5])
@pytest.mark.parametrize("balancing", ["ecmp", "spray_random"])
def test_hosts_exchange_messages_without_loss_on_every_topology(topology, balancing):
    """Each card i sends to card i + n for two n at once, also across rails."""
    network = built(topology)
    cards = network.host_count
    flows = [Flow(h, (h + n) % cards, 20_000, at=n) for n in (1, cards // 2) for h in range(cards)]
    outcome = play(network, flows, transport("dctcp"), buffer=1 << 20, threshold=1 << 19, balancing=balancing)
    assert outcome.lost == [0] * len(flows)


def test_schema_and_engine_have_the_same_maximum_host_count():
    assert MAX_HOSTS == ENGINE_HOSTS


@pytest.mark.parametrize(
    ("topology", "fields", "says"),
    [
        ({"kind": "dumbbell"}, {}, "topology.left: is missing"),
        ({"kind": "dumbbell", "left": 0}, {}, "topology.left: is out of range (got 0)"),
        ({"kind": "dumbbell", "left": 1, "bottleneck_rate": 10}, {}, "topology.bottleneck_rate: has no unit"),
        ({"kind": "fat_tree", "k": 8, "tiers": 4}, {}, "topology.tiers: is unknown (got 4); expected 2 or 3"),
        ({"kind": "fat_tree", "k": 8, "oversubscription": 2}, {}, "one of 0.1429, 0.3333, 0.6, 1, 1.667, 3, 7"),
        ({"kind": "fat_tree", "k": 8, "tiers": 2, "core_rate": "1Gbps"}, {}, "topology.core_rate: needs aggregation"),
        ({"kind": "rail", "hosts": 4, "cards": 0, "spines": 1}, {}, "topology.cards: is out of range (got 0)"),
        (
            {"kind": "rail", "hosts": 4, "cards": 2, "spines": 0, "hosts_per_group": 2},
            {},
            "topology.spines: is zero, but the groups have to be joined (got 0)",
        ),
        (
            {"kind": "rail", "hosts": 40_000, "cards": 8, "spines": 1},
            {},
            "topology: has 320000 network cards; expected at most 262144",
        ),
        ({"kind": "fat_tree", "k": 128}, {}, "topology: has 524288 hosts; expected at most 262144"),
        ({"kind": "dragonfly", "p": 2, "groups": 10}, {}, "topology.groups: is more than 4 switches with 2"),
        ({"kind": "dragonfly", "p": 2, "groups": 1}, {}, "topology.groups: is out of range (got 1)"),
        ({"kind": "dragonfly", "p": 40}, {}, "at most 262144"),
        ({"kind": "torus", "dims": [4]}, {}, "topology.dims: is too short"),
        ({"kind": "torus", "dims": [4, 1]}, {}, "topology.dims[1]: is out of range (got 1)"),
        ({"kind": "torus", "dims": [2, 2, 2, 2]}, {}, "topology.dims: is too long"),
        ({"kind": "torus", "dims": 4}, {}, "topology.dims: is of the wrong type"),
        ({"kind": "torus", "dims": [600, 600]}, {}, "topology: has 360000 hosts"),
        ({"kind": "donut", "dims": [3, 3]}, {}, "topology.kind: is unknown"),
        ({"kind": "torus", "dims": [2, 2], "spines": 4}, {}, "topology.spines: unknown key"),
        ({"kind": "hpcc", "file": "t.txt"}, {"link": {"rate": "1Gbps"}}, "link: would have no effect"),
        (
            {"kind": "torus", "dims": [2, 2], "switch_latency": "5us"},
            {"host": {"software_latency": "500ns"}},
            "host.software_latency: is below the latency",
        ),
    ],
)
def test_invalid_topology_table_gives_one_mistake_at_load(topology, fields, says):
    with pytest.raises(ScenarioError) as error:
        scenario(topology, **fields)
    assert says in str(error.value)
    assert len(error.value.mistakes) == 1


def test_fastest_tier_sets_the_minimum_software_latency():
    """A local latency of 100 ns permits a software latency of 200 ns; 1 us on all cables does not."""
    fast = {"kind": "dragonfly", "p": 1, "local_latency": "100ns"}
    scenario(fast, host={"software_latency": "200ns"})
    with pytest.raises(ScenarioError, match="software_latency"):
        scenario({"kind": "dragonfly", "p": 1}, host={"software_latency": "200ns"})


# --- files: `gradwire check` reads them -------------------------------------------------------------------------------


def file_scenario(tmp_path: Path, lines: str, **files: str) -> Scenario:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    (tmp_path / "s.toml").write_text(
        f'name = "x"\n{lines}\n[[job]]\nname = "j"\ntrace = "resnet50"\nworkers = 2\nexchange = {{ kind = "ring" }}\n'
    )
    return load_scenario(tmp_path / "s.toml")


TOPOLOGY_TXT = "3 1 2\n2\n0 2 100Gbps 0.001ms 0.0\n1 2 100Gbps 0.001ms 0.0\n"


def test_topology_file_path_is_relative_and_content_enters_the_digest(tmp_path):
    table = '[topology]\nkind = "hpcc"\nfile = "t.txt"'
    made = file_scenario(tmp_path, table, t_txt=TOPOLOGY_TXT)
    check_variants([made])
    network = build_network(made.topology, made.link, made.link_override)
    assert network.names == ("h0", "h1", "s2")
    other = file_scenario(tmp_path, table, t_txt=TOPOLOGY_TXT.replace("0.001ms", "0.002ms"))
    assert made.digest() == other.digest(), "the file is what it is when asked"
    digest = other.digest()
    (tmp_path / "t.txt").write_text(TOPOLOGY_TXT)
    assert other.digest() != digest


def test_scenario_adds_hosts_per_switch_to_a_graph_file(tmp_path):
    networkx.write_graphml(networkx.petersen_graph(), tmp_path / "g.graphml")
    made = file_scenario(tmp_path, '[topology]\nkind = "graph"\nfile = "g.graphml"\nhosts_per_switch = 4')
    check_variants([made])
    network = build_network(made.topology, made.link, made.link_override)
    assert network.host_count == 40 and network.switch_count == 10
    assert (np.bincount(network.link_src)[40:] == 3 + 4).all()


@pytest.mark.parametrize(
    ("lines", "text", "says"),
    [
        (
            '[topology]\nkind = "hpcc"\nfile = "t.txt"',
            TOPOLOGY_TXT.rsplit("\n", 2)[0] + "\n",
            r"t\.txt: line 1: announces 2 links, but 1 follow",
        ),
        ('[topology]\nkind = "graph"\nfile = "t.txt"', "a b {", "edge list"),
        (
            '[topology]\nkind = "hpcc"\nfile = "t.txt"\n[[link_override]]\nbetween = ["h0", "s9"]\nrate = "1Gbps"',
            TOPOLOGY_TXT,
            r'unknown node \(got "s9"\)',
        ),
        (
            '[topology]\nkind = "hpcc"\nfile = "t.txt"\n[host]\nsoftware_latency = "1us"',
            TOPOLOGY_TXT,
            "software_latency.*below the latency",
        ),
        ('[topology]\nkind = "graph"\nfile = "t.txt"', "a s\ns t\n t u\nu s\n", "2 workers need 2 hosts.*at most 1"),
    ],
)
def test_check_reports_errors_in_the_topology_file(tmp_path, lines, text, says):
    made = file_scenario(tmp_path, lines, t_txt=text)
    with pytest.raises(ScenarioError) as error:
        check_variants([made])
    assert re.search(says, str(error.value), re.DOTALL)


def test_missing_topology_file_is_a_scenario_error(tmp_path):
    with pytest.raises(ScenarioError, match="no such file"):
        file_scenario(tmp_path, '[topology]\nkind = "hpcc"\nfile = "none.txt"')
