"""The rules of the userspace switch, worked out by hand, to the picosecond."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from userspace_cases import FULL, MBPS, US, Driven, diamond, packet, star

from gradwire.emu.planning.plan import Queues
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.fabric import port_counts
from gradwire.scenarios.wire import serialisation_ps

DOWN = 5  # the port to h2 in a star


def starts(fabric, port):
    return [(start, each) for start, number, each, _, _ in fabric.log if number == port]


def test_store_and_forward_times_are_exact_to_the_picosecond():
    fabric = Driven(star(2))
    first, second = packet(1), packet(1, 60)
    reached = fabric.feed((7, 0, first), (7, 0, second))
    small = 60 * 80_000
    assert starts(fabric, 0) == [(7, first), (7 + FULL, second)]
    assert starts(fabric, 3) == [(7 + FULL + US, first), (7 + 2 * FULL + US, second)]
    assert reached == [(7 + 2 * FULL + 2 * US, 1, first), (7 + 2 * FULL + small + 2 * US, 1, second)]
    assert fabric.next_time() is None


def test_transmission_times_are_rounded_up():
    fabric = Driven(star(2, rate=7 * MBPS))
    reached = fabric.feed((0, 0, packet(1, 60)))
    assert reached[0][0] == 2 * (68_571_429 + US)  # 480 bits / 7 Mbps = 68571428.57 ps


def test_slow_link_behind_a_fast_one_builds_a_queue():
    fabric = Driven(star(2, rates={3: 50 * MBPS}))
    fabric.feed(*((0, 0, packet(1)) for _ in range(4)))
    assert [start for start, _ in starts(fabric, 3)] == [FULL + US + i * 2 * FULL for i in range(4)]
    # the first one is on the wire, the second waits; the third comes when the first is gone: two wait at most
    assert fabric.port(3).peak_queue_bytes == 3000


def test_strict_priority_with_fifo_order_within_a_class():
    fabric = Driven(star(2))
    each = {n: packet(1, priority=p) for n, p in enumerate((7, 5, 3, 0, 3, 5))}
    fabric.feed(*((0, 0, each[n]) for n in range(6)))
    assert [e for _, e in starts(fabric, 0)] == [each[n] for n in (0, 3, 2, 4, 1, 5)]


def test_higher_priority_is_served_from_the_next_transmission():
    fabric = Driven(star(2))
    low = [packet(1, priority=4) for _ in range(3)]
    high = packet(1, priority=1)
    fabric.feed(*((0, 0, each) for each in low), (FULL + 1, 0, high))
    assert [e for _, e in starts(fabric, 0)] == [low[0], low[1], high, low[2]]


def test_priorities_beyond_the_last_queue_share_the_last_queue():
    fabric = Driven(star(2, queues=Queues(2, 10**9, None, False)))
    each = {n: packet(1, priority=p) for n, p in enumerate((0, 7, 3, 1, 0))}
    fabric.feed(*((0, 0, each[n]) for n in range(5)))
    assert [e for _, e in starts(fabric, 0)] == [each[n] for n in (0, 4, 1, 2, 3)]
    assert [each["packets"] for each in fabric.port(0).by_queue] == [2, 3]


def queue_of(queues, *packets):
    """What becomes of packets for h2 that reach its port while a packet of h0 is on the wire there, one nanosecond
    apart: the port is twenty times as slow as those of the senders."""
    fabric = Driven(star(3, queues=queues, rates={DOWN: 5 * MBPS}))
    time = 0
    feed = [(0, 0, packet(2))]
    for each in packets:
        feed.append((time, 1, each))
        time += FULL + US
    fabric.feed(*feed)
    return fabric, fabric.port(DOWN)


def test_ecn_threshold_excludes_the_arriving_and_the_transmitted_packet():
    packets = [packet(2) for _ in range(4)]
    _, port = queue_of(Queues(8, 10**9, (3000,) * 8, False), *packets)
    # they see 0, 1500, 3000, 4500 bytes
    assert [each.marked for each in packets] == [False, False, True, True]
    assert (port.marks, port.peak_queue_bytes) == (2, 6000)


def test_ecn_threshold_applies_per_priority_class():
    packets = [packet(2, priority=1), packet(2, priority=1), packet(2, priority=2), packet(2, priority=1)]
    _, port = queue_of(Queues(8, 10**9, (1, 3000, 3000, 1, 1, 1, 1, 1), False), *packets)
    assert [each.marked for each in packets] == [False, False, False, True]
    assert [each["marks"] for each in port.by_queue[:3]] == [0, 1, 0]


@pytest.mark.parametrize("selective", [True, False])
def test_selective_drop_discards_droppable_packets_above_the_threshold(selective):
    packets = [packet(2, important=important) for important in (False, False, False, True)]
    fabric, port = queue_of(Queues(8, 10**9, (1500,) * 8, selective), *packets)
    assert [each.marked for each in packets] == [False, False, False, True]
    assert [(lost.cause, lost.important) for lost in fabric.drops()] == (
        [("selective", False)] * 2 if selective else []
    )
    assert port.drops_selective == 2 * selective


def test_buffer_limit_is_exact_and_checked_before_the_threshold():
    packets = [packet(2), packet(2), packet(2), packet(2, 60, important=False)]
    fabric, port = queue_of(Queues(8, 3060, (1500,) * 8, True), *packets)
    # 0 and 1500 bytes wait, then 3000: the third does not fit, and is neither marked nor selectively dropped; the fourth fits
    # and is above K
    assert [each.marked for each in packets] == [False, True, False, False]
    assert [lost.cause for lost in fabric.drops()] == ["tail", "selective"]
    assert (port.drops_tail, port.drops_selective, port.peak_queue_bytes) == (1, 1, 3000)
    packets[3] = packet(2, 60)
    fabric, port = queue_of(Queues(8, 3060, (1500,) * 8, True), *packets)
    assert (port.peak_queue_bytes, packets[3].marked) == (3060, True)


def test_packet_at_an_idle_port_skips_buffer_and_threshold():
    fabric = Driven(star(3, queues=Queues(8, 10, (1,) * 8, True)))
    packets = [packet(2, important=False) for _ in range(3)]
    reached = fabric.feed((0, 0, packets[0]), (FULL, 1, packets[1]), (3 * FULL, 0, packets[2]))
    # the second comes at the very moment at which the first is gone
    assert len(reached) == 3 and not fabric.drops()


def test_packet_one_picosecond_before_the_port_is_idle_is_dropped():
    fabric = Driven(star(3, queues=Queues(8, 10, None, False)))
    assert len(fabric.feed((0, 0, packet(2)), (FULL - 1, 1, packet(2)))) == 1
    assert [lost[:3] for lost in fabric.drops()] == [(2 * FULL - 1 + US, DOWN, "tail")]


def test_transmission_start_precedes_an_arrival_of_the_same_time():
    fabric = Driven(star(3, queues=Queues(8, 10**9, (1500,) * 8, False)))
    packets = [packet(2) for _ in range(3)]
    fabric.feed((0, 0, packets[0]), (1, 1, packets[1]), (FULL, 0, packets[2]))
    # the second waits until the first is gone, which is when the third arrives: it sees no queue, but a busy port
    assert not packets[2].marked and fabric.port(DOWN).peak_queue_bytes == 1500
    assert [e for _, e in starts(fabric, DOWN)] == packets


def test_simultaneous_arrivals_are_ordered_by_link_number():
    for order in ((0, 1), (1, 0)):
        fabric = Driven(star(3))
        packets = [packet(2), packet(2)]
        fabric.feed(*((5, host, packets[host]) for host in order))
        assert [e for _, e in starts(fabric, DOWN)] == packets


def test_host_ports_have_no_buffer_limit_and_no_marks():
    fabric = Driven(star(2, queues=Queues(8, 100, (1,) * 8, True), rates={3: 200 * MBPS}))
    assert len(fabric.feed(*((0, 0, packet(1, important=n % 2 == 0)) for n in range(100)))) == 100
    assert sum(port.marks for port in port_counts(fabric.plan, fabric.counters())) == 0
    assert fabric.port(0).peak_queue_bytes == 99 * 1500


def test_packet_without_a_route_is_dropped():
    plan = star(3)
    del plan.routes[3, 2]
    fabric = Driven(plan)
    assert fabric.feed((0, 0, packet(2))) == []
    assert [lost.cause for lost in fabric.drops()] == ["no_route"]


def test_packet_and_drop_storage_grows_without_losing_entries():
    """Both tables start small, and their contents survive growth."""
    packets = [packet(1, 60 + n, important=n % 2 == 0) for n in range(300)]
    fabric = Driven(star(2, queues=Queues(8, 10**9, (1,) * 8, True), rates={3: 50 * MBPS}), packets=4)
    reached = fabric.feed(*((0, 0, each) for each in packets))
    assert len(fabric.drops()) > 100 and len(reached) + len(fabric.drops()) == 300
    assert [each for _, _, each in reached] == [each for each in packets if each in {each for _, _, each in reached}]
    assert fabric.state.network.free_count == len(fabric.state.packets) >= 256


def test_next_time_never_misses_a_delivery_and_always_advances():
    """Deliveries occur only at the announced wake-up times, under random traffic."""
    fabric = Driven(star(2))
    assert fabric.next_time() is None
    fabric.arrive(0, 0, packet(1, 60))
    first = fabric.next_time()
    assert fabric.advance(first - 1) == [] and fabric.next_time() == first
    assert fabric.advance(first) and fabric.next_time() is None
    some, time = random.Random(4), first
    fabric = Driven(diamond(2, balancing="spray_random", loss=0.05, rates={4: 20 * MBPS}))
    for _ in range(300):
        fabric.advance(time)
        fabric.arrive(time, some.randrange(2), packet(some.randrange(2), some.randrange(60, 1500), some.randrange(8)))
        end = time + some.randrange(FULL)
        while (wake := fabric.next_time()) is not None and wake <= end:
            assert wake > time
            assert fabric.advance(wake - 1) == []
            fabric.advance(wake)
            time = wake
        assert fabric.advance(end) == []
        time = end


def test_transmission_times_equal_the_simulator():
    some = random.Random(3)
    for _ in range(50):
        size, rate = some.randrange(60, 9000), some.randrange(10**6, 10**11)
        fabric = Driven(star(2, rate=rate))
        ((time, _, _),) = fabric.feed((0, 0, packet(1, size)))
        assert time == 2 * (serialisation_ps(size, rate) + US)


# --- ways -------------------------------------------------------------------------------------------------------------


def ways_taken(fabric):
    ups = {number for number, port in enumerate(fabric.plan.ports) if port.src == 2 and port.dst >= 4}
    return [(each, number) for _, number, each, _, _ in fabric.log if number in ups]


def test_ecmp_keeps_each_connection_on_one_path_and_uses_all_paths():
    fabric = Driven(diamond(4))
    fabric.feed(*((n * FULL, 0, packet(1, entropy=n % 50 * 1311)) for n in range(500)))
    by_flow = {}
    for each, port in ways_taken(fabric):
        by_flow.setdefault(each.entropy, set()).add(port)
    assert len(by_flow) == 50 and all(len(ports) == 1 for ports in by_flow.values())
    assert set().union(*by_flow.values()) == {4, 8, 12, 16}


def test_round_robin_spraying_cycles_through_all_paths():
    fabric = Driven(diamond(3, balancing="spray_round_robin"))
    fabric.feed(*((n * FULL, 0, packet(1, entropy=5)) for n in range(9)))
    taken = [port for _, port in ways_taken(fabric)]
    first = [4, 8, 12].index(taken[0])  # where the switch begins is a matter of its key
    assert taken == ([4, 8, 12] * 4)[first : first + 9]


def test_random_spraying_is_balanced_and_depends_on_the_seed():
    fabric = Driven(diamond(4, balancing="spray_random"))
    fabric.feed(*((n * FULL, 0, packet(1, entropy=5)) for n in range(2000)))
    taken = [port for _, port in ways_taken(fabric)]
    assert all(abs(taken.count(port) - 500) < 5 * (2000 * 3 / 16) ** 0.5 for port in (4, 8, 12, 16))
    repeats = sum(a == b for a, b in pairwise(taken))
    assert abs(repeats - 500) < 5 * (2000 * 3 / 16) ** 0.5  # and does not go round
    again, other = (Driven(diamond(4, balancing="spray_random", seed=seed)) for seed in (1, 2))
    for fabric in (again, other):
        fabric.feed(*((n * FULL, 0, packet(1)) for n in range(2000)))
    assert [port for _, port in ways_taken(again)] == taken
    assert [port for _, port in ways_taken(other)] != taken


# --- losses -----------------------------------------------------------------------------------------------------------


def test_link_losses_match_the_rate_and_occur_at_the_transmission_end():
    n, share = 20_000, 0.05
    fabric = Driven(star(2, loss=share))
    reached = fabric.feed(*((i * FULL, 0, packet(1)) for i in range(n)))
    up, down = fabric.port(0), fabric.port(3)
    for port, tries in ((up, n), (down, n - up.drops_loss)):
        assert abs(port.drops_loss - tries * share) < 5 * (tries * share * (1 - share)) ** 0.5
        assert port.packets == tries  # they have been sent
    assert len(reached) + len(fabric.drops()) == n
    lost = [start + FULL for start, number, _, _, arrives in fabric.log if number == 0 and not arrives]
    assert [each.time_ps for each in fabric.drops() if each.port == 0] == lost
    assert {each.cause for each in fabric.drops()} == {"link_loss"}
    twice = Driven(star(2, loss=share))
    twice.feed(*((i * FULL, 0, packet(1)) for i in range(n)))
    other = Driven(star(2, loss=share, seed=2))
    other.feed(*((i * FULL, 0, packet(1)) for i in range(n)))
    assert twice.drops() == fabric.drops() != other.drops()


# --- everything together ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_every_packet_is_delivered_or_counted_as_dropped(seed):
    some = random.Random(seed)
    balancing = some.choice(["ecmp", "spray_random", "spray_round_robin"])
    plan = diamond(
        3, balancing=balancing, loss=some.choice([0, 0.02]), seed=seed, rates=dict.fromkeys((4, 8, 12), 10 * MBPS),
        queues=Queues(some.randrange(1, 9), 20_000, None if seed == 0 else (6000,) * 8, seed % 2 == 0),
    )  # fmt: skip
    fabric = Driven(plan)
    packets, time, reached, host = [], 0, [], 0
    for _ in range(2000):
        host = some.randrange(2)
        packets.append(
            packet(
                1 - host, some.randrange(60, 1500), some.randrange(8), some.random() < 0.5, entropy=some.getrandbits(16)
            )
        )
        reached += fabric.advance(time)
        fabric.arrive(time, host, packets[-1])
        held = fabric.state.classes[:, :, at.ClassRow.queued.offset].sum(axis=1).tolist()
        assert [each.queue_bytes for each in port_counts(plan, fabric.counters())] == held
        time += some.randrange(0, FULL)
    reached += fabric.advance(1 << 60)
    assert len({id(each) for _, _, each in reached}) == len(reached)
    assert len(reached) + len(fabric.drops()) == len(packets)
    counts = port_counts(plan, fabric.counters())
    assert sum(each.drops_tail + each.drops_selective + each.drops_loss for each in counts) == len(fabric.drops()) > 0
    for number, each in enumerate(counts):
        mine = [row for row in fabric.log if row[1] == number]
        assert (each.packets, each.bytes) == (len(mine), sum(row[2].size for row in mine))
        assert each.queue_bytes == 0 and each.port == plan.ports[number].name
        assert sum(row["packets"] for row in each.by_queue) == each.packets
        assert len(each.by_queue) == plan.queues.count
        for before, after in pairwise(mine):  # one at a time
            assert after[0] >= before[0] + before[2].size * 8 * 10**12 // plan.ports[number].rate
