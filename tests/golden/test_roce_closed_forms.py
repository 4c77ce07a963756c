"""DCQCN and HPCC where their papers say what must come out: shares, utilisation, queues, the cost of a notification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from scenarios.schema_network import Switch
from scenarios.schema_transport import Dcqcn
from sim.fabric.fabric import Fabric
from sim.fabric.layout import A_KIND, A_SIZE, DATA, MASK_SIZE
from sim.routing import build_routing
from sim.topology import LinkSpec, star

US, MS = 10**6, 10**9
GBPS = 10**9
HOLD = 10**12  # no message ends before


@dataclass(frozen=True)
class Seen:
    """What went down the link to host 0: start, message and bytes of each data packet; and deliveries in ps."""

    start: np.ndarray
    message: np.ndarray
    size: np.ndarray
    ends: dict[int, int]
    peak: int

    def shares(self, since: int, until: int, count: int, rate: int) -> np.ndarray:
        """Which part of the link each message had between two times."""
        among = (self.start >= since) & (self.start < until)
        sizes = np.bincount(self.message[among], weights=self.size[among], minlength=count)
        return sizes * 8e12 / ((until - since) * rate)


def watch(table: Any, sizes: list[int], starts: list[int], switch: dict, *, rate: int, until: int = HOLD, seed: int = 1) -> Seen:
    """Hosts 1, 2, ... of a star send to host 0; until nothing moves, or until a time."""
    network = star(len(sizes) + 1, LinkSpec(rate, US))
    fabric = Fabric(
        network, build_routing(network), switch=Switch.model_validate({"buffer": "100MB"} | switch),
        transports=[table], seed=seed, packet_log=True,
    )  # fmt: skip
    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        fabric.send(start, number + 1, 0, size)
    ends = {}
    while not fabric.idle and fabric.now < until:
        for delivery in fabric.run(min(fabric.now + 10 * MS, until)):
            ends[delivery.message] = delivery.time_ps
    log = fabric.packet_log()
    down = next(link for link in range(network.link_count) if network.link_dst[link] == 0)
    peak = int(fabric.finish().ports["peak_queue_bytes"][down])
    fabric.close()
    data = log[(log[:, 1] == down) & ((log[:, 2] >> A_KIND & 7) == DATA)]
    return Seen(data[:, 0], data[:, 5], data[:, 2] >> A_SIZE & MASK_SIZE, ends, peak)


# --- DCQCN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timer", [55, 110, 300])
def test_one_notification_costs_one_period_of_the_rate_timer(timer):
    """A notification with alpha = 1 halves a rate that was the line's. Fast recovery halves the distance to the line
    every period, so what is missing is 1/2 + 1/4 + 1/8 + ... = 1 period of the line's time; also beyond the fifth, as
    the target is the line. Two other messages of a single packet make a queue of a packet, which marks what comes in the
    next round trip: one notification. Tolerance: these packets, and three packets of rounding."""
    table = Dcqcn.model_validate({"kind": "dcqcn", "rate_timer": f"{timer}us", "byte_counter": "1GB"})
    marking = {"ecn_threshold": "1B"}
    size, packet = 30_000_000, 4154 * 80
    alone = watch(table, [size], [0], marking, rate=100 * GBPS).ends[0]
    met = watch(table, [size, 4096, 4096], [0, 100 * US, 100 * US], marking, rate=100 * GBPS).ends[0]
    assert met - alone == pytest.approx(timer * US, abs=5 * packet)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_long_flows_come_to_share_a_port_and_fill_it(count):
    """Flows that start 1 ms apart, so that the first have the line to themselves, with the paper's thresholds at 40
    Gbps. The marks of one port are alike for all, so the shares must become equal (the paper's section 5); between 40
    and 60 ms Jain's index is above 0.99, nobody is a fifth away from the mean, and 95 % of the line are used."""
    table = Dcqcn.model_validate({"kind": "dcqcn"})
    marking = {"ecn_threshold": "5KB", "ecn_ceiling": "200KB", "ecn_probability": 0.01}
    seen = watch(
        table, [400_000_000] * count, [n * MS for n in range(count)], marking, rate=40 * GBPS, until=60 * MS
    )
    shares = seen.shares(40 * MS, 60 * MS, count, 40 * GBPS)
    assert shares.sum() > 0.95
    assert shares.sum() ** 2 / (count * (shares**2).sum()) > 0.99
    assert abs(shares / shares.mean() - 1).max() < 0.2
