"""Deficit round robin, alone and behind strict queues: the engine against the oracle, and the shares that it promises."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.base import Mistakes
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star


def dctcp(**more: Any) -> Dctcp:
    return Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "min_rto": "200us", "max_rto": "20ms", **more})


@budget()
@given(data=st.data())
def test_engine_and_oracle_agree_on_deficit_round_robin(data):
    draw = data.draw
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    queues = draw(st.sampled_from((2, 3, 8)))
    letters = []
    for _ in range(draw(st.integers(2, 12))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        letters.append(MessageSpec(draw(st.sampled_from((0, 0, US))), src, dst, draw(st.integers(1, 60_000)),
                              priority=draw(st.integers(0, 7))))  # fmt: skip
    strict = draw(st.integers(0, queues - 1))
    quanta = draw(
        st.lists(st.sampled_from(("64B", "500B", "1066B", "4KB")), min_size=queues - strict, max_size=queues - strict)
    )
    table = Switch.model_validate({
        "queues": queues, "drr_quantum": quanta, "drr_after": strict, "buffer": draw(st.sampled_from(("10KB", "60KB", "10MB"))),
        "ecn_threshold": draw(st.sampled_from((None, "3KB"))),
    })  # fmt: skip
    case = Case(network, [dctcp(initial_window=50)], letters, table, "ecmp", draw(st.integers(0, 2**40)), LATENCY)
    assert first_difference(run_engine(case), run_oracle(case)) == ""


def shares(quanta: list[str], priorities: list[int], strict: int = 0) -> Counter:
    """Bytes per priority that leave for one host while flows of all priorities crowd its port."""
    network = star(len(priorities) + 1, LinkSpec(10**10, US))
    letters = [MessageSpec(0, n, len(priorities), 2_000_000, priority=p) for n, p in enumerate(priorities)]
    switch = Switch.model_validate(
        {"queues": strict + len(quanta), "drr_quantum": quanta, "drr_after": strict, "buffer": "10MB"}
    )
    case = Case(network, [dctcp(initial_window=1500)], letters, switch)
    outcome = run_engine(case, until=900 * US)
    port = next(n for n in range(network.link_count) if network.link_dst[n] == len(priorities))
    sent: Counter = Counter()
    for t in outcome.transmissions:
        if t.link == port and t.packet.kind == 0 and t.start > 100 * US:
            sent[t.packet.priority] += t.packet.size
    return sent


def test_backlogged_queues_share_the_link_by_their_quanta():
    """While all queues have packets, each share differs from its quantum's by about a quantum and a packet at most."""
    sent = shares(["1KB", "2KB", "5KB"], [0, 1, 2])
    total = sum(sent.values())
    assert total > 900_000
    for priority, quantum in enumerate((1000, 2000, 5000)):
        assert abs(sent[priority] - total * quantum / 8000) <= 2 * (quantum + 1066)


def test_strict_queue_precedes_round_robin_queues():
    sent = shares(["2KB", "2KB"], [0, 1, 2], strict=1)
    assert set(sent) == {0}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"drr_quantum": ["1KB", "1KB"]}, "has 2 entries for 3 queues"),
        ({"drr_quantum": ["1KB"]}, "has 1 entry for 3 queues"),
        ({"drr_quantum": ["1KB", "1KB", "1KB"], "drr_after": 1}, "has 3 entries for 2 queues"),
        ({"drr_quantum": "1KB", "drr_after": 3}, "leaves none"),
        ({"drr_quantum": "10B"}, "less than a packet"),
        ({"drr_after": 1}, "has no effect without turns"),
    ],
)
def test_invalid_drr_quanta_are_rejected(wrong, why):
    with pytest.raises((Mistakes, ValueError), match=why):
        Switch.model_validate({"queues": 3, **wrong})
