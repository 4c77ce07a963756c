"""What must not show in any result: windows, threads, where the engine was stopped, which record a message got."""

from __future__ import annotations

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import US, cases

import gradwire.sim.engine.time_advance
from gradwire.jit.records.header import State
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star


def tables():
    """The transports of the random cases, so that they share compiled engines."""
    return [
        TcpNewReno.model_validate({"kind": "tcp_newreno"}),
        Dctcp.model_validate({"kind": "dctcp"}),
        Dlcp.model_validate({"kind": "dlcp"}),
    ]


def together(fabric):
    """Let all threads take part in every window, however little there is to do in it."""
    advance = fabric.advance.workers.advance
    fabric.advance.workers.advance = lambda alone: advance(False)


def hurried(fabric):
    """Come back to Python after every single window."""
    fabric.advance.budget = 1
    advance = fabric.advance.workers.advance

    def one(alone):
        fabric.advance.budget = fabric.memory.state[State.budget.offset] = 1
        advance(alone)

    fabric.advance.workers.advance = one


@budget(0.5)
@given(cases(("ecmp",), most=8), st.sampled_from((1, 7, 997, 64_001, 800_000)))
def test_results_do_not_depend_on_window_length(case, window):
    assert first_difference(run_engine(case, window=window), run_engine(case)) == ""


@pytest.mark.parametrize("window", [None, 2_000_003, 50_001])
def test_many_ties_in_the_longest_windows_match_oracle(window):
    """Windows of 8 us have the largest sort keys. Two hundred packets reach a switch at once, in the oracle's order
    for any window length."""
    network = star(201, LinkSpec(10**11, 20 * US))
    letters = [MessageSpec(0, host, 200, 9_000) for host in range(200)]
    switch = Switch.model_validate({"buffer": "10MB"})
    case = Case(network, tables(), letters, switch, host_latency=10 * US)
    engine = run_engine(case, window=window)
    assert first_difference(engine, run_oracle(case)) == ""
    firsts = [t.packet.flow for t in engine.transmissions if t.link == network.link_count - 1][:200]
    assert sorted(firsts) == list(range(200)) and firsts != sorted(firsts)


@budget(0.4)
@given(cases(("spray_random",)), st.sampled_from((2, 3)), st.sampled_from((None, None, 50_001)))
def test_results_do_not_depend_on_number_of_threads(case, threads, window):
    many = run_engine(case, threads=threads, window=window, prepare=together)
    assert first_difference(many, run_engine(case)) == ""


@budget(0.5)
@given(cases(("spray_round_robin",)), st.lists(st.integers(1, 300 * US), max_size=30), st.booleans())
def test_results_do_not_depend_on_engine_stops(case, stops, hurry):
    stopped = run_engine(case, stops=stops, prepare=hurried if hurry else None)
    assert first_difference(stopped, run_engine(case)) == ""


@pytest.mark.parametrize("batch", [1, 3])
def test_results_do_not_depend_on_flow_record_reuse(batch, monkeypatch):
    @budget(0.5)
    @given(cases(("ecmp",)))
    def same(case):
        monkeypatch.setattr(gradwire.sim.engine.time_advance, "CLOSE_BATCH", batch)
        reused = run_engine(case)
        monkeypatch.setattr(gradwire.sim.engine.time_advance, "CLOSE_BATCH", 1 << 40)
        assert first_difference(reused, run_engine(case)) == ""

    same()
