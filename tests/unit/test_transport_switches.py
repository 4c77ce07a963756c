"""NDP, pFabric and NSCC over the fabric: closed forms of what they promise, lossy links, and what their tables refuse.

100 Gbps; packets of 4154 bytes (NDP, NSCC) take 332 320 ps, of 4162 bytes (pFabric) 332 960 ps."""

from __future__ import annotations

import heapq

import pytest
from transport_bench import GBPS, MS, US, Flow, incast, play, star_of, transport

from scenarios import checks
from scenarios.errors import ScenarioError
from scenarios.load import build_scenario
from sim.topology import LinkSpec, fat_tree

KB, MB = 1000, 1_000_000
PAYLOAD = 4096
PACKET = 4154 * 80
RANKED = 4162 * 80
EIGHT = f"{8 * 4154}B"
TRIM = {"trim_threshold": EIGHT, "buffer": 200_000}
BOTTLENECK = 2 * US + PACKET  # what a packet needs beside its time on the last link of a star: two links, and the first


def packets(nbytes):
    return -(-nbytes // PAYLOAD)


# --- NDP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders, size", [(2, 4 * MB), (8, MB), (32, MB), (100, 200 * KB)])
def test_an_ndp_incast_fills_the_link_from_the_first_packet_on(senders, size):
    """The lower bound is all packets one after the other on the last link. Above it are only the headers of the first
    windows, and a round trip until the first pull brings something: the queue of eight packets is empty by then."""
    table = transport("ndp")
    outcome = play(star_of(1 + senders), incast(senders, size), table, **TRIM)
    bound = senders * packets(size) * PACKET
    window = 16  # 4.8 us hold 15 packets
    headers = senders * window * 64 * 80
    trip = 5 * US
    assert outcome.drops["tail"] == 0
    assert 0 < bound - BOTTLENECK < max(outcome.ends) < bound + BOTTLENECK + headers + 2 * trip
    assert min(outcome.ends) > 0.9 * max(outcome.ends)


def test_an_ndp_message_alone_is_as_fast_as_the_line():
    outcome = play(star_of(2), [Flow(1, 0, 50 * MB)], transport("ndp"), **TRIM)
    assert outcome.again == [0]
    assert outcome.ends[0] < packets(50 * MB) * PACKET + BOTTLENECK + 5 * US


def test_an_ndp_permutation_fills_a_sprayed_fat_tree():
    """16 hosts, each sends 4 MB into another pod: every host's line could be full."""
    network = fat_tree(4, LinkSpec(100 * GBPS, US))
    flows = [Flow(host, (host + 4) % 16, 4 * MB) for host in range(16)]
    outcome = play(network, flows, transport("ndp"), balancing="spray_round_robin", **TRIM)
    assert outcome.drops["tail"] == 0
    assert max(outcome.ends) < packets(4 * MB) * PACKET / 0.85


# --- pFabric --------------------------------------------------------------------------------------------------------------


def shortest_first(flows):
    """Completion times on one link if, after every packet, the message with the least left goes next."""
    left = {number: packets(flow.nbytes) for number, flow in enumerate(flows)}
    arrivals = sorted((flow.at, number) for number, flow in enumerate(flows))
    ends, waiting, now = [0] * len(flows), [], 0
    while arrivals or waiting:
        if not waiting:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            number = arrivals.pop(0)[1]
            heapq.heappush(waiting, (left[number], number))
        count, number = heapq.heappop(waiting)
        now += RANKED
        if count > 1:
            heapq.heappush(waiting, (count - 1, number))
        else:
            ends[number] = now
    return ends


def mixed(seed):
    """Eight senders, messages of very different sizes, all within what the link takes for them together."""
    sizes = [2 * MB, MB, 400 * KB, 400 * KB, 100 * KB, 60 * KB, 30 * KB, 9 * KB]
    return sorted(
        (Flow(1 + n, 0, size, at=(n * n * 7919 * (seed + 3)) % 200 * US) for n, size in enumerate(sizes)),
        key=lambda flow: flow.at,
    )


@pytest.mark.parametrize("seed", range(4))
def test_pfabric_is_as_good_as_shortest_remaining_time_first(seed):
    """On one link that is the least mean completion time there is. pFabric differs by what is under way when a shorter
    message comes, and by what its packets say of what is left being as old as a round trip: 15 packets."""
    flows = mixed(seed)
    outcome = play(star_of(9), flows, transport("pfabric"), buffer=150_000, shortest_first=True)
    best = shortest_first(flows)
    ideal = sum(end - flow.at for flow, end in zip(flows, best, strict=True)) / len(flows)
    mean = sum(end - flow.at for flow, end in zip(flows, outcome.ends, strict=True)) / len(flows)
    assert ideal <= mean - BOTTLENECK + 1000 and mean - BOTTLENECK < ideal + 15 * RANKED


def test_pfabric_lets_a_short_message_pass_a_full_buffer():
    """Seven long messages keep the buffer full; 5 packets come late and are not one packet's time per hop later than
    alone."""
    flows = [*incast(7, 4 * MB), Flow(8, 0, 5 * PAYLOAD, at=300 * US)]
    outcome = play(star_of(9), flows, transport("pfabric"), buffer=150_000, shortest_first=True)
    alone = 5 * RANKED + BOTTLENECK
    assert alone <= outcome.ends[7] - 300 * US <= alone + 2 * RANKED


# --- NSCC -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders", [2, 8, 32])
def test_an_nscc_incast_fills_the_link(senders):
    size = 64 * MB // senders
    outcome = play(star_of(1 + senders), incast(senders, size), transport("nscc"), threshold=40_000, **TRIM)
    bound = senders * packets(size) * PACKET
    assert outcome.drops["tail"] == 0
    assert bound < max(outcome.ends) < 1.05 * bound


# --- all ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(
    "kind, more", [("ndp", TRIM), ("nscc", TRIM), ("pfabric", {"shortest_first": True, "buffer": 150_000})]
)
def test_everything_ends_over_a_lossy_link(kind, more, loss):
    """`loss` both ways: data, headers, answers, pulls, probes. `play` asserts that every sender comes to its end."""
    flows = [Flow(1, 0, MB // 4), Flow(2, 0, MB // 4), Flow(3, 0, MB // 4), Flow(1, 0, 1, at=US)]
    outcome = play(star_of(4, rate=10 * GBPS, loss=loss), flows, transport(kind, max_rto="4ms") if kind != "pfabric" else transport(kind), **more)
    assert outcome.drops["link_loss"] > 0
    assert max(outcome.ends) < 200 * MS


def tables_of(transport_table, **switch):
    return {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": transport_table, "switch": switch,
        "job": [{"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["ndp", "nscc"])
def test_time_outs_out_of_order_are_refused(kind):
    with pytest.raises(ScenarioError, match=r"transport\.min_rto.*above max_rto"):
        build_scenario(tables_of({"kind": kind, "min_rto": "2ms", "max_rto": "1ms"}))


@pytest.mark.parametrize(
    "table, switch, told",
    [
        ("ndp", {}, "switch.trim_threshold is not set"),
        ("ndp", {"trim_threshold": "30KB"}, ""),
        ("ndp", {"trim_threshold": "30KB", "pfc": True}, "switch.pfc is on"),
        ("pfabric", {}, "switch.shortest_first is off"),
        ("pfabric", {"shortest_first": True}, ""),
        ("pfabric", {"shortest_first": True, "pfc": True}, "switch.pfc is on"),
        ("nscc", {"ecn_threshold": "30KB"}, "switch.trim_threshold is not set"),
        ({"kind": "nscc", "trimming": False}, {"ecn_threshold": "30KB"}, ""),
        ("nscc", {"trim_threshold": "30KB"}, "switch.ecn_threshold is not set"),
    ],
)
def test_check_tells_what_the_switches_lack(table, switch, told):
    remarks = checks.remarks(build_scenario(tables_of(table, **switch)))
    assert [told in remark for remark in remarks] == ([True] if told else [])
