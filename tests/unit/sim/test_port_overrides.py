"""Ports whose queues differ from those of [switch], by [[switch.override]]."""

from __future__ import annotations

from typing import Any

import pytest

import gradwire
from gradwire.emu.planning.planner import check_scenario
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.topology import network_of
from gradwire.topology.port_settings import port_settings


def scenario(*overrides: dict[str, Any], **switch: Any):
    """Five hosts send 100 kB each to a sixth; switches mark above three packets."""
    return build_scenario({
        "name": "incast",
        "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 1},
        "transport": {"kind": "dctcp", "payload": "1000B", "initial_window": 10},
        "switch": {"queues": 1, "buffer": "64KiB", "ecn_threshold": "3kB", **switch, "override": list(overrides)},
        "traffic": [{"name": "in", "kind": "incast", "fan_in": 5, "receiver": "h0", "size": "100kB"}],
    })  # fmt: skip


def marks(table: Any) -> dict[str, int]:
    """Marks by port."""
    ports = gradwire.simulate(table).ports.to_pylist()
    return {port["port"]: port["marks"] for port in ports if port["marks"]}


def test_ports_without_ecn_mark_nothing():
    last = "leaf0->h0"
    assert marks(scenario())[last] > 0
    without = marks(scenario({"ports": "leaf*->h*", "ecn": False}))
    assert last not in without and without
    assert marks(scenario({"ports": "*->*", "ecn": False})) == {}


def test_later_override_prevails():
    """All ports are without marks but the last hop, which has its own threshold again."""
    assert set(marks(scenario({"ports": "*->*", "ecn": False}, {"ports": "leaf0->h*", "ecn_threshold": "3kB"}))) == {
        "leaf0->h0"
    }  # fmt: skip


@pytest.mark.parametrize(("port", "packets"), [("leaf0->h0", 3), ("leaf1->spine0", 4)])
def test_port_holds_what_its_buffer_takes(port, packets):
    """The largest queue of the port is its own buffer to the packet; the others keep theirs."""
    change = {"ports": port, "buffer": f"{packets * 1066}B", "ecn_threshold": "1066B"}
    table = scenario(change, buffer="4MiB", ecn_threshold="60kB")
    result = gradwire.simulate(table).ports.to_pylist()
    peaks = {each["port"]: each["peak_queue_bytes"] for each in result}
    drops = {each["port"]: each["drops_tail"] for each in result if each["drops_tail"]}
    assert peaks[port] == packets * 1066 and set(drops) == {port}
    assert max(peaks.values()) > peaks[port]


def test_every_setting_of_a_port_is_found():
    switch = scenario({"ports": "*->h*", "buffer": "10kB"}, {"ports": "leaf0->*", "ecn_threshold": "2kB"}).switch
    network = network_of(scenario())
    settings, which = port_settings(network, switch)
    found = {network.link_name(link): settings[which[link]] for link in range(network.link_count)}
    assert (found["leaf0->h0"].buffer, found["leaf0->h0"].thresholds()) == (10_000, (2000,))
    assert (found["leaf1->h3"].buffer, found["leaf1->h3"].thresholds()) == (10_000, (3000,))
    assert (found["leaf0->spine0"].buffer, found["leaf0->spine0"].thresholds()) == (65536, (2000,))
    assert found["h0->leaf0"] is switch


@pytest.mark.parametrize(
    ("override", "switch", "where", "what"),
    [
        ({"ports": "leaf0", "ecn": False}, {}, "switch.override[0].ports", "does not name ports"),
        ({"ports": "*->*"}, {}, "switch.override[0]", "changes nothing"),
        ({"ports": "*->*", "ecn": False, "ecn_threshold": "3kB"}, {}, "switch.override[0].ecn", "turns off"),
        ({"ports": "*->*", "ecn_ceiling": "9kB"}, {}, "switch.override[0].ecn_ceiling", "does not have"),
        ({"ports": "*->*", "buffer": "9kB"}, {"shared_buffer": "1MB"}, "switch.override[0].buffer", "shared_buffer"),
        ({"ports": "*->*", "buffer": "100B"}, {}, "switch.override[0].buffer", "does not hold a single packet"),
        ({"ports": "*->*", "buffer": "2kB"}, {}, "switch.override[0].buffer", "is not below switch.buffer"),
        ({"ports": "*->*", "ecn_threshold": "9kB"}, {"ecn_ceiling": "5kB"}, "override[0].ecn_ceiling", "not above"),
    ],
)
def test_settings_that_cannot_be_are_refused(override, switch, where, what):
    with pytest.raises(ScenarioError) as error:
        scenario(override, **switch)
    assert where in str(error.value) and what in str(error.value)


@pytest.mark.parametrize("ports", ["leaf9->h*", "h0->leaf0", "leaf?->h0", "[l]eaf0->h0"])
def test_pattern_without_a_port_of_a_switch_is_refused(ports):
    with pytest.raises(ScenarioError, match=r"names no port of a switch.*a name like leaf0->h0"):
        network_of(scenario({"ports": ports, "ecn": False}))


def test_testbed_refuses_ports_that_differ():
    with pytest.raises(ScenarioError, match="queues of the testbed are alike"):
        check_scenario(scenario({"ports": "*->h*", "ecn": False}))
