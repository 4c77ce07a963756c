"""Mistakes in scenarios: each is found, named by its path, and answered with what would be right."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from star_cases import star_tables

from gradwire.scenarios.errors import ScenarioError, StallError, shorten
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.schema.scenario import Scenario

RING = {"kind": "ring"}


def changed(path: str, value: Any, hosts: int = 4) -> dict[str, Any]:
    """The small scenario with one value changed; `path` as in "job.0.workers"."""
    tables: Any = star_tables(hosts)
    here = tables
    *outer, last = path.split(".")
    for step in outer:
        here = here[int(step)] if step.isdigit() else here.setdefault(step, {})
    here[last] = value
    return tables


def mistakes(tables: dict[str, Any]) -> list[str]:
    before = copy.deepcopy(tables)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(tables)
    assert tables == before  # what the user handed in is left alone
    assert caught.value.exit_code == 2
    return [str(mistake) for mistake in caught.value.mistakes]


# (what is changed, the path that must be named, words of the explanation, words of what was expected)
SINGLE = [
    # wrong units, negative, zero
    ("link.rate", "100", "link.rate", 'has no unit (got "100")', "Gbps"),
    ("link.rate", 100, "link.rate", "has no unit (got 100)", "Gbps"),
    ("link.rate", "100GB", "link.rate", '"GB" is not a unit of rate', "bps, kbps, Mbps, Gbps, Tbps"),
    ("link.rate", "-1Gbps", "link.rate", "is negative", "a positive rate"),
    ("link.rate", "0Gbps", "link.rate", "is zero", "a positive rate"),
    ("link.latency", "1KiB", "link.latency", '"KiB" is not a unit of time', "ps, ns, us, ms, s"),
    ("link.latency", "-1us", "link.latency", "is negative", "zero or a positive time"),
    ("link.loss", "1%", "link.loss", "is a percentage", "0.1"),
    ("link.loss", -0.1, "link.loss", "is out of range", "between 0 and 1"),
    ("link.loss", 1.0, "link.loss", "loses every packet", "below 1"),
    ("switch.buffer", "0B", "switch.buffer", "is zero", "a positive size"),
    ("duration", "0s", "duration", "is zero", "a positive time"),
    ("job.0.exchange.server_rate", "0bps", "job[0].exchange.server_rate", "is zero", "a positive rate"),
    # unknown keys and names
    ("switch.queue", 3, "switch.queue", "unknown key", '"queues"'),
    ("topolgy", {}, "topolgy", "unknown key", '"topology"'),
    ("topology.leaves", 4, "topology.leaves", "unknown key", "one of kind, hosts"),
    ("job.0.exchange.buket", "1MiB", "job[0].exchange.buket", "unknown key", "kind, pull"),
    ("job.0.placement", {"workers": ["h0", "h1", "h2"], "server": ["h3"]}, "job[0].placement.server", "unknown key", '"servers"'),
    ("transport", {"kind": "dlcp", "flor": 3}, "transport.flor", "unknown key", '"floor"'),
    ("transport", {"kind": "dlcp", "initial_window": 3}, "transport.initial_window", "unknown key", "stop_policy"),
    ("background", [{}], "background", "background traffic is written as [[traffic]] tables", ""),
    ("transport", "dctpc", "transport.kind", 'is unknown (got "dctpc")', "dctcp"),
    ("transport", {"kind": "udp"}, "transport.kind", "is unknown", "dctcp, dlcp, hpcc"),
    ("topology.kind", "fat-tree", "topology.kind", "is unknown", "fat_tree"),
    ("job.0.exchange.kind", "rong", "job[0].exchange.kind", "is unknown", "ring"),
    ("load_balancing", "ecpm", "load_balancing", "is not a load balancer", "spray_random"),
    ("job.0.order", "random", "job[0].order", "is unknown", "'fifo' or 'layer'"),
    ("job.0.placement", "tight", "job[0].placement", "is unknown", "'packed', 'spread', 'random' or 'rails'"),
    # types and ranges
    ("seed", -1, "seed", "is out of range (got -1)", "at least 0"),
    ("seed", True, "seed", "is of the wrong type (got true)", "a whole number"),
    ("job.0.workers", 2.0, "job[0].workers", "is of the wrong type", "a whole number"),
    ("job.0.workers", 0, "job[0].workers", "is out of range", "at least 1"),
    ("job.0.accumulate", 10**9, "job[0].accumulate", "is out of range", "at most 65536"),
    ("job.0.jitter", float("inf"), "job[0].jitter", "is not a finite number", "a number"),
    ("switch.queues", 9, "switch.queues", "is out of range", "at most 8"),
    ("switch.selective_drop", "yes", "switch.selective_drop", "is of the wrong type", "true or false"),
    ("name", "a b/c", "name", "characters", "letters, digits"),
    ("link", "fast", "link", "is of the wrong type", "a table"),
    ("topology", {"kind": "fat_tree", "k": 5}, "topology.k", "is odd", "an even number"),
    ("transport.payload", "4097B", "transport.payload", "whole float32 values", "a multiple of 4 bytes"),
    ("transport.payload", "64KiB", "transport.payload", "is not a payload", "64B to 9000B"),
    ("job.0.exchange.partition", "1001B", "job[0].exchange.partition", "splits a float32 value", "multiple of 4"),
    ("transport", {"kind": "dctcp", "min_rto": "2s"}, "transport.min_rto", "is above max_rto", "min_rto <= max_rto"),
    ("transport", {"kind": "dlcp", "t_low": "1ms"}, "transport.t_low", "is not below t_high", "t_low < t_high"),
    ("job.0.tagging", {"priorities": [1, 1]}, "job[0].tagging.priorities", "names a class twice", "distinct"),
    ("job.0.tagging", {"random": True}, "job[0].tagging.random", "no effect without magnitude", "magnitude = true"),
    ("job", [], "job", "is missing", "at least one [[job]] or [[traffic]]"),
    # several tables at once
    ("job.0.workers", 4, "job[0].workers", "4 workers and 1 servers need 5 hosts, but the topology has 4", "at most 4"),
    ("job.0.servers", 0, "job[0].servers", "is zero, but the exchange is a parameter server", "at least one"),
    ("job.0.exchange", RING, "job[0].servers", "is not used by ring", "no servers"),
    ("job.0.push_bound", 0.1, "job[0].push_bound", "allows loss, but transport dctcp delivers every byte", "dlcp"),
    ("job.0.pull_bound", 0.1, "job[0].pull_bound", "allows loss, but transport dctcp delivers every byte", "dlcp"),
    ("job.0.push_bound", 10, "job[0].push_bound", "is out of range", "between 0 and 1"),
    ("job.0.push_bound", "10 %", "job[0].push_bound", "is a percentage", "such as 0.1"),
    ("job.0.push_bound", {}, "job[0].push_bound", "has no bound of any layer", "share, layers, and front with back"),
    ("job.0.push_bound", {"front": 0.1}, "job[0].push_bound", "has front", "one of share, layers, and front with back"),
    ("job.0.push_bound", {"share": 0.1, "layers": [0.1]}, "job[0].push_bound", "has share and layers", "one of"),
    ("job.0.push_bound", {"layers": []}, "job[0].push_bound.layers", "is an empty list", "one fraction per layer"),
    ("job.0.push_bound", {"layers": [0.1, 2]}, "job[0].push_bound.layers[1]", "is out of range", "between 0 and 1"),
    ("job.0.push_bound", {"share": 0.1, "change": 0.0}, "job[0].push_bound.change", "is out of range", "above 0"),
    ("job.0.push_bound", {"share": 0.1, "last": 1}, "job[0].push_bound.last", "unknown key", "layers"),
    ("job.0.push_bound", {"front": 0.0, "back": 0.1}, "job[0].push_bound", "allows loss, but transport dctcp", "dlcp"),
    ("job.0.bound_per", "worker", "job[0].bound_per", "is unknown", "'message', 'exchange' or 'step'"),
    ("job.0.fill", "last", "job[0].fill", "is unknown", "'zero', 'rescaled' or 'stale'"),
    ("job.0.pull_fill", "rescaled", "job[0].pull_fill", "is unknown", "'stale' or 'zero'"),
    (
        "job.0.tagging", {"layer_priority": True, "priorities": [7, 8]}, "job[0].tagging.priorities",
        "goes beyond the 8 queues", "[1, 2, 3, 4, 5, 6, 7]",
    ),
    ("switch.ecn_threshold", ["1KiB", "2KiB"], "switch.ecn_threshold", "has 2 entries for 8 queues", "or a list of 8"),
    ("switch.ecn_threshold", ["1KiB"], "switch.ecn_threshold", "has 1 entry for 8 queues", "one size without brackets"),
    ("switch.ecn_threshold", ["1KiB", 5], "switch.ecn_threshold[1]", "has no unit (got 5)", "KiB"),
    ("switch.ecn_threshold", "0B", "switch.ecn_threshold", "is zero", "a positive size"),
    ("switch.ecn_threshold", [], "switch.ecn_threshold", "is an empty list", "one size"),
    ("switch.ecn_threshold", "1MiB", "switch.ecn_threshold", "nothing would ever be marked", "less than 512KiB"),
    ("switch.buffer_share", 1.5, "switch.buffer_share", "is out of range", "between 0 and 1"),
    ("switch.buffer_share", [0.5, 0], "switch.buffer_share[1]", "leaves no space", "above 0"),
    ("switch.buffer_share", [0.5, 0.5], "switch.buffer_share", "has 2 entries for 8 queues", "or a list of 8"),
    ("switch.buffer_share", 0.005, "switch.buffer_share", "leaves a queue 2621B, less than a single packet", "many"),
    (
        "switch", {"buffer_share": [1, 0.1, 0.2, 1, 1, 1, 1, 1], "ecn_threshold": "96KiB"}, "switch.ecn_threshold",
        "of queue 1 is not below what buffer_share leaves it", "less than 52428B, or a larger buffer_share",
    ),
    (
        "switch", {"buffer_share": 0.1, "ecn_threshold": "96KiB"}, "switch.ecn_threshold",
        "of queues 0, 1, 2, 3, 4, 5, 6, 7 is not below", "less than 52428B",
    ),
    ("switch.selective_drop", True, "switch.selective_drop", "needs a threshold", "switch.ecn_threshold"),
    ("switch.buffer", "4KiB", "switch.buffer", "does not hold a single packet of 4162B", "many packets"),
    ("host.software_latency", "1us", "host.software_latency", "is below the latency of the shortest link", "1.0048us"),
    ("transport.control_priority", 8, "transport.control_priority", "is beyond the 8 queues", "0 to 7"),
    (
        "job.0.placement", {"workers": ["h0", "h1", "h9"], "servers": ["h3"]}, "job[0].placement.workers[2]",
        'is not a host of the topology (got "h9")', "h0 to h3",
    ),
    (
        "job.0.placement", {"workers": ["h0", "h1"], "servers": ["h3"]}, "job[0].placement.workers",
        "names 2 hosts for 3 workers", "3",
    ),
    (
        "job.0.placement", {"workers": ["h0"], "servers": ["h3"]}, "job[0].placement.workers",
        "names 1 host for 3 workers", "3",
    ),
    (
        "job.0.placement", {"workers": ["h0", "h1", "h1"], "servers": ["h3"]}, "job[0].placement.workers",
        "names a host twice", "distinct hosts",
    ),
    ("link_override", [{"between": ["h0"]}], "link_override[0].between", "is too short", "at least 2"),
    ("link_override", [{"between": ["h0", "switch0"]}], "link_override[0]", "changes nothing", "rate, latency, loss"),
    (
        "link_override", [{"between": ["h8", "switch0"], "loss": 0.1}], "link_override[0].between",
        "h8 is not a host of the topology", "h0 to h3",
    ),
    (
        "link_override", [{"between": ["h0", "h0"], "loss": 0.1}], "link_override[0].between",
        "connects a node to itself", "two ends",
    ),
    (
        "topology",
        {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1, "uplink_rate": "1Gbps", "oversubscription": 2.0},
        "topology.oversubscription", "given together with uplink_rate", "one of the two",
    ),
    ("policy", [{"name": "p", "set": {"switch": {"queues": 0}}}], "policy p: switch.queues", "out of range", "at least 1"),
    ("policy", [{"name": "p", "set": {"job": {"push_bound": 0.5}}}], "policy p: job[0].push_bound", "dctcp", "dlcp"),
    ("policy", [{"name": "p"}, {"name": "p"}], "policy[1].name", "is already in use", "a unique name"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "value", "path", "what", "expected"), SINGLE, ids=[f"{row[2]}={row[1]}"[:60] for row in SINGLE]
)
def test_single_error_names_path_cause_and_expectation(change: str, value: Any, path: str, what: str, expected: str):
    found = mistakes(changed(change, value))
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: ")
    assert what in found[0]
    assert expected in found[0].partition("; expected ")[2]


@pytest.mark.parametrize(("missing", "path"), [("name", "name"), ("topology", "topology"), ("job", "job")])
def test_missing_required_table_is_named(missing: str, path: str):
    tables = star_tables()
    del tables[missing]
    assert [text.split(":")[0] for text in mistakes(tables)] == [path]


def test_missing_field_error_includes_its_description():
    tables = star_tables()
    del tables["job"][0]["trace"]
    del tables["topology"]["kind"]
    found = mistakes(tables)
    assert found[0].startswith("topology.kind: is missing; expected")
    assert "star" in found[0]
    assert found[1].startswith("job[0].trace: is missing; expected name of a bundled trace")
    tables["job"][0]["trace"], tables["topology"]["kind"] = "resnet20", "star"
    tables["traffic"] = [{"kind": "permutation", "size": "1KB"}]
    assert mistakes(tables) == ["traffic[0].name: is missing; expected letters, digits and . _ + - only"]


def test_colocated_servers_cannot_exceed_workers():
    tables = star_tables(hosts=4)
    tables["job"][0] |= {"workers": 4, "servers": 4, "exchange": {"kind": "parameter_server", "colocated": True}}
    build_scenario(tables)
    tables["job"][0]["workers"] = 3
    assert mistakes(tables) == [
        "job[0].servers: is above the 3 workers whose hosts the servers share (got 4); expected at most 3"
    ]


def test_jobs_needing_more_hosts_than_topology_are_rejected():
    tables = star_tables(hosts=6)
    tables["job"].append({**tables["job"][0], "name": "second"})
    assert mistakes(tables)[0].startswith("job: needs 8 hosts for all jobs together, but the topology has 6")
    tables["job"][1]["name"] = "job"
    assert mistakes(tables)[0].startswith('job[1].name: is already in use (got "job")')


def test_all_errors_are_reported_together():
    tables = changed("link.rate", "3Gb")
    tables["switch"] = {"queue": 3, "buffer": "12B"}
    tables["job"][0] |= {"push_bound": 0.2, "workers": 40, "jitter": -1.0}
    paths = [text.split(":")[0] for text in mistakes(tables)]
    # fields first, then what is wrong with the scenario as a whole
    assert paths == [
        "link.rate", "switch.queue", "job[0].jitter", "job[0].workers", "switch.buffer", "job[0].push_bound",
    ]  # fmt: skip


def test_consequential_errors_are_suppressed():
    tables = changed("transport", "dlpc")
    tables["job"][0]["push_bound"] = 0.1  # right with the transport that was meant
    assert [text.split(":")[0] for text in mistakes(tables)] == ["transport.kind"]
    tables = changed("switch.queues", "8")
    tables["switch"]["ecn_threshold"] = ["1KiB", "2KiB"]
    assert [text.split(":")[0] for text in mistakes(tables)] == ["switch.queues"]


@pytest.mark.parametrize("gpus", [0, 65, "four"])
def test_invalid_gpu_count_suppresses_host_errors(gpus):
    """Errors about host counts and host names depend on the number of GPUs, so they are left out."""
    tables = changed("host", {"gpus": gpus})
    tables["job"] = [{**tables["job"][0], "name": name, "workers": 40, "servers": 0} for name in "abc"]
    named = {"workers": [f"h0.gpu{number}" for number in range(40)]}
    for job, placement in zip(tables["job"], ("packed", "packed", named), strict=True):
        job |= {"placement": placement, "exchange": {"kind": "ring"}}
    tables["traffic"] = [
        {"name": "t", "kind": "permutation", "size": "1MB", "hosts": ["h0.gpu0", "h1.gpu0"]},
        {"name": "s", "kind": "storage", "size": "1MB", "operation": "read", "storage": ["h0.gpu1"]},
        {"name": "i", "kind": "incast", "size": "1MB", "fan_in": 30},
    ]
    tables["exec"] = {"hosts": ["h0.gpu0"]}
    assert [text.split(":")[0] for text in mistakes(tables)] == ["host.gpus"]


def test_error_message_text_is_readable():
    with pytest.raises(ScenarioError) as caught:
        build_scenario(changed("link.rate", "3Gb"), "my.toml")
    assert str(caught.value) == (
        "my.toml: invalid scenario, 1 error:\n"
        '  link.rate: "Gb" is not a unit of rate (got "3Gb"); expected a rate with a unit '
        '(bps, kbps, Mbps, Gbps, Tbps), such as "100Gbps"'
    )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.mistakes) == (str(caught.value), caught.value.mistakes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\nname = ", ["is not TOML", "line 2"]),
        (b"name = 'a'\nname = 'b'\n", ["is not TOML", "line 2"]),
        (b"\xff\xfe", ["is not UTF-8 text"]),
        (b"", ["name: is missing", "topology: is missing"]),
    ],
)
def test_unparsable_scenario_files_are_rejected(tmp_path: Path, text: bytes, words: list[str]):
    path = tmp_path / "bad.toml"
    path.write_bytes(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_missing_files(tmp_path: Path):
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario(tmp_path / "nowhere.toml")
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario("nowhere.toml")
    with pytest.raises(
        ScenarioError,
        match="no such scenario; expected a file, or one of the library: accelerators, aggregation, agreement, agreement-tcp, agreement-wall",
    ):
        load_scenario("nowhere")
    with pytest.raises(ScenarioError, match=r"cannot be read \(is a folder\); expected a scenario file"):
        load_scenario(tmp_path)
    path = tmp_path / "graph.toml"
    path.write_text(
        'name = "g"\ntopology = { kind = "graph", file = "no.graphml" }\n'
        '[[job]]\nname = "j"\ntrace = "resnet50"\nworkers = 2\nexchange = { kind = "ring" }\n'
    )
    with pytest.raises(ScenarioError, match=r"topology\.file: no such file .*no\.graphml"):
        load_scenario(path)


def test_errors_have_exit_codes():
    assert ScenarioError("x").exit_code == 2
    assert StallError("x").exit_code == 1


def test_values_in_messages_are_shortened():
    assert shorten(True) == "true"
    assert shorten("a") == '"a"'
    assert len(shorten("x" * 500)) == 80


def test_missing_key_error_quotes_first_sentence_of_description():
    found = mistakes(changed("job.0.exchange", {"kind": "overlapped"}))
    assert found == [
        "job[0].exchange.batch: is missing; expected samples per worker and step, which set the size of activations and "
        "errors of fully connected layers"
    ]


def fabric_400g(switch: dict[str, Any]) -> Scenario:
    link, traffic = {"rate": "400Gbps"}, [{"name": "t", "kind": "permutation", "size": "1MB"}]
    return build_scenario({"name": "x", "topology": {"kind": "star", "hosts": 4}, "link": link, "transport": "dcqcn",
                           "traffic": traffic, "switch": {"queues": 2, **switch}})  # fmt: skip


@pytest.mark.parametrize(
    ("switch", "limit"),
    [
        ({}, "512KiB"),
        ({"pfc": True}, None),  # HPCC: 4 KB per Gbps, above the buffer of 512 KiB that pfc replaces
        ({"pfc": True, "pfc_classes": [0]}, None),  # as long as one queue comes to it
        ({"pfc": True, "ecn_threshold": ["1600KB", "1600KB"]}, None),
        ({"pfc": True, "buffer": "1KiB"}, None),  # holds no packet back
        ({"shared_buffer": "4MB"}, None),  # a queue alone gets half of it, 2 MB
        ({"shared_buffer": "3200KB"}, "1.6MB"),  # exactly the threshold
        ({"shared_buffer": "3200KB", "buffer_alpha": 4.0}, None),  # four fifths, 2.56 MB
        ({"shared_buffer": "16MB", "buffer_alpha": 0.1}, "1454545B"),  # an eleventh
        ({"shared_buffer": "16MB", "buffer": "1KiB"}, None),
        ({"shared_buffer": "16MB", "buffer_share": 0.05}, "800kB"),
        ({"shared_buffer": "16MB", "buffer_share": [0.05, 1.0], "pfc": True, "pfc_classes": [0]}, None),
        ({"buffer": "4MB", "ecn_threshold": ["1600KB", "8MB"]}, None),  # nothing is marked in the second
        ({"buffer": "2MB", "buffer_share": 0.5}, "1MB"),
    ],
)
def test_ecn_threshold_is_checked_against_effective_queue_limit(switch: dict[str, Any], limit: str | None) -> None:
    """The expected limits are worked out by hand: the most that one queue of a port can hold."""
    tables = {"ecn_threshold": "1600KB", **switch}
    if limit is None:
        assert fabric_400g(tables).switch.thresholds()
        return
    with pytest.raises(ScenarioError, match=f"switch.ecn_threshold.*expected less than {limit}") as caught:
        fabric_400g(tables)
    assert len(caught.value.mistakes) == 1


def test_errors_of_keys_tables_and_scenario_come_in_one_report() -> None:
    """Wrong keys, wrong pairs of keys and errors of the whole scenario come in one report."""
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "link": {"rate": "fast"},
        "switch": {"queues": 3, "ecn_threshold": "1600KB", "ecn_ceiling": "1KB", "drr_after": 2},
        "traffic": [{"name": "t", "kind": "permutation", "size": "1MB", "priority": 5}],
    }  # fmt: skip
    with pytest.raises(ScenarioError) as caught:
        build_scenario(tables)
    assert {mistake.path for mistake in caught.value.mistakes} == {
        "link.rate", "switch.ecn_ceiling", "switch.drr_after", "switch.ecn_threshold", "traffic[0].priority",
    }  # fmt: skip


def test_key_depending_on_invalid_key_is_no_second_error() -> None:
    """`drr_after` needs `drr_quantum`, which is present but has no unit."""
    tables = {"name": "x", "topology": {"kind": "star", "hosts": 4}, "switch": {"drr_quantum": 5, "drr_after": 2},
              "traffic": [{"name": "t", "kind": "permutation", "size": "1MB"}]}  # fmt: skip
    with pytest.raises(ScenarioError) as caught:
        build_scenario(tables)
    assert [mistake.path for mistake in caught.value.mistakes] == ["switch.drr_quantum"]
