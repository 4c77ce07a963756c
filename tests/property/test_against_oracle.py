"""The compiled engine against the oracle, packet by packet: every start, order, mark, drop and delivery."""

from __future__ import annotations

from dataclasses import replace

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import BALANCERS, DCTCP, DLCP, NEWRENO, US, cases

from gradwire.testing.oracle import MessageSpec, first_difference, run_engine, run_oracle


@pytest.mark.parametrize("balancing", BALANCERS)
def test_engine_and_oracle_agree_on_every_packet(balancing):
    @budget(1.5)
    @given(cases((balancing,)))
    def agree(case):
        difference = first_difference(run_engine(case), run_oracle(case))
        assert not difference, difference

    agree()


@budget(0.8)
@given(cases(("ecmp",), most=6), st.integers(1, 200_000_000))
def test_engine_and_oracle_agree_on_an_unfinished_run(case, until):
    """All transmissions before some moment agree, even if messages are still under way then."""
    engine, oracle = run_engine(case, until=until), run_oracle(case, until=until)
    assert engine.transmissions == oracle.transmissions
    assert engine.arrivals == oracle.arrivals
    assert engine.ports == oracle.ports


@budget(1.0)
@given(cases(("ecmp",), most=5), st.data())
def test_message_starts_at_packet_arrival_times_match_oracle(case, data):
    """Messages start at a host at the very moment at which a packet would have arrived there. Random cases rarely
    make a timer and an arrival coincide."""
    network = case.network
    known = run_oracle(case, until=500 * US).transmissions
    moments = [
        (t.start + -(-t.packet.size * speed(network, t.link) // 65536) + int(network.link_latency[t.link]), host)
        for t in known
        if (host := int(network.link_dst[t.link])) < network.host_count and not t.lost
    ]
    extra = []
    for time, host in data.draw(st.lists(st.sampled_from(moments), min_size=1, max_size=4)) if moments else ():
        dst = data.draw(st.integers(0, network.host_count - 1).filter(lambda other, host=host: other != host))
        kind = data.draw(st.sampled_from((NEWRENO, DCTCP, DLCP)))
        extra.append(
            MessageSpec(time, host, dst, data.draw(st.integers(1, 20_000)), kind, data.draw(st.integers(0, 7)))
        )
    case = replace(case, letters=[*case.letters, *extra])
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


def speed(network, link):
    """Picoseconds per byte << 16, rounded up."""
    return -(-(8 * 10**12 << 16) // int(network.link_rate[link]))
