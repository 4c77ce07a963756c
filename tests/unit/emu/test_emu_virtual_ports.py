"""Both kernel backends under virtual time, packet by packet: what a switch sends, and when, is what the model of a port
makes of what comes to it. All tests of this module share one virtual machine (`runs`)."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emu_cases as cases
import pytest
from emu_cases import ECT0, MARK, NOT_ECT, Task, TaskResult, in_virtual_each, needs, star
from port_model import PortModel
from shared import computed_once

from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import Queues, TestbedPlan
from gradwire.emu.planning.probe import probe, virtual_kernel
from gradwire.emu.switches.linux_network.bpf_switch import BpfSwitch, object_file
from gradwire.emu.switches.linux_network.red_switch import RedSwitch
from gradwire.emu.system.capture import Capture

pytestmark = needs("uml")

STEP_NS = 256
"""Of the virtual clock."""
BACKENDS = ("bpf", "red")
Runs = dict[tuple[Any, ...], TaskResult]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What each task has returned, by its function, case and backend."""
    tasks = planned_tasks()
    results = computed_once(tmp_path_factory, __name__, lambda: in_virtual_each(list(tasks.values()), seconds=300))
    return dict(zip(tasks, results, strict=True))


def planned_tasks() -> dict[tuple[Any, ...], Task]:
    """Return all that runs in the virtual machine."""
    program = str(object_file())
    tasks: dict[tuple[Any, ...], Task] = {}
    for name in BACKENDS:
        for rate in PORT_RATES:
            mean_ns = 730 * 8e9 / rate / 1.3
            tasks[traffic, rate, name] = traffic, (name, port_plan(name, rate), program, 3, 1500, round(mean_ns))
        tasks[cable, name] = cable, (name, CABLES, program)
        tasks[read_back, name] = read_back, (name, CHANGED, program)
    tasks[lossy,] = lossy, (LOSSY, 2000)
    for selective in (True, False):
        tasks[kept, selective] = kept, (kept_plan(selective),)
    for balancing in BALANCINGS:
        tasks[ways, balancing] = ways, (ways_plan(balancing),)
    tasks[probed,] = probed, ()
    return tasks


def read_frames(path: Path) -> Iterator[tuple[str, int, bytes, int]]:
    """Interface, time, data and length of every frame of a pcapng file of ours."""
    data, at, names = path.read_bytes(), 0, []
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 1:
            size = struct.unpack_from("<H", data, at + 18)[0]
            names.append(data[at + 20 : at + 20 + size].decode())
        if kind == 6:
            interface, high, low, kept, whole = struct.unpack_from("<5I", data, at + 8)
            yield names[interface], high << 32 | low, data[at + 28 : at + 28 + kept], whole
        at += length


def make(name: str, plan: TestbedPlan, program: str) -> Any:
    network = BpfSwitch(plan, wired=True, program=Path(program)) if name == "bpf" else RedSwitch(plan, wired=True)
    network.build()
    return network


def traffic(name: str, plan: TestbedPlan, program: str, seed: int, count: int, gap_ns: int) -> dict[str, Any]:
    network = make(name, plan, program)
    switch = plan.host_count
    capture = Capture(plan, switch, Path("/run/capture.pcapng"), zero_ns=time.time_ns())
    capture.start(network.spaces[f"n{switch}"])
    opened = [cases.open_udp(network, host) for host in range(plan.host_count)]
    receiver = cases.Receiver(opened[0])
    draw = random.Random(seed)
    for number in range(count):
        size = draw.choice([60, 400, 1000, 1458])
        cases.send_from(opened[draw.randrange(1, plan.host_count)], 0, draw.choice([0, 2, 2, 5]), draw.choice([ECT0, NOT_ECT]),
                        cases.packet(1, number, size))  # fmt: skip
        time.sleep(draw.randrange(2 * gap_ns) / 1e9)
        receiver.take()
    receiver.take_until_quiet(0.5)
    missed = capture.stop()
    return {
        "frames": list(read_frames(Path("/run/capture.pcapng"))), "missed": missed, "came": receiver.numbers,
        "counts": network.counts(), "drops": network.drops(), "check": network.check(),
    }  # fmt: skip


PORT_RATES = (100_000_000, 5_000_000_000)


def port_plan(name: str, rate: int) -> TestbedPlan:
    queues = Queues(8, 40_000 if name == "bpf" else 1_000_000, (12_000,) * 8, True)
    return star(4, rate=rate, latency_ps=3_000_000, clock="virtual", queues=queues)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("rate", PORT_RATES)
