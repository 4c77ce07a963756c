"""Hosts that send by DLCP and by the kernel's TCP at once, under virtual time: what both have at the card is in the order of
their classes, as in the simulator, and DLCP's waits in its rules and not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emu_cases import needs

from gradwire.emu.testbed import Request
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.studies.connect import emulate

pytestmark = needs("uml", "tool:tc")

SCENARIO: dict[str, Any] = {
    "name": "both", "seed": 5, "topology": {"kind": "star", "hosts": 4}, "link": {"rate": "100Mbps", "latency": "50us"},
    "switch": {"ecn_threshold": "24KiB", "selective_drop": True}, "host": {"software_latency": "100us"}, "transport": {"kind": "dlcp"},
    "traffic": [
        {
            "name": "lossy", "kind": "incast", "fan_in": 3, "size": "60kB", "rounds": 8, "period": "30ms", "priority": 3,
            "bound": 0.1, "droppable": True,
        },
        {
            "name": "cubic", "kind": "permutation", "size": "40kB", "rounds": 8, "period": "30ms",
            "transport": {"kind": "cubic", "preset": "linux"},
        },
    ],
    "emulation": {"host_queue": "packet"},
}  # fmt: skip
PACKET = 4096 + 66


def total(result: Result, column: str) -> int:
    return int(sum(result.ports[column].to_pylist()))


def mean(result: Result, job: str) -> float:
    taken = [row["end_ps"] - row["start_ps"] for row in result.messages.to_pylist() if row["job"] == job]
    return float(np.mean(taken))


@pytest.mark.parametrize("switch", ["bpf", "userspace"])
def test_dlcp_packet_reaches_nic_after_previous_packet_has_left(switch: str) -> None:
    """Otherwise tens of kilobytes would wait behind the kernel's TCP and then leave in a burst. The transport's rules
    would take them for sent."""
    scenario = build_scenario(SCENARIO)
    sim, emu = simulate(scenario), emulate(scenario, request=Request("virtual", switch))
    waited = {row["port"]: row["peak_queue_bytes"] for row in emu.ports.to_pylist() if row["port"].startswith("h")}
    assert len(waited) == 4 and max(waited.values()) < 4 * PACKET, waited  # of which DLCP's are one
    for job, tolerance in (("cubic", 0.02), ("lossy", 0.1)):
        assert mean(emu, job) == pytest.approx(mean(sim, job), rel=tolerance)
    assert total(emu, "marks") == total(sim, "marks") == 0
    assert total(emu, "drops_selective") == pytest.approx(total(sim, "drops_selective"), rel=0.25)
