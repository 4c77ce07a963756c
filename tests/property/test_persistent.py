"""Connections that carry message after message: the engine against the oracle, packet by packet, on random cases.

The oracle never forgets a packet and never renumbers one, so what the engine moves down in its bitmaps, and where its
numbers on the wire begin anew, must not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from profiles import is_usual
from random_cases import LATENCY, PAYLOADS, US, networks, switches
from test_faults import agree, changes

from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.sim.engine.memory import records
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle

NEWRENO, DCTCP, CUBIC = range(3)


@st.composite
def tables(draw: st.DrawFn, late: bool) -> list[Any]:
    """All that carry streams; sometimes one of them does not. `late`: in the usual profile the last one delays its
    acknowledgements in any case."""
    fresh = draw(st.sampled_from((None, None, NEWRENO, DCTCP)))
    found = []
    for number, model in enumerate((TcpNewReno, Dctcp, Cubic)):
        found.append(
            model.model_validate({
                "kind": ("tcp_newreno", "dctcp", "cubic")[number],
                "connections": "fresh" if number == fresh else "persistent",
                "payload": f"{draw(st.sampled_from(PAYLOADS))}B",
                "control_priority": draw(st.integers(0, 7)),
                "ecn": draw(st.booleans()),
                "recovery": draw(st.sampled_from(("pipe", "prr"))),
                "delayed_acks": draw(st.sampled_from((None, None, "1us", "15us")[2 * (late and number == CUBIC and is_usual()) :])),
                "initial_window": draw(st.sampled_from((1, 2, 10, 50))),
                "min_rto": draw(st.sampled_from(("20us", "200us", "2ms"))),
                "max_rto": "20ms",
            })
        )  # fmt: skip
    return found


@st.composite
def letters(draw: st.DrawFn, hosts: int, kinds: list[Any], most: int) -> list[MessageSpec]:
    """Most of them between the same two hosts: at once, close together, and after silences longer than time-outs."""
    found: list[MessageSpec] = []
    busy = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
    usual = draw(st.sampled_from((NEWRENO, DCTCP, CUBIC)))
    for number in range(draw(st.integers(1, most))):
        pair = busy
        if not draw(st.integers(0, 3)):
            pair = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        transport = draw(st.sampled_from((usual, usual, NEWRENO, DCTCP, CUBIC)))
        payload = kinds[transport].payload
        packets = draw(st.one_of(st.integers(1, 3), st.integers(10, 80)))
        after = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        time = draw(st.sampled_from((0, 0, 1, US, 77 * US, 250 * US, 3_000 * US)))
        found.append(
            MessageSpec(
                time + (LATENCY if after is not None else 0), *pair, (packets - 1) * payload + draw(st.integers(1, payload)),
                transport, priority=draw(st.sampled_from((0, 0, 0, 1))), important=draw(st.sampled_from((None, True, False))),
                after=after,
            )
        )  # fmt: skip
    return found


@st.composite
def cases(draw: st.DrawFn, balancing: str = "ecmp", most: int = 30) -> Case:
    """A whole case."""
    network = draw(networks())
    kinds = draw(tables(balancing == "reps"))
    return Case(
        network, kinds, draw(letters(network.host_count, kinds, most)), draw(switches(kinds)), balancing=balancing,
        seed=draw(st.integers(0, 2**40)), host_latency=LATENCY,
    )  # fmt: skip


@pytest.mark.parametrize("first", [0, (1 << 22) - 50])
def test_engine_and_oracle_agree_on_persistent_connections(first, monkeypatch):
    monkeypatch.setattr(records, "FIRST_PACKET", first)

    @budget(1.5)
    @given(cases())
    def agree(case):
        oracle = run_oracle(case)
        assert len(oracle.arrivals) == len(case.letters)
        for threads in (1, 2, 3):
            difference = first_difference(run_engine(case, threads=threads), oracle)
            assert not difference, (threads, difference)

    agree()


@budget(0.5)
@given(cases("reps", most=15))
def test_engine_and_oracle_agree_on_persistent_connections_with_reps(case):
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


@budget(0.5)
@given(cases(most=12), st.data())
def test_engine_and_oracle_agree_on_persistent_connections_with_faults(case, data):
    agree(replace(case, changes=data.draw(changes(case.network))))
