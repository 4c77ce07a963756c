"""Faults under a job, in both worlds: hosts slow and still, cables lossy and cut."""

from __future__ import annotations

import numpy as np
import pytest
from emu_cases import needs

import gradwire
from gradwire.emu.testbed import Request
from gradwire.scenarios.loading.load import build_scenario

JOB = {"name": "j", "trace": "resnet20", "iterations": 2, "workers": 4, "servers": 1, "push_bound": 0.02,
       "exchange": {"kind": "parameter_server"}}  # fmt: skip
TABLES = {
    "name": "faulty", "topology": {"kind": "star", "hosts": 5}, "link": {"rate": "50Mbps", "latency": "100us"},
    "host": {"software_latency": "250us"}, "job": [JOB], "transport": {"kind": "dlcp", "payload": "1400B"},
    "emulation": {"side_channel": "udp"},
    "switch": {"queues": 8, "buffer": "128KiB", "ecn_threshold": "16KiB", "selective_drop": True},
    "fault": [
        {"kind": "host_slow", "host": "h1", "factor": 8.0, "at": "0ms", "until": "900ms"},
        {"kind": "host_paused", "host": "h0", "at": "500ms", "until": "620ms"},
        {"kind": "link_down", "between": ["h3", "s0"], "at": "300ms", "until": "400ms"},
    ],
}  # fmt: skip


@needs("uml")
@pytest.mark.parametrize("switch", ["bpf", "red", "userspace"])
def test_job_with_faults_agrees_in_simulator_and_testbed(switch: str) -> None:
    scenario = build_scenario(TABLES)
    lucky = gradwire.simulate(build_scenario({**TABLES, "fault": []})).iterations.to_pylist()
    simulated = gradwire.simulate(scenario)
    emulated = gradwire.emulate(scenario, request=Request("virtual", switch))
    rows = [result.iterations.to_pylist() for result in (simulated, emulated)]
    for sim, emu, before in zip(*rows, lucky, strict=True):
        assert (sim["worker"], sim["iteration"]) == (emu["worker"], emu["iteration"])
        assert emu["compute_ps"] == sim["compute_ps"]
        if sim["iteration"] == 0:  # in which all of it happens
            assert emu["end_ps"] == pytest.approx(sim["end_ps"], abs=1_000_000)
        assert emu["end_ps"] == pytest.approx(sim["end_ps"], rel=0.01)
        if sim["worker"] == 1 and sim["iteration"] == 0:
            assert sim["compute_ps"] > 4 * before["compute_ps"]
    assert simulated.iterations["end_ps"].to_numpy().max() > 1.1 * max(row["end_ps"] for row in lucky)
    lost = [
        sum(int(np.sum(each.ports[name].to_numpy())) for name in each.ports.column_names if name.startswith("drops_"))
        for each in (simulated, emulated)
    ]
    assert lost[1] == lost[0] > 20
    assert emulated.summary["engine"]["substitutions"] and emulated.summary["engine"]["valid"]
