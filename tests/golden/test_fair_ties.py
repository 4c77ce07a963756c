"""Equal flows are equal: which one gets more must not depend on the numbers of their links.

Hosts with equal cables send in step, so that their packets reach a switch at the same picosecond again and again. If any
fixed rule decided these ties, the same hosts would be served first every time. So over several seeds the order in which
equal flows are done must be random, their mean times must be alike, and close to the time in which the bottleneck carries
them all: for four of 50 MB at 100 Gbps that is 16.3 ms. ns-3 has means of 15.3 to 16.0 ms for NewReno and of 16.1 ms for
DCTCP; its marks come from a RED queue whose odds rise from K to twice K, "gentle" by default.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measured import MS, US
from numpy.typing import NDArray

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.simulate import simulate
from gradwire.topology import LinkSpec, dumbbell, star
from gradwire.topology.routing import build_routing

SENDERS, BYTES = 4, 50_000_000
FRAME = 4096 + 66
SEEDS = range(1, 13)
FAIR = SENDERS * (BYTES + -(-BYTES // 4096) * 66) * 80 / MS
"""When the bottleneck has carried all, in ms: the mean of flows that share it evenly all the time."""
TRANSPORTS = {
    "newreno": ({"buffer": "512KiB"}, TcpNewReno.model_validate({"kind": "tcp_newreno"})),
    "dctcp": ({"buffer": "4MiB", "ecn_threshold": f"{65 * FRAME}B"}, Dctcp.model_validate({"kind": "dctcp"})),
    "dctcp_gentle": (
        {"buffer": "4MiB", "ecn_threshold": f"{65 * FRAME}B", "ecn_ceiling": f"{130 * FRAME}B", "ecn_probability": 1.0},
        Dctcp.model_validate({"kind": "dctcp"}),
    ),
}
NS3 = {"newreno": (15.3, 16.0), "dctcp_gentle": (16.1, 16.1)}


def ended(kind: str, seed: int, jitter: int) -> NDArray[Any]:
    """When each of the senders' flows across a dumbbell is done, in ms; they start within `jitter` ps."""
    switch, transport = TRANSPORTS[kind]
    network = dumbbell(SENDERS, SENDERS, LinkSpec(10**11, US))
    fabric = Fabric(
        network,
        build_routing(network),
        switch=Switch.model_validate({"queues": 1, **switch}),
        transports=[transport],
        seed=seed,
    )
    starts = np.random.default_rng(seed).integers(0, jitter + 1, SENDERS).tolist()
    for host, start in enumerate(starts):
        fabric.send(start, host, SENDERS + host, BYTES)
    ends = np.zeros(SENDERS)
    while fabric.undelivered:
        for delivery in fabric.run(fabric.now + 1000 * MS):
            ends[delivery.message] = delivery.time_ps / MS
    fabric.close()
    return ends


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("jitter", [0, 10 * US])
def test_equal_flows_across_a_dumbbell_finish_at_equal_times(kind, jitter):
    """Each sender's mean rank over the runs is within three standard errors of the middle rank. Mean times of single
    senders are within 7 percent of each other."""
    times = np.array([ended(kind, seed, jitter) for seed in SEEDS])
    places = times.argsort(axis=1).argsort(axis=1)
    error = np.sqrt((SENDERS**2 - 1) / 12 / len(SEEDS))
    assert np.abs(places.mean(axis=0) - (SENDERS - 1) / 2).max() < 3 * error
    assert np.ptp(times.mean(axis=0)) < 0.07 * times.mean()
    assert times.max(axis=1) == pytest.approx(FAIR, rel=0.03)
    assert times.mean() > 0.94 * FAIR
    if kind in NS3:
        least, most = NS3[kind]
        assert 0.98 * least < times.mean() < 1.02 * most


def rank_correlation(values: NDArray[Any]) -> float:
    """Spearman's, between the number of a sender and its value."""
    return float(np.corrcoef(np.arange(len(values)), values.argsort().argsort())[0, 1])


@pytest.mark.parametrize("policy", ["dctcp", "deep"])
def test_incast_completion_order_does_not_depend_on_sender_number(policy):
    """With 32 senders the rank correlation exceeds 0.46 by chance once in a hundred times."""
    result = simulate(load_scenario("incast-32").variant(policy))
    ends = np.array(result.messages["end_ps"])[np.argsort(np.array(result.messages["message"]))]
    assert abs(rank_correlation(ends)) < 0.46


def test_every_link_wins_an_equal_share_of_ties():
    """Eight hosts send one packet each to one switch at the same moment, two hundred times. Each is first in the
    queue an eighth of the time, within four standard errors."""
    hosts, rounds = 8, 200
    network = star(hosts + 1, LinkSpec(10**11, US))
    fabric = Fabric(
        network,
        build_routing(network),
        switch=Switch.model_validate({"queues": 1}),
        transports=[Dctcp.model_validate({"kind": "dctcp"})],
    )
    for turn in range(rounds):
        for host in range(hosts):
            fabric.send(turn * 100 * US, host, hosts, 4096)
    ends = np.zeros(hosts * rounds, dtype=np.int64)
    while fabric.undelivered:
        for delivery in fabric.run(fabric.now + 1000 * MS):
            ends[delivery.message] = delivery.time_ps
    fabric.close()
    first = np.bincount(ends.reshape(rounds, hosts).argmin(axis=1), minlength=hosts)
    share = 1 / hosts
    assert np.abs(first - rounds * share).max() < 4 * np.sqrt(rounds * share * (1 - share))
