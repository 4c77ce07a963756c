"""A ring that runs as a program inside the fabric against the same ring sent message by message.

On a star with links that lose nothing by chance, and with times that hardly ever coincide between flows, the numbers of
the messages leave no trace in anything: so every row of both tables has to be equal, but for those numbers.
"""

from __future__ import annotations

import pytest
from sim_cases import make_trace, scenario

from gradwire.scenarios.errors import StallError
from gradwire.sim import collectives
from gradwire.sim.collectives import Ring, RingProgram
from gradwire.sim.simulate import simulate

SHOWN = (
    "iteration", "kind", "part", "src", "dst", "bytes", "priority", "bound", "start_ps", "end_ps",
    "received_bytes", "lost_bytes", "packets", "sent_packets", "retransmitted",
)  # fmt: skip

TRACE = make_trace([[3000], [40_000, 500], [90_001]], iterations=3, skew=777_777, optimizer=10_000)


def ring(workers, transport, **more):
    job = {
        "workers": workers,
        "iterations": 3,
        "jitter": 0.1,
        "exchange": {"kind": "ring", "bucket": "100KB"},
        **more,
    }
    return scenario(job, transport=transport, switch={"queues": 8, "buffer": "60KB", "ecn_threshold": "20KB",
                                                      "selective_drop": transport != "dctcp"})  # fmt: skip


def both_ways(monkeypatch, case, trace=TRACE):
    made = []
    for kind in (RingProgram, Ring):
        monkeypatch.setattr(kind, "__init__", _noting(kind.__init__, kind, made))
    compiled = simulate(case, trace)
    with monkeypatch.context() as patch:
        patch.setattr(collectives, "COMPILED", {})
        asked = simulate(case, trace)
    assert [type_.__name__ for type_ in made] == ["RingProgram", "Ring"]
    return compiled, asked


def _noting(init, kind, made):
    def wrapped(self, context):
        if type(self) is kind:
            made.append(kind)
        init(self, context)

    return wrapped


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize(
    ("transport", "more"),
    [
        ("dctcp", {}),
        (
            "dlcp",
            {"push_bound": 0.3, "pull_bound": 0.1, "pull_important": False, "tagging": {"magnitude": True}},
        ),
        (
            "dlcp",
            {
                "push_bound": 0.3,
                "pull_important": True,
                "tagging": {"magnitude": True, "layer_priority": True},
            },
        ),
    ],
)
def test_a_compiled_ring_is_the_ring(monkeypatch, workers, transport, more):
    compiled, asked = both_ways(monkeypatch, ring(workers, transport, **more))
    assert compiled.iterations.equals(asked.iterations)
    rows = [
        sorted(zip(*(r.messages[name].to_pylist() for name in SHOWN), strict=True)) for r in (compiled, asked)
    ]
    assert rows[0] == rows[1] and len(rows[0]) > 0
    assert compiled.summary["totals"] == asked.summary["totals"]
    ports = [r.ports.to_pylist() for r in (compiled, asked)]
    assert ports[0] == ports[1]


def test_a_ring_cut_short_has_rows_for_what_was_ready(monkeypatch):
    """At the time limit, both tables hold what had become ready, delivered or not."""
    case = ring(4, "dctcp").model_copy(update={"duration": 4_260_000_000})
    compiled, asked = both_ways(monkeypatch, case)
    rows = [
        sorted(zip(*(r.messages[name].to_pylist() for name in SHOWN), strict=True)) for r in (compiled, asked)
    ]
    assert rows[0] == rows[1]
    assert 0 < compiled.summary["totals"]["messages_under_way"] < len(rows[0])


def test_layers_in_order_of_priority_go_message_by_message(monkeypatch):
    """A scheduler with a credit has to see every message."""
    made = []
    monkeypatch.setattr(Ring, "__init__", _noting(Ring.__init__, Ring, made))
    simulate(ring(3, "dctcp", order="layer"), TRACE)
    assert made == [Ring]


def test_a_stall_names_the_collective():
    """Nothing gets through a link that loses everything: the report says what waits."""
    case = scenario(
        {"workers": 3, "exchange": {"kind": "ring", "bucket": "100KB"}},
        transport="dlcp",
        link={"rate": "100Gbps", "latency": "1us", "loss": 0.9999999},
    )
    with pytest.raises(
        StallError, match=r"reduce_scatter and all_gather of iteration 0, messages 0 to 11: 3 hosts"
    ):
        simulate(case, make_trace([[1000]]))
