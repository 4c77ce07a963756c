"""The kernel's ports with BPF: every packet's fate against a model, conservation, and TCP in single packets."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from typing import Any

import emu_cases as cases
import pytest
from bpf_cases import build, count_of, fast_in, leaks_of
from emu_cases import ECT0, MARK, NOT_ECT, in_private, needs, star
from port_model import PortModel

from gradwire.emu.planning.plan import Queues, TestbedPlan, host_address

pytestmark = needs("bpf")


# fates


def burst(plan: TestbedPlan, packets: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Send (size, queue, ecn) from host 0 to host 1 at once; what came, what the port says, and how long it took."""
    network = build(plan)
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    start = time.monotonic()
    for number, (size, queue, ecn) in enumerate(packets):
        cases.send_from(sender, 1, queue, ecn, cases.packet(7, number, size))
    took = time.monotonic() - start
    receiver.take_until_quiet(0.5)
    port = count_of(network, "s0->h1")
    return {
        "took": took, "came": receiver.numbers, "kinds": dict(receiver.counts), "port": port, "drops": network.drops(),
        "check": network.check(), "leaks": leaks_of(network),
    }  # fmt: skip


@pytest.mark.parametrize(("selective", "buffer"), [(True, 24_500), (True, 24_000), (False, 24_500)])
@pytest.mark.parametrize("count", [8, 3])
def test_bpf_port_treats_a_burst_like_the_port_model(selective: bool, buffer: int, count: int) -> None:
    """Covers priorities, shared buffer (one packet may fill it exactly) and thresholds per queue. One packet takes 16
    ms, the burst less."""
    size, slow = 1000, 500_000
    draw = random.Random(5)
    thresholds = tuple(2000 + 1500 * queue for queue in range(count))
    packets = [(size, draw.randrange(8), draw.choice([ECT0, NOT_ECT])) for _ in range(70)]
    packets[0] = (size, 7, ECT0)
    # under the virtual clock a port is never ahead of its time
    plan = fast_in(2, slow, queues=Queues(count, buffer, thresholds, selective), clock="virtual")
    for _attempt in range(3):
        got = in_private(burst, plan, packets)
        if got["took"] < size * 8 / slow:  # or the machine was busy elsewhere in between
            break
    model = PortModel(8e6 / slow, count, buffer, thresholds, selective)
    fates = [model.arrive(0, each[0], min(each[1], count - 1), each[2] != NOT_ECT) for each in packets]
    model.advance(1e12)
    sent = [number for number, fate in enumerate(fates) if fate.fate == "sent"]
    assert sorted(number for _, number in got["came"]) == sent
    assert [number for _, number in got["came"]] == sorted(sent, key=lambda number: fates[number].begins)
    assert {(drop.packet, drop.cause) for drop in got["drops"]} == {
        (number, fate.fate) for number, fate in enumerate(fates) if fate.fate != "sent"
    }
    for drop in got["drops"]:
        assert drop.message == 7 and drop.port == "s0->h1"
        assert drop.important == (packets[drop.packet][2] != NOT_ECT) and drop.priority == packets[drop.packet][1]
    port = got["port"]
    assert port.packets == len(sent) and port.bytes == size * len(sent)
    assert port.drops_tail == sum(fate.fate == "tail" for fate in fates) > 0
    assert port.drops_selective == sum(fate.fate == "selective" for fate in fates)
    assert (port.drops_selective > 0) == selective
    assert port.marks == sum(fate.marked for fate in fates) > 0
    assert port.marks == sum(number for (_, ecn), number in got["kinds"].items() if ecn == MARK)
    assert port.peak_queue_bytes == model.peak
    assert sum(each["packets"] for each in port.by_queue) == port.packets and port.queue_bytes == 0
    assert got["check"] == [] and got["leaks"] == []


def test_bpf_port_enforces_the_buffer_limit_of_each_queue() -> None:
    """A queue limit of 3,000 bytes holds exactly three packets. Forty packets of two classes arrive at once."""
    slow, limits = 500_000, (40_000, 3_000) + (40_000,) * 6
    plan = fast_in(2, slow, queues=Queues(8, 40_000, None, False, limits), clock="virtual")
    packets = [(1000, number % 2, ECT0) for number in range(40)]
    for _attempt in range(3):
        got = in_private(burst, plan, packets)
        if got["took"] < 1000 * 8 / slow:
            break
    model = PortModel(8e6 / slow, 8, 40_000, limits=limits)
    fates = [model.arrive(0, *each[:2], True) for each in packets]
    assert sum(fate.fate == "tail" for fate in fates) == 17
    assert sorted(drop.packet for drop in got["drops"]) == [n for n, fate in enumerate(fates) if fate.fate == "tail"]


