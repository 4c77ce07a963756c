"""Packets cut to their headers: the engine against the oracle, and what becomes of the headers."""

from __future__ import annotations

from typing import Any

from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.constant_rate import ConstantRate
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import DATA
from gradwire.topology import LinkSpec, star


def dctcp(**more: Any) -> Dctcp:
    return Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "min_rto": "200us", "max_rto": "20ms", **more})


def together(fabric: Any) -> None:
    fabric.advance.choice.fix(alone=False)


@budget()
@given(data=st.data())
def test_engine_and_oracle_trim_the_same_packets(data):
    draw = data.draw
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    letters = []
    for _ in range(draw(st.integers(2, 12))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        letters.append(MessageSpec(draw(st.sampled_from((0, 0, US))), src, dst, draw(st.integers(1, 60_000)),
                              priority=draw(st.integers(0, 2)), important=draw(st.sampled_from((True, False)))))  # fmt: skip
    queues = draw(st.sampled_from((1, 3)))
    table = Switch.model_validate({
        "queues": queues,
        "trim_threshold": draw(st.sampled_from(("60B", "1066B", "3KB", "8KB"))),
        "trim_priority": draw(st.integers(0, queues - 1)),
        "trim_size": draw(st.sampled_from(("60B", "64B", "200B"))),
        "buffer": draw(st.sampled_from(("5KB", "20KB"))),
        **draw(st.sampled_from(({}, {"shared_buffer": "15KB"}))),
    })  # fmt: skip
    case = Case(network, [dctcp(initial_window=50)], letters, table, "ecmp", draw(st.integers(0, 2**40)), LATENCY)
    oracle = run_oracle(case)
    assert first_difference(run_engine(case), oracle) == ""
    assert first_difference(run_engine(case, threads=2, prepare=together), oracle) == ""


def test_incast_packets_arrive_whole_or_as_headers():
    """Nothing is dropped if headers find space, however small the queue. No header is trimmed twice."""
    network = star(17, LinkSpec(10**10, US))
    letters = [MessageSpec(0, n, 16, 100_000) for n in range(16)]
    table = Switch.model_validate({"queues": 2, "trim_threshold": "8528B", "buffer": "200KB"})
    outcome = run_engine(Case(network, [dctcp(initial_window=100)], letters, table), until=150 * US)
    assert not outcome.drops
    down = [
        sent for sent in outcome.transmissions if sent.packet.dst == 16 and sent.link % 2 and sent.packet.kind == DATA
    ]
    headers = [sent for sent in down if sent.packet.trimmed]
    assert len(headers) == sum(port.trimmed for port in outcome.ports) > 1000
    assert {sent.packet.size for sent in headers} == {64} and {sent.packet.priority for sent in headers} == {0}
    assert {sent.packet.size for sent in down if not sent.packet.trimmed} == {1066}


def test_synchronous_senders_are_trimmed_equally():
    """Packets of two senders reach the port at the same times, one always just before the other. Every other time the
    last queued packet is trimmed in place of the arriving one, so that neither sender bears all trimming."""
    network = star(3, LinkSpec(10**10, US))
    letters = [MessageSpec(0, n, 2, 1_000_000) for n in range(2)]
    table = Switch.model_validate({"queues": 2, "trim_threshold": "8528B", "buffer": "2MB"})
    steady = ConstantRate.model_validate({"kind": "constant_rate", "payload": "1000B"})
    outcome = run_engine(Case(network, [steady], letters, table), until=800 * US)
    whole = [0, 0]
    for sent in outcome.transmissions:
        if sent.packet.kind == DATA and sent.packet.dst == 2 and sent.link % 2 and not sent.packet.trimmed:
            whole[sent.packet.flow] += 1
    assert sum(whole) > 600
    assert abs(whole[0] - whole[1]) < 0.15 * sum(whole)
