"""A small sweep for tests: a few flows on a star, under DCTCP, so that all share one engine."""

from __future__ import annotations

from typing import Any

from gradwire.scenarios.loading.toml import write_toml

SCENARIO: dict[str, Any] = {
    "name": "small",
    "topology": {"kind": "star", "hosts": 4},
    "switch": {"ecn_threshold": "96KiB"},
    "traffic": [{"name": "web", "kind": "poisson", "sizes": "20kB", "load": 0.4, "flows": 120}],
    "policy": [{"name": "plain", "label": "as it is"}, {"name": "spray", "set": {"load_balancing": "spray_random"}}],
}


def sweep_tables(**changes: Any) -> dict[str, Any]:
    """Loads times buffers, two seeds: eight points."""
    tables: dict[str, Any] = {
        "name": "small",
        "scenario": SCENARIO,
        "seeds": 2,
        "measures": ["slowdown_p99", "all_mean_ps"],
        "axis": [{"key": "traffic.load", "values": [0.2, 0.6]}, {"key": "switch.buffer", "values": ["128KiB", "1MiB"]}],
    }
    return {key: value for key, value in (tables | changes).items() if value is not None}


def sweep_text(**changes: Any) -> str:
    """The same as a file."""
    return write_toml(sweep_tables(**changes))