def test_frames_released_early_still_count_as_queued() -> None:
    """On the wall clock, two frames leave at once; drops and marks must not change."""
    size, slow = 1458, 500_000
    plan = fast_in(2, slow, queues=Queues(8, 20_000, (6000,) * 8, True))
    packets = [(size, 3, NOT_ECT if number % 3 else ECT0) for number in range(40)]
    for _attempt in range(3):
        got = in_private(burst, plan, packets)
        if got["took"] < size * 8 / slow:
            break
    model = PortModel(8e6 / slow, 8, 20_000, (6000,) * 8, True)
    fates = [model.arrive(0, size, 3, each[2] != NOT_ECT) for each in packets]
    assert [number for _, number in got["came"]] == [n for n, fate in enumerate(fates) if fate.fate == "sent"]
    assert got["port"].marks == sum(fate.marked for fate in fates) > 0
    assert got["port"].peak_queue_bytes == model.peak


def test_second_packet_is_dropped_or_marked_behind_a_packet_in_transmission() -> None:
    """The first packet meets an idle port, which tests nothing. The second one does not fit, or is marked with K =
    0."""
    slow = 500_000
    small = fast_in(2, slow, queues=Queues(8, 500, None, False), clock="virtual")
    port = in_private(burst, small, [(1000, 3, ECT0)] * 2)["port"]
    assert (port.packets, port.drops_tail, port.peak_queue_bytes) == (1, 1, 0)
    strict = fast_in(2, slow, queues=Queues(8, 50_000, (0,) * 8, True), clock="virtual")
    port = in_private(burst, strict, [(1000, 3, ECT0), (1000, 3, NOT_ECT), (1000, 3, ECT0)])["port"]
    assert (port.packets, port.drops_selective, port.marks) == (2, 1, 1)


def overload(
    plan: TestbedPlan, shares: dict[int, float], rate: int, seconds: float
) -> tuple[Any, Counter[Any], dict[int, int]]:
    """Hosts 1.. send at shares of the rate, each in a queue of its own, evenly; all that the port says and what came."""
    network = build(plan)
    senders = {queue: cases.open_udp(network, host) for host, queue in enumerate(shares, 1)}
    receiver = cases.Receiver(cases.open_udp(network, 0))
    sent = dict.fromkeys(shares, 0)
    size, now, before = 1000, 0.0, time.monotonic()
    while now < seconds:
        # where the machine was elsewhere for a while, what should have been sent is not made up for in a burst
        now, before = now + min(0.002, time.monotonic() - before), time.monotonic()
        for queue, share in shares.items():
            while sent[queue] * size * 8 < now * rate * share:
                cases.send_from(senders[queue], 0, queue, NOT_ECT, cases.packet(queue, sent[queue], size))
                sent[queue] += 1
        receiver.take()
        time.sleep(0.0005)
    receiver.take_until_quiet()
    assert leaks_of(network) == []
    return count_of(network, f"s0->{plan.names[0]}"), receiver.counts, sent


def test_bpf_port_serves_priorities_strictly() -> None:
    """Queues 0, 3 and 6 are offered 0.5, 0.4 and 0.6 of a link (htb before: 50.05, 40.0, 9.65 %)."""
    rate, seconds = 20_000_000, 1.0
    plan = fast_in(4, rate, queues=Queues(8, 500_000, (100_000,) * 8, True))
    port, came, sent = in_private(overload, plan, {0: 0.5, 3: 0.4, 6: 0.6}, rate, seconds)
    bytes_of = [port.by_queue[queue]["bytes"] for queue in (0, 3, 6)]
    total = sum(bytes_of)
    # Selective drop holds the last queue short; nothing of the others is lost, and it gets what they leave. Were they
    # served in turn, it would get at least a third.
    assert port.by_queue[0]["packets"] == sent[0] and port.by_queue[3]["packets"] == sent[3]
    assert bytes_of[0] / bytes_of[1] == pytest.approx(5 / 4, abs=0.01)
    assert 0.05 < bytes_of[2] / total < 0.25
    assert sum(came.values()) == port.packets == sum(sent.values()) - port.drops_selective
    assert port.drops_tail == 0 and port.by_queue[6]["drops_selective"] == port.drops_selective


