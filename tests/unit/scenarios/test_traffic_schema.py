"""`[[traffic]]` in a scenario: every mistake is found, at its place, and said in words."""

from __future__ import annotations

from typing import Any

import pytest
from star_cases import star_tables

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario

POISSON = {"name": "p", "kind": "poisson", "load": 0.5, "sizes": "web_search", "flows": 10}
STORAGE = {"name": "f", "kind": "storage", "operation": "read", "storage": ["h3"], "size": "1MB"}
INCAST = {"name": "i", "kind": "incast", "fan_in": 3, "size": "1kB"}


def case(*traffic: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "c", "topology": {"kind": "star", "hosts": 4}, "traffic": list(traffic), **fields}


@pytest.mark.parametrize(
    ("table", "fields", "path", "what"),
    [
        ({**POISSON, "load": 1.5}, {}, "traffic[0].load", "is out of range"),
        ({**POISSON, "load": 0.0}, {}, "traffic[0].load", "is out of range"),
        ({**POISSON, "sizes": "websearch"}, {}, "traffic[0].sizes", "is not a distribution of sizes"),
        ({**POISSON, "sizes": 5}, {}, "traffic[0].sizes", "is not a distribution of sizes"),
        ({**POISSON, "kind": "poison"}, {}, "traffic[0].kind", "is unknown"),
        ({**POISSON, "hosts": ["h0"]}, {}, "traffic[0].hosts", "names fewer than two hosts"),
        ({**POISSON, "hosts": ["h0", "h0..h2"]}, {}, "traffic[0].hosts", "names a host twice"),
        ({**POISSON, "hosts": ["h2..h0"]}, {}, "traffic[0].hosts", '"h2..h0" is not a range'),
        ({**POISSON, "hosts": "some"}, {}, "traffic[0].hosts", "names no hosts"),
        ({**POISSON, "hosts": ["h0", "h4"]}, {}, "traffic[0].hosts", "names unknown hosts"),
        ({**POISSON, "priority": 3}, {"switch": {"queues": 3}}, "traffic[0].priority", "is beyond the 3 queues"),
        ({**POISSON, "bound": 0.1}, {}, "traffic[0].bound", "allows loss, but transport dctcp delivers every byte"),
        ({**POISSON, "start": "2us", "stop": "2us"}, {}, "traffic[0].stop", "is not after start"),
        ({**POISSON, "start": "2us"}, {"duration": "2us"}, "traffic[0].start", "is not before the end of the run"),
        ({**POISSON, "colour": 1}, {}, "traffic[0].colour", "unknown key"),
        (
            {**POISSON, "transport": {"kind": "dlcp", "control_priority": 4}}, {"switch": {"queues": 4}},
            "traffic[0].transport.control_priority", "is beyond the 4 queues",
        ),
        (
            {**POISSON, "transport": {"kind": "dctcp", "payload": "8000B"}}, {"switch": {"buffer": "5kB"}},
            "traffic[0].transport.payload", "makes packets too large for the switches",
        ),
        ({**INCAST, "fan_in": 4}, {}, "traffic[0].fan_in", "needs 5 hosts, but 4 take part"),
        ({**INCAST, "fan_in": 3, "hosts": ["h0..h2"]}, {}, "traffic[0].fan_in", "needs 4 hosts, but 3 take part"),
        ({**INCAST, "receiver": "h4"}, {}, "traffic[0].receiver", "is not a host of the topology"),
        ({**INCAST, "rounds": 2}, {}, "traffic[0].rounds", "needs a period"),
        ({**INCAST, "period": "1us"}, {}, "traffic[0]", "never ends"),
        ({**STORAGE, "operation": "look"}, {}, "traffic[0].operation", "is unknown"),
        ({**STORAGE, "storage": []}, {}, "traffic[0].storage", "names no hosts"),
        ({**STORAGE, "storage": "all"}, {}, "traffic[0].storage", "names no hosts"),
        ({**STORAGE, "hosts": []}, {}, "traffic[0].hosts", "names no hosts"),
        ({**STORAGE, "storage": ["h3", "h4"]}, {}, "traffic[0].storage", "is not a host of the topology"),
        ({**STORAGE, "storage": ["h0..h3"]}, {}, "traffic[0].storage", "leaves none of 4 hosts to read"),
        ({**STORAGE, "hosts": ["h0", "h3"]}, {}, "traffic[0].storage", "also names hosts of `hosts`"),
        ({**STORAGE, "size": "1GB", "stripe": "1kB"}, {}, "traffic[0].stripe", "cuts a file into 1000000"),
        (
            {**STORAGE, "size": "1GB", "stripe": "10kB", "window": 99999}, {"topology": {"kind": "star", "hosts": 16}},
            "traffic[0].window", "starts 1499985 flows at once",
        ),
        (
            {**STORAGE, "period": "1us", "rounds": 2, "spread": "2us"}, {},
            "traffic[0].spread", "lets a round begin after the next one",
        ),
        (
            {"name": "s", "kind": "permutation", "size": "1kB", "shift": 4}, {},
            "traffic[0].shift", "makes every one of 4 hosts send to itself",
        ),
        (
            {"name": "a", "kind": "all_to_all", "size": "1kB"}, {"topology": {"kind": "star", "hosts": 1100}},
            "traffic[0].order", "starts 1208900 flows at once",
        ),
        (
            {key: value for key, value in POISSON.items() if key != "flows"}, {},
            "traffic[0]", "never ends, and no job",
        ),
    ],
)  # fmt: skip
def test_traffic_errors_name_path_and_cause(table, fields, path, what):
    if path.endswith("payload"):
        fields = {**fields, "transport": {"kind": "dctcp", "payload": "4000B"}}
    with pytest.raises(ScenarioError) as caught:
        build_scenario(case(table, **fields))
    (found,) = caught.value.mistakes
    assert (found.path, found.what[: len(what)]) == (path, what)


