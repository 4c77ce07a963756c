"""DCQCN and HPCC where their papers say what must come out: shares, utilisation, queues, the cost of a notification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gradwire.jit.records.constants import DATA
from gradwire.jit.records.packets import kind_of, size_of
from gradwire.protocols.transports.roce.dcqcn import Dcqcn
from gradwire.protocols.transports.roce.hpcc import Hpcc
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.topology import LinkSpec, star
from gradwire.topology.routing import build_routing

US, MS = 10**6, 10**9
GBPS = 10**9
HOLD = 10**12  # no message ends before


@dataclass(frozen=True)
class Seen:
    """What went down the link to host 0: start, message, bytes and time waited of each data packet; and deliveries in
    ps, drops, packets sent again."""

    start: np.ndarray
    message: np.ndarray
    size: np.ndarray
    waited: np.ndarray
    ends: dict[int, int]
    peak: int
    drops: int
    again: int

    def shares(self, since: int, until: int, count: int, rate: int) -> np.ndarray:
        """Which part of the link each message had between two times."""
        among = (self.start >= since) & (self.start < until)
        sizes = np.bincount(self.message[among], weights=self.size[among], minlength=count)
        return sizes * 8e12 / ((until - since) * rate)


def watch(
    table: Any, sizes: list[int], starts: list[int], switch: dict, *, rate: int, latency: int = US, until: int = HOLD
) -> Seen:
    """Hosts 1, 2, ... of a star send to host 0; until nothing moves, or until a time. Both transports are compiled in, as
    in the property tests, and where marks are drawn their balancer is, so that they share engines."""
    network = star(len(sizes) + 1, LinkSpec(rate, latency))
    same = {"payload": f"{table.payload}B"}  # the unloaded round trip is that of the largest packet of all
    tables: list[Any] = [Dcqcn.model_validate({"kind": "dcqcn"} | same), Hpcc.model_validate({"kind": "hpcc"} | same)]
    kind = int(isinstance(table, Hpcc))
    tables[kind] = table
    fabric = Fabric(
        network, build_routing(network), switch=Switch.model_validate({"buffer": "100MB"} | switch),
        transports=tables, packet_log=True, balancing="spray_random" if "ecn_ceiling" in switch else "ecmp",
    )  # fmt: skip
    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        fabric.send(start, number + 1, 0, size, transport=kind)
    ends = {}
    while not fabric.idle and fabric.now < until:
        for delivery in fabric.run(min(fabric.now + 10 * MS, until)):
            ends[delivery.message] = delivery.time_ps
    log = fabric.packet_log()
    told = fabric.finish()
    fabric.close()
    down = int(np.flatnonzero(network.link_dst == 0)[0])
    data = log[kind_of(log[:, 2]) == DATA]
    up, data = data[data[:, 1] != down], data[data[:, 1] == down]
    size = size_of(data[:, 2])
    waited = np.zeros(len(data), dtype=np.int64)
    for message in range(len(sizes)):  # they stay in order, and on these links none is lost
        mine, sent = data[:, 5] == message, up[up[:, 5] == message]
        taken = size[mine] * 8 * 10**12 // rate + latency
        waited[mine] = data[mine, 0] - sent[: mine.sum(), 0] - taken
    return Seen(
        data[:, 0], data[:, 5], size, waited, ends, int(told.ports["peak_queue_bytes"][down]), len(told.drops["cause"]),
        sum(told.retransmitted),
    )  # fmt: skip


def jain(shares: np.ndarray) -> float:
    """1 where all are alike."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


# --- DCQCN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timer", [55, 110, 300])
def test_dcqcn_notification_costs_one_rate_timer_period(timer):
    """A notification with alpha = 1 halves a rate that was the line's. Fast recovery halves the distance to the line
    every period, so the missing time is 1/2 + 1/4 + 1/8 + ... = 1 period of the line's time; also beyond the fifth,
    as the target is the line. Two other messages of a single packet make a queue of a packet, which marks the
    arrivals of the next round trip: one notification. Tolerance: these packets, and three packets of rounding."""
    table = Dcqcn.model_validate({"kind": "dcqcn", "rate_timer": f"{timer}us", "byte_counter": "1GB"})
    marking = {"ecn_threshold": "1B"}
    size, packet = 30_000_000, 4154 * 80
    alone = watch(table, [size], [0], marking, rate=100 * GBPS).ends[0]
    met = watch(table, [size, 4096, 4096], [0, 100 * US, 100 * US], marking, rate=100 * GBPS).ends[0]
    assert met - alone == pytest.approx(timer * US, abs=5 * packet)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_dcqcn_long_flows_share_and_fill_a_port(count):
    """Flows start 1 ms apart, with the paper's thresholds at 40 Gbps. So the first have the line to themselves. The
    marks of one port are alike for all, so the shares must become equal (the paper's section 5). Between 40 and 60 ms
    Jain's index is above 0.99, no share is a fifth away from the mean, and 95 % of the line are used."""
    table = Dcqcn.model_validate({"kind": "dcqcn"})
    marking = {"ecn_threshold": "5KB", "ecn_ceiling": "200KB", "ecn_probability": 0.01}
    seen = watch(table, [400_000_000] * count, [n * MS for n in range(count)], marking, rate=40 * GBPS, until=60 * MS)
    shares = seen.shares(40 * MS, 60 * MS, count, 40 * GBPS)
    assert shares.sum() > 0.95
    assert jain(shares) > 0.99
    assert abs(shares / shares.mean() - 1).max() < 0.2


