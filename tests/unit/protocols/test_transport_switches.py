"""NDP, pFabric and NSCC over the fabric: closed forms of what they promise, lossy links, and what their tables refuse.

100 Gbps; packets of 4154 bytes (NDP, NSCC) take 332 320 ps, of 4162 bytes (pFabric) 332 960 ps."""

from __future__ import annotations

import heapq

import pytest
from transport_bench import GBPS, MS, US, Flow, incast, play, star_of

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.validation import scenario as checks
from gradwire.testing import transport
from gradwire.topology import LinkSpec, fat_tree

KB, MB = 1000, 1_000_000
PAYLOAD = 4096
PACKET = 4154 * 80
RANKED = 4162 * 80
TRIP = 5 * US
EIGHT = f"{8 * 4154}B"
TRIM = {"trim_threshold": EIGHT, "buffer": 200_000}
BESIDE = 2 * US  # the way of a packet through a star takes two packets' times and this


def packets(nbytes):
    return -(-nbytes // PAYLOAD)


# --- NDP ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders, size", [(2, 4 * MB), (8, MB), (32, MB), (100, 200 * KB)])
def test_ndp_incast_completes_near_the_link_bound_without_tail_drops(senders, size):
    """The lower bound is the serialisation of all packets on the last link. Above it are only the headers of the first
    windows, and a round trip until the first pulled packet arrives: the queue of eight packets is empty by then."""
    table = transport("ndp")
    outcome = play(star_of(1 + senders), incast(senders, size), table, **TRIM)
    bound = senders * packets(size) * PACKET
    window = 16  # 4.8 us hold 15 packets
    headers = senders * window * 64 * 80
    assert outcome.drops["tail"] == 0
    assert bound <= max(outcome.ends) < bound + PACKET + BESIDE + headers + 2 * TRIP
    assert min(outcome.ends) > 0.9 * max(outcome.ends)


def test_single_ndp_message_reaches_line_rate():
    outcome = play(star_of(2), [Flow(1, 0, 50 * MB)], transport("ndp"), **TRIM)
    assert outcome.again == [0]
    assert outcome.ends[0] < packets(50 * MB) * PACKET + PACKET + BESIDE + TRIP


def test_ndp_permutation_reaches_85_percent_of_line_rate_on_a_fat_tree():
    """Each of 16 hosts sends 4 MB into another pod, which could fill every host's link."""
    network = fat_tree(4, LinkSpec(100 * GBPS, US))
    flows = [Flow(host, (host + 4) % 16, 4 * MB) for host in range(16)]
    outcome = play(network, flows, transport("ndp"), balancing="spray_round_robin", **TRIM)
    assert outcome.drops["tail"] == 0
    assert max(outcome.ends) < packets(4 * MB) * PACKET / 0.85


# --- pFabric --------------------------------------------------------------------------------------------------------------


def shortest_first(flows):
    """Completion times on one link if, after every packet, the message with the least left goes next."""
    left = {number: packets(flow.nbytes) for number, flow in enumerate(flows)}
    arrivals = [(flow.at, number) for number, flow in enumerate(flows)]
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
    sizes = [488, 244, 98, 97, 24, 15, 7, 2]
    flows = [Flow(1 + n, 0, size * PAYLOAD, at=n * n * 7919 * (seed + 3) % 200 * US) for n, size in enumerate(sizes)]
    return sorted(flows, key=lambda flow: flow.at)


def compared(seed, buffer, **fields):
    """Completion times as they should be and as they are, less what a packet needs beside its time on the link."""
    flows = mixed(seed)
    outcome = play(star_of(9), flows, transport("pfabric", **fields), shortest_first=True, buffer=buffer)
    best = [end - flow.at for flow, end in zip(flows, shortest_first(flows), strict=True)]
    ours = [end - flow.at - BESIDE - RANKED for flow, end in zip(flows, outcome.ends, strict=True)]
    return best, ours


@pytest.mark.parametrize("seed", range(6))
def test_pfabric_completion_times_match_shortest_remaining_time_first(seed):
    """Shortest remaining time first has the lowest mean completion time on one link. Two differences remain: a packet
    may be on the wire when a shorter message starts, and the remaining size in a packet is a round trip old.
    Time-outs are set too long to happen, and no packet is dropped."""
    best, ours = compared(seed, 10 * MB, rto="50ms")
    difference = sum(ours) - sum(best)
    assert abs(difference) < len(best) * RANKED
    assert all(abs(a - b) < 5 * RANKED for a, b in zip(best, ours, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_pfabric_with_default_timeouts_is_near_shortest_remaining_time(seed):
    """A message that waits for three round trips retransmits the packets that are queued in the switch, in slow
    start. The shortest messages never wait that long."""
    best, ours = compared(seed, 150_000)
    assert sum(ours) < 1.2 * sum(best)
    for ideal, real in zip(best, ours, strict=True):
        if ideal < 12 * US:
            assert abs(real - ideal) <= 2 * RANKED


def test_pfabric_short_message_bypasses_a_full_buffer():
    """Seven long messages fill the buffer. Five later packets wait only for the packet on the wire."""
    flows = [*incast(7, 4 * MB), Flow(8, 0, 5 * PAYLOAD, at=300 * US)]
    outcome = play(star_of(9), flows, transport("pfabric"), buffer=150_000, shortest_first=True)
    alone = 6 * RANKED + BESIDE
    assert alone <= outcome.ends[7] - 300 * US <= alone + RANKED
    assert outcome.drops["evicted"] > 0
    assert max(outcome.ends) < 1.1 * 7 * packets(4 * MB) * RANKED


# --- NSCC -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("senders", [2, 8, 32])
def test_an_nscc_incast_fills_the_link(senders):
    size = 64 * MB // senders
    outcome = play(star_of(1 + senders), incast(senders, size), transport("nscc"), threshold=40_000, **TRIM)
    bound = senders * packets(size) * PACKET
    assert outcome.drops["tail"] == 0
    assert bound < max(outcome.ends) < 1.05 * bound


@pytest.mark.parametrize("senders", [2, 4, 8])
def test_nscc_keeps_the_queue_at_its_target(senders):
    """A deep buffer trims no packet, so windows of 1.5 round trips each would stay queued. Single later packets see a
    queue of 0.75 base round trips: marks above it lower the windows, unmarked packets below it raise them. The base
    round trip is four links, a packet and an acknowledgement twice each."""
    target = 0.75 * (4 * US + 2 * PACKET + 2 * 60 * 80)
    later = [Flow(senders + 1, 0, PAYLOAD, at=MS + number * 40 * US) for number in range(30)]
    flows = [*incast(senders, 32 * MB // senders), *later]
    outcome = play(
        star_of(senders + 2), flows, transport("nscc"), threshold=20 * KB, buffer=10 * MB, trim_threshold="10MB"
    )
    ends = outcome.ends
    waits = [end - flow.at - 2 * PACKET - BESIDE for flow, end in zip(later, ends[senders:], strict=True)]
    assert 0.85 * target < sum(waits) / len(waits) < 1.15 * target
    assert max(ends) < 1.05 * senders * packets(32 * MB // senders) * PACKET
    assert min(ends[:senders]) > 0.8 * max(ends)


# --- all ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(
    "kind, more", [("ndp", TRIM), ("nscc", TRIM), ("pfabric", {"shortest_first": True, "buffer": 150_000})]
)
def test_all_messages_complete_over_a_lossy_link(kind, more, loss):
    """Links lose data, headers, answers, pulls and probes with probability `loss`. `play` asserts that every sender
    finishes."""
    flows = [Flow(1, 0, MB // 4), Flow(2, 0, MB // 4), Flow(3, 0, MB // 4), Flow(1, 0, 1, at=US)]
    table = transport(kind) if kind == "pfabric" else transport(kind, max_rto="4ms")
    outcome = play(star_of(4, rate=10 * GBPS, loss=loss), flows, table, **more)
    assert outcome.drops["link_loss"] > 0
    assert max(outcome.ends) < 200 * MS


def tables_of(transport_table, **switch):
    return {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": transport_table, "switch": switch,
        "job": [{"name": "j", "trace": "resnet50", "workers": 2, "exchange": {"kind": "ring"}}],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["ndp", "nscc"])
def test_min_rto_above_max_rto_is_rejected(kind):
    with pytest.raises(ScenarioError, match=r"transport\.min_rto.*above max_rto"):
        build_scenario(tables_of({"kind": kind, "min_rto": "2ms", "max_rto": "1ms"}))


@pytest.mark.parametrize(
    "table, switch, told",
    [
        ("ndp", {"trim_threshold": "30KB"}, ""),
        ("ndp", {"trim_threshold": "30KB", "queues": 1}, "headers wait behind data"),
        ("pfabric", {"shortest_first": True}, ""),
        ({"kind": "nscc", "trimming": False}, {"ecn_threshold": "30KB"}, ""),
        ("nscc", {"trim_threshold": "30KB"}, "switch.ecn_threshold is not set"),
    ],
)
def test_check_warns_about_missing_switch_settings(table, switch, told):
    remarks = checks.remarks(build_scenario(tables_of(table, **switch)))
    assert [told in remark for remark in remarks] == ([True] if told else [])