# conservation


def random_traffic(plan: TestbedPlan, seed: int, count: int) -> dict[str, Any]:
    network = build(plan)
    draw = random.Random(seed)
    opened = [cases.open_udp(network, host) for host in range(plan.host_count)]
    receivers = [cases.Receiver(each) for each in opened]
    sent: dict[int, set[tuple[int, int]]] = {host: set() for host in range(plan.host_count)}
    for number in range(count):
        src, dst = draw.sample(range(plan.host_count), 2)
        size = draw.choice([60, 400, 1000, 1458])
        cases.send_from(
            opened[src], dst, draw.randrange(8), draw.choice([ECT0, NOT_ECT]), cases.packet(src, number, size)
        )
        sent[dst].add((src, number))
        if number % 20 == 0:
            time.sleep(0.002)
            for each in receivers:
                each.take()
    for each in receivers:
        each.take_until_quiet(0.3)
    return {
        "sent": sent, "came": [each.numbers for each in receivers], "counts": network.counts(), "drops": network.drops(),
        "ce": sum(number for each in receivers for (_, ecn), number in each.counts.items() if ecn == MARK),
        "leaks": leaks_of(network), "check": network.check(),
    }  # fmt: skip


def test_every_packet_arrives_once_or_is_counted_as_dropped() -> None:
    loss = {(4, 0): 0.05, (2, 4): 0.1}
    rates = {(h, 4): 100_000_000 for h in range(4)} | {(4, h): 4_000_000 for h in range(4)}
    plan = star(4, rate=rates, loss=loss, queues=Queues(8, 20_000, (8000,) * 8, True))
    got = in_private(random_traffic, plan, 11, 1500)
    came = {each for host in got["came"] for each in host}
    lost = {(drop.message, drop.packet) for drop in got["drops"]}
    sent = set().union(*got["sent"].values())
    assert len(came) == sum(map(len, got["came"])) and not came & lost, "nothing twice"
    assert came | lost == sent
    for host, numbers in enumerate(got["came"]):
        assert set(numbers) <= got["sent"][host]
    causes = Counter((drop.port, drop.cause) for drop in got["drops"])
    for port in got["counts"]:
        counted = {"tail": port.drops_tail, "selective": port.drops_selective, "link_loss": port.drops_loss}
        assert counted == {cause: causes[port.port, cause] for cause in counted}, port.port
        assert [sum(each[f"drops_{kind}"] for each in port.by_queue) for kind in ("tail", "selective", "loss")] == list(
            counted.values()
        )
    assert {cause for _, cause in causes} == {"tail", "selective", "link_loss"}
    assert {port for port, cause in causes if cause == "link_loss"} == {"s0->h0", "h2->s0"}
    # marked twice is marked once; with one switch nothing can be
    lost_marks = sum(drop.cause == "link_loss" and drop.important for drop in got["drops"])
    assert 0 <= sum(port.marks for port in got["counts"]) - got["ce"] <= lost_marks
    assert got["ce"] > 0 and got["leaks"] == [] and got["check"] == []


# TCP


def tcp_transfer(plan: TestbedPlan, size: int) -> tuple[int, Any]:
    network = build(plan)
    with cases.inside(network.namespace(1)):
        listening = socket.create_server((host_address(1), 5000))
    with cases.inside(network.namespace(0)):
        sender = socket.socket()
    sender.settimeout(20)
    sender.connect((host_address(1), 5000))
    received, _ = listening.accept()
    received.settimeout(20)
    sender.setblocking(False)
    data, sent, got = bytes(size), 0, 0
    end = time.monotonic() + 20
    while got < size and time.monotonic() < end:
        if sent < size:
            try:
                sent += sender.send(data[sent : sent + 65536])
            except BlockingIOError:
                pass
        try:
            received.setblocking(False)
            got += len(received.recv(1 << 20))
        except BlockingIOError:
            time.sleep(0.001)
    return got, count_of(network, "s0->h1")


def test_tcp_crosses_bpf_ports_without_segmentation_offload() -> None:
    """Segmentation offload would yield fewer packets, of up to 64 KB."""
    size = 300_000
    got, port = in_private(tcp_transfer, star(2, rate=50_000_000), size)
    assert got == size
    assert port.packets >= size / 1448 and port.bytes / port.packets <= 1514
