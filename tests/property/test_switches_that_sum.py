"""Switches that sum, the compiled engine against the oracle: every packet, with losses, stragglers, few slots; and what
holds whatever happens - the oracle's sums have each part once, which it asserts as it goes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, PAYLOADS, US, networks, switches

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.inner_units import Bytes
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.case import initial_letters
from gradwire.testing.oracle.packets import DATA
from gradwire.topology import LinkSpec, leaf_spine
from gradwire.topology.routing import build_routing


@st.composite
def racks(draw: st.DrawFn, lossy: bool) -> Any:
    """Leaves and spines with enough hosts for sums in two levels."""
    rate, latency = draw(st.sampled_from((10**10, 10**11))), draw(st.sampled_from((0, 5_000, US)))
    loss = draw(st.sampled_from((0.0, 0.0, 0.02, 0.1))) if lossy else 0.0
    return leaf_spine(
        draw(st.integers(2, 3)), draw(st.integers(2, 4)), draw(st.integers(1, 2)), LinkSpec(rate, latency, loss),
        uplink_rate=draw(st.sampled_from((None, 10**10, 4 * 10**11))),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, lossy: bool = True) -> Case:
    """Some fans to a host, some of them answered by fans from it, and messages of others in between."""
    network = draw(st.one_of(networks(lossy), racks(lossy)).filter(lambda each: each.host_count > 2))
    common = {
        "payload": f"{draw(st.sampled_from(PAYLOADS))}B", "control_priority": draw(st.integers(0, 7)),
        "initial_window": draw(st.sampled_from((1, 2, 10, 50))),
        "min_rto": draw(st.sampled_from(("20us", "200us", "2ms"))), "max_rto": "20ms",
    }  # fmt: skip
    tables: list[Any] = [
        TcpNewReno.model_validate({"kind": "tcp_newreno", "ecn": draw(st.booleans()), **common}),
        Dctcp.model_validate({"kind": "dctcp", **common}),
    ]
    switch = draw(switches(tables)).model_copy(update={
        "aggregation_slots": draw(st.sampled_from((1, 2, 7, 1000))),
        "aggregation_levels": draw(st.sampled_from((1, 2, 2, 2))),
    })  # fmt: skip
    hosts, found = list(range(network.host_count)), []
    for fan in range(draw(st.integers(1, 3))):
        one, *many = draw(st.lists(st.sampled_from(hosts), min_size=3, max_size=len(hosts), unique=True))
        kind, priority = draw(st.integers(0, 1)), draw(st.integers(0, 7))
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 40)))
        nbytes = Bytes((packets - 1) * tables[kind].payload + draw(st.integers(1, tables[kind].payload)))
        starts = draw(
            st.lists(st.sampled_from((0, 0, 1, 100_000, US, 77 * US)), min_size=len(many), max_size=len(many))
        )
        first, ways = len(found), draw(st.sampled_from(("in", "out", "both")))
        if ways != "out":
            found += [
                MessageSpec(time, src, one, nbytes, kind, priority, fan=2 * fan)
                for time, src in zip(starts, many, strict=True)
            ]
        if ways != "in":
            after = first if ways == "both" else None
            wait = LATENCY if ways == "both" else draw(st.sampled_from((0, US)))
            found += [MessageSpec(wait, one, dst, nbytes, kind, priority, after=after, fan=2 * fan + 1) for dst in many]
    for _ in range(draw(st.integers(0, 4))):
        src, dst = draw(st.lists(st.sampled_from(hosts), min_size=2, max_size=2, unique=True))
        found.append(MessageSpec(draw(st.sampled_from((0, US))), src, dst, draw(st.integers(1, 100_000)), 1))
    return Case(
        network, tables, found, switch, balancing="spray_random", seed=draw(st.integers(0, 2**40)), host_latency=LATENCY
    )


@budget(0.4)
@given(cases())
def test_engine_and_oracle_agree_on_every_aggregated_packet(case):
    engine = run_engine(case)
    difference = first_difference(engine, run_oracle(case))
    assert not difference, difference
    assert Counter(each.message for each in engine.arrivals) == Counter(range(len(case.letters)))


@budget(0.1)
@given(cases(), st.sampled_from((2, 3)))
def test_aggregation_does_not_depend_on_threads(case, threads):
    assert run_engine(case) == run_engine(case, threads=threads)


@budget(0.1)
@given(cases(lossy=False))
def test_each_gradient_part_reaches_the_host_once_without_losses(case):
    """Without losses, each packet number reaches the host as one complete sum, or each part once. A part comes by
    itself or in the sum of its rack."""
    outcome = run_engine(case)
    if outcome.drops or any(outcome.again):
        return
    first = initial_letters(case)  # they have the first numbers; all fans to a host are among them
    edge = build_routing(case.network).edge_of
    of_fan: dict[int, list[int]] = {}
    for number, letter in enumerate(case.letters):
        if letter.fan is not None:
            of_fan.setdefault(letter.fan, []).append(number)
    there: dict[tuple[int, int], Counter[int]] = {}
    whole: Counter[tuple[int, int]] = Counter()
    for each in outcome.transmissions:
        packet = each.packet
        number = first[packet.flow] if packet.flow < len(first) else -1
        letter = case.letters[number] if number >= 0 else None
        if letter is None or letter.fan is None or letter.fan % 2 or packet.kind != DATA:
            continue
        if case.network.link_dst[each.link] == letter.dst:
            key = letter.fan, packet.sequence
            whole[key] += packet.all
            same = [m for m in of_fan[letter.fan] if edge[case.letters[m].src] == edge[letter.src]]
            there.setdefault(key, Counter()).update(() if packet.all else same if packet.leaf else [number])
    for (fan, _), parts in there.items():
        assert (whole[fan, _], parts) in ((1, Counter()), (0, Counter(of_fan[fan])))
