"""What `check` accepts, `run` runs: the same function finds what a run needs, and refuses what it cannot have."""

from __future__ import annotations

import time

import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.preparation import check_variants
from gradwire.sim.simulate import simulate
from gradwire.topology import build_network

TRAFFIC = {"name": "t", "kind": "permutation", "size": "10kB"}
JOB = {"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}
STAR = {"kind": "star", "hosts": 4}


def tables(**fields):
    return {"name": "x", "topology": STAR, "traffic": [TRAFFIC], **fields}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"job": [{**JOB, "phase": "nope"}]}, "job[0].phase: trace resnet50 has no phase 'nope'"),
        (
            {"link": {"rate": "800Gbps", "latency": "1s"}, "host": {"software_latency": "2s"}},
            "the cable between h0 and s0 holds more than 17 million",
        ),
        ({"transport": {"kind": "os:path"}}, "transport.kind: 'os:path' is not a class"),
        ({"load_balancing": "nosuch:Class"}, "load_balancing: cannot load 'nosuch:Class': No module named 'nosuch'"),
        ({"link": {"rate": "8000Tbps"}}, "a node could see more than 1048576 packets"),
        (
            {"traffic": [{**TRAFFIC, "size": "20GB"}]},
            'traffic[0].size: has a flow of 4882813 packets of 4KiB (got "20GB"); expected at most 4194303 packets',
        ),
        ({"traffic": [{**TRAFFIC, "size": "100000GB"}]}, "traffic[0].size: has a flow of 24414062500 packets"),
        (
            {"traffic": [{"name": "p", "kind": "poisson", "load": 0.1, "sizes": "20GB", "flows": 1}]},
            "traffic[0].sizes: has a flow of 4882813 packets",
        ),
    ],
)
def test_check_and_run_reject_the_same_scenarios(fields, says):
    made = build_scenario(tables(**fields))
    for find in (lambda: check_variants([made]), lambda: simulate(made)):
        with pytest.raises(ScenarioError) as error:
            find()
        assert says in str(error.value)


@pytest.mark.parametrize(
    "content, says",
    [(b"", r"no X in \S+mine.py"), (b"x = '\0'", r"\S+mine.py: source code string cannot contain null")],
)
def test_error_in_user_module_names_its_file(tmp_path, content, says):
    """The error does not use the module's internal name."""
    (tmp_path / "mine.py").write_bytes(content)
    with pytest.raises(ScenarioError, match=rf"cannot load 'mine:X': {says}"):
        simulate(build_scenario(tables(transport={"kind": "mine:X"}, modules=str(tmp_path))))


def test_packet_log_rejects_unknown_job_names():
    build_scenario(tables(output={"packet_log": ["t"]}))
    with pytest.raises(ScenarioError) as error:
        build_scenario(tables(output={"packet_log": ["t", "nojob"]}))
    assert 'output.packet_log[1]: is not a job or traffic (got "nojob"); expected t' in str(error.value)


@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 10**9},
        {"kind": "leaf_spine", "leaves": 16_000, "hosts_per_leaf": 1, "spines": 16_000},
        {"kind": "torus", "dims": [200, 200]},
        {"kind": "rail", "hosts": 8, "cards": 2, "spines": 10**7},
    ],
)
def test_oversized_networks_are_rejected_quickly(topology):
    begin = time.process_time()
    with pytest.raises(ScenarioError, match="at most"):
        build_scenario(tables(topology=topology))
    assert time.process_time() - begin < 30  # building one of them takes hours, or all memory


@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "star", "hosts": 5},
        {"kind": "dumbbell", "left": 3, "right": 2},
        {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 2},
        {"kind": "rail", "hosts": 5, "cards": 2, "hosts_per_group": 2, "spines": 3},
        {"kind": "rail", "hosts": 5, "cards": 2, "spines": 0},
        {"kind": "fat_tree", "k": 8},
        {"kind": "fat_tree", "k": 8, "oversubscription": 3.0},
        {"kind": "fat_tree", "k": 8, "tiers": 2},
        {"kind": "dragonfly", "p": 2},
        {"kind": "dragonfly", "p": 1, "a": 3, "h": 2, "groups": 3},
        {"kind": "torus", "dims": [4, 4]},
        {"kind": "torus", "dims": [2, 3, 4], "hosts_per_switch": 2},
    ],
)
def test_topology_size_equals_built_network(topology):
    made = build_scenario(tables(topology=topology))
    network = build_network(made.topology, made.link)
    assert made.topology.size == (network.switch_count, network.link_count // 2)


def test_check_rejects_unknown_hosts_of_file_topology(tmp_path):
    (tmp_path / "net.txt").write_text("3 1 2\n2\n0 2 10Gbps 0.001ms 0\n1 2 10Gbps 0.001ms 0\n")
    made = build_scenario({
        "name": "x", "topology": {"kind": "hpcc", "file": "net.txt"},
        "traffic": [{**TRAFFIC, "hosts": ["h0", "h7"]}],
    }).at(tmp_path)  # fmt: skip
    with pytest.raises(ScenarioError, match="h7"):
        check_variants([made])
