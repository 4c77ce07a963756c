"""Transports, switches and load balancing that do not go together: refused with the reason and a way out, or remarked.

One row is one check: without it, the scenario would be accepted.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from gradwire.jit.records.constants import STAMP_MOST
from gradwire.protocols.registry import resolve_component
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.schema.network.transport import AnyTransport
from gradwire.scenarios.validation.scenario import remarks
from gradwire.scenarios.validation.switch import used_transports
from gradwire.sim.preparation import check_variants
from gradwire.sim.simulate import simulate
from gradwire.topology import build_network
from gradwire.topology.routing import build_routing

USER = "mine:Mine"
TORUS = {"kind": "torus", "dims": [8, 8]}
LEAF_SPINE = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2}
TAGS = {"layer_priority": True, "magnitude": True}


def tables(transport: Any = "dctcp", **fields: Any) -> dict[str, Any]:
    """A permutation around a star, or whatever `fields` say; keys that begin with `switch_` go to the switch."""
    switch = {key[7:]: value for key, value in fields.items() if key.startswith("switch_")}
    others = {key: value for key, value in fields.items() if not key.startswith("switch_")}
    traffic = {"name": "t", "kind": "permutation", "size": "10kB"}
    return {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": transport, "switch": switch,
        "traffic": [traffic], **others,
    }  # fmt: skip


def job(**fields: Any) -> dict[str, Any]:
    return {"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}, **fields}


def mistakes(transport: Any, fields: dict[str, Any]) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        build_scenario(tables(transport, **fields))
    assert caught.value.exit_code == 2
    return [str(mistake) for mistake in caught.value.mistakes]


# transport, what else the scenario says, the path that is named, the reason, the way out
REFUSED: list[tuple[Any, dict[str, Any], str, str, str]] = [
    # trimming
    ("ndp", {}, "transport.kind", "headers of trimmed packets, but switches do not trim", '"33232B" (8 full packets)'),
    ("nscc", {}, "transport.kind", "headers of trimmed packets", "or trimming = false in the transport"),
    ("dctcp", {"switch_trim_threshold": "40KB"}, "switch.trim_threshold", "which dctcp cannot read", '"ndp" or "nscc"'),
    ("hpcc", {"switch_trim_threshold": "40KB"}, "switch.trim_threshold", "which hpcc cannot read", "no trim_threshold"),
    (
        "ndp", {"switch_trim_threshold": "40KB", "job": [job(transport="dlcp")]}, "switch.trim_threshold",
        "which dlcp cannot read", "no trim_threshold",
    ),
    ("ndp", {"switch_trim_threshold": "512KiB"}, "switch.trim_threshold", "is not below switch.buffer", "less than 512KiB"),
    (
        "ndp", {"switch_trim_threshold": "40KB", "switch_shared_buffer": "30KB"}, "switch.trim_threshold",
        "is not below what buffer_alpha leaves one queue of switch.shared_buffer", "less than 15kB",
    ),
    ("ndp", {"switch_trim_threshold": "4153B"}, "switch.trim_threshold", "every queued packet", "33232B"),
    (
        "ndp", {"switch_trim_threshold": "40KB", "switch_trim_size": "4154B"}, "switch.trim_size",
        "is no less than a full packet, 4154B", "at least 60B",
    ),
    (
        "ndp", {"switch_trim_threshold": "40KB", "switch_trim_size": "59B"}, "switch.trim_size",
        "is below the smallest frame", "at least 60B",
    ),
    (
        "ndp", {"switch_trim_threshold": "40KB", "switch_trim_priority": 4, "switch_queues": 4}, "switch.trim_priority",
        "is beyond the 4 queues", "0 to 3",
    ),
    # the shortest message first
    ("pfabric", {}, "transport.kind", "serve the shortest message first", "switch.shortest_first = true"),
    ("dctcp", {"switch_shortest_first": True}, "switch.shortest_first", "which dctcp does not send", 'or transport = "pfabric"'),
    (
        "pfabric", {"switch_shortest_first": True, "job": [job(transport="hpcc")]}, "switch.shortest_first",
        "which hpcc does not send", "shortest_first = false",
    ),
    (
        USER, {"switch_shortest_first": True, "switch_pfc": True}, "switch.shortest_first",
        "which pfc prevents", "one of shortest_first and pfc",
    ),
    (
        USER, {"switch_shortest_first": True, "switch_trim_threshold": "40KB"}, "switch.shortest_first",
        "where trim_threshold would trim the latest", "one of shortest_first and trim_threshold",
    ),
    (
        "pfabric", {"switch_shortest_first": True, "switch_shared_buffer": "1MiB"}, "switch.shortest_first",
        "a shared buffer has no ranks", "one of shortest_first and shared_buffer",
    ),
    (
        "pfabric", {"switch_shortest_first": True, "switch_drr_quantum": "8KiB"}, "switch.shortest_first",
        "serves packets out of turn", "one of shortest_first and drr_quantum",
    ),
    # flow control
    (
        USER, {"switch_pfc": True, "switch_trim_threshold": "40KB"}, "switch.pfc",
        "packets that trim_threshold trims", "one of pfc and trim_threshold",
    ),
    (
        "tcp_newreno", {"switch_pfc": True, "switch_ecn_threshold": "64KiB", "switch_selective_drop": True},
        "switch.selective_drop", "drops packets of class 0, whose drops pfc prevents", "switch.pfc_classes without them",
    ),
    (
        "dlcp",
        {
            "switch_pfc": True, "switch_pfc_classes": [3, 5], "switch_ecn_threshold": "64KiB",
            "switch_selective_drop": True, "job": [job(tagging={**TAGS, "priorities": [2, 3, 5]})],
        },
        "switch.selective_drop", "drops packets of classes 3, 5, whose drops pfc prevents", "switch.pfc_classes without them",
    ),
    ("dctcp", {"switch_pfc": True, "switch_pfc_classes": [0, 8]}, "switch.pfc_classes[1]", "is beyond the 8 queues", "0 to 7"),
    ("dctcp", {"switch_pfc": True, "switch_pfc_classes": [-1]}, "switch.pfc_classes[0]", "is beyond the 8 queues", "0 to 7"),
    ("dctcp", {"switch_pfc": True, "switch_pfc_classes": [1, 1]}, "switch.pfc_classes[1]", "is named twice", "each class once"),
    (
        "dctcp", {"switch_pfc": True, "switch_pfc_threshold": "4161B"}, "switch.pfc_threshold",
        "is below a full packet of 4162B", "several full packets",
    ),
    (
        "dctcp", {"switch_pfc": True, "switch_pfc_threshold": "20KB", "switch_pfc_hysteresis": "20001B"},
        "switch.pfc_hysteresis", "is above pfc_threshold", "at most 20kB",
    ),
    # paths
    ("hpcc", {"topology": TORUS}, "transport.kind", "the longest path has 9", "a smaller topology"),
    *(
        ("hpcc", {"topology": LEAF_SPINE, "load_balancing": name}, "load_balancing", "sends each packet on its own path", "ecmp")
        for name in (
            "spray_random", "spray_round_robin", "least_queue", "source_random", "source_round_robin", "reps",
        )
    ),
    (
        "constant_rate", {"load_balancing": "reps"}, "load_balancing", "constant_rate has none",
        "source_random, or another transport",
    ),
    ("dctcp", {"switch_path_entropies": 64}, "switch.path_entropies", "has no effect with ecmp", "source_random"),
    (
        "dctcp", {"load_balancing": "reps", "switch_path_entropies": 65537}, "switch.path_entropies",
        "is out of range", "at most 65536",
    ),
    # more than there can be
    ("dctcp", {"switch_queues": 9}, "switch.queues", "is out of range", "at most 8"),
    (
        "dctcp", {"traffic": [{"name": "t", "kind": "permutation", "size": "10kB", "priority": 8}]},
        "traffic[0].priority", "is out of range", "at most 7",
    ),
    (
        "dctcp", {"job": [job(tagging={"layer_priority": True, "priorities": [0, 1, 2, 3, 4, 5, 6, 7, 8]})]},
        "job[0].tagging.priorities", "is too long", "at most 8",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("transport", "fields", "path", "reason", "way_out"), REFUSED,
    ids=[f"{row[2]}-{row[3]}"[:60] for row in REFUSED],
)  # fmt: skip
def test_incompatible_transport_and_switch_settings_are_refused(
    transport: Any, fields: dict[str, Any], path: str, reason: str, way_out: str
):
    found = mistakes(transport, fields)
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: ")
    assert reason in found[0]
    assert way_out in found[0].partition("; expected ")[2]


@pytest.mark.parametrize(
    ("transport", "fields"), [("ndp", {"switch_trim_threshold": "40KB"}), ("pfabric", {"switch_shortest_first": True})]
)
def test_drop_based_transports_are_refused_with_pfc(transport: str, fields: dict[str, Any]):
    """A second error states that trimming or shortest_first and pfc exclude each other."""
    build_scenario(tables(transport, **fields))
    found = mistakes(transport, fields | {"switch_pfc": True})
    assert len(found) == 2
    assert any(text.startswith("switch.pfc: ") and f"by which {transport} detects" in text for text in found)


# transport, what else the scenario says
ACCEPTED: list[tuple[Any, dict[str, Any]]] = [
    ("ndp", {"switch_trim_threshold": "33232B"}),
    ("nscc", {"switch_trim_threshold": "33232B"}),
    ({"kind": "nscc", "trimming": False}, {}),
    ("ndp", {"switch_trim_threshold": "600KB", "switch_shared_buffer": "2MiB"}),
    ("ndp", {"switch_trim_threshold": "4154B", "switch_trim_size": "4153B"}),
    ("pfabric", {"switch_shortest_first": True}),
    ("dcqcn", {"switch_pfc": True, "switch_pfc_threshold": "4154B", "switch_pfc_hysteresis": "4154B"}),
    # what nothing uses does not count
    ("ndp", {"traffic": [{"name": "t", "kind": "permutation", "size": "10kB", "transport": "dctcp"}]}),
    # a user's transport is trusted
    (USER, {"switch_trim_threshold": "40KB"}),
    (USER, {"switch_shortest_first": True}),
    (USER, {"switch_pfc": True, "switch_ecn_threshold": "64KiB", "switch_selective_drop": True}),
    (USER, {"load_balancing": "reps"}),
    # droppable packets in classes without flow control
    (
        "dlcp",
        {
            "switch_pfc": True, "switch_pfc_classes": [1, 4], "switch_ecn_threshold": "64KiB",
            "switch_selective_drop": True, "job": [job(tagging={**TAGS, "priorities": [2, 3, 5]})],
        },
    ),
    # and ECN-capable ones with it
    ("dctcp", {"switch_pfc": True, "switch_ecn_threshold": "64KiB", "switch_selective_drop": True}),
    # one path is all there is, whatever the balancer
    ("hpcc", {"load_balancing": "spray_random"}),
    ("hpcc", {"topology": LEAF_SPINE, "load_balancing": "flowlet"}),
    ("hpcc", {"topology": {"kind": "torus", "dims": [5, 6]}}),
    ("constant_rate", {"load_balancing": "source_random"}),
    ("dctcp", {"load_balancing": "source_round_robin", "switch_path_entropies": 1}),
    ("dctcp", {"load_balancing": "mine:Balancer", "switch_path_entropies": 64}),
]  # fmt: skip


@pytest.mark.parametrize(("transport", "fields"), ACCEPTED)
def test_compatible_transport_and_switch_settings_are_accepted(transport: Any, fields: dict[str, Any]):
    build_scenario(tables(transport, **fields))


# what makes packets droppable, and the class in which they wait
DROPPABLE: list[tuple[Any, dict[str, Any], int]] = [
    ({"kind": "tcp_newreno", "ecn": False}, {"priority": 3}, 3),
    ({"kind": "cubic", "ecn": False}, {"priority": 3}, 3),
    ({"kind": "dctcp", "ecn": False}, {"priority": 3}, 3),
    ("ltp", {"priority": 3}, 3),
    ("constant_rate", {"priority": 3}, 3),
    ("dctcp", {"priority": 3, "droppable": True}, 3),
    ({"kind": "cubic", "ecn": True, "control_priority": 3}, {"priority": 0}, 3),  # its acknowledgements
    ({"kind": "pias", "ecn": False, "thresholds": ["1KB", "2KB"]}, {"priority": 1}, 3),
    ({"kind": "nscc", "trimming": False}, {"priority": 2, "droppable": True}, 3),
    ({"kind": "nscc", "trimming": False, "below_control": False}, {"priority": 3, "droppable": True}, 3),
]


@pytest.mark.parametrize(("transport", "fields", "lost"), DROPPABLE)
def test_selective_drop_check_uses_the_queue_of_droppable_packets(transport: Any, fields: dict[str, Any], lost: int):
    traffic = [{"name": "t", "kind": "permutation", "size": "10kB", **fields}]
    switch = {"pfc": True, "ecn_threshold": "64KiB", "selective_drop": True}
    here = tables(transport, traffic=traffic)
    here["switch"] = {**switch, "pfc_classes": [lost]}
    with pytest.raises(ScenarioError, match=f"drops packets of class {lost}"):
        build_scenario(here)
    here["switch"]["pfc_classes"] = [lost + 1]
    build_scenario(here)
    here["switch"]["queues"] = lost + 2
    build_scenario(here)
    here["switch"]["queues"] = lost + 1  # they all share the last one now
    here["switch"]["pfc_classes"] = [lost]
    with pytest.raises(ScenarioError, match="selective_drop"):
        build_scenario(here)


def test_every_policy_is_checked():
    here = tables(policy=[{"name": "p", "set": {"transport": "ndp"}}])
    with pytest.raises(ScenarioError, match=r"policy p: transport\.kind: detects losses by headers"):
        build_scenario(here)
    here["policy"][0]["set"]["switch"] = {"trim_threshold": "33232B"}
    build_scenario(here)


def test_follow_up_errors_are_suppressed():
    here = tables("dctcp", switch_shortest_first=True, switch_queues=9)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(here)
    assert [mistake.path for mistake in caught.value.mistakes] == ["switch.queues", "switch.shortest_first"]
    here["transport"] = "pfabrik"
    with pytest.raises(ScenarioError) as caught:
        build_scenario(here)
    assert [mistake.path for mistake in caught.value.mistakes] == ["switch.queues", "transport.kind"]


def test_errors_name_the_key_that_chose_the_transport():
    here = tables("hpcc", job=[job(transport="ndp"), job(name="k", transport="ndp")])
    here["switch"] = {"trim_threshold": "40KB"}
    with pytest.raises(ScenarioError) as caught:
        build_scenario(here)
    assert [mistake.concerns[0] for mistake in caught.value.mistakes] == ["transport.kind"]  # the traffic's
    here["traffic"][0]["transport"] = "nscc"
    made = build_scenario(here)
    assert [path for path, _ in used_transports(made)] == ["job[0].transport", "traffic[0].transport"]


REMARKS: list[tuple[Any, dict[str, Any], str]] = [
    ("dcqcn", {"switch_ecn_threshold": "64KiB"}, "switch.pfc is off"),
    ("dcqcn", {"switch_pfc": True}, "switch.ecn_threshold is not set"),
    ("hpcc", {}, "switch.pfc is off"),
    ("timely", {}, "switch.pfc is off: losses do not lower its rate"),
    ("ndp", {"switch_trim_threshold": "40KB", "switch_queues": 1}, "headers wait behind data"),
    (
        "dcqcn",
        {
            "switch_ecn_threshold": "64KiB", "switch_pfc": True, "load_balancing": "spray_random",
            "topology": LEAF_SPINE,
        },
        "it takes reordering for loss",
    ),
    ("hpcc", {"switch_pfc": True, "switch_pfc_headroom": "37671B"}, "37672B can still arrive"),
    ("hpcc", {"switch_pfc": True, "topology": {"kind": "torus", "dims": [3, 3]}}, "in a torus"),
    (
        "swift",
        {
            "traffic": [
                {"name": "t", "kind": "permutation", "size": "10kB", "transport": "hpcc"},
                {"name": "u", "kind": "permutation", "size": "10kB"},
            ],
        },
        "transport is hpcc",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("transport", "fields", "told"), REMARKS)
def test_questionable_settings_are_remarked(transport: Any, fields: dict[str, Any], told: str):
    found = remarks(build_scenario(tables(transport, **fields)))
    assert [told in remark for remark in found] == [True]


@pytest.mark.parametrize(
    ("transport", "fields"),
    [
        ("hpcc", {"switch_pfc": True, "switch_pfc_headroom": "37672B"}),
        ("dcqcn", {"switch_pfc": True, "switch_ecn_threshold": "64KiB"}),
        ({"kind": "dctcp", "ecn": False}, {}),
    ],
)
def test_sensible_settings_are_not_remarked(transport: Any, fields: dict[str, Any]):
    assert remarks(build_scenario(tables(transport, **fields))) == []


def test_spraying_over_one_path_is_not_remarked_as_reordering():
    """Spraying over one path is reported as having no effect."""
    scenario = build_scenario(
        tables("dcqcn", switch_pfc=True, switch_ecn_threshold="64KiB", load_balancing="spray_random")
    )
    (remark,) = remarks(scenario)
    assert remark.startswith("load_balancing has no effect: there is one path")


# --- what the tables say of transports is what transports do --------------------------------------------------------------

SETTINGS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in components("transport")),
    *({"kind": kind, "ecn": False} for kind in ("dctcp", "pias")),
    *({"kind": kind, "ecn": True} for kind in ("tcp_newreno", "cubic")),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_transport_tables_match_transport_classes(settings: dict[str, Any]):
    table: Any = TypeAdapter(AnyTransport).validate_python(settings)
    owner = resolve_component("transport", table.kind)
    assert table.wants_shortest_first == getattr(owner, "rides", False)
    assert (table.switches_between is not None) == hasattr(owner, "stamp_slots")
    assert table.switches_between in (None, STAMP_MOST)


# --- what only the network can tell ------------------------------------------------------------------------------------


BUILT_IN: list[dict[str, Any]] = [
    {"kind": "star", "hosts": 3},
    {"kind": "dumbbell", "left": 2},
    {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2},
    {"kind": "rail", "hosts": 4, "cards": 2, "hosts_per_group": 2, "spines": 2},
    {"kind": "fat_tree", "k": 4},
    {"kind": "fat_tree", "k": 4, "tiers": 2},
    {"kind": "dragonfly", "p": 2},
    {"kind": "dragonfly", "p": 1, "a": 5, "h": 1, "groups": 3},
    {"kind": "torus", "dims": [5, 6]},
    {"kind": "torus", "dims": [4, 8]},
    {"kind": "torus", "dims": [2, 3, 5]},
    {"kind": "torus", "dims": [4, 4, 4]},
]


@pytest.mark.parametrize("topology", BUILT_IN, ids=str)
def test_hpcc_is_refused_on_topologies_with_too_long_paths(topology: dict[str, Any]):
    network = build_scenario(tables(topology=topology))
    routing = build_routing(build_network(network.topology, network.link, network.link_override))
    longest = 1 + routing.longest_path
    if longest <= 6:
        build_scenario(tables("hpcc", topology=topology))
    else:
        assert f"the longest path has {longest}" in mistakes("hpcc", {"topology": topology})[0]


@pytest.mark.parametrize(("switches", "fits"), [(6, True), (7, False)])
def test_hpcc_path_limit_applies_to_topology_files(tmp_path: Path, switches: int, fits: bool):
    """The topology is a line of switches with a host at either end."""
    names = ["a", *(f"s{n}" for n in range(switches)), "b"]
    edges = "".join(f"{one} {other}\n" for one, other in pairwise(names))
    (tmp_path / "line.edges").write_text(edges)
    (tmp_path / "line.toml").write_text(
        'name = "line"\ntransport = "hpcc"\n[topology]\nkind = "graph"\nfile = "line.edges"\n'
        '[[traffic]]\nname = "t"\nkind = "permutation"\nsize = "10kB"\n'
    )
    made = load_scenario(tmp_path / "line.toml")
    if fits:
        check_variants([made])
        return
    for find in (lambda: check_variants([made]), lambda: simulate(made)):
        with pytest.raises(ScenarioError, match=r"transport\.kind: has space for 6 .* the longest path has 7"):
            find()
