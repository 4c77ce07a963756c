"""The engine against the oracle, packet by packet, with TCP's rules of a current kernel: any of them, alone and together."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from profiles import of_engines
from random_cases import LATENCY, PAYLOADS, networks, switches

from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle

OWNERS = (TcpNewReno, Cubic, Dctcp)
BALANCERS = ("ecmp", "spray_random")


@st.composite
def tables(draw: st.DrawFn, connections: str) -> list[Any]:
    """The three, none of them classic, so that every case has the same engine."""
    found = []
    for owner in OWNERS:
        settings: dict[str, Any] = {
            "kind": owner.model_fields["kind"].annotation.__args__[0],
            "payload": f"{draw(st.sampled_from(PAYLOADS))}B",
            "initial_window": draw(st.sampled_from((1, 2, 10, 50))),
            "max_rto": "20ms",
            "connections": connections,
            "frto": draw(st.sampled_from((None, True, False))),
            "tail_probes": draw(st.sampled_from((None, True, False))),
            "loss_detection": draw(st.sampled_from((None, "rack", "duplicates"))),
            "slow_start": draw(st.sampled_from((None, "standard", "hystart", "hystart++"))),
            "pacing": draw(st.sampled_from((None, True))),
            "small_queues": draw(st.sampled_from((None, False))),
            "preset": "linux",
            "timers": draw(st.sampled_from((None, "exact", "ticks"))),
        }
        settings["min_rto"] = draw(
            st.sampled_from(("20us", "200us", "2ms") if settings["timers"] == "exact" else ("2ms", "5ms"))
        )
        found.append(owner.model_validate(settings))
    return found


@st.composite
def cases(draw: st.DrawFn, connections: str) -> Case:
    chosen = draw(tables(connections))
    network = draw(networks())
    letters = []
    for _ in range(draw(st.integers(1, 10))):
        src, dst = draw(st.lists(st.integers(0, network.host_count - 1), min_size=2, max_size=2, unique=True))
        which = draw(st.integers(0, 2))
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 70)))
        nbytes = packets * chosen[which].payload - draw(st.integers(0, 63))
        letters.append(MessageSpec(draw(st.sampled_from((0, 1, 10**6, 5 * 10**9))), src, dst, nbytes, which))
    return Case(
        network, chosen, letters, switch=draw(switches(chosen)), seed=draw(st.integers(0, 99)),
        balancing=draw(of_engines(BALANCERS, BALANCERS[connections == "fresh" :][:1])), host_latency=LATENCY,
    )  # fmt: skip


@pytest.mark.parametrize("connections", ["fresh", "persistent"])
@budget(0.5)
@given(data=st.data())
def test_engine_and_oracle_agree_on_linux_tcp_rules(connections, data):
    case = data.draw(cases(connections))
    assert first_difference(run_engine(case), run_oracle(case)) == ""