# --- HPCC -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.95, 0.8])
def test_single_hpcc_flow_settles_one_step_above_eta(eta):
    """A single flow settles at (eta + (1 - eta) / 100) of the line. Its utilisation is W / (B T), so this is the
    fixed point of W = Wc eta / U + W_AI. Apart from the first round trips at line rate, that is the throughput, and
    no packet is ever queued."""
    table = Hpcc.model_validate({"kind": "hpcc", "eta": eta})
    seen = watch(table, [20_000_000], [0], {}, rate=100 * GBPS, until=MS)
    share = seen.shares(100 * US, MS, 1, 100 * GBPS).sum()
    assert share == pytest.approx(eta + (1 - eta) / 100, abs=0.0006)  # packets in 900 us: one is 0.0004
    assert seen.waited.max() == 0


def test_hpcc_flows_share_a_port_with_nearly_empty_queue():
    """Four flows start 1 ms apart, with the paper's packets of 1000 bytes and round trip of 13 us. So a window has
    enough packets. Each settles at W = W eta / U + W_AI, the same for all, and the sum at U = eta + 4 (1 - eta) / 20
    with `flows` = 20. So the shares are equal, 0.96 of the line is used, and only packets that meet are queued: less
    than four packets at worst, less than one on average."""
    table = Hpcc.model_validate({"kind": "hpcc", "payload": "1000B", "flows": 20})
    packet = 1108 * 80
    seen = watch(
        table, [400_000_000] * 4, [n * MS for n in range(4)], {}, rate=100 * GBPS, latency=3 * US, until=14 * MS
    )
    shares = seen.shares(8 * MS, 14 * MS, 4, 100 * GBPS)
    assert shares.sum() == pytest.approx(0.96, abs=0.005)
    assert jain(shares) > 0.99
    late = seen.waited[seen.start > 8 * MS]
    assert late.mean() < packet
    assert late.max() < 4 * packet


@pytest.mark.parametrize("latency", [2_500_000, 3_000_000, 3_600_000])
def test_hpcc_window_differences_shrink_by_eta_over_utilisation(latency):
    """A window set by the utilisation shrinks by eta / U, and so does the difference of two windows. U is eta + 4 (1
    - eta) / 100 = 0.952. A reduction follows every round trip whose utilisation was above eta, and at most five round
    trips of additive increase (max_stage): so ln(U / eta) a round trip at most, and a sixth of it at least."""
    table = Hpcc.model_validate({"kind": "hpcc", "payload": "1000B"})
    begins = [n * MS for n in range(4)]
    seen = watch(table, [400_000_000] * 4, begins, {}, rate=100 * GBPS, latency=latency, until=18 * MS)
    early, late = (seen.shares(at * MS, (at + 2) * MS, 4, 100 * GBPS) for at in (10, 16))
    trips = 6 * MS / (4 * latency + 2 * (1108 + 112) * 80)
    shrinks = -np.log(np.ptp(late) / np.ptp(early)) / trips
    assert np.log(0.952 / 0.95) / 6 < shrinks < 1.05 * np.log(0.952 / 0.95)


def test_hpcc_incast_queue_drains_within_twenty_round_trips():
    """Eight flows start at once: eight windows arrive in the first round trip and one leaves. Seven windows are
    queued, less the data that one sends while the first packets travel. From then on less is sent than leaves, and
    after ten round trips for the eight windows the queue is nearly empty."""
    table = Hpcc.model_validate({"kind": "hpcc", "payload": "1000B"})
    count, packet = 8, 1108 * 80
    seen = watch(table, [50_000_000] * count, [0] * count, {}, rate=100 * GBPS, latency=3 * US, until=2 * MS)
    trip = 12 * US + 2 * packet + 2 * 112 * 80
    window = trip / 80
    assert 0.9 * (count - 1) * window < seen.peak < (count - 1) * window + count * 1108
    late = seen.start > 20 * trip
    assert seen.waited[late].mean() < 2 * packet
    assert seen.shares(20 * trip, 2 * MS, count, 100 * GBPS).sum() > 0.9


# --- with and without pausing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "model"), [("dcqcn", Dcqcn), ("hpcc", Hpcc)])
def test_line_rate_transports_need_flow_control_under_incast(kind, model):
    """Sixteen flows start at once into 300 KB. Without flow control packets are lost and the rest of a round trip is
    retransmitted; with it, none is."""
    table = model.model_validate({"kind": kind})
    marking = {"buffer": "300KB", "ecn_threshold": "50KB"}
    lossy = watch(table, [1_000_000] * 16, [0] * 16, marking, rate=100 * GBPS)
    assert lossy.drops > 0 and lossy.again > lossy.drops
    assert len(lossy.ends) == 16
    calm = watch(table, [1_000_000] * 16, [0] * 16, marking | {"pfc": True}, rate=100 * GBPS)
    assert calm.drops == calm.again == 0
    assert len(calm.ends) == 16
