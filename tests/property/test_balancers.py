"""Balancers that look at rates, queues or gaps: the engine against the oracle, and what each is for."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCY, US, networks

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, from_networkx, leaf_spine

KINDS = (
    "ecmp_weighted", "least_queue", "flowlet", "flowlet_least_queue", "source_random", "source_round_robin", "reps",
    "oblivious", "bitmap", "mixed",
)  # fmt: skip


def dctcp(payload: str = "1000B", **more):
    return Dctcp.model_validate({"kind": "dctcp", "payload": payload, "min_rto": "200us", "max_rto": "20ms", **more})


@st.composite
def crowded(draw: st.DrawFn, kind: str) -> Case:
    """Many messages at once on a network that has more than one way, often with unequal links."""
    network = draw(networks(lossy=draw(st.booleans())))
    hosts = network.host_count
    letters = []
    for _ in range(draw(st.integers(2, 12))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        time = draw(st.sampled_from((0, 0, 1, US, 40 * US)))
        letters.append(MessageSpec(time, src, dst, draw(st.integers(1, 60_000)), priority=draw(st.integers(0, 2))))
    switch = Switch.model_validate({
        "queues": draw(st.sampled_from((1, 3))),
        "buffer": f"{draw(st.sampled_from((10_000, 60_000, 10_000_000)))}B",
        "ecn_threshold": draw(st.sampled_from((None, "3000B", "20000B"))),
        "flowlet_gap": draw(st.sampled_from(("1us", "10us", "50us"))),
        "path_entropies": draw(st.sampled_from((None, 1, 3, 64))),
    })  # fmt: skip
    table = dctcp(initial_window=draw(st.sampled_from((2, 10, 50))))
    return Case(network, [table], letters, switch, kind, draw(st.integers(0, 2**40)), LATENCY)


@pytest.mark.parametrize("kind", KINDS)
@budget(0.6)
@given(data=st.data())
def test_engine_and_oracle_choose_the_same_paths(kind, data):
    case = data.draw(crowded(kind))
    oracle = run_oracle(case)
    assert first_difference(run_engine(case), oracle) == ""
    assert first_difference(run_engine(case, threads=2, prepare=together), oracle) == ""


def together(fabric):
    fabric.advance.choice.fix(alone=False)


def two_ways(slow: int, fast: int):
    """Two leaves, two spines, whose links differ."""
    import networkx

    graph = networkx.Graph()
    for leaf in ("leaf0", "leaf1"):
        graph.add_node(leaf, kind="switch")
    for spine, rate in (("spine0", slow), ("spine1", fast)):
        graph.add_node(spine, kind="switch")
        for leaf in ("leaf0", "leaf1"):
            graph.add_edge(leaf, spine, rate=rate, latency=US)
    for n in range(8):
        graph.add_node(f"h{n}", kind="host")
        graph.add_edge(f"h{n}", f"leaf{n // 4}", rate=10**10, latency=US)
    return from_networkx(graph, LinkSpec(10**10, US))


def spines(case: Case, outcome) -> dict[int, Counter]:
    """message -> data packets per spine, in the order of sending."""
    names = list(case.network.names)
    seen: dict[int, Counter] = defaultdict(Counter)
    for sent in outcome.transmissions:
        near = names[case.network.link_src[sent.link]]
        if near.startswith("spine") and sent.packet.kind == 0:
            seen[sent.packet.flow][near] += 1
    return seen


def test_ecmp_weights_follow_link_rates():
    """A link nine times as fast gets nine tenths of 2000 flows, within four standard deviations."""
    letters = [MessageSpec(n * US, n % 4, 4 + n % 4, 1000) for n in range(2000)]
    case = Case(two_ways(10**10, 9 * 10**10), [dctcp()], letters, balancing="ecmp_weighted")
    ways = Counter(next(iter(seen)) for seen in spines(case, run_engine(case)).values())
    assert abs(ways["spine1"] - 1800) < 4 * (2000 * 0.9 * 0.1) ** 0.5
    flat = replace(case, balancing="ecmp")
    ways = Counter(next(iter(seen)) for seen in spines(flat, run_engine(flat)).values())
    assert abs(ways["spine1"] - 1000) < 4 * (2000 * 0.5 * 0.5) ** 0.5


def test_least_queue_keeps_queues_shorter_than_ecmp_and_spraying():
    """Four hosts send at line rate into two uplinks of twice the rate. Queues stay short with the least queue, and
    grow by hash or random choice."""
    letters = [MessageSpec(0, n, 4 + n, 400_000) for n in range(4)]
    network = leaf_spine(2, 4, 2, LinkSpec(10**10, US), uplink_rate=2 * 10**10)
    peak = {}
    for kind in ("least_queue", "spray_random", "ecmp"):
        outcome = run_engine(Case(network, [dctcp(initial_window=400)], letters, balancing=kind, seed=3))
        names = [network.link_name(link) for link in range(network.link_count)]
        up = [n for n, name in enumerate(names) if name.startswith("leaf0->spine")]
        assert len(up) == 2
        peak[kind] = max(outcome.ports[n].peak for n in up)
    assert peak["least_queue"] <= 4 * 1066 < peak["spray_random"]
    assert peak["least_queue"] < peak["ecmp"]


@pytest.mark.parametrize("kind", ["flowlet", "flowlet_least_queue"])
def test_flowlet_changes_path_only_after_a_gap(kind):
    """Packets closer together than the gap keep their path; with a gap below their distance they spread."""
    letters = [MessageSpec(0, 0, 4, 1_000_000)]
    case = Case(two_ways(10**10, 10**10), [dctcp()], letters, balancing=kind)
    used = {}
    for gap in ("20ms", "0.5us"):
        one = replace(case, switch=Switch.model_validate({"flowlet_gap": gap}))
        used[gap] = spines(one, run_engine(one))[0]
    assert len(used["20ms"]) == 1 and sum(used["20ms"].values()) >= 1000
    assert len(used["0.5us"]) == 2 and min(used["0.5us"].values()) > 200