def test_virtual_time_port_matches_the_port_model(name: str, rate: int, runs: Runs) -> None:
    """Three hosts send to one at random, at 1.3 times its link rate. Fates are equal; times agree within steps of the
    clock."""
    got = runs[traffic, rate, name].get()
    assert got["missed"] == [] and got["check"] == []
    queues = port_plan(name, rate).queues
    model = PortModel(8e9 / rate, 8, queues.buffer, queues.thresholds, True)
    fates, sent = {}, {}
    for port, at, data, size in got["frames"]:
        number = struct.unpack_from(">I", data, 52)[0]
        if port == "s0->h0":
            sent[number] = at, data[15] & 3
        elif port.endswith("->s0"):
            fates[number] = model.arrive(at, size, 7 - (data[15] >> 5), data[15] & 3 != NOT_ECT)
    model.advance(float("inf"))
    assert len(fates) == 1500
    # until two things fall together within a step of the clock, and go the other way: equal, packet by packet
    differing = [number for number, fate in fates.items() if (fate.fate == "sent") != (number in sent)]
    before = list(fates)[: list(fates).index(differing[0]) if differing else None]
    assert len(before) > 200
    both = [number for number in before if number in sent and fates[number].begins is not None]
    late = sorted(abs(sent[number][0] - fates[number].begins) for number in both)
    assert late[len(late) // 2] <= 4 * STEP_NS
    assert sum(fates[number].marked != (sent[number][1] == MARK) for number in both) <= 2
    # and from there on alike
    port = next(each for each in got["counts"] if each.port == "s0->h0")
    assert port.packets == len(sent) == len(got["came"])
    causes = Counter(fate.fate for fate in fates.values())
    marks = sum(fate.marked for fate in fates.values())
    for counted, wanted in (
        (port.drops_tail, causes["tail"]),
        (port.drops_selective, causes["selective"]),
        (port.marks, marks),
    ):
        assert counted == pytest.approx(wanted, rel=0.03, abs=10)
    assert causes["selective"] > 100 and marks > 100 and (name == "red" or causes["tail"] > 50)
    if name == "bpf":
        assert Counter(drop.cause for drop in got["drops"]) == {
            cause: number
            for cause, number in (("tail", port.drops_tail), ("selective", port.drops_selective))
            if number
        }


def cable(name: str, plan: TestbedPlan, program: str) -> list[int]:
    """Nanoseconds from sending at an idle host to arriving at another, one packet at a time."""
    network = make(name, plan, program)
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    took = []
    time.sleep(0.01)  # as long as a kernel has just started, 6.12 has timers of whole milliseconds
    for number, size in enumerate([60, 1000, 1458]):
        start = time.monotonic_ns()
        cases.send_from(sender, 1, 3, ECT0, cases.packet(1, number, size))
        cases.select.select([receiver.opened], [], [], 1)
        took.append(time.monotonic_ns() - start)
        receiver.take()
    return took


CABLE_NS = 2500
CABLES = star(2, rate=1_000_000_000, latency_ps=CABLE_NS * 1000, clock="virtual")


@pytest.mark.parametrize("name", BACKENDS)
def test_cable_delay_is_latency_plus_transmission_time(name: str, runs: Runs) -> None:
    """Two links take twice the latency and twice the transmission time (store and forward)."""
    for size, took in zip([60, 1000, 1458], runs[cable, name].get(), strict=True):
        exact = 2 * (CABLE_NS + size * 8)
        assert exact <= took <= exact + 8 * STEP_NS, (size, took - exact)


def lossy(plan: TestbedPlan, count: int) -> tuple[int, int]:
    network = make("red", plan, "")
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    for number in range(count):
        cases.send_from(sender, 1, 3, ECT0, cases.packet(1, number, 200))
    receiver.take_until_quiet()
    return len(receiver.numbers), next(each.drops_loss for each in network.counts() if each.port == "s0->h1")


LOSSY = star(2, rate=100_000_000, loss={(2, 1): 0.1}, clock="virtual", queues=Queues(8, 10_000_000, None, False))


def test_red_backend_drops_packets_at_the_link_loss_rate(runs: Runs) -> None:
    came, lost = runs[lossy,].get()
    assert came + lost == 2000 and abs(lost - 200) < 5 * (2000 * 0.09) ** 0.5


def kept(plan: TestbedPlan) -> tuple[dict[tuple[int, int], int], Any]:
    """With nodrop: a burst of both kinds into one queue."""
    network = make("red", plan, "")
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    for number in range(90):
        cases.send_from(sender, 1, 3, ECT0 if number % 2 else NOT_ECT, cases.packet(1, number, 1000))
    receiver.take_until_quiet()
    return dict(receiver.counts), next(each for each in network.counts() if each.port == "s0->h1")


def kept_plan(selective: bool) -> TestbedPlan:
    rates = {(h, 2): 10_000_000_000 for h in range(2)} | {(2, h): 1_000_000 for h in range(2)}
    return star(2, rate=rates, clock="virtual", queues=Queues(8, 40_000, (10_000,) * 8, selective))


@pytest.mark.parametrize("selective", [True, False])
def test_red_backend_drops_unmarkable_packets_only_with_selective_drop(selective: bool, runs: Runs) -> None:
    came, port = runs[kept, selective].get()
    model = PortModel(8, 8, 40_000, (10_000,) * 8, selective)
    fates = [model.arrive(0, 1000, 3, bool(number % 2)) for number in range(90)]
    wanted: dict[tuple[int, int], int] = defaultdict(int)
    for number, fate in enumerate(fates):
        if fate.fate == "sent":
            wanted[3, MARK if fate.marked else ECT0 if number % 2 else NOT_ECT] += 1
    assert came == dict(wanted)
    tail = [bool(number % 2) for number, fate in enumerate(fates) if fate.fate == "tail"]
    dropped = sum(fate.fate == "selective" for fate in fates)
    if selective:  # a droppable packet that finds the queue too long and the buffer full counts as dropped by choice
        assert (port.drops_tail, port.drops_selective) == (sum(tail), dropped + len(tail) - sum(tail))
        assert port.marks == wanted[3, MARK] and sum(tail) > 0
    else:
        assert (port.drops_tail, port.drops_selective) == (len(tail), 0)
        assert port.marks == wanted[3, MARK] + sum(tail) > wanted[3, MARK]


def ways(plan: TestbedPlan) -> list[int]:
    network = make("red", plan, "")
    sender, receiver = cases.open_udp(network, 0), cases.Receiver(cases.open_udp(network, 1))
    for number in range(200):
        cases.send_from(sender, 1, 3, ECT0, cases.packet(1, number, 200))
    receiver.take_until_quiet()
    assert len(receiver.numbers) == 200
    return [each.packets for each in network.counts() if each.port in ("s0->s1", "s0->s2")]


BALANCINGS = ("ecmp", "spray_round_robin", "spray_random")


def ways_plan(balancing: str) -> TestbedPlan:
    cables = [(0, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 1)]
    return cases.make_plan(2, 4, cables, rate=100_000_000, balancing=balancing, clock="virtual")


@pytest.mark.parametrize("balancing", BALANCINGS)
def test_red_backend_balances_load_over_paths(balancing: str, runs: Runs) -> None:
    counts = runs[ways, balancing].get()
    assert sum(counts) == 200
    if balancing == "ecmp":
        assert 0 in counts
    elif balancing == "spray_round_robin":
        assert counts == [100, 100]
    else:
        assert min(counts) > 60


def read_back(name: str, plan: TestbedPlan, program: str) -> dict[str, str]:
    from gradwire.emu.switches.backend_kind import TestbedError
    from gradwire.emu.system.namespaces import inside, run_tool

    found = {}
    for what, command in CHANGES.items():
        network = make(name, plan, program)
        try:
            with inside(network.spaces["wires"]):
                run_tool(command.split())
            network.verify()
            found[what] = ""
        except TestbedError as error:
            found[what] = error.what
        network.close()
    return found


CHANGES = {
    "nothing": "true",
    "latency": "tc qdisc change dev w1 root netem delay 2ms rate 20mbit",
    "no netem": "tc qdisc del dev w1 root",
    "red": "tc -n n2 qdisc change dev p1 parent 2:13 handle 13: red limit 64000 min 5000 max 5001 avpkt 1000 burst 8 ecn",
    "filters": "tc -n n2 filter del dev p1 parent 2:",
}


CHANGED = star(2, latency_ps=5_000_000, clock="virtual", queues=Queues(8, 64_000, (5000,) * 8, True))


@pytest.mark.parametrize("name", BACKENDS)
def test_verify_detects_manual_changes_of_cables_and_red(name: str, runs: Runs) -> None:
    found = runs[read_back, name].get()
    assert found.pop("nothing") == ""
    assert "cable of" in found["latency"] and "cable of" in found["no netem"]
    assert ("red in the kernel has" in found["red"]) if name == "red" else found["red"]
    assert ("filters" if name == "red" else "programs []") in found["filters"]


def probed() -> KernelFeatures:
    return probe(rates=False)


def test_declared_virtual_kernel_features_match_a_probe(runs: Runs) -> None:
    found, said = runs[probed,].get(), virtual_kernel()
    for table in ("qdiscs", "classifiers", "actions"):
        assert {k for k, v in getattr(found, table).items() if not v} - {"bpf"} == {
            k for k, v in getattr(said, table).items() if not v
        } - {"bpf"}, table
    assert found.nft_numgen == said.nft_numgen == "" and found.tun == said.tun
    assert found.congestion == said.congestion
