"""DCQCN and HPCC, against the oracle: packet by packet, on random cases.

A combination of its own, so that the other property tests keep theirs. HPCC hears of at most six switches, which no way
of these networks exceeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, PAYLOADS, US, networks, switches

from gradwire.protocols.transports.roce.dcqcn import Dcqcn
from gradwire.protocols.transports.roce.hpcc import Hpcc
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle

DCQCN, HPCC = 0, 1
SOON = 4_000 * US  # networks with cycles may block for good when they pause


def together(fabric: Any) -> None:
    """Let threads share the work even where it is little."""
    fabric.advance.choice.fix(alone=False)


@st.composite
def roce(draw: st.DrawFn) -> list[Any]:
    """Both, with clocks and time-outs that small messages meet."""

    def common() -> dict[str, Any]:
        return {
            "payload": f"{draw(st.sampled_from(PAYLOADS))}B",
            "control_priority": draw(st.integers(0, 7)),
            "rto": draw(st.sampled_from(("20us", "200us", "2ms"))),
            "max_rto": "20ms",
            "floor": draw(st.sampled_from((1, 4, 1000))),
        }

    return [
        Dcqcn.model_validate({
            "kind": "dcqcn", **common(),
            "g": draw(st.sampled_from((0.00390625, 0.5, 1.0))),
            "alpha_period": draw(st.sampled_from(("1us", "55us"))),
            "rate_timer": draw(st.sampled_from(("1us", "55us", "1ms"))),
            "byte_counter": draw(st.sampled_from(("1B", "10KB", "10MB"))),
            "cnp_interval": draw(st.sampled_from(("1us", "50us"))),
            "fast_recovery": draw(st.sampled_from((0, 1, 5))),
            "rate_ai": draw(st.sampled_from(("40Mbps", "1Gbps"))),
            "rate_hai": draw(st.sampled_from(("400Mbps", "10Gbps"))),
        }),
        Hpcc.model_validate({
            "kind": "hpcc", **common(),
            "eta": draw(st.sampled_from((0.5, 0.95, 1.0))),
            "max_stage": draw(st.sampled_from((0, 1, 5))),
            "flows": draw(st.sampled_from((1, 100))),
        }),
    ]  # fmt: skip


@st.composite
def roce_switches(draw: st.DrawFn, tables: list[Any], ramp: bool, pfc: bool) -> Switch:
    """As everywhere, or with random marks, or pausing, early and with room enough or not."""
    table = draw(switches(tables)).model_dump(mode="json", exclude_none=True)
    table["selective_drop"] = False
    if ramp:
        table |= {"ecn_threshold": "3KB", "ecn_ceiling": "20KB", "ecn_probability": 0.5}
        for override in table["override"]:
            override.pop("ecn_threshold", None)
        table["override"] = [override for override in table["override"] if "buffer" in override or not override["ecn"]]
    if pfc:
        table |= {"pfc": True, "pfc_threshold": draw(st.sampled_from(("60B", "5KB", "20KB")))}
        if draw(st.booleans()):
            table["pfc_headroom"] = draw(st.sampled_from(("60B", "20KB")))
    return Switch.model_validate(table)


@st.composite
def roce_cases(draw: st.DrawFn, pfc: bool = False) -> Case:
    """A few messages, often to the same host."""
    network = draw(networks())
    tables = draw(roce())
    centre = draw(st.integers(0, network.host_count - 1))
    classes = draw(st.sampled_from(((0,), (0, 1), tuple(range(8)))))
    letters = []
    for _ in range(draw(st.integers(1, 14))):
        src, dst = draw(st.lists(st.integers(0, network.host_count - 1), min_size=2, max_size=2, unique=True))
        if src != centre and draw(st.booleans()):
            dst = centre
        kind = draw(st.sampled_from((DCQCN, HPCC)))
        payload = tables[kind].payload
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 70)))
        letters.append(
            MessageSpec(
                draw(st.sampled_from((0, 0, 1, 100_000, US, 77 * US))), src, dst,
                (packets - 1) * payload + draw(st.integers(1, payload)), kind,
                priority=draw(st.sampled_from(classes)),
            )
        )  # fmt: skip
    ramp = pfc or draw(st.booleans())  # what is compiled once more is drawn together, not each by itself
    return Case(
        network, tables, letters, draw(roce_switches(tables, ramp, pfc)),
        balancing="spray_random" if ramp else "ecmp",
        seed=draw(st.integers(0, 2**40)), host_latency=LATENCY,
    )  # fmt: skip


@budget(1.0)
@given(roce_cases())
def test_engine_and_oracle_agree_on_every_packet(case):
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


@budget(0.4)
@given(roce_cases(pfc=True))
def test_engine_and_oracle_agree_with_flow_control(case):
    difference = first_difference(run_engine(case, until=SOON), run_oracle(case, until=SOON))
    assert not difference, difference


@budget(0.3)
@given(roce_cases(), st.integers(1, 10**9))
def test_results_do_not_depend_on_threads_and_windows(case, window):
    case = replace(case, letters=case.letters[:6])
    alone = run_engine(case)
    assert not first_difference(alone, run_engine(case, threads=2, prepare=together))
    assert not first_difference(alone, run_engine(case, window=window))
