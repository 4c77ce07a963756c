"""NDP, NSCC and pFabric against the oracle: packet by packet, on random cases, with trimming and with ranks.

Two combinations of their own: switches that cut packets, with NDP, NSCC and a transport that knows nothing of headers;
switches that serve the shortest message first, with pFabric and one that does not rank its packets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, PAYLOADS, US, networks, switches

from gradwire.protocols.transports.ndp import Ndp
from gradwire.protocols.transports.pfabric import PFabric
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.ultra_ethernet.nscc import Nscc
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.wire import ps_per_byte
from gradwire.sim.engine.memory.parameters import BoundTransport, check_settings
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import Network
from gradwire.topology.base_rtt import RoundTrips
from gradwire.topology.routing import build_routing


def common(draw: st.DrawFn) -> dict[str, Any]:
    """Payload and class of control packets."""
    return {"payload": f"{draw(st.sampled_from(PAYLOADS))}B", "control_priority": draw(st.integers(0, 7))}


def dctcp(draw: st.DrawFn) -> Dctcp:
    """A transport that answers every packet and knows nothing of the rest, with short time-outs."""
    return Dctcp.model_validate(
        {"kind": "dctcp", **common(draw), "min_rto": draw(st.sampled_from(("20us", "200us"))), "max_rto": "20ms"}
    )


@st.composite
def cutters(draw: st.DrawFn, every: tuple[int, ...]) -> list[Any]:
    """Transports for switches that trim; `every`: so many packets NSCC acknowledges at once."""
    rto = st.sampled_from(("20us", "200us", "2ms"))
    most = draw(st.sampled_from((0.1, 1.5, 20.0)))
    return [
        Ndp.model_validate({
            "kind": "ndp", **common(draw),
            "initial_window": draw(st.sampled_from((None, 1, 4, 30))),
            "min_rto": draw(rto), "max_rto": "20ms",
            "below_control": draw(st.booleans()),
        }),
        Nscc.model_validate({
            "kind": "nscc", **common(draw),
            "control": draw(st.sampled_from(("sender", "receiver", "both"))),
            "ack_every": draw(st.sampled_from(every)) if most < 20 else 1,
            "trimming": draw(st.booleans()),
            "target_delay": draw(st.sampled_from((None, "1us", "50us"))),
            "max_window": most, "initial_window": draw(st.sampled_from((None, 0.1, most))),
            "averaging": draw(st.sampled_from(("time", "samples"))),
            "alpha": draw(st.sampled_from((0.0, 4.0, 300.0))),
            "fi": draw(st.sampled_from((0.0, 5.0, 300.0))),
            "eta": draw(st.sampled_from((0.0, 0.15, 10.0))),
            "gamma": draw(st.sampled_from((0.1, 1.0))),
            "adjust_packets": draw(st.sampled_from((1, 8))),
            "quick_adapt": draw(st.booleans()),
            "qa_gate": draw(st.sampled_from((0, 3))),
            "qa_threshold": draw(st.sampled_from((None, "1us"))),
            "min_rto": draw(rto), "max_rto": "20ms",
            "below_control": draw(st.booleans()),
        }),
        dctcp(draw),
    ]  # fmt: skip


@st.composite
def rankers(draw: st.DrawFn) -> list[Any]:
    """Transports for switches that rank."""
    return [
        PFabric.model_validate({
            "kind": "pfabric", **common(draw),
            "window": draw(st.sampled_from((None, 1, 5, 100))),
            "rto": draw(st.sampled_from((None, "20us", "200us"))),
            "patience": draw(st.sampled_from((1, 2, 5))),
        }),
        dctcp(draw),
    ]  # fmt: skip


def letters(draw: st.DrawFn, hosts: int, tables: list[Any]) -> list[MessageSpec]:
    """A few messages, often to the same host."""
    centre = draw(st.integers(0, hosts - 1))
    classes = draw(st.sampled_from(((0,), (0, 1), tuple(range(8)))))
    found = []
    for _ in range(draw(st.integers(1, 14))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        if src != centre and draw(st.booleans()):
            dst = centre
        kind = draw(st.sampled_from((*range(len(tables)), 0, 0)))
        payload = tables[kind].payload
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 70)))
        found.append(
            MessageSpec(
                draw(st.sampled_from((0, 0, 1, 100_000, US, 77 * US))), src, dst,
                (packets - 1) * payload + draw(st.integers(1, payload)), kind,
                priority=draw(st.sampled_from(classes)),
                important=draw(st.sampled_from((None, True, False))),
            )
        )  # fmt: skip
    return found


def made(draw: st.DrawFn, tables: list[Any], switch: Switch, balancing: str) -> Case:
    """A case of these transports and that switch."""
    network = draw(networks())
    return Case(
        network, tables, letters(draw, network.host_count, tables), switch,
        balancing=balancing, seed=draw(st.integers(0, 2**40)), host_latency=LATENCY,
    )  # fmt: skip


@st.composite
def cut_cases(draw: st.DrawFn, every: tuple[int, ...] = (1, 2, 4, 16)) -> Case:
    """Switches that trim above some packets, or a few bytes, or at once."""
    tables = draw(cutters(every))
    frames = [table.payload + table.overhead for table in tables]
    threshold = draw(st.sampled_from([64, 3_000, *frames, *(8 * frame for frame in frames)]))
    switch = draw(switches(tables)).model_copy(update={
        "trim_threshold": threshold,
        "trim_priority": draw(st.integers(0, 3)),
        "trim_size": draw(st.sampled_from((60, 64, 100))),
    })  # fmt: skip
    case = made(draw, tables, switch, "spray_random")
    return replace(case, transports=[answering(each, case.network) for each in tables])


def answering(table: Any, network: Network) -> Any:
    """The transport as it is, or with an answer for each packet where its window is larger than one answer in several
    tells of: on long paths of short packets."""
    routing = build_routing(network)
    line = ps_per_byte(network.link_rate[routing.up_link].astype(object)).astype(np.int64)
    try:
        check_settings([BoundTransport.bind(type(table), table)], line, RoundTrips(network, routing))
    except ScenarioError as error:
        assert error.where == "transport.ack_every"
        return table.model_copy(update={"ack_every": 1})
    return table


@st.composite
def ranked_cases(draw: st.DrawFn) -> Case:
    """Switches that serve the shortest message first."""
    tables = draw(rankers())
    switch = draw(switches(tables)).model_copy(update={"shortest_first": True})
    return made(draw, tables, switch, "ecmp")


def few(case: Case) -> Case:
    """The same case with its first messages only."""
    return replace(case, letters=case.letters[:6])


@budget(2.0)
@given(cut_cases())
def test_engine_and_oracle_agree_on_every_packet_with_trimming(case):
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


@budget(1.0)
@given(ranked_cases())
def test_engine_and_oracle_agree_on_every_packet_with_shortest_first(case):
    difference = first_difference(run_engine(case), run_oracle(case))
    assert not difference, difference


@budget(0.3)
@given(st.one_of(cut_cases(), ranked_cases()), st.integers(1, 10**9))
def test_results_do_not_depend_on_threads_and_windows(case, window):
    case = few(case)
    alone = run_engine(case)
    assert not first_difference(alone, run_engine(case, threads=2))
    assert not first_difference(alone, run_engine(case, window=window))
