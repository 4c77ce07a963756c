"""The kernel's ports with BPF: every packet's fate against a model, conservation, ways, loss, and that nothing
differs unseen from what was asked."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import emu_cases as cases
import pytest
from emu_cases import ECT0, MARK, NOT_ECT, in_private, make_plan, needs, star
from port_model import PortModel

from gradwire.emu.planning.plan import Plan, Queues, host_address
from gradwire.emu.switches import bpf as backend
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.switches.bpf import BpfSwitch
from gradwire.emu.system import bpf
from gradwire.emu.system.namespaces import run_tool
from gradwire.scenarios import wire

pytestmark = needs("bpf")

FAST = 10_000_000_000
"""bit/s of the senders' links: what they send is at the port at once."""


def fast_in(hosts: int, slow: int, **options: Any) -> Plan:
    """A star whose hosts send fast and receive slowly."""
    rates = {(host, hosts): FAST for host in range(hosts)} | {(hosts, host): slow for host in range(hosts)}
    return star(hosts, rate=rates, **options)


def build(plan: Plan) -> BpfSwitch:
    network = BpfSwitch(plan, wired=False)
    network.build()
    return network


def count_of(network: BpfSwitch, port: str) -> Any:
    return next(each for each in network.counts() if each.port == port)


# fates


def burst(plan: Plan, packets: list[tuple[int, int, int]]) -> dict[str, Any]:
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
        "check": network.check(), "leaks": network.leaks(),
    }  # fmt: skip


@pytest.mark.parametrize(("selective", "buffer"), [(True, 24_500), (True, 24_000), (False, 24_500)])
@pytest.mark.parametrize("count", [8, 3])
def test_every_packet_of_a_burst_meets_the_fate_that_the_rules_give_it(
    selective: bool, buffer: int, count: int
) -> None:
    """Priorities, buffer of the whole port (which one packet may fill exactly), thresholds per queue; one packet takes
    16 ms, the burst less."""
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
        assert (
            drop.important == (packets[drop.packet][2] != NOT_ECT)
            and drop.priority == packets[drop.packet][1]
        )
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


def test_a_queue_fills_its_part_of_the_buffer_and_no_more() -> None:
    """Forty packets at once of two classes: the second may hold 3,000 bytes, exactly three packets."""
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


def test_a_port_that_may_be_ahead_counts_what_it_let_go_early_as_waiting() -> None:
    """On the wall clock two frames leave at once; the rules must not notice."""
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


def test_a_packet_that_finds_one_on_the_wire_and_none_waiting_is_tested() -> None:
    """The first meets an idle port, which asks nothing; the second does not fit, or is marked with K = 0."""
    slow = 500_000
    small = fast_in(2, slow, queues=Queues(8, 500, None, False), clock="virtual")
    port = in_private(burst, small, [(1000, 3, ECT0)] * 2)["port"]
    assert (port.packets, port.drops_tail, port.peak_queue_bytes) == (1, 1, 0)
    strict = fast_in(2, slow, queues=Queues(8, 50_000, (0,) * 8, True), clock="virtual")
    port = in_private(burst, strict, [(1000, 3, ECT0), (1000, 3, NOT_ECT), (1000, 3, ECT0)])["port"]
    assert (port.packets, port.drops_selective, port.marks) == (2, 1, 1)


def overload(
    plan: Plan, shares: dict[int, float], rate: int, seconds: float
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
    assert network.leaks() == []
    return count_of(network, f"s0->{plan.names[0]}"), receiver.counts, sent


def test_priorities_are_strict() -> None:
    """Offered 0.5, 0.4 and 0.6 of a link to queues 0, 3 and 6 (measured on htb before: 50.05, 40.0, 9.65 %)."""
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


def random_traffic(plan: Plan, seed: int, count: int) -> dict[str, Any]:
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
        "leaks": network.leaks(), "check": network.check(),
    }  # fmt: skip


def test_what_is_sent_comes_or_is_counted_as_lost() -> None:
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


# loss


def one_way(plan: Plan, count: int) -> set[int]:
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


def test_losses_are_drawn_from_the_seed() -> None:
    count, loss = 2000, 0.1
    plan = star(2, rate=100_000_000, loss={(2, 1): loss}, queues=Queues(8, 10_000_000, None, False))
    first = in_private(one_way, plan, count)
    assert abs(len(first) - count * (1 - loss)) < 5 * sqrt(count * loss * (1 - loss))
    assert in_private(one_way, plan, count) == first
    assert in_private(one_way, replace(plan, seed=2), count) != first


# ways


def diamond(balancing: str, seed: int = 1) -> Plan:
    """h0 - s0 - (s1 | s2) - s3 - h1."""
    cables = [(0, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 1)]
    return make_plan(
        2,
        4,
        cables,
        rate=100_000_000,
        balancing=balancing,
        seed=seed,
        queues=Queues(8, 10_000_000, None, False),
    )


def spread(plan: Plan, count: int, ports: int) -> tuple[list[int], list[int]]:
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


def test_round_robin_deals_packets_out_exactly() -> None:
    alone, _ = in_private(spread, diamond("spray_round_robin"), 400, 1)
    assert alone == [200, 200]


def test_random_spraying_is_even_and_drawn_from_the_seed() -> None:
    count = 1000
    one, two, other = (in_private(spread, diamond("spray_random", seed), count, 1)[0] for seed in (1, 1, 2))
    assert sum(one) == count and abs(one[0] - count / 2) < 5 * sqrt(count) / 2
    assert one == two != other


