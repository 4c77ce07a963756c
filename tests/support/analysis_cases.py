"""Small Results for the tests of `analysis`, with figures that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.result_store.result import Result


def iterations(**changes: Any) -> dict[str, list[Any]]:
    """Two workers, two iterations: 100, 300 and 120, 280 ps, of which 60 ps each is computing."""
    columns: dict[str, list[Any]] = {
        "job": ["j"] * 4,
        "worker": [0, 0, 1, 1],
        "iteration": [0, 1, 0, 1],
        "start_ps": [0, 100, 0, 120],
        "forward_end_ps": [20, 160, 20, 170],
        "backward_end_ps": [60, 200, 60, 210],
        "end_ps": [100, 400, 120, 400],
        "compute_ps": [60] * 4,
        "exposed_ps": [40, 240, 60, 220],
    }
    return columns | changes


def messages(**changes: Any) -> dict[str, list[Any]]:
    """Three pushes of 10, 20 and 30 ps, a pull of 40 ps and one under way; messages 1 and 2 lost something."""
    columns: dict[str, list[Any]] = {
        "message": [0, 1, 2, 3, 4],
        "job": ["j"] * 5,
        "iteration": [0] * 5,
        "tensor": [0, 1, 2, 0, 1],
        "layer": [0, 0, 1, 0, 0],
        "part": [0] * 5,
        "kind": ["push", "push", "push", "pull", "pull"],
        "src": ["h0"] * 5,
        "dst": ["h1"] * 5,
        "bytes": [1000] * 5,
        "packets": [10] * 5,
        "priority": [0] * 5,
        "start_ps": [5, 5, 5, 5, 5],
        "released_ps": [7, 5, 25, 5, 5],
        "end_ps": [15, 25, 35, 45, -1],
        "received_bytes": [1000, 950, 970, 1000, 100],
        "lost_bytes": [0, 50, 30, 0, 0],
        "bound": [0.1, 0.1, 0.04, 0.0, 0.0],
        "retransmitted": [0, 1, 2, 0, 0],
        "sent_packets": [11, 12, 13, 10, 10],
        "marked": [3, 0, 0, 1, 0],
        "trimmed": [0, 2, 0, 0, 0],
        "timeouts": [0, 0, 2, 0, 1],
    }
    return {"share": columns["bound"]} | columns | ({"share": changes["bound"]} if "bound" in changes else {}) | changes


def ports() -> dict[str, list[Any]]:
    """Two ports: together 3 tail drops, 5 selective ones, 1 link loss, 2 evicted, 7 on a cut cable, 1 without a
    route, and 30 marks."""
    return {
        "port": ["a->b", "b->c"],
        "packets": [30, 26],
        "bytes": [3000, 2600],
        "drops_tail": [3, 0],
        "drops_selective": [1, 4],
        "drops_loss": [0, 1],
        "drops_evicted": [2, 0],
        "drops_down": [0, 7],
        "drops_no_route": [0, 1],
        "marks": [10, 20],
        "control_marks": [0, 4],
        "trimmed": [4, 0],
        "pauses": [0, 3],
        "peak_queue_bytes": [500, 700],
    }


def small_result(
    message_columns: Mapping[str, Any] | None = None,
    iteration_columns: Mapping[str, Any] | None = None,
    port_columns: Mapping[str, Any] | None = None,
    policy: str = "p",
    label: str = "Policy",
) -> Result:
    """One Result from the columns above, or from others in their place."""
    summary = {
        "name": "case",
        "policy": policy,
        "label": label,
        "seed": 1,
        "versions": {"gradwire": "0"},
        "scenario_hash": "0123456789abcdef",
        "trace_hash": "fedcba9876543210",
        "engine": {"packet_hops": 1234},
        "totals": {"finished": True, "simulated_ps": 700, "messages": 5, "bytes": 5000},
    }
    tables = {
        "messages": messages() if message_columns is None else message_columns,
        "iterations": iterations() if iteration_columns is None else iteration_columns,
        "ports": ports() if port_columns is None else port_columns,
    }
    return Result.build(summary, tables, {"hops_per_s": 5e6})
