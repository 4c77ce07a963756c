"""Scenarios: what a file means once it is loaded, its variants, its digest, the library."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError
from star_cases import star_scenario, star_tables

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.result_store.provenance import scenario_text
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, list_library, load_scenario
from gradwire.scenarios.schema.job.job import HostPlacement
from gradwire.scenarios.schema.job.loss_bound import Bound
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.schema.scenario import Scenario, json_schema
from gradwire.scenarios.validation.scenario import notes, remarks
from gradwire.topology.kinds.leaf_spine import LeafSpine


def test_quantities_are_stored_as_integers():
    scenario = star_scenario(
        link={"rate": "25Gbps", "latency": "500ns", "loss": 0.001},
        switch={"queues": 2, "buffer": "256KiB", "ecn_threshold": ["32KiB", "64KiB"]},
        duration="12ms",
    )
    assert (scenario.link.rate, scenario.link.latency, scenario.link.loss) == (25 * 10**9, 500_000, 0.001)
    assert scenario.switch.thresholds() == (32 * 1024, 64 * 1024)
    assert scenario.duration == 12 * 10**9


def test_minimal_scenario_has_documented_defaults():
    scenario = star_scenario()
    assert scenario.transport == Dctcp(kind="dctcp")
    assert (scenario.link.rate, scenario.link.latency) == (100 * 10**9, 1_000_000)
    assert (scenario.switch.queues, scenario.switch.buffer, scenario.switch.thresholds()) == (8, 524_288, None)
    assert scenario.host.software_latency == 2_000_000
    job = scenario.job[0]
    assert (job.push_bound, job.order, job.placement, job.phase) == (0.0, "fifo", "packed", None)
    assert job.tagging.priorities == (1, 2, 3, 4, 5, 6, 7)


def test_single_ecn_threshold_applies_to_all_queues():
    assert star_scenario(switch={"queues": 3, "ecn_threshold": "10KiB"}).switch.thresholds() == (10240,) * 3


def test_transport_by_name_equals_transport_table():
    by_name = star_scenario(transport="dlcp")
    as_table = star_scenario(transport={"kind": "dlcp"})
    assert by_name == as_table
    assert isinstance(by_name.transport, Dlcp)
    assert (by_name.transport.overhead, by_name.transport.may_lose) == (58, True)
    assert star_scenario(transport={"g": 0.5}).transport == Dctcp(kind="dctcp", g=0.5)


def test_user_defined_transport_keeps_its_parameters():
    transport = star_scenario(transport={"kind": "mine.net:Fast", "window": 3}).transport
    assert isinstance(transport, UserTransport)
    assert transport.parameters == {"window": 3}


def test_placement_by_host_names_is_parsed():
    tables = star_tables(hosts=4)
    tables["job"][0]["placement"] = {"workers": ["h3", "h0", "h1"], "servers": ["h2"]}
    assert build_scenario(tables).job[0].placement == HostPlacement(workers=("h3", "h0", "h1"), servers=("h2",))


@pytest.mark.parametrize(
    ("extra", "rate"),
    [({}, 100), ({"uplink_rate": "40Gbps"}, 40), ({"oversubscription": 2.0}, 100), ({"oversubscription": 4}, 50)],
)
def test_uplink_rate_follows_oversubscription(extra: dict[str, object], rate: int):
    # 8 hosts of 100 Gbps below 4 spines: full bisection would need 200 Gbps per uplink.
    topology = LeafSpine.model_validate({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 8, "spines": 4, **extra})
    assert topology.resolved_uplink_rate(100 * 10**9) == rate * 10**9


@pytest.mark.parametrize(
    ("topology", "hosts"),
    [
        ({"kind": "star", "hosts": 9}, 9),
        ({"kind": "leaf_spine", "leaves": 9, "hosts_per_leaf": 16, "spines": 4}, 144),
        ({"kind": "fat_tree", "k": 8}, 128),
        ({"kind": "fat_tree", "k": 16}, 1024),
    ],
)
def test_host_count_of_each_topology(topology: dict[str, object], hosts: int):
    assert star_scenario(topology=topology).topology.host_count == hosts


def test_scenario_is_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        star_scenario().seed = 2


def test_scenario_round_trips_through_serialization():
    scenario = star_scenario(transport="dlcp", switch={"ecn_threshold": ["1KiB"] * 8}, duration="3us")
    assert Scenario.model_validate(scenario.as_written()) == scenario
    assert Scenario.model_validate(scenario.model_dump(mode="json")) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_overlay_merges_nested_tables():
    base = {"a": {"x": 1, "y": 2}, "t": {"kind": "one", "p": 1}, "job": [{"n": 1, "t": {"q": 1}}, {"n": 2}]}
    changes = {"a": {"y": 3}, "t": {"kind": "two"}, "job": {"t": {"r": 2}}, "new": 5}
    assert overlay(base, changes) == {
        "a": {"x": 1, "y": 3},
        "t": {"kind": "two"},
        "job": [{"n": 1, "t": {"q": 1, "r": 2}}, {"n": 2, "t": {"r": 2}}],
        "new": 5,
    }
    assert base["a"] == {"x": 1, "y": 2}
    assert overlay(base, {"t": {"kind": "one", "q": 2}})["t"] == {"kind": "one", "p": 1, "q": 2}


def test_variants_apply_each_policy():
    policies = [
        {"name": "plain"},
        {"name": "lossy", "label": "Lossy!", "set": {"transport": "dlcp", "job": {"push_bound": 0.1}}},
    ]
    scenario = star_scenario(policy=policies, seed=3)
    plain, lossy = scenario.variants()
    assert (plain.policy_name, plain.policy_label) == ("plain", "plain")
    assert (lossy.policy_name, lossy.policy_label) == ("lossy", "Lossy!")
    assert isinstance(lossy.transport, Dlcp)
    assert [variant.job[0].push_bound for variant in (plain, lossy)] == [0.0, 0.1]
    assert [variant.seed for variant in (plain, lossy)] == [3, 3]
    assert plain.policy == ()
    assert pickle.loads(pickle.dumps(lossy)).policy_name == "lossy"
    assert scenario.variant("lossy") == lossy
    with pytest.raises(ScenarioError, match='no policy "x"; expected plain, lossy'):
        scenario.variant("x")


def test_scenario_without_policies_has_itself_as_variant():
    scenario = star_scenario()
    assert scenario.variants() == [scenario]
    assert scenario.policy_name == "base"


def test_digest_depends_only_on_simulated_behaviour():
    scenario = star_scenario(policy=[{"name": "p", "set": {"transport": "dlcp"}}])
    digest = scenario.digest()
    assert len(digest) == 64
    assert star_scenario(name="other", description="x").digest() == digest
    assert star_scenario(seed=1, transport="dctcp").digest() == digest  # defaults spelled out
    assert star_scenario(seed=2).digest() != digest
    assert star_scenario(link={"latency": "1.1us"}).digest() != digest
    assert scenario.variants()[0].digest() == star_scenario(transport="dlcp").digest()


def test_folder_does_not_hide_library_scenario(tmp_path, monkeypatch):
    """A folder such as the output of `gradwire reproduce lee --out lee` does not hide the scenario. A file of that
    name is loaded instead."""
    monkeypatch.chdir(tmp_path)
    Path("lee").mkdir()
    assert load_scenario("lee").topology.kind == "dragonfly"
    Path("mine").mkdir()
    with pytest.raises(ScenarioError, match="mine: cannot be read"):
        load_scenario("mine")
    star = star_scenario(name="other")
    Path("ring").write_text(scenario_text(star))
    assert load_scenario("ring").name == star.name


@pytest.mark.parametrize("name", list_library())
def test_library_scenarios_load_with_expected_notes(name: str):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    said = notes(scenario.variants())
    crowded = [each for each in said if each.endswith("(switch.buffer_share reserves space for them)")]
    # seven queues with K = 96 KiB at buffers of 512 KiB (96 and 16 KiB at 32 on the testbed) exceed them
    assert not crowded or name in (
        "demo", "demo-cpu", "dlcp-ablation", "paper-144", "shared", "slow-receiver", "testbed", "testbed-wall",
    )  # fmt: skip
    others = [each for each in said if each not in crowded]
    known = {
        "agreement": ["transport is timely but switch.pfc is off: "],  # the testbed has no pauses
        "dlcp-ablation": ["tagging by magnitude drops nothing: switch.selective_drop is off"],  # an arm takes it away
        "incast-mix": [
            "switch.selective_drop has no effect: ",
            *(f"traffic[{index}].bound has no effect on the run: " for index in range(4)),
        ],
    }
    assert len(others) == len(known.get(name, []))
    assert all(words in each for words, each in zip(known.get(name, []), others, strict=True))


def crowded_scenario(**switch):
    job = {"workers": 3, "servers": 1, "tagging": {"layer_priority": True}, "exchange": {"kind": "parameter_server"}}
    table = {"ecn_threshold": "96KiB", "selective_drop": True, **switch}
    job |= {"name": "job", "trace": "resnet20"}
    return star_scenario(switch=table, transport="dlcp", job=[job])


def test_remark_on_ecn_thresholds_exceeding_buffer_in_total():
    """Seven thresholds of 96 KiB need 672 KiB, more than the buffer. The class of control packets does not count."""
    assert [each for each in remarks(crowded_scenario()) if "672KiB together, more than switch.buffer, 512KiB" in each]
    assert not crowded_remarks(buffer="672KiB")
    assert crowded_remarks(buffer=f"{672 * 1024 - 1}B")
    assert not crowded_remarks(buffer_share=0.2)
    assert not crowded_remarks(selective_drop=False)


def crowded_remarks(**switch):
    return [each for each in remarks(crowded_scenario(**switch)) if "more than switch.buffer" in each]


def lossy_scenario(transport, **job):
    shape = {"name": "job", "trace": "resnet20", "workers": 3, "servers": 1, "exchange": {"kind": "parameter_server"}}
    shape["tagging"] = {"magnitude": True}
    return star_scenario(transport=transport, job=[shape | job])


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"push_bound": {"share": 0.1, "critical": 0.2}}, "push_bound.critical has no effect: no layer may lose more anyway"),
        ({"push_bound": {"share": 0.1, "change": 0.6}}, "push_bound.change has no effect: no iteration is critical"),
        ({"push_bound": {"share": 0.1, "front_part": 0.3}}, "push_bound.front_part has no effect: front and back have the same bound"),
        ({"push_bound": 0.1, "bound_most": 0.2}, "bound_most has no effect: bounds apply to single messages"),
        ({"push_bound": 0.6, "bound_most": 0.05, "bound_per": "step"}, "bound_most has no effect: the bound is larger"),
        ({"pull_bound": 0.1, "tagging": {"magnitude": True}}, "pull_bound has no effect on the run: all packets are important"),
    ],
)  # fmt: skip
def test_remark_on_loss_bound_keys_without_effect(job, said):
    patient = {"kind": "dlcp", "stop_policy": "on_probe"}
    assert [each for each in remarks(lossy_scenario(patient, **job)) if each.startswith(f"job[0].{said}")]
    useful = {"push_bound": {"share": 0.3, "critical": 0.1, "change": 0.5}, "bound_most": 0.5, "bound_per": "step"}
    assert not remarks(lossy_scenario(patient, **useful))


def test_list_of_one_buffer_share_is_rejected_for_several_queues():
    assert star_scenario(switch={"queues": 8, "buffer_share": 0.5}).switch.limits() == (256 * 1024,) * 8
    with pytest.raises(ScenarioError, match="buffer_share: has 1 entry for 8 queues"):
        star_scenario(switch={"queues": 8, "buffer_share": [0.5]})


def test_bound_per_step_needs_transport_that_shares_bounds():
    patient = {"kind": "dlcp", "stop_policy": "on_probe"}
    assert not remarks(lossy_scenario(patient, push_bound=0.1, bound_per="step"))
    (said,) = remarks(lossy_scenario("dlcp", push_bound=0.1, bound_per="step"))
    assert said == (
        'job[0].bound_per is "step" but stop_policy is "early": each message spends its own share and leaves little to the others'
    )
    with pytest.raises(ScenarioError, match="shares a bound among messages, but ltp applies it per message"):
        lossy_scenario("ltp", push_bound=0.1, bound_per="step")


def test_bound_by_layer_survives_scenario_text_round_trip():
    """The resolved scenario of a Result keeps the bound."""
    rule = {"front": 0.1, "back": 0.05, "critical": 0.01}
    scenario = lossy_scenario("dlcp", push_bound=rule, fill="rescaled", pull_fill="zero")
    again = Scenario.model_validate(tomllib.loads(scenario_text(scenario)))
    assert again.job[0].push_bound == Bound(**rule) and again.digest() == scenario.digest()
    assert (again.job[0].fill, again.job[0].pull_fill) == ("rescaled", "zero")


def test_buffer_share_limits_in_bytes():
    """One fraction for all queues, or one per queue. Limits are rounded down to bytes, of either kind of buffer."""
    limits = lambda **switch: star_scenario(switch={"queues": 2, **switch}).switch.limits()
    assert limits() is None
    assert limits(buffer="100KB", buffer_share=0.29) == (29_000, 29_000)
    assert limits(buffer="100001B", buffer_share=[1, 0.5]) == (100_001, 50_000)
    assert limits(shared_buffer="2MB", buffer_share=[0.5, 0.1]) == (1_000_000, 200_000)


def test_demo_compares_the_three_policies():
    base, priority, dlcp = load_scenario("demo").variants()
    assert base.topology.host_count == 16
    assert {(v.job[0].workers, v.job[0].servers) for v in (base, priority, dlcp)} == {(12, 4)}
    assert [v.load_balancing for v in (base, priority, dlcp)] == ["ecmp", "ecmp", "spray_random"]
    assert (base.transport, priority.transport) == (Dctcp(kind="dctcp"),) * 2
    assert (base.switch.queues, base.job[0].order, base.job[0].tagging.layer_priority) == (8, "fifo", False)
    assert (priority.switch.queues, priority.job[0].order, priority.job[0].tagging.layer_priority) == (8, "layer", True)
    assert isinstance(dlcp.transport, Dlcp)
    assert dlcp.switch.selective_drop
    assert dlcp.job[0].tagging.magnitude
    assert (dlcp.job[0].push_bound, dlcp.job[0].pull_bound) == (0.1, 0.0)


FILE = """
name = "file"
transport = "dctcp"
[topology]
kind = "star"
hosts = 4
[[job]]
name = "a"
trace = "./own/trace"
workers = 2
exchange = { kind = "ring" }
[[job]]
name = "b"
trace = "resnet50"
workers = 2
exchange = { kind = "ring" }
"""


def test_overrides_set_scenario_values(tmp_path: Path):
    path = tmp_path / "file.toml"
    path.write_text(FILE)
    changes = ["link.rate=10Gbps", "job.compute_scale=0.5"]
    scenario = load_scenario(path, set=[*changes, "job[1].iterations=9", "transport.g=0.25", 'job[0].order="layer"'])
    assert scenario.link.rate == 10**10
    assert [job.compute_scale for job in scenario.job] == [0.5, 0.5]
    assert [job.iterations for job in scenario.job] == [5, 9]
    assert [job.order for job in scenario.job] == ["layer", "fifo"]
    assert scenario.transport == Dctcp(kind="dctcp", g=0.25)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("link.rate", "is not an override; expected a.b=value"),
        ("=3", "is not an override"),
        ("job[x].workers=2", "is not an override"),
        ("job[5].workers=2", r"there is no \[5\]; expected one of 2 tables"),
        ("link[0].rate=2", r"there is no \[0\]"),
    ],
)
def test_invalid_overrides_are_rejected(tmp_path: Path, override: str, words: str):
    path = tmp_path / "file.toml"
    path.write_text(FILE)
    with pytest.raises(ScenarioError, match=words):
        load_scenario(path, set=[override])


def test_paths_are_relative_to_the_scenario_file(tmp_path: Path):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "net.graphml").write_text("one")
    text = FILE.replace('kind = "star"\nhosts = 4', 'kind = "graph"\nfile = "net.graphml"')
    (folder / "file.toml").write_text(text)
    scenario = load_scenario(folder / "file.toml")
    assert [job.trace for job in scenario.job] == [str((folder / "own/trace").resolve()), "resnet50"]
    assert scenario.topology.file == str((folder / "net.graphml").resolve())

    elsewhere = tmp_path / "copy"
    folder.rename(elsewhere)
    moved = load_scenario(elsewhere / "file.toml")
    (elsewhere / "net.graphml").write_text("two")
    changed = load_scenario(elsewhere / "file.toml")
    assert moved.topology.file != scenario.topology.file
    (elsewhere / "net.graphml").write_text("one")
    same = moved.digest()
    (elsewhere / "net.graphml").write_text("two")
    assert changed.digest() != same


def test_json_schema_contains_every_table():
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == set(Scenario.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Link"]["properties"]["rate"]["type"] == "string"
    assert "Propagation delay" in schema["$defs"]["Link"]["properties"]["latency"]["description"]
    assert {"TcpNewReno", "Dctcp", "Dlcp", "Ring", "ParameterServer", "Tagging"} <= set(schema["$defs"])


def test_remarks_warn_about_likely_mistakes():
    assert any("no packet will be marked" in remark for remark in remarks(star_scenario()))
    tables = star_tables(transport="dlcp", switch={"ecn_threshold": "64KiB"})
    tables["job"][0]["tagging"] = {"magnitude": True}
    assert remarks(build_scenario(tables)) == ["tagging by magnitude drops nothing: switch.selective_drop is off"]
