"""Transports as a whole, over the real fabric: everything arrives that has to, in plausible time, whatever is lost."""

from __future__ import annotations

import numpy as np
import pytest
from transport_bench import GBPS, MS, US, Flow, incast, play, star_of

from gradwire.testing import transport
from gradwire.topology import LinkSpec, Override, leaf_spine

MB = 1 << 20
SENDERS = 8
IDEAL = SENDERS * MB * 8 * 10  # ps: all bytes at 100 Gbps, 10 ps a bit
SHALLOW = {"buffer": 100_000, "threshold": 40_000}


def test_newreno_incast_without_ecn_drops_packets_but_delivers_all_bytes():
    outcome = play(star_of(1 + SENDERS), incast(SENDERS, MB), transport("tcp_newreno"), **SHALLOW)
    assert outcome.lost == [0] * SENDERS
    assert sum(outcome.again) >= outcome.drops["tail"] > 0
    assert IDEAL < max(outcome.ends) < 50 * MS


def test_dctcp_incast_in_shallow_buffer_ends_within_4_ms_of_ideal_time():
    """80 packets exceed a 24-packet buffer: some flows lose their whole first window and wait for the timer."""
    outcome = play(star_of(1 + SENDERS), incast(SENDERS, MB), transport("dctcp"), **SHALLOW)
    assert outcome.lost == [0] * SENDERS
    assert sum(outcome.again) >= outcome.drops["tail"] > 0
    assert outcome.marks > 0
    assert IDEAL < max(outcome.ends) < IDEAL + 2 * 2 * MS


def test_dctcp_incast_in_deep_buffer_is_near_ideal_without_retransmissions():
    """Initial windows and marking threshold are ten packets: the queue never empties, and marks limit its growth."""
    outcome = play(
        star_of(1 + SENDERS), incast(SENDERS, MB), transport("dctcp"), buffer=4 * MB, threshold=40_000
    )  # fmt: skip
    assert sum(outcome.again) == 0
    assert max(outcome.ends) < 1.1 * IDEAL


@pytest.mark.parametrize("policy", ["eager", "on_probe"])
@pytest.mark.parametrize("bound", [0.0, 0.1])
def test_dlcp_incast_ends_near_ideal_time_within_loss_bound(bound, policy):
    flows = incast(SENDERS, MB, bound=bound, droppable=0.5)
    table = transport("dlcp", stop_policy=policy, send_order="sequential", rate_control="dctcp")
    outcome = play(star_of(1 + SENDERS), flows, table, selective=True, log=True, **SHALLOW)
    assert all(lost <= bound * MB for lost in outcome.lost)
    assert outcome.drops["selective"] > 0
    assert outcome.redundant == 0
    assert (1 - bound) * IDEAL < max(outcome.ends) < 1.3 * IDEAL
    if bound and policy == "eager":
        assert sum(outcome.lost) > 0


@pytest.mark.parametrize("bound", [0.0, 0.1])
def test_default_dlcp_incast_ends_within_6_percent_of_ideal_time(bound):
    """Each sender sends only required packets at its share of the line. Losses of the first burst are retransmitted
    meanwhile."""
    outcome = play(
        star_of(1 + SENDERS), incast(SENDERS, MB, bound=bound, droppable=0.5), transport("dlcp"), selective=True, log=True,
        **SHALLOW,
    )  # fmt: skip
    assert all(lost <= bound * MB for lost in outcome.lost)
    assert outcome.redundant == 0
    assert (1 - bound) * IDEAL < max(outcome.ends) < 1.06 * (1 - bound) * IDEAL
    if bound:
        assert sum(outcome.lost) > 0.09 * SENDERS * MB


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(
    "kind, bound", [("tcp_newreno", 0.0), ("dctcp", 0.0), ("dlcp", 0.0), ("dlcp", 0.1), ("dlcp", 1.0)]
)
def test_all_messages_complete_over_lossy_link(kind, bound, loss):
    """The receiver's cable loses packets in both directions. `play` asserts that every message and every sender comes
    to its end."""
    flows = incast(2, MB // 4, bound=bound, droppable=1.0 if bound else 0.0)
    flows += [Flow(1, 0, 1, at=US, bound=bound), Flow(0, 2, 4097, bound=bound)]
    table = transport(kind)
    outcome = play(star_of(3, loss=loss), flows, table, threshold=40_000, buffer=MB)
    assert outcome.drops["link_loss"] > 0 or bound == 1.0  # then one packet is enough
    for flow, lost in zip(sorted(flows, key=lambda flow: flow.at), outcome.lost, strict=True):
        assert lost <= bound * flow.nbytes
    if kind == "dlcp":
        assert max(outcome.ends) < 200 * MS


def test_two_part_bitmap_completes_large_message_over_lossy_link():
    """10 240 packets need a Bitmap of two parts. A hole in the second one only must be filled, too."""
    outcome = play(star_of(2, loss=0.001), [Flow(1, 0, 40 * MB)], transport("dlcp"), buffer=MB)
    assert outcome.lost == [0]
    assert outcome.drops["link_loss"] > 5
    assert outcome.ends[0] < 1.1 * 40 * MB * 80


def sprayed(largest, **fields):
    """Each of 16 hosts sends to four others."""
    rng = np.random.default_rng(3)
    pairs = [(a, int(b)) for a in range(16) for b in rng.choice([x for x in range(16) if x != a], 4, replace=False)]
    return [
        Flow(a, b, int(rng.integers(largest // 16, largest)), at=int(rng.integers(0, 50 * US)), **fields)
        for a, b in pairs
    ]


@pytest.mark.parametrize("largest", [1 << 14, MB])
def test_reordering_by_packet_spraying_causes_almost_no_retransmissions(largest):
    network = leaf_spine(4, 4, 4, LinkSpec(100 * GBPS, US))
    outcome = play(
        network, sprayed(largest), transport("dlcp"), balancing="spray_random", threshold=40_000, buffer=10 * MB
    )  # fmt: skip
    assert sum(outcome.again) <= 2
    assert sum(outcome.sent) - sum(-(-flow.nbytes // 4096) for flow in sprayed(largest)) < 10  # and few probes


def test_slow_spine_causes_few_redundant_packets():
    """Packets on a path at 40 % of the rate are sometimes over half a round trip late."""
    slow = [Override((f"leaf{leaf}", "spine0"), rate=40 * GBPS) for leaf in range(4)]
    network = leaf_spine(4, 4, 4, LinkSpec(100 * GBPS, US), overrides=slow)
    outcome = play(
        network, sprayed(MB), transport("dlcp"), balancing="spray_random", threshold=40_000, buffer=10 * MB, log=True
    )  # fmt: skip
    assert outcome.redundant < 0.05 * sum(outcome.sent)


def test_timer_does_not_expire_while_higher_priority_occupies_nic():
    """Priority 1 occupies the NIC for ten milliseconds before priority 2, longer than any timeout."""
    flows = [
        Flow(1, 0, MB, priority=2),
        Flow(1, 2, 120 * MB, at=100 * US, priority=1),
        Flow(1, 0, 4 * MB, at=US, priority=3),
    ]
    outcome = play(star_of(3), flows, transport("dctcp", min_rto="2ms"), buffer=4 * MB, threshold=100_000, log=True)
    assert sum(outcome.again) == 0
