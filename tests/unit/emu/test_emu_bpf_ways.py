"""Draws of the kernel's ports with BPF: which packets are lost on a link, and which way each goes."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import emu_cases as cases
from bpf_cases import build, count_of
from emu_cases import ECT0, in_private, make_plan, needs, star

from gradwire.emu.planning.plan import Queues, TestbedPlan

pytestmark = needs("bpf")


# loss


def one_way(plan: TestbedPlan, count: int) -> set[int]:
    """Numbers of the packets from host 0 that arrive at host 1."""
    network = build(plan)
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    for number in range(count):
        cases.send_from(sender, 1, 3, ECT0, cases.packet(1, number, 200))
        if number % 100 == 0:
            receiver.take()
    receiver.take_until_quiet()
    lost = {drop.packet for drop in network.drops()}
    numbers = {number for _, number in receiver.numbers}
    assert lost | numbers == set(range(count)) and not lost & numbers
    return numbers


def test_bpf_link_losses_depend_on_the_seed_only() -> None:
    count, loss = 2000, 0.1
    plan = star(2, rate=100_000_000, loss={(2, 1): loss}, queues=Queues(8, 10_000_000, None, False))
    first = in_private(one_way, plan, count)
    assert abs(len(first) - count * (1 - loss)) < 5 * sqrt(count * loss * (1 - loss))
    assert in_private(one_way, plan, count) == first
    assert in_private(one_way, replace(plan, seed=2), count) != first


# ways


def diamond(balancing: str, seed: int = 1) -> TestbedPlan:
    """h0 - s0 - (s1 | s2) - s3 - h1."""
    cables = [(0, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 1)]
    return make_plan(
        2, 4, cables, rate=100_000_000, balancing=balancing, seed=seed, queues=Queues(8, 10_000_000, None, False)
    )


def spread(plan: TestbedPlan, count: int, ports: int) -> tuple[list[int], list[int]]:
    """Packets from `ports` source ports to host 1; how many went over each middle, and how the first port's did."""
    network = build(plan)
    receiver = cases.Receiver(cases.open_udp(network, 1))

    def over() -> list[int]:
        return [count_of(network, f"s0->{middle}").packets for middle in ("s1", "s2")]

    senders = [cases.open_udp(network, 0, 20_000 + number) for number in range(ports)]
    for number in range(count):
        cases.send_from(senders[0], 1, 3, ECT0, cases.packet(1, number, 200))
    receiver.take_until_quiet(0.2)
    alone = over()
    for number in range(count, count + ports - 1):
        cases.send_from(senders[number - count + 1], 1, 3, ECT0, cases.packet(1, number, 200))
    receiver.take_until_quiet(0.2)
    assert len(receiver.numbers) == count + ports - 1
    return alone, over()


def test_round_robin_spraying_splits_packets_exactly_evenly() -> None:
    alone, _ = in_private(spread, diamond("spray_round_robin"), 400, 1)
    assert alone == [200, 200]


def test_random_spraying_is_balanced_and_reproducible_by_seed() -> None:
    count = 1000
    one, two, other = (in_private(spread, diamond("spray_random", seed), count, 1)[0] for seed in (1, 1, 2))
    assert sum(one) == count and abs(one[0] - count / 2) < 5 * sqrt(count) / 2
    assert one == two != other


def test_ecmp_keeps_each_flow_on_one_path_and_balances_flows() -> None:
    flows = 65
    (first, second), total = in_private(spread, diamond("ecmp"), 100, flows)
    assert {first, second} == {0, 100}
    others = [now - before for now, before in zip(total, (first, second), strict=True)]
    assert sum(others) == flows - 1 and min(others) > (flows - 1) / 2 - 5 * sqrt(flows - 1) / 2
    assert in_private(spread, diamond("ecmp"), 100, flows) == ([first, second], total), "hashed with the seed"