def test_ecmp_keeps_a_flow_on_its_way_and_spreads_flows() -> None:
    flows = 65
    (first, second), total = in_private(spread, diamond("ecmp"), 100, flows)
    assert {first, second} == {0, 100}
    others = [now - before for now, before in zip(total, (first, second), strict=True)]
    assert sum(others) == flows - 1 and min(others) > (flows - 1) / 2 - 5 * sqrt(flows - 1) / 2
    assert in_private(spread, diamond("ecmp"), 100, flows) == ([first, second], total), "hashed with the seed"


# TCP


def tcp_transfer(plan: Plan, size: int) -> tuple[int, Any]:
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


def test_tcp_crosses_in_single_packets() -> None:
    """With segmentation offload there would be fewer packets, of up to 64 KB."""
    size = 300_000
    got, port = in_private(tcp_transfer, star(2, rate=50_000_000), size)
    assert got == size
    assert port.packets >= size / 1448 and port.bytes / port.packets <= 1514


# read back


CHANGES = {
    "rate": ("tc -n n2 class change dev p1 parent 1: classid 1:1 htb rate 5mbit ceil 5mbit", "1:1"),
    "priority": (
        "tc -n n2 class change dev p1 parent 2: classid 2:13 htb rate 400gbit ceil 400gbit prio 1",
        "2:13",
    ),
    "leaf": ("tc -n n2 qdisc change dev p1 parent 2:13 handle 13: bfifo limit 1000", "limit"),
    "leaf kind": ("tc -n n2 qdisc replace dev p1 parent 2:13 handle 99: pfifo limit 10", "queue 3"),
    "root": ("tc -n n2 qdisc del dev p1 root", "root"),
    "classifier": ("tc -n n2 filter del dev p1 parent 2:", "programs []"),
    "far end": ("tc -n n2 filter del dev p1 ingress", "programs []"),
    "mtu": ("ip -n n0 link set p0 mtu 1400", "mtu"),
    "offload": ("ip -n n0 link set p0 gso_max_segs 10", "gso_max_segs"),
    "down": ("ip -n n0 link set p0 down", "not up"),
    "address": ("ip -n n0 address add 10.9.9.9/32 dev p0", "10.9.9.9"),
    "mac": ("ip -n n2 link set p1 address 02:00:00:00:99:99", "address"),
    "neighbour": (
        "ip -n n0 neigh replace 10.128.0.1 lladdr 02:00:00:00:00:77 dev p0 nud permanent",
        "lladdr",
    ),
    "host route": ("ip -n n0 route add 10.0.0.9/32 via 10.128.0.1 dev p0 onlink", "10.0.0.9"),
    "time-out": ("ip -n n0 route change 10.0.0.0/8 via 10.128.0.1 dev p0 src 10.0.0.1 onlink rto_min 70ms", "p0', ()) is missing"),
    "switch route": ("ip -n n2 route del 10.0.0.1/32", "10.0.0.1"),
    "rule": ("ip -n n2 rule add pref 101 fwmark 1 lookup 1001", "rules"),
    "device": ("ip -n n2 link add name other type veth peer name another", "nobody asked for"),
}


def changed(plan: Plan) -> dict[str, str]:
    """For every change by hand: what `verify` says afterwards."""
    found = {}
    for name, (command, _) in CHANGES.items():
        network = build(plan)
        network.verify()
        run_tool(command.split())
        try:
            network.verify()
            found[name] = ""
        except TestbedError as error:
            found[name] = error.what
        network.close()
    return found


def test_everything_is_read_back() -> None:
    found = in_private(changed, star(2))
    for name, (_, word) in CHANGES.items():
        assert word in found[name], (name, found[name])


# programs and maps


def test_a_program_is_compiled_once(tmp_path: Path) -> None:
    first = backend.object_file(tmp_path)
    written = first.stat().st_mtime_ns
    assert backend.object_file(tmp_path) == first and first.stat().st_mtime_ns == written
    other = bpf.compile_program(backend.SOURCE, "".join(bpf.declare(*each) for each in backend.ENTRIES.items())
                                + "enum { DEVICE = 1, WIRE = 2, GRADWIRE_PORT = 3 };", tmp_path)  # fmt: skip
    assert other != first and set(bpf.read_object(first)) == {"enqueue", "release", "choose"}
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([first.name, other.name])


def test_what_a_compiler_or_the_kernel_refuses_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f( {")
    with pytest.raises(TestbedError, match="clang failed"):
        bpf.compile_program(tmp_path / "bad.c", cache=tmp_path)
    (tmp_path / "no.o").write_bytes(b"text")
    with pytest.raises(ValueError, match="no object file"):
        bpf.read_object(tmp_path / "no.o")
    endless = bpf.Section(struct.pack("<BBhi", 0x05, 0, -1, 0), ())  # jumps to itself
    with pytest.raises(TestbedError, match="refuses the BPF program loop"):
        bpf.load(endless, {}, "loop")


def test_the_program_reads_the_header_where_it_is() -> None:
    assert backend.GRADWIRE_PORT == wire.GRADWIRE_PORT
    sizes = dict(wire.HEADERS["gradwire"])
    names = list(sizes)
    assert sum(sizes[name] for name in names[: names.index("sequence")]) == 10 and sizes["sequence"] == 4
    assert sizes[names[0]] == 4


def test_keys_differ_by_place_and_seed() -> None:
    keys = {backend.key(seed, kind, number) for seed in range(4) for kind in (1, 2) for number in range(50)}
    assert len(keys) == 400
