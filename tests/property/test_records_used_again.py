"""Timers of messages that have ended, in runs that use the records of messages again: engine against oracle.

The kernel's timers go off on a grid of 1 ms (`timers = "ticks"`, part of `preset = "linux"`). So a message often waits for
the very time for which the message before it, with the same record, waited.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from formats_cases import SHARED
from profiles import by_profile
from transport_bench import star_of

from gradwire.jit.records.constants import KEY_ORDER
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.network import Host
from gradwire.jit.uncompiled import uncompiled
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.memory import timer_heap
from gradwire.testing import transport
from gradwire.testing.scenario_comparison import agree_on
from gradwire.topology.routing import build_routing
from tests.soak.played import play

CASES = SHARED / "cases" / "engine"


def lossy_shifts(hosts: int, gpus: int, size: str, transport: dict) -> dict:
    """A star whose hosts send short messages to all others, one after the other, over links that lose 1 %."""
    return {
        "name": "shifts", "load_balancing": "ecmp", "topology": {"kind": "star", "hosts": hosts}, "link": {"loss": 0.01},
        "transport": transport, "host": {"gpus": gpus},
        "traffic": [{"kind": "all_to_all", "name": "t", "size": size, "order": "shifts"}],
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("kind", ["dctcp", "cubic"])
def test_reused_records_with_linux_timers_match_oracle(seed, kind, tmp_path):
    tables = {**lossy_shifts(4, 5, "10kB", {"kind": kind, "preset": "linux"}), "seed": seed}
    assert play(tables, tmp_path) == "ok"


@pytest.mark.parametrize("name", ["m3", "m4", "g1"])
def test_recorded_timer_cases_match_oracle(name, tmp_path):
    path = CASES / f"{name}.toml"
    if not path.exists():
        pytest.skip(f"no shared data: {path}")
    shutil.copy(path, tmp_path)
    tables = tomllib.loads(Path(tmp_path / path.name).read_text())
    for seed in range(1, by_profile(21, 3 if name == "g1" else 6)):
        packets = agree_on(build_scenario({**tables, "seed": seed}).at(tmp_path), reuse=seed % 2 == 0)
        assert packets > 100


@pytest.fixture
def fabric():
    network = star_of(3)
    return Fabric(network, build_routing(network), switch=Switch(), transports=[transport("dctcp")])


def entries(fabric, node):
    """The heap of a host, sorted."""
    state = fabric.memory.state
    base, count = int(state[node + Host.timer_heap.offset]), int(state[node + Host.timer_count.offset])
    return sorted(map(tuple, state[base : base + 2 * count].reshape(-1, 2).tolist()))


@pytest.mark.parametrize("receiver", [False, True])
def test_full_timer_heap_keeps_one_entry_per_live_timer(fabric, receiver):
    """Three waiting messages have several entries each, among those of messages that have ended."""
    memory, state = fabric.memory, fabric.memory.state
    node = int(memory.node_base[0])
    capacity = int(state[int(state[node + Host.timer_heap.offset]) - 1])
    live, pushed = [], 0
    for flow in range(3):
        f, r = memory.senders + flow * Sender.WORDS, memory.receivers + flow * Receiver.WORDS
        order = (100 + flow) << KEY_ORDER
        state[f + Sender.order.offset] = order
        record = r if receiver else f
        ends = Receiver(state, r) if receiver else Sender(state, f)
        ends.timer = ends.armed = 5000
        live.append((5000, order | record << 2 | timer_heap.WHAT_TIMER))
    stale = [
        (time, key ^ 1 << KEY_ORDER) for time, key in live
    ]  # of the messages that had the records before, for the same time
    moved = [(time - 1, key) for time, key in live]
    while pushed <= 3 * capacity:
        time, key = (live + stale + moved)[pushed % 9]
        uncompiled(timer_heap.push)(Host(state, node), time, key)
        pushed += 1
        assert state[node + Host.timer_count.offset] <= capacity
    uncompiled(timer_heap._sweep)(Host(state, node))
    assert entries(fabric, node) == sorted(live)
    armed = [state[memory.receivers + flow * Receiver.WORDS + Receiver.armed.offset] if receiver else state[memory.senders + flow * Sender.WORDS + Sender.armed.offset]
             for flow in range(3)]  # fmt: skip
    assert armed == [5000] * 3
