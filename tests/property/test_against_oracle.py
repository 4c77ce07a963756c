"""The compiled engine against the oracle, packet by packet: every start, order, mark, drop and delivery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import first_difference, run_engine, run_oracle
from random_cases import BALANCERS, budget, cases


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
    """What has started before some moment is the same too, whatever is still under way then."""
    engine, oracle = run_engine(case, until=until), run_oracle(case, until=until)
    assert engine.transmissions == oracle.transmissions
    assert engine.arrivals == oracle.arrivals
    assert engine.ports == oracle.ports
