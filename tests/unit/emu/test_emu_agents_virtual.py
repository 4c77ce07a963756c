"""Agents in virtual time: real sockets that keep to the nanosecond what arithmetic says, and do the same each time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import emu_agents_cases
import pytest

from gradwire.emu.agent import compiled_agent
from gradwire.emu.native import code_cache
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports.simulator_rules import transport_class
from gradwire.emu.virtual_time.virtual_machine import kernel_or_error, run_inside
from gradwire.scenarios.cache import cache_folder

RATE = 10_000_000_000
PACKET_NS = 4154 * 8 / 10
MTU_PACKET_NS = 4162 * 8 / 10
CASES = [
    {"transport": "dlcp", "sends": [{"src": 0, "dst": 1, "nbytes": 4096 * 500}]},
    {"transport": "dlcp", "sends": [{"src": 0, "dst": 1, "nbytes": 4096 * 100, "at_ns": 5000 * i} for i in range(3)]},
    {
        "transport": "constant_rate",
        "sends": [{"src": 0, "dst": 1, "nbytes": 4096 * 300, "important": False}],
        "settings": {"share": 0.37},
    },
    {"transport": "dctcp", "sends": [{"src": 0, "dst": 1, "nbytes": 4096 * 500}]},
]
CASES += CASES[:3]  # once more in the same machine, seconds later


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    try:
        kernel_or_error()
    except TestbedError as error:
        pytest.skip(f"{error.what}: {error.expected}")
    code_cache.make_ready(
        compiled_agent.works(transport_class(kind) for kind in ("dlcp", "constant_rate"))
    )  # inside it would take minutes
    folder = tmp_path_factory.mktemp("virtual")
    runs = []
    for name in ("first", "second"):
        answer = str(folder / name)
        arguments = json.dumps({"rate": RATE, "latency_us": 1, "cases": CASES, "answer": answer})
        root = Path(emu_agents_cases.ROOT)
        command = [sys.executable, emu_agents_cases.__file__, "paired", arguments]
        status = run_inside(
            command,
            seed=1,
            limit_s=100,
            environment={
                "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests/support")]),
                "GRADWIRE_CACHE": str(cache_folder()),
            },
        )
        assert status == 0
        runs.append(json.loads(Path(answer).read_text()))
    return runs


def took(found):
    return [end - start for start, end in zip(found["start_ns"], found["end_ns"], strict=True)]


def test_virtual_time_runs_are_punctual_lossless_and_correct(found):
    for each in found[0]:
        assert (each["wrong"], each["ended_by"], set(each["lost"]), each["problems"]) == ([], "done", {0}, [])
        assert set(each["retransmitted"]) == {0}
        assert all(host["max_ns"] <= 10 for host in each["punctuality"].values())


def test_completion_times_are_independent_of_the_start_time_within_2_ns(found):
    """Each clock read takes 1 ns, and repeated runs differ in the number of reads."""
    for first, again in zip(found[0][:3], found[0][4:], strict=True):
        assert first["start_ns"] == again["start_ns"]
        assert again["end_ns"] == pytest.approx(first["end_ns"], rel=0, abs=2)


def test_message_time_equals_serialisation_of_its_packets_plus_latency(found):
    assert took(found[0][0])[0] == pytest.approx(500 * PACKET_NS + 1000, rel=0.001)


def test_messages_of_a_pair_use_the_link_in_sequence(found):
    """Three messages of 100 packets each finish 100 packet times apart."""
    each = found[0][1]
    assert max(each["end_ns"]) == pytest.approx(300 * PACKET_NS + 1000, rel=0.001)
    first, second, third = each["end_ns"]
    assert second - first == pytest.approx(100 * PACKET_NS, rel=0.01)
    assert third - second == pytest.approx(100 * PACKET_NS, rel=0.01)


def test_constant_rate_message_takes_expected_time(found):
    assert took(found[0][2])[0] == pytest.approx(299 * PACKET_NS / 0.37 + PACKET_NS + 1000, rel=0.001)


def test_kernel_tcp_reaches_line_rate_within_5_percent(found):
    line = 500 * MTU_PACKET_NS + 1000
    assert 0.999 * line < took(found[0][3])[0] < 1.05 * line
    assert found[0][3]["sent_packets"] == [500] and found[0][3]["marked"] == [0]


def test_virtual_time_runs_are_identical(found):
    assert found[0] == found[1]
