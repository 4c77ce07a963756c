"""Queueing theory: what waits at a port to which packets come at random is known exactly.

One port of 1 Gbps at a switch; packets come to it from 40 hosts over links of 100 Gbps, each a message of its own that
starts at a random time. Their transport sends each once and its receiver answers on the way back only, so nothing but
these packets is at the port. The times between starts are exponential, so starts are a Poisson process; what reaches
the port is that process moved by the constant time on the first link - but for the packets that find their own host
busy, two in ten thousand at the loads here, and they are late by less than a hundredth of a packet's time at the port.

A packet waits from when its last bit has come to the switch until its first bit leaves. With lambda arrivals a second,
services S and load rho = lambda E[S], in the long run and at any arrival (Pollaczek 1930, Khinchine 1932; in every
textbook, for instance Kleinrock, Queueing Systems I, 5.6):

    W = W0 / (1 - rho),   W0 = lambda E[S^2] / 2

W0 is what is left of the service under way that an arrival finds. With two strict priorities, none interrupted (Cobham
1954), W1 = W0 / (1 - rho1) and W2 = W0 / ((1 - rho1) (1 - rho1 - rho2)).

Means over a run vary; they have to be within four of their standard errors, and these have to be small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measured import MS, Seen, mean_and_error, network_of, watch
from part_cases import messages, part, step

from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate

HOSTS = 40
HEADERS = 58
PER_BYTE = 8_000  # ps at 1 Gbps
COUNT = 400_000

ONCE = {"kind": "constant_rate:ConstantRate", "payload": "4000B"}


class Port:
    """What came to the port in a run, in the order of arrival: when, how long its transmission takes, when it began."""

    def __init__(self, load: float, sizes: Any, odds: Any, high: Any = (0,), queues: int = 1, seed: int = 1) -> None:
        """`sizes`: bytes of payload, drawn with `odds`; `high[i]`: the queue of packets of the i-th size."""
        cables = [(f"h{n:02d}", "s", 10**11, 1000) for n in range(HOSTS)]
        network = network_of([*cables, ("hz", "s", 10**9, 1000)])
        draw = np.random.default_rng(seed)
        which = draw.choice(len(sizes), COUNT, p=odds)
        nbytes = np.array(sizes)[which]
        services = (np.array(sizes) + HEADERS) * PER_BYTE
        gap = np.dot(services, odds) / load
        start = np.cumsum(draw.exponential(gap, COUNT)).astype(np.int64)
        hosts = np.array([network.index[f"h{n:02d}"] for n in range(HOSTS)])
        target = network.index["hz"]
        rows = messages(
            [(source, target) for source in hosts[draw.integers(0, HOSTS, COUNT)].tolist()], nbytes,
            priority=np.resize(high, len(sizes))[which],
        )  # fmt: skip
        made = part([step(rows, begins=start)])
        transport = UserTransport.model_validate(ONCE)
        seen = watch(network, lambda fabric: fabric.play(made), None, transport, queues=queues)
        self._take(seen, target, which)
        self.services = services[self.kind]
        self.waits = self.begun - self.arrived

    def _take(self, seen: Seen, target: int, which: Any) -> None:
        arrived, begun = np.zeros((2, COUNT), dtype=np.int64)
        leaving = seen.leaving()
        arrived[leaving.message] = leaving.ends()
        arriving = seen.arriving()
        assert len(leaving.start) == len(arriving.start) == COUNT
        assert (seen.network.link_dst[arriving.link] == target).all()
        begun[arriving.message] = arriving.start
        order = np.argsort(arrived)
        self.arrived, self.begun, self.kind = arrived[order], begun[order], which[order]


def first_come_first_served(arrived: Any, services: Any) -> Any:
    """When each transmission begins if they go in the order of arrival (Lindley 1952): at its arrival, or when the one
    before is over. With P the sum of the services before it, that is P + max over all up to it of (arrival - P)."""
    before = np.cumsum(services) - services
    return before + np.maximum.accumulate(arrived - before)


def assert_mean(waits: Any, expected: float, precision: float = 0.015) -> None:
    mean, error = mean_and_error(waits)
    assert error < precision * expected  # or the test would say little
    assert abs(mean - expected) < 4 * error


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_waiting_of_equal_packets_matches_pollaczek_khinchine(load):
    """M/D/1: E[S^2] = S^2, so W = rho S / (2 (1 - rho)). Exponential services would wait twice as long. Beyond the
    mean, each queued packet starts in the very picosecond in which the one before ends, and the share of packets that
    need not wait is 1 - rho."""
    port = Port(load, [1000], [1.0])
    service = 1058 * PER_BYTE
    assert (port.begun == first_come_first_served(port.arrived, port.services)).all()
    assert_mean(port.waits, load * service / (2 * (1 - load)))
    assert_mean(port.waits == 0, 1 - load)


@pytest.mark.parametrize(
    ("load", "sizes", "odds"), [(0.5, [64, 4000], [0.8, 0.2]), (0.7, [200, 1442, 4000], [0.5, 0.3, 0.2])]
)
def test_waiting_of_mixed_sizes_matches_pollaczek_khinchine(load, sizes, odds):
    """M/G/1: long packets delay all, in proportion to E[S^2] / E[S]. All sizes wait equally long."""
    port = Port(load, sizes, odds)
    services = (np.array(sizes) + HEADERS) * PER_BYTE
    mean, square = np.dot(odds, services), np.dot(odds, services.astype(float) ** 2)
    expected = load / mean * square / (2 * (1 - load))
    assert abs(expected / (load * mean / (2 * (1 - load))) - 1) > 0.4  # another formula would not do
    assert (port.begun == first_come_first_served(port.arrived, port.services)).all()
    assert_mean(port.waits, expected)
    for kind in range(len(sizes)):
        assert_mean(port.waits[port.kind == kind], expected, 0.02)


@pytest.mark.parametrize(("load", "sizes", "odds"), [
    (0.8, [1000, 1000], [0.4, 0.6]), (0.7, [64, 4000], [0.9, 0.1]), (0.7, [4000, 64], [0.1, 0.9]),
])  # fmt: skip
def test_waiting_of_two_priorities_matches_cobham(load, sizes, odds):
    """The first of the two sizes has priority. High packets wait for other high packets and for the rest of the
    transmission in progress, low ones for all packets that come before they start.

    With equal services the order changes which packets wait, not when the port begins a transmission: these moments
    are those of first come, first served, to the picosecond."""
    port = Port(load, sizes, odds, high=[0, 1], queues=2)
    services = (np.array(sizes) + HEADERS) * PER_BYTE
    rates = load / np.dot(odds, services) * np.array(odds)  # lambda of each
    loads = rates * services
    residual = np.dot(rates, services.astype(float) ** 2) / 2
    assert_mean(port.waits[port.kind == 0], residual / (1 - loads[0]), 0.035)
    assert_mean(port.waits[port.kind == 1], residual / ((1 - loads[0]) * (1 - load)), 0.035)
    if sizes[0] == sizes[1]:
        assert (np.sort(port.begun) == first_come_first_served(port.arrived, port.services)).all()


@pytest.mark.parametrize("load", [0.2, 0.7])
def test_link_utilisation_matches_traffic_load(load):
    """All hosts' links carry load x T x rate / 8 bytes of payload in a time T, plus headers. Poisson traffic starts n
    flows of b bytes, with mean load T rate / b per host, so the payload varies by 4 / sqrt(n). Headers are 58 bytes
    on 1000. Less than a thousandth is undelivered when the run ends."""
    hosts, flow, duration, rate = 8, 10_000, 20 * MS, 10**10
    scenario = Scenario.model_validate({
        "name": "load",
        "topology": {"kind": "star", "hosts": hosts},
        "link": {"rate": "10Gbps", "latency": "1us"},
        "switch": {"queues": 1, "buffer": "10MB"},
        "duration": "20ms",
        "transport": {"kind": "constant_rate:ConstantRate", "payload": "1000B"},
        "traffic": [{"name": "web", "kind": "poisson", "sizes": f"{flow}B", "load": load}],
    })  # fmt: skip
    result = simulate(scenario)
    expected = load * hosts * duration * rate / 8e12 / flow
    flows = len(result.messages)
    assert abs(flows - expected) < 4 * expected**0.5
    ports = dict(zip(result.ports["port"].to_pylist(), result.ports["bytes"].to_pylist(), strict=True))
    for direction in ("up", "down"):
        carried = sum(ports[f"h{n}->s0" if direction == "up" else f"s0->h{n}"] for n in range(hosts))
        answers = 60 * flows  # the receivers' Stop, one per flow
        busy = (carried - answers) * 8e12 / rate / duration / hosts
        assert busy == pytest.approx(load * 1.058, rel=4 / expected**0.5 + 0.001)
        assert busy == pytest.approx(load * 1.058 * flows / expected, rel=0.003)
