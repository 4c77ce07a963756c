"""Marks at random between two thresholds: the engine against the oracle, the odds, and what a scenario may say."""

from __future__ import annotations

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


def switch(**more: Any) -> Switch:
    return Switch.model_validate({"queues": 1, "buffer": "1MB", "ecn_threshold": "4KB", "ecn_ceiling": "40KB", **more})


@budget()
@given(data=st.data())
def test_engine_and_oracle_mark_the_same_packets(data):
    draw = data.draw
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    letters = []
    for _ in range(draw(st.integers(2, 10))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        important = draw(st.sampled_from((True, True, False)))
        letters.append(MessageSpec(draw(st.sampled_from((0, 0, US))), src, dst, draw(st.integers(1, 60_000)),
                              priority=draw(st.integers(0, 2)), important=important))  # fmt: skip
    table = switch(
        queues=draw(st.sampled_from((1, 3))), buffer=draw(st.sampled_from(("20KB", "1MB"))),
        ecn_ceiling=draw(st.sampled_from(("5KB", "15KB", "40KB"))),
        ecn_probability=draw(st.sampled_from((0.01, 0.2, 1.0))), selective_drop=draw(st.booleans()),
    )  # fmt: skip
    case = Case(network, [dctcp(initial_window=50)], letters, table, "ecmp", draw(st.integers(0, 2**40)), LATENCY)
    assert first_difference(run_engine(case), run_oracle(case)) == ""


@pytest.mark.parametrize(("pmax", "kmax"), [(0.1, "40KB"), (0.8, "40KB"), (0.5, "20KB")])
def test_red_marking_probability_rises_linearly(pmax, kmax):
    """Marks are compared with their probability at the queue that the oracle saw, within four standard deviations."""
    network = star(5, LinkSpec(10**10, US))
    letters = [MessageSpec(0, n, 4, 3_000_000) for n in range(4)]
    table = switch(ecn_ceiling=kmax, ecn_probability=pmax)
    case = Case(network, [dctcp(initial_window=8)], letters, table)
    seen: list[tuple[float, bool]] = []
    oracle = _watching(case, seen)
    assert first_difference(run_engine(case), oracle) == ""
    between = [(odds, marked) for odds, marked in seen if 0 < odds < 1]
    assert len(between) > 500
    expected = sum(odds for odds, _ in between)
    spread = sum(odds * (1 - odds) for odds, _ in between) ** 0.5
    assert abs(sum(marked for _, marked in between) - expected) < 4 * spread


def _watching(case: Case, seen: list[tuple[float, bool]]) -> Any:
    """The oracle's outcome, and of every test of a queue: (odds by the definition, verdict)."""
    from gradwire.testing.oracle.port import OraclePort

    kmin, (kmax, pmax) = case.switch.ecn_threshold[0], case.switch.ramp()
    plain = OraclePort.is_above

    def above(self: OraclePort, waiting: int, threshold: int) -> bool:
        verdict = plain(self, waiting, threshold)
        odds = 0.0 if waiting < kmin else 1.0 if waiting >= kmax else pmax * (waiting - kmin) / (kmax - kmin)
        seen.append((odds, verdict))
        return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OraclePort, "is_above", above)
        return run_oracle(case)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"ecn_threshold": None}, "needs a threshold below it"),
        ({"ecn_ceiling": "4KB"}, "is not above ecn_threshold"),
        ({"ecn_probability": 0.0}, "greater than 0"),
        ({"ecn_probability": 1.5}, "less than or equal to 1"),
    ],
)
def test_invalid_red_settings_are_rejected(wrong, why):
    with pytest.raises((Mistakes, ValueError), match=why):
        switch(**wrong)
