"""Real arrays through switches that sum: what every packet carries is moved along in the oracle, which sends the packets
that the engine sends, added up in slots and at servers, and copied on the way back. Every worker has the exact sum in the
end, whatever is lost on the way; and of values that are lost for good, the sum that the program says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim_cases import US, make_trace, scenario

from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyArray
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle.oracle import Oracle
from gradwire.testing.oracle.packets import DATA, Packet
from gradwire.testing.scenario_comparison import PacketRecorder

PAYLOAD = 400
VALUES = PAYLOAD // 4
TRACE = make_trace([[1301, 50], [1999]], forward=US, backward=US)
END = 10**15


class Arrays:
    """A job that the engine has run, once more through the oracle, now with arrays: integers, so that sums are exact.

    own : (worker, tensor) -> its gradient. masks : message -> float64[packets], 0 where values are lost for good.
    """

    def __init__(self, asked: Any, lose: float = 0.0, wait: int = 0) -> None:
        """`lose`: share of the packets of which the values are lost for good. `wait`: picoseconds that pulls start later than
        in the engine."""
        self.recorder = PacketRecorder()
        simulate(asked, TRACE, fabric=self.recorder)
        rng = np.random.default_rng(1)
        (track,) = self.recorder.made._programs.tracks
        (over,) = track.steps
        rows = self.rows = over.step.messages
        assert over.numbers.tolist() == list(range(len(rows)))
        pushed = [KINDS[kind] == "push" for kind in rows.kind.tolist()]
        self.pushes, self.pulls = np.flatnonzero(pushed).tolist(), np.flatnonzero(~np.array(pushed)).tolist()
        self.workers = sorted({int(rows.src[message]) for message in self.pushes})
        sizes = [tensor.numel for tensor in TRACE.tensors]
        self.own = {
            (worker, tensor): rng.integers(-1000, 1000, size)
            for worker in self.workers
            for tensor, size in enumerate(sizes)
        }
        packets = -(-rows.nbytes // PAYLOAD)
        self.masks = {m: (rng.random(packets[m]) >= lose).astype(np.int64) for m in range(len(rows))}
        self.sums, self.with_own = over.step.contents()
        case = self.recorder.recorded_case()
        letters = [
            replace(letter, time=letter.time + wait * (not early))
            for letter, early in zip(case.letters, pushed, strict=True)
        ]
        self.oracle = Oracle(replace(case, letters=letters), self.carries)

    def run(self) -> Arrays:
        self.outcome = self.oracle.run(END)
        return self

    def key(self, message: int) -> tuple[int, int, int]:
        return int(self.rows.tensor[message]), int(self.rows.part[message]), int(self.rows.iteration[message])

    def slice_of(self, message: int, packet: int) -> slice:
        first = int(self.rows.first[message])
        return slice(first + packet * VALUES, first + min((packet + 1) * VALUES, int(self.rows.nbytes[message]) // 4))

    def mine(self, host: int, message: int, packet: int) -> AnyArray:
        """What a host has of its own of the values of a packet: nothing, if it is no worker."""
        at, tensor = self.slice_of(message, packet), int(self.rows.tensor[message])
        own = self.own.get((host, tensor))
        return np.zeros(at.stop - at.start, dtype=np.int64) if own is None else own[at]

    def carries(self, message: int, packet: int) -> AnyArray:
        """A push carries its worker's gradient; a pull what its server has by then, which is what the oracle has brought
        there, and its own."""
        if message in self.pushes:
            return self.mine(int(self.rows.src[message]), message, packet) * self.masks[message][packet]
        flows, found, fans = self.oracle.flows, [], set()
        for push in self.pushes:
            if self.key(push) == self.key(message):
                fan = flows[push].fan
                if fan is None:
                    found.append(flows[push].brought[packet])
                elif fan not in fans:
                    fans.add(fan)
                    values = fan.there[packet].values
                    assert packet in fan.complete and values is not None
                    found.append(values)
        return sum(found) + self.mine(int(self.rows.src[message]), message, packet)

    def results(self) -> dict[tuple[int, int], AnyArray]:
        """(worker, message) -> what came back to it, without what is lost for good."""
        return {
            (int(self.rows.dst[m]), m): np.concatenate([
                self.oracle.flows[m].brought[packet] * self.masks[m][packet] for packet in range(len(self.masks[m]))
            ])
            for m in self.pulls
        }  # fmt: skip

    def predicted(self) -> dict[tuple[int, int], AnyArray]:
        """The same by what the program says that each message is made of."""
        first, members = self.sums
        found = {}
        for m in self.pulls:
            packets = range(len(self.masks[m]))
            made = [self.mine(int(self.rows.src[m]), m, packet) * int(self.with_own[m]) for packet in packets]
            for push in members[first[m] : first[m + 1]].tolist():
                made = [
                    each + self.mine(int(self.rows.src[push]), push, packet) * self.masks[push][packet]
                    for packet, each in enumerate(made)
                ]
            found[int(self.rows.dst[m]), m] = np.concatenate(
                [each * self.masks[m][packet] for packet, each in enumerate(made)]
            )
        return found

    def exact(self) -> dict[tuple[int, int], AnyArray]:
        """The sum of what all workers have."""
        found = {}
        for m in self.pulls:
            tensor, last = int(self.rows.tensor[m]), len(self.masks[m]) - 1
            at = slice(self.slice_of(m, 0).start, self.slice_of(m, last).stop)
            found[int(self.rows.dst[m]), m] = sum(self.own[worker, tensor][at] for worker in self.workers)
        return found


def same(one: dict[Any, AnyArray], other: dict[Any, AnyArray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def case(kind: str, slots: int, *, levels: int = 2, hosts: int = 3, loss: float = 0.0) -> Any:
    """Six workers in racks of so many hosts; parameter servers on two more."""
    servers = 2 * (kind == "parameter_server")
    exchange = {"kind": kind, "partition": "4kB", **({"aggregation": True} if servers else {})}
    racks = -(-(6 + servers) // hosts)
    return scenario(
        {"workers": 6, "servers": servers, "exchange": exchange},
        topology={"kind": "leaf_spine", "leaves": racks, "spines": 2, "hosts_per_leaf": hosts},
        switch={"queues": 1, "buffer": "20kB", "ecn_threshold": "6kB", "aggregation_slots": slots, "aggregation_levels": levels},
        transport={"kind": "dctcp", "payload": f"{PAYLOAD}B", "min_rto": "50us"}, load_balancing="spray_random",
        link={"rate": "100Gbps", "latency": "1us", "loss": loss},
    )  # fmt: skip


KINDS_OF = [("in_network", 3), ("parameter_server", 3), ("in_network", 2), ("parameter_server", 8)]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("slots", [2, 500])
@pytest.mark.parametrize(("kind", "hosts"), KINDS_OF)
def test_aggregated_arrays_equal_exact_sum_at_every_worker(kind, hosts, slots, loss):
    """The oracle carries real arrays and sends the same packets as the engine."""
    arrays = Arrays(case(kind, slots, hosts=hosts, loss=loss)).run()
    results = arrays.results()
    assert {worker for worker, _ in results} == set(arrays.workers)
    assert same(results, arrays.exact()) and same(results, arrays.predicted())
    assert not arrays.recorder.difference()


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(("kind", "hosts"), KINDS_OF)
def test_lost_values_are_missing_as_the_program_predicts(kind, hosts, levels):
    arrays = Arrays(case(kind, 20, levels=levels, hosts=hosts, loss=0.01), lose=0.2).run()
    results = arrays.results()
    assert same(results, arrays.predicted())
    assert not same(results, arrays.exact())


WHERE = {
    "workers' links": (True, "h", "leaf"), "uplinks of racks": (True, "leaf", "spine"), "server's link": (True, "leaf", "h"),
    "results": (False, "h", "leaf"), "results' downlinks": (False, "spine", "leaf"), "results at workers": (False, "leaf", "h"),
}  # fmt: skip


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["in_network", "parameter_server"])
def test_aggregated_sum_is_exact_if_every_packet_is_lost_once(kind, where):
    """Each case drops data or results on one kind of link. The first copy of every packet number of every message is
    lost."""
    arrays = Arrays(case(kind, 20), wait=10**13)
    pushes, near, far = WHERE[where]
    network, lost = arrays.recorder.network, set()
    for link in arrays.oracle.links:
        one, other = network.link_name(link.index).split("->")
        if not (one.startswith(near) and other.startswith(far)):
            continue

        def receive(packet: Packet, number: int, onwards: Any = link.receive) -> None:
            mark = (packet.flow, packet.sequence)
            if packet.kind == DATA and (packet.flow in arrays.pushes) == pushes and mark not in lost:
                lost.add(mark)
                return
            onwards(packet, number)

        link.receive = receive
    arrays.run()
    assert lost
    assert same(arrays.results(), arrays.exact())
