"""The wire of a preset, simulated: closed forms, policies that matter, and extrapolation."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.studies.busbw.presets import load_preset
from gradwire.studies.busbw.traffic_patterns import pattern_of
from gradwire.studies.busbw.wire import PacketWire

SMALL = ["topology.cards=2"]


def wire(hosts: int, *overrides: str, preset: str = "h100-rail", policy: str | None = None) -> PacketWire:
    return PacketWire(load_preset(preset, [*SMALL, *overrides], policy), hosts)


def test_a_ring_carries_the_line_rate_less_headers() -> None:
    simulated = wire(4)
    rate = 2**26 / (simulated.busy_us(pattern_of("ring", 4), np.array([2.0**26]))[0] * 1000)
    assert 50.0 * 0.95 < rate < 50.0
    assert simulated.latency_us == pytest.approx(1.2, abs=0.1)  # two cables of 600 ns


def test_all_pairs_share_the_ports() -> None:
    simulated = wire(4)
    one = simulated.busy_us(pattern_of("ring", 4), np.array([2.0**22]))[0]
    all_pairs = simulated.busy_us(pattern_of("all_pairs", 4), np.array([2.0**22]))[0]
    assert all_pairs == pytest.approx(3 * one, rel=0.15)


def test_times_beyond_the_budget_grow_in_proportion() -> None:
    simulated = wire(4)
    sizes = np.array([2.0**27, 2.0**28, 2.0**30])
    times = simulated.busy_us(pattern_of("ring", 4), sizes)
    assert times[1] / times[0] == pytest.approx(2, rel=0.01) and times[2] / times[1] == pytest.approx(4, rel=0.01)
    assert simulated.extrapolated_from == {"ring": 1 << 26}


def test_static_routes_collide_where_spraying_does_not() -> None:
    """Two groups of four hosts below two spines: flows between groups are spread unevenly if each stays on one path."""
    size, ring = np.array([2.0**22]), pattern_of("all_pairs", 8)
    group = ("topology.hosts_per_group=4", "topology.spines=2")
    static = wire(8, *group, policy="static").busy_us(ring, size)[0]
    spray = wire(8, *group, policy="spray").busy_us(ring, size)[0]
    assert static > 1.1 * spray


def test_a_slow_wire_slows_a_tree_in_proportion() -> None:
    tree, size = pattern_of("double_tree", 4), np.array([2.0**22])
    fast, slow = (wire(4, f"network.link.rate={rate}Gbps").busy_us(tree, size)[0] for rate in (400, 200))
    assert slow == pytest.approx(2 * fast, rel=0.15)
    assert fast >= 0.95 * 4 * 2**22 / 50e3  # four halves cross the busiest port
