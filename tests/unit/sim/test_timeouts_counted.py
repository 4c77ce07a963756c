"""Time-outs are counted by message: those that must happen, and no others."""

from __future__ import annotations

import pytest

from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate


@pytest.mark.parametrize("connections", ["fresh", "persistent"])
def test_timeouts_are_counted_per_message(connections: str) -> None:
    """A message whose cable is cut for 5 ms times out at 2 and 6 ms. The other message never times out."""
    scenario = load_scenario(
        "incast-32",
        set=[
            'traffic.size="20kB"', "traffic.fan_in=2", 'topology.hosts=3', 'traffic.receiver="h2"',
            f'transport.connections="{connections}"', 'transport.min_rto="2ms"',
            'fault=[{kind="link_down", at="0ns", until="5ms", between=["h0", "s0"], noticed_after="1s"}]',
        ],
    )  # fmt: skip
    rows = simulate(scenario).messages.to_pylist()
    assert {row["src"]: row["timeouts"] for row in rows} == {"h0": 2, "h1": 0}
    assert all(row["released_ps"] == row["start_ps"] for row in rows)
