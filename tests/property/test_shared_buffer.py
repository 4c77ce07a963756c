"""A buffer that the ports of a switch share: the engine against the oracle, and the fixed point of dynamic thresholds."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star


def dctcp(**more: Any) -> Dctcp:
    return Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "min_rto": "200us", "max_rto": "20ms", **more})


def together(fabric: Any) -> None:
    fabric.advance.choice.fix(alone=False)


@budget()
@given(data=st.data())
def test_engine_and_oracle_drop_the_same_packets_with_shared_buffer(data):
    draw = data.draw
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    letters = []
    for _ in range(draw(st.integers(2, 12))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        letters.append(MessageSpec(draw(st.sampled_from((0, 0, US))), src, dst, draw(st.integers(1, 60_000)),
                              priority=draw(st.integers(0, 2)), important=draw(st.sampled_from((True, False)))))  # fmt: skip
    table = Switch.model_validate({
        "queues": draw(st.sampled_from((1, 3))), "shared_buffer": draw(st.sampled_from(("5KB", "20KB", "100KB"))),
        "buffer_alpha": draw(st.sampled_from((0.125, 0.5, 1.0, 8.0))),
        "ecn_threshold": draw(st.sampled_from((None, "3KB"))),
    })  # fmt: skip
    case = Case(network, [dctcp(initial_window=50)], letters, table, "ecmp", draw(st.integers(0, 2**40)), LATENCY)
    oracle = run_oracle(case)
    assert first_difference(run_engine(case), oracle) == ""
    assert first_difference(run_engine(case, threads=2, prepare=together), oracle) == ""


@pytest.mark.parametrize(("alpha", "queues"), [(1.0, 1), (1.0, 2), (0.5, 2), (4.0, 1)])
def test_backlogged_queues_settle_at_dynamic_threshold(alpha, queues):
    """n queues that never empty hold alpha B / (1 + n alpha) each (Choudhury and Hahne, fixed point). The tolerance
    is the packet admitted last, and the space that it finds when another queue is a packet short of the fixed point:
    alpha / (1 + alpha) of that packet. First windows of 400 packets take 341 us; after them queues do empty."""
    room, frame = 200_000, 1066
    network = star(2 + 4 * queues, LinkSpec(10**10, US))
    letters = [MessageSpec(0, queues + n, n % queues, 400_000) for n in range(4 * queues)]
    switch = Switch.model_validate({"queues": 1, "shared_buffer": f"{room}B", "buffer_alpha": alpha})
    outcome = run_engine(Case(network, [dctcp(initial_window=400)], letters, switch), until=330 * US)
    ports = [port for port in outcome.ports if port.tail]
    assert len(ports) == queues
    limit = alpha * room / (1 + queues * alpha)
    for port in ports:
        assert limit - frame <= port.peak <= limit + frame + (queues > 1) * frame * alpha / (1 + alpha)


def test_dynamic_threshold_leaves_space_for_another_queue():
    """While four hosts congest one port, two more send a little to another. With alpha = 1 it finds all the space it
    needs; with a large alpha the congested port has taken it."""
    network = star(8, LinkSpec(10**10, US))
    crowd = [MessageSpec(0, n, 7, 600_000) for n in range(4)]
    late = [MessageSpec(60 * US, n, 6, 20_000) for n in (4, 5)]
    drops = {}
    for alpha in (1.0, 1000.0):
        switch = Switch.model_validate({"queues": 1, "shared_buffer": "100KB", "buffer_alpha": alpha})
        outcome = run_engine(Case(network, [dctcp(initial_window=600)], [*crowd, *late], switch), until=110 * US)
        drops[alpha] = sum(drop.packet.dst == 6 for drop in outcome.drops)
    assert drops[1.0] == 0 < drops[1000.0]
