"""What must not show in any result: windows, threads, where the engine was stopped, which record a message got."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import first_difference, run_engine
from random_cases import US, budget, cases

import sim.fabric.fabric


def together(fabric):
    """Let all threads take part in every window, however little there is to do in it."""
    advance = fabric._team.advance
    fabric._team.advance = lambda alone: advance(False)


def hurried(fabric):
    """Come back to Python after every single window."""
    fabric._budget = 1
    advance = fabric._team.advance

    def one(alone):
        fabric._budget = fabric.memory.M[sim.fabric.layout.H_BUDGET] = 1
        advance(alone)

    fabric._team.advance = one


@budget(0.5)
@given(cases(("ecmp",), most=8), st.sampled_from((1, 7, 997, 64_001, 800_000)))
def test_the_length_of_windows_does_not_show(case, window):
    assert first_difference(run_engine(case, window=window), run_engine(case)) == ""


@budget(0.4)
@given(cases(("spray_random",)), st.sampled_from((2, 3)), st.sampled_from((None, None, 50_001)))
def test_the_number_of_threads_does_not_show(case, threads, window):
    many = run_engine(case, threads=threads, window=window, prepare=together)
    assert first_difference(many, run_engine(case)) == ""


@budget(0.5)
@given(cases(("spray_round_robin",)), st.lists(st.integers(1, 300 * US), max_size=30), st.booleans())
def test_where_the_engine_was_stopped_does_not_show(case, stops, hurry):
    stopped = run_engine(case, stops=stops, prepare=hurried if hurry else None)
    assert first_difference(stopped, run_engine(case)) == ""


@pytest.mark.parametrize("batch", [1, 3])
def test_which_flow_record_a_message_got_does_not_show(batch, monkeypatch):
    @budget(0.5)
    @given(cases(("ecmp",)))
    def same(case):
        monkeypatch.setattr(sim.fabric.fabric, "CLOSE_BATCH", batch)
        reused = run_engine(case)
        monkeypatch.setattr(sim.fabric.fabric, "CLOSE_BATCH", 1 << 40)
        assert first_difference(reused, run_engine(case)) == ""

    same()
