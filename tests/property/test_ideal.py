"""No message is faster than its ideal, whichever paths its packets take; and where there is one way only, none is slower."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import LATENCIES, LATENCY, RATES

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec
from gradwire.testing.oracle.case_runs import fabric_of
from gradwire.topology import LinkSpec, from_networkx
from gradwire.topology.routing import build_routing
from gradwire.workload.unloaded_time import unloaded_times

TABLE = Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "initial_window": 100})
"""It sends all that a message has at line rate here; and other tests have engines of it with these balancers."""
ROOMY = Switch.model_validate({"buffer": "1GB"})


@st.composite
def ladders(draw: st.DrawFn):
    """Two hosts at both ends of up to four ways of one or two switches each, all cables different."""
    graph = networkx.Graph()
    names = ["h0", "h1", "a", "b", *(f"w{n}" for n in range(draw(st.integers(1, 4))))]
    for name in names:
        graph.add_node(name, kind="host" if name.startswith("h") else "switch")
    cables = [("h0", "a"), ("h1", "b"), *((end, name) for name in names[4:] for end in "ab")]
    for one, other in cables:
        graph.add_edge(
            one, other, rate=draw(st.sampled_from(RATES)), latency=draw(st.sampled_from(LATENCIES)), loss=0.0
        )
    return from_networkx(graph, LinkSpec(10**10, 10**6))


def time_of(network, balancing, nbytes, seed):
    letters = [MessageSpec(0, 0, 1, nbytes)]
    fabric = fabric_of(Case(network, [TABLE], letters, ROOMY, balancing, seed, LATENCY))
    fabric.send(0, 0, 1, nbytes)
    while not (news := fabric.run(10**13)):
        pass
    return news[0].time_ps


def ideal_of(network, balancing, nbytes):
    one = np.array([0]), np.array([1]), np.array([nbytes])
    return int(unloaded_times(network, build_routing(network), *one, TABLE.payload, TABLE.overhead, balancing)[0])


@pytest.mark.parametrize("balancing", ["ecmp", "spray_random", "least_queue", "source_round_robin"])
def test_no_message_is_faster_than_its_unloaded_transfer_time(balancing):
    @budget(0.5)
    @given(ladders(), st.integers(1, 60_000), st.integers(0, 99))
    def holds(network, nbytes, seed):
        took, ideal = time_of(network, balancing, nbytes, seed), ideal_of(network, balancing, nbytes)
        assert took >= ideal
        if network.switch_count == 3 and nbytes <= 1000:  # one way, one packet
            assert took - ideal <= 8  # picoseconds of rounding, on four links

    holds()
