"""Two runs to be compared: Results with figures that are easy to reckon with, and ways to change them."""

from __future__ import annotations

from typing import Any

from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.schema.fidelity import Fidelity

US = 10**6
STRICT = Fidelity(
    completion_mean=0.02, completion_p50=0.02, completion_p99=0.02, iteration=0.02, throughput=0.02, drops=0.03, marks=0.03,
    loss=0.01,
)  # fmt: skip


def tables() -> dict[str, dict[str, list[Any]]]:
    """A job with two workers and a server: 20 pushes of 100, 101, ... 119 us from each worker, back to back, every
    one of 1000 bytes of which 100 may be and 50 are lost, and 3 iterations of 10 ms. Two ports."""
    messages: dict[str, list[Any]] = {name: [] for name in TABLES["messages"]}
    number = 0
    for worker in range(2):
        start = 0
        for i in range(20):
            row = {
                "message": number, "job": "train", "iteration": i // 10, "tensor": i % 10, "layer": 0, "part": 0, "kind": "push",
                "src": f"h{worker}", "dst": "h2", "bytes": 1000, "packets": 1, "priority": i % 2, "start_ps": start, "released_ps": start,
                "end_ps": start + (100 + i) * US, "received_bytes": 950, "lost_bytes": 50, "bound": 0.1, "share": 0.1, "retransmitted": 0,
                "sent_packets": 1, "marked": 1, "trimmed": 0, "timeouts": 0,
            }  # fmt: skip
            for name, value in row.items():
                messages[name].append(value)
            start = row["end_ps"]
            number += 1
    iterations: dict[str, list[Any]] = {
        "job": ["train"] * 6, "worker": [0, 0, 0, 1, 1, 1], "iteration": [0, 1, 2] * 2,
        "start_ps": [0, 10**10, 2 * 10**10] * 2, "forward_end_ps": [0] * 6, "backward_end_ps": [0] * 6,
        "end_ps": [10**10, 2 * 10**10, 3 * 10**10] * 2, "compute_ps": [5 * 10**9] * 6, "exposed_ps": [5 * 10**9] * 6,
    }  # fmt: skip
    ports: dict[str, list[Any]] = {name: [0, 0] for name in TABLES["ports"]}
    ports |= {"port": ["h0->s0", "s0->h2"], "packets": [500, 2000], "drops_tail": [0, 1000], "drops_selective": [0, 500], "marks": [0, 2000]}  # fmt: skip
    return {"messages": messages, "iterations": iterations, "ports": ports}


def result(changed: dict[str, dict[str, list[Any]]] | None = None, **summary: Any) -> Result:
    described = {
        "name": "case", "policy": "base", "seed": 1, "scenario_hash": "ab", "trace_hash": "cd", "engine": {},
        "totals": {"ended_by": "done"}, **summary,
    }  # fmt: skip
    return Result.build(described, changed or tables())


SIM = result()


def compared(change=None, tolerances: Fidelity = STRICT, **summary: Any):
    """The agreement of a run with what `change` makes of its tables."""
    changed = tables()
    if change is not None:
        change(changed)
    return agreement(SIM, result(changed, **summary), tolerances)


def later(factor: float, which=lambda i: True):
    """Completion times of some messages times a factor."""

    def change(changed):
        m = changed["messages"]
        for i, (start, end) in enumerate(zip(m["start_ps"], m["end_ps"], strict=True)):
            if which(i):
                m["end_ps"][i] = start + round((end - start) * factor)

    return change


def count(counter: str, port: int, value: int):
    return lambda changed: changed["ports"][counter].__setitem__(port, value)


def missed(found) -> list[str]:
    return [each.what for each in found.missed]


def compared_result(change) -> Result:
    changed = tables()
    change(changed)
    return result(changed)
