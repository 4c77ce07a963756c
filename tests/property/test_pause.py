"""Priority flow control: the engine against the oracle, nothing lost under incast, and the headroom no larger than it
has to be."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from hypothesis import example, given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, leaf_spine, star

FRAME = 1066
SOON = 20_000 * US  # random networks have cycles, and those may block for good


def dctcp(**more: Any) -> Dctcp:
    return Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "min_rto": "200us", "max_rto": "20ms", **more})


def together(fabric: Any) -> None:
    fabric.advance.choice.fix(alone=False)


@st.composite
def paused_cases(draw: st.DrawFn, shared: bool) -> Case:
    """Small networks in which thresholds are met all the time; headroom sometimes too small."""
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    centre = draw(st.integers(0, hosts - 1))
    letters = []
    for number in range(draw(st.integers(2, 14))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        if src != centre and draw(st.booleans()):
            dst = centre
        after = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        time = draw(st.sampled_from((0, 0, 1, US, 77 * US))) + (LATENCY if after is not None else 0)
        letters.append(
            MessageSpec(time, src, dst, draw(st.integers(1, 60_000)), priority=draw(st.integers(0, 2)), after=after)
        )
    queues = draw(st.sampled_from((1, 3)))
    table = {
        "queues": queues,
        "pfc": True,
        "pfc_threshold": draw(st.sampled_from(("60B", "2KB", f"{3 * FRAME}B", "20KB"))),
        "pfc_hysteresis": draw(st.sampled_from((None, "60B", f"{FRAME}B", "100KB"))),
        "pfc_headroom": draw(st.sampled_from((None, None, "60B", "5KB"))),
        "pfc_classes": draw(st.sampled_from((None, None, (queues - 1,)))),
        "ecn_threshold": draw(st.sampled_from((None, "3KB"))),
        "buffer": "20KB",
    }
    balancing = "spray_random"
    if not shared and draw(st.booleans()):  # what is compiled once more is drawn together, not each by itself
        balancing = "least_queue"
        table["drr_quantum"] = draw(st.sampled_from(("500B", "4KB")))
    if shared:
        table |= {
            "shared_buffer": draw(st.sampled_from(("5KB", "50KB"))),
            "buffer_alpha": draw(st.sampled_from((0.1, 1.0))),
        }
    table = {key: value for key, value in table.items() if value is not None}
    return Case(
        network, [dctcp(initial_window=draw(st.sampled_from((2, 50))))], letters, Switch.model_validate(table),
        balancing, draw(st.integers(0, 2**40)), LATENCY,
    )  # fmt: skip


def case_of_one_class() -> Case:
    """At 6,768 ns a packet of the only class with flow control finds no room and an acknowledgement comes by the other
    link. The oracle once asked for the room of another class, whose queue was as empty."""
    letters = [MessageSpec(0, 0, 1, 56), *[MessageSpec(0, 0, 1, 1)] * 9, MessageSpec(0, 0, 1, 55, priority=2)]
    table = {
        "queues": 3, "buffer": "20KB", "pfc": True, "pfc_threshold": "60B", "pfc_headroom": "60B", "pfc_classes": (2,),
    }  # fmt: skip
    return Case(
        star(2, LinkSpec(10**9, 0)), [dctcp(initial_window=2)], letters, Switch.model_validate(table),
        "spray_random", 0, LATENCY,
    )  # fmt: skip


@budget()
@given(case=paused_cases(shared=False))
@example(case=case_of_one_class())
def test_engine_and_oracle_agree_with_flow_control(case):
    oracle = run_oracle(case, until=SOON)
    assert first_difference(run_engine(case, until=SOON), oracle) == ""
    assert first_difference(run_engine(case, until=SOON, threads=2, prepare=together), oracle) == ""


@budget(0.5)
@given(case=paused_cases(shared=True))
def test_engine_and_oracle_agree_with_flow_control_and_shared_buffer(case):
    assert first_difference(run_engine(case, until=SOON), run_oracle(case, until=SOON)) == ""


def incast_case(**switch: Any) -> Case:
    """Sixteen hosts of two leaves send 200 full packets each, at once and without a window to speak of, to one host."""
    network = leaf_spine(3, 8, 2, LinkSpec(10**10, 2 * US))
    letters = [MessageSpec(0, 8 + n, n % 2, 200_000) for n in range(16)]
    table = Switch.model_validate({"queues": 1, "pfc": True, "buffer": "4KB", **switch})
    return Case(network, [dctcp(initial_window=400, min_rto="20ms")], letters, table)


def test_flow_control_prevents_drops_under_incast():
    outcome = run_engine(incast_case(pfc_threshold="20KB"))
    assert not outcome.drops and not sum(outcome.again)
    assert sum(port.pauses for port in outcome.ports) > 100


def test_incast_without_flow_control_drops_packets():
    assert len(run_engine(incast_case(pfc=False)).drops) > 100


def test_default_pfc_headroom_is_sufficient_and_not_excessive():
    """Eight senders send full packets only. After the switch has decided to pause, the data that a neighbour puts on
    the cable until the frame arrives still comes in: with 2 us of cable at 10 Gbps 2 x 2,500 B and a few packets, of
    which an eighth leaves meanwhile. So the default is enough, and half of the data that the cable holds is not."""
    network = star(9, LinkSpec(10**10, 2 * US))
    letters = [MessageSpec(0, n, 8, 400_000) for n in range(8)]

    def drops(**more: Any) -> int:
        table = Switch.model_validate({"queues": 1, "pfc": True, "pfc_threshold": "20KB", **more})
        outcome = run_engine(Case(network, [dctcp(initial_window=400)], letters, table), until=300 * US)
        held = max(port.peak for port in outcome.ports)
        assert held <= 8 * (20_000 + 5_000 + 3 * FRAME + 60)
        return len(outcome.drops)

    assert drops() == 0
    assert drops(pfc_headroom="2500B") > 0


def test_flow_control_pauses_only_the_congested_class():
    """Class 1 congests a port until its senders are paused. Class 0 of the same senders proceeds as if alone."""
    network = star(5, LinkSpec(10**10, US))
    crowd = [MessageSpec(0, n, 3, 300_000, priority=1) for n in range(3)]
    urgent = [MessageSpec(100 * US, 0, 4, 50_000, priority=0)]
    table = Switch.model_validate({"queues": 2, "pfc": True, "pfc_threshold": "10KB"})
    case = Case(network, [dctcp(initial_window=400)], [*crowd, *urgent], table)
    alone = Case(network, [dctcp(initial_window=400)], urgent, table)
    end = {arrival.message: arrival.time for arrival in run_engine(case).arrivals}[3]
    undisturbed = run_engine(alone).arrivals[0].time
    one_packet = FRAME * 800
    assert end - undisturbed <= one_packet  # the one that the interface was sending


@pytest.mark.parametrize("threads", [1, 2])
def test_flow_control_does_not_depend_on_port_processing_order(threads):
    case = incast_case(pfc_threshold="5KB", pfc_hysteresis="1066B")
    again = run_engine(case, threads=threads, window=300_000, prepare=together)
    assert first_difference(again, run_engine(case)) == ""
