"""Faults: the engine against the oracle, packet by packet, while cables are cut, slowed and mended, hosts stand still
and routes change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from profiles import is_usual
from random_cases import LATENCY, US, cases
from test_pause import dctcp, paused_cases, together
from test_receiver_driven import cut_cases

from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import DATA
from gradwire.topology import LinkSpec, star

SOON = 20_000 * US  # what is cut for good never ends
MOMENTS = (1, 100_000, US, 5 * US, 20 * US, 77 * US)
SPANS = (0, 1, US, 20 * US, 200 * US, 1_000 * US)


@st.composite
def changes(draw: st.DrawFn, network: Any, moments: tuple[int, ...] = MOMENTS) -> list[NetworkChange]:
    """A few faults, most of which end; often at moments when something else happens too."""
    found = []
    moment = st.one_of(st.sampled_from(moments), st.integers(1, 100 * US))
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(moment)
        end = begin + draw(st.one_of(st.sampled_from(SPANS), moment))
        link = draw(st.integers(0, network.link_count - 1))
        rate, loss = int(network.link_rate[link]), float(network.link_loss[link])
        links = [link, link ^ 1] if draw(st.booleans()) else [link]
        match draw(st.sampled_from(("cut", "cut", "cut", "rate", "loss", "loss", "host", "host"))):
            case "cut":
                found += [NetworkChange(begin, "cut", each) for each in links]
                if draw(st.booleans()):
                    found.append(NetworkChange(begin + draw(moment), "reroute", tuple(links)))
                if draw(st.integers(0, 3)):
                    found += [NetworkChange(end, "mend", each) for each in links]
                    if draw(st.booleans()):
                        found.append(NetworkChange(end + draw(moment), "reroute", ()))
            case "rate":
                found.append(
                    NetworkChange(begin, "set_rate", link, draw(st.sampled_from((rate, rate // 3, rate // 10))))
                )
                found.append(NetworkChange(end, "set_rate", link, rate))
            case "loss":
                found.append(NetworkChange(begin, "set_loss", link, draw(st.sampled_from((0.0, 0.3, 0.5, 1.0)))))
                found.append(NetworkChange(end, "set_loss", link, loss))
            case "host":
                host = draw(st.integers(0, network.host_count - 1))
                found.append(NetworkChange(begin, "stop_host", host))
                found.append(NetworkChange(end, "resume_host", host))
    return found


@st.composite
def faulty(draw: st.DrawFn, cases: st.SearchStrategy[Case], balancing: str) -> Case:
    """A case to which things happen."""
    case = draw(cases)
    found = draw(changes(case.network))
    letters = [
        replace(letter, time=draw(st.sampled_from((letter.time, letter.time, 60 * US))))
        if letter.after is None
        else letter
        for letter in case.letters
    ]
    return replace(case, letters=letters, changes=found, balancing=balancing, host_latency=LATENCY)


def agree(case: Case) -> None:
    """The engine with one thread and with two against the oracle."""
    oracle = run_oracle(case, until=SOON)
    assert first_difference(run_engine(case, until=SOON), oracle) == ""
    assert first_difference(run_engine(case, until=SOON, threads=2, prepare=together), oracle) == ""


@budget(1.5)
@given(case=faulty(cases(most=12), "flowlet"))
def test_engine_and_oracle_agree_with_random_faults(case):
    agree(case)


@budget(1.5)
@given(case=faulty(paused_cases(shared=False), "spray_random"))
def test_engine_and_oracle_agree_with_faults_and_flow_control(case):
    agree(case)


@budget(0.7)
@given(case=faulty(cut_cases((1,) if is_usual() else (1, 2, 4, 16)), "ecmp"))
def test_engine_and_oracle_agree_with_faults_and_trimming(case):
    agree(case)


@pytest.mark.parametrize("span", [US, 3 * US, 500 * US])
def test_cut_link_ends_the_pause_of_its_sender(span):
    """Two hosts congest a third, and the cable from the switch to one of them is cut. The cut affects that direction
    only, at various times and durations. The paused host resumes, a frame in flight pauses nothing, and after the
    repair the host is paused anew. So it is never idle for long."""
    network = star(3, LinkSpec(10**10, 2 * US))
    table = Switch.model_validate({"queues": 1, "pfc": True, "pfc_threshold": "5KB"})
    letters = [MessageSpec(0, 0, 2, 60_000), MessageSpec(0, 1, 2, 60_000)]
    up = int(network.up_link[0])
    for begin in range(10 * US, 60 * US, 1_700_000):
        found = [NetworkChange(begin, "cut", up ^ 1), NetworkChange(begin + span, "mend", up ^ 1)]
        case = Case(network, [dctcp(initial_window=400, min_rto="20ms")], letters, table, "spray_random", changes=found)
        engine = run_engine(case, until=SOON)
        assert first_difference(engine, run_oracle(case, until=SOON)) == ""
        starts = [t.start for t in engine.transmissions if t.link == up and t.packet.kind == DATA][:61]
        assert max(starts) < 150 * US, begin


@budget(0.4)
@given(case=faulty(cases(most=6), "flowlet"), window=st.integers(1, 10**9), stops=st.lists(st.integers(1, 400 * US)))
def test_results_with_faults_do_not_depend_on_windows_and_stops(case, window, stops):
    alone = run_engine(case, until=SOON)
    assert first_difference(run_engine(case, until=SOON, window=window), alone) == ""
    assert first_difference(run_engine(case, until=SOON, stops=stops), alone) == ""