def test_duplicate_traffic_names_are_rejected():
    tables = star_tables(traffic=[{**POISSON, "name": "job"}, INCAST, {**INCAST}])
    with pytest.raises(ScenarioError) as caught:
        build_scenario(tables)
    assert [mistake.path for mistake in caught.value.mistakes] == ["traffic[0].name", "traffic[2].name"]


def test_job_can_override_the_transport():
    tables = star_tables(traffic=[POISSON])
    tables["job"][0] |= {"transport": "dlcp", "push_bound": 0.1}
    scenario = build_scenario(tables)
    assert [type(transport) for transport in scenario.transports] == [Dlcp, Dctcp]
    assert (scenario.transport_of(scenario.job[0]), scenario.transport_of(scenario.traffic[0])) == (0, 1)
    del tables["job"][0]["transport"]
    with pytest.raises(ScenarioError, match=r"job\[0\]\.push_bound: allows loss"):
        build_scenario(tables)


def test_unused_transports_are_omitted():
    assert [type(t) for t in build_scenario(case({**POISSON, "transport": "dlcp"})).transports] == [Dlcp]
    same = build_scenario(case({**POISSON, "transport": "dctcp"}, INCAST))
    assert len(same.transports) == 1


def test_host_ranges_are_expanded():
    scenario = build_scenario(case({**POISSON, "hosts": ["h3", "h0..h1"]}))
    assert scenario.traffic[0].hosts == ("h3", "h0", "h1")
    assert build_scenario(scenario.as_written()) == scenario


def test_storage_traffic_accepts_a_single_host():
    scenario = build_scenario(case({**STORAGE, "hosts": ["h1"]}))
    assert (scenario.traffic[0].hosts, scenario.traffic[0].storage) == (("h1",), ("h3",))
    assert build_scenario(scenario.as_written()) == scenario


def test_policy_applies_to_all_traffic_tables():
    scenario = build_scenario(
        case(POISSON, INCAST, policy=[{"name": "low", "set": {"traffic": {"transport": "dlcp", "priority": 2}}}])
    )
    (variant,) = scenario.variants()
    assert {(type(table.transport), table.priority) for table in variant.traffic} == {(Dlcp, 2)}


def test_endless_traffic_is_allowed_with_a_job():
    endless = {key: value for key, value in POISSON.items() if key != "flows"}
    assert build_scenario(star_tables(traffic=[endless])).traffic[0].endless
    assert not build_scenario(star_tables(traffic=[POISSON])).traffic[0].endless
