"""CUBIC, TIMELY, Swift, PIAS, LTP and the constant rate, against the oracle: packet by packet, on random cases.

A combination of its own, so that the other property tests keep theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, PAYLOADS, US, networks, switches

from gradwire.protocols.transports.constant_rate import ConstantRate
from gradwire.protocols.transports.loss_tolerant.ltp import Ltp
from gradwire.protocols.transports.roce.timely import Timely
from gradwire.protocols.transports.swift import Swift
from gradwire.protocols.transports.tcp.cubic import Cubic
from gradwire.protocols.transports.tcp.pias import Pias
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle

CUBIC, TIMELY, SWIFT, PIAS, LTP, CONSTANT = range(6)
LOSSY = (LTP, CONSTANT)


@st.composite
def more_transports(draw: st.DrawFn) -> list[Any]:
    """All of them, with short time-outs, and with thresholds and targets that small messages meet."""

    def common() -> dict[str, Any]:
        return {"payload": f"{draw(st.sampled_from(PAYLOADS))}B", "control_priority": draw(st.integers(0, 7))}

    tcp = {
        "initial_window": draw(st.sampled_from((1, 2, 10, 50))),
        "min_rto": draw(st.sampled_from(("20us", "200us", "2ms"))),
        "max_rto": "20ms",
    }
    steps = sorted(draw(st.sets(st.integers(1, 60_000), min_size=1, max_size=7)))
    return [
        Cubic.model_validate({
            "kind": "cubic", **common(), **tcp,
            "ecn": draw(st.booleans()),
            "beta": draw(st.sampled_from((0.2, 0.7))),
            "c": draw(st.sampled_from((0.4, 10.0))),
            "fast_convergence": draw(st.booleans()),
        }),
        Timely.model_validate({
            "kind": "timely", **common(), **tcp,
            "t_low": draw(st.sampled_from(("1us", "50us"))),
            "t_high": draw(st.sampled_from(("60us", "500us"))),
            "ewma": draw(st.sampled_from((0.02, 0.875))),
            "add_rate": draw(st.sampled_from(("10Mbps", "1Gbps"))),
            "floor": draw(st.sampled_from((4, 1000))),
            "segment": draw(st.sampled_from(("64B", "16KiB"))),
        }),
        Swift.model_validate({
            "kind": "swift", **common(), **tcp,
            "base_target": draw(st.sampled_from(("1us", "10us"))),
            "fs_range": draw(st.sampled_from(("1us", "50us"))),
            "min_window": draw(st.sampled_from((0.01, 0.5))),
            "max_window": draw(st.sampled_from((1, 1000))),
            "max_decrease": draw(st.sampled_from((0.5, 1.0))),
        }),
        Pias.model_validate({
            "kind": "pias", **common(), **tcp, "thresholds": [f"{size}B" for size in steps],
        }),
        Ltp.model_validate({
            "kind": "ltp", **common(),
            "threshold": draw(st.sampled_from((0.0, 1.0))),
            "deadline": draw(st.sampled_from((1.0, 5.0))),
            "fraction": draw(st.sampled_from((0.5, 0.95))),
            "critical_must_arrive": draw(st.booleans()),
            "initial_window": draw(st.sampled_from((1, 10, 1000))),
            "min_timeout": draw(st.sampled_from(("20us", "200us"))),
            "floor": draw(st.sampled_from((4, 1000))),
        }),
        ConstantRate.model_validate({
            "kind": "constant_rate", **common(),
            "share": draw(st.sampled_from((0.1, 0.5, 1.0))),
            "repeat_after": draw(st.sampled_from(("20us", "1ms"))),
        }),
    ]  # fmt: skip


@st.composite
def more_cases(draw: st.DrawFn) -> Case:
    """A few messages, often to the same host, of every transport."""
    network = draw(networks())
    tables = draw(more_transports())
    centre = draw(st.integers(0, network.host_count - 1))
    classes = draw(st.sampled_from(((0,), (0, 1), tuple(range(8)))))
    letters = []
    for _ in range(draw(st.integers(1, 14))):
        src, dst = draw(st.lists(st.integers(0, network.host_count - 1), min_size=2, max_size=2, unique=True))
        if src != centre and draw(st.booleans()):
            dst = centre
        kind = draw(st.integers(0, len(tables) - 1))
        payload = tables[kind].payload
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 70)))
        important: Any = draw(st.sampled_from((None, True, False, "mixed")))
        if important == "mixed":
            important = draw(st.lists(st.booleans(), min_size=packets, max_size=packets))
        letters.append(
            MessageSpec(
                draw(st.sampled_from((0, 0, 1, 100_000, US, 77 * US))), src, dst,
                (packets - 1) * payload + draw(st.integers(1, payload)), kind,
                priority=draw(st.sampled_from(classes)),
                bound=draw(st.sampled_from((0.0, 0.1, 1.0))) if kind in LOSSY else 0.0,
                important=important,
            )
        )  # fmt: skip
    switch = draw(switches(tables))
    return Case(network, tables, letters, switch, seed=draw(st.integers(0, 2**40)), host_latency=LATENCY)


@budget(2.0)
@given(more_cases())
def test_engine_and_oracle_agree_on_every_packet(case):
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


@budget(0.3)
@given(more_cases(), st.integers(1, 10**9))
def test_results_do_not_depend_on_threads_and_windows(case, window):
    case = replace(case, letters=case.letters[:6])
    alone = run_engine(case)
    assert not first_difference(alone, run_engine(case, threads=2))
    assert not first_difference(alone, run_engine(case, window=window))


@budget(0.7)
@given(more_cases())
def test_engine_and_oracle_agree_on_reordered_packets(case):
    case = replace(case, balancing="spray_random")
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference
