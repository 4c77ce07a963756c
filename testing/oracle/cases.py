"""One run described, made with the engine and with the oracle, and the first thing in which the two differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gradwire.components import layout as at
from gradwire.components.draws import entropy_of
from gradwire.components.find import resolve
from gradwire.components.layout import H_ENTROPIES, HEADER_WORDS
from gradwire.components.transports.base import Context, persists, shares
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.missing import COLUMNS
from gradwire.scenarios.schema.network import Switch as SwitchTable
from gradwire.scenarios.units import Bytes, Ps, PsPerByte
from gradwire.sim.fabric import records, streams
from gradwire.sim.fabric.control import Control
from gradwire.sim.fabric.events import Delivery
from gradwire.sim.fabric.fabric import Fabric
from gradwire.sim.fabric.tables import CAUSES
from gradwire.testing.oracle.flows import Carried, Flow, Group, Protocol, Stream, Words
from gradwire.testing.oracle.host import Host
from gradwire.testing.oracle.model import CHANGE, SENT_ON, Clock, Link, Log
from gradwire.testing.oracle.packets import Arrival, Counters, Drop, Transmission, packet_of
from gradwire.testing.oracle.switch import Port, Switch

FOREVER = 10**13  # 10 s: longer than any case takes


@dataclass(frozen=True)
class Letter:
    """A message to be sent: at `time`, or `time` after the delivery of letter number `after`."""

    time: int
    src: int
    dst: int
    nbytes: int
    transport: int = 0
    priority: int = 0
    bound: float = 0.0
    important: Sequence[bool] | bool | None = None
    after: int | None = None


@dataclass(frozen=True)
class Change:
    """Something is done to the network at a time, in the words of `gradwire.sim.fabric.control`: `what` is one of its methods,
    `target` a link or a host, or the links that routes are to avoid; `value` a rate or a probability of loss."""

    time: int
    what: str
    target: Any
    value: Any = None


@dataclass(frozen=True)
class Case:
    """A network, what its switches and transports are like, the letters to be sent over it, and what befalls it."""

    network: Network
    transports: Sequence[Any]
    letters: Sequence[Letter]
    switch: SwitchTable = field(default_factory=SwitchTable)
    balancing: str = "ecmp"
    seed: int = 1
    host_latency: Ps = Ps(2_000_000)
    changes: Sequence[Change] = ()


@dataclass(frozen=True)
class Outcome:
    """Everything that happened, in an order of its own that no implementation decides."""

    transmissions: list[Transmission]
    drops: list[Drop]
    arrivals: list[Arrival]
    ports: list[Counters]
    sent: list[int]
    """packets per message: data and probes"""
    again: list[int]
    """per message: data packets that had been sent before"""


def run_engine(
    case: Case,
    *,
    until: int = FOREVER,
    threads: int = 1,
    window: Ps | None = None,
    stops: Sequence[int] = (),
    prepare: Callable[[Fabric], None] | None = None,
) -> Outcome:
    """The compiled engine's outcome. `stops`: `run` is asked to halt at these times too."""
    fabric = fabric_of(case, threads=threads, window=window)
    if prepare is not None:
        prepare(fabric)
    letters: list[int] = []  # letter of every message

    def post(letter: int, time: int) -> None:
        what = case.letters[letter]
        flags = what.important
        important = flags if flags is None or isinstance(flags, bool) else np.array(flags, dtype=bool)
        letters.append(letter)
        number = fabric.send(
            Ps(time), what.src, what.dst, Bytes(what.nbytes), transport=what.transport, priority=what.priority,
            bound=what.bound, important=important,
        )  # fmt: skip
        assert number == len(letters) - 1

    for letter in _unprompted(case):
        post(letter, case.letters[letter].time)
    arrivals = []
    halts = [stop for stop in sorted(stops) if stop < until]
    while fabric.now < until and not (fabric.idle and fabric.now > 0):
        while halts and halts[0] <= fabric.now:
            halts.pop(0)
        deliveries = fabric.run(Ps(halts[0] if halts else until))
        for delivery in sorted(deliveries, key=lambda delivery: (delivery.time_ps, delivery.message)):
            assert isinstance(delivery, Delivery)
            arrivals.append(Arrival(delivery.time_ps, delivery.message, delivery.received_bytes, ()))
            for letter in _prompted(case, letters[delivery.message]):
                post(letter, delivery.time_ps + case.letters[letter].time)
    return seen(fabric, arrivals)


def fabric_of(case: Case, *, threads: int = 1, window: Ps | None = None) -> Fabric:
    """The engine for a case, with a packet log and nothing sent yet."""
    fabric = Fabric(
        case.network,
        build_routing(case.network),
        switch=case.switch,
        transports=case.transports,
        balancing=case.balancing,
        seed=case.seed,
        host_latency_ps=case.host_latency,
        threads=threads,
        packet_log=True,
        missing=True,
        window_ps=window,
        faults=bool(case.changes),
    )
    for change in case.changes:
        fabric.agenda.add(Ps(change.time), partial(_change, fabric.control, change))
    return fabric


def _change(control: Control, change: Change, now: Ps) -> None:
    """Do it to the engine."""
    act = getattr(control, change.what)
    if change.what == "reroute":
        act(build_routing(control.network, change.target))
    elif change.value is not None:
        act(change.target, change.value)
    elif change.what == "stop_host":
        act(change.target)
    else:
        act(change.target, now)


def seen(fabric: Fabric, arrivals: list[Arrival]) -> Outcome:
    """What a fabric has to tell at the end of a run."""
    fabric.close()
    tables = fabric.finish()
    missing = missing_packets(tables)
    arrivals = [each._replace(missing=missing.get(each.message, ())) for each in arrivals]
    columns = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "drops_evicted", "drops_down",
               "drops_no_route", "marks", "control_marks", "trimmed",
               "pauses", "peak_queue_bytes")  # fmt: skip
    return Outcome(
        transmissions=sorted(
            (
                Transmission(start, link, packet_of(a, b, flow), bool(lost))
                for start, link, a, b, lost, flow in fabric.packet_log().tolist()
            ),
            key=_by_start,
        ),
        drops=_by_time(
            Drop(time, port & 0xFFFFFFFF, CAUSES[port >> 32], packet_of(a, b, flow))
            for time, port, a, b, flow in fabric.drop_log().tolist()
        ),
        arrivals=arrivals,
        ports=[
            Counters(*map(int, row)) for row in zip(*(tables.ports[name] for name in columns), strict=True)
        ],
        sent=[int(count) for count in tables.sent_packets],
        again=[int(count) for count in tables.retransmitted],
    )


def missing_packets(tables: Any) -> dict[int, tuple[int, ...]]:
    """Message -> the packets that it was delivered without."""
    found: dict[int, tuple[int, ...]] = {}
    for message, first, packets in zip(*(tables.missing[name].tolist() for name in COLUMNS[:3]), strict=True):
        found[message] = (*found.get(message, ()), *range(first, first + packets))
    return found


def run_oracle(
    case: Case, *, until: int = FOREVER, looks: Mapping[int, Callable[[Sequence[Port | Host]], None]] | None = None
) -> Outcome:
    """The oracle's outcome. `looks`: who wants to see the ports, by link, at a time, when all before it has happened."""
    oracle = _Oracle(case)
    for time, look in (looks or {}).items():
        oracle.clock.at(time, CHANGE, 0, partial(look, oracle.ports))
    return oracle.run(until)


def first_difference(engine: Outcome, oracle: Outcome) -> str:
    """The first thing in which two outcomes differ, in words; empty if there is none."""
    for what in ("transmissions", "drops", "arrivals", "sent", "again", "ports"):
        ours, theirs = getattr(engine, what), getattr(oracle, what)
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{what}[{index}] of {len(ours)} and {len(theirs)}:\n  engine {one}\n  oracle {other}"
        if len(ours) != len(theirs):
            longer, whose = (ours, "engine") if len(ours) > len(theirs) else (theirs, "oracle")
            extra = longer[min(len(ours), len(theirs))]
            return f"{what}: engine {len(ours)}, oracle {len(theirs)}; first more of the {whose}: {extra}"
    return ""


def _unprompted(case: Case) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after is None]


def _prompted(case: Case, by: int) -> list[int]:
    return [number for number, letter in enumerate(case.letters) if letter.after == by]


def _by_start(one: Transmission) -> tuple[int, int]:
    return one.start, one.link


def _by_time(drops: Any) -> list[Drop]:
    return sorted(drops, key=lambda drop: (drop.time, drop.link, drop.packet.flow, drop.packet.words()))


class _Oracle:
    """The network of a case, built from the parts of `model`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        network, table = case.network, case.switch
        self.routing = self.whole = routing = build_routing(network)
        self.clock, self.log = Clock(), Log()
        self.flows: list[Flow] = []
        self.letters: list[int] = []
        self.fresh_deliveries: list[int] = []
        self.links = [
            Link(
                self.clock, self.log, index, int(network.link_rate[index]), int(network.link_latency[index]),
                float(network.link_loss[index]), case.seed,
            )
            for index in range(network.link_count)
        ]  # fmt: skip
        owners = [resolve("transport", each.kind) for each in case.transports]
        longest = max(
            each.payload + owner.data_overhead for owner, each in zip(owners, case.transports, strict=True)
        )
        balancer = resolve("load_balancing", case.balancing)
        self.hosts = [
            Host(
                self.clock, self.log, self.links[up], table.queues, self.flows, self._delivered, balancer,
                table.shortest_first,
            )
            for up in routing.up_link.tolist()
        ]  # fmt: skip
        switches = [
            Switch(
                self.clock, network.host_count + index, case.seed, _Ways(self, index), balancer, table, self.flows,
                longest,
            )
            for index in range(network.switch_count)
        ]  # fmt: skip
        self.line_speed = [host.link.speed for host in self.hosts]
        nodes: list[Host | Switch] = [*self.hosts, *switches]
        self.ports: list[Port | Host] = []
        for index, link in enumerate(self.links):
            link.receive = nodes[network.link_dst[index]].receive
            near = nodes[network.link_src[index]]
            if isinstance(near, Switch):
                port = Port(self.log, link, table, case.seed, near)
                near.ports[index] = port
                near.room[index ^ 1] = self._headroom(link, longest)
                self.ports.append(port)
            else:
                self.ports.append(near)
        self.memory = Words([0] * HEADER_WORDS)
        self.memory[H_ENTROPIES] = table.path_entropies or 0
        self.owners = owners
        self.protocols: dict[tuple[int, int, int, int], Protocol] = {}
        self.streams: dict[tuple[int, int, int, int], Stream] = {}
        self.groups: dict[tuple[int, int, int, int], Group] = {}
        self.shared: dict[tuple[str | int, ...], int] = {}

    def _headroom(self, link: Link, longest: int) -> int:
        """Rate times round trip of the cable, three full packets and the pause frame."""
        given = self.case.switch.pfc_headroom
        rate = int(self.case.network.link_rate[link.index])
        return -(-2 * link.latency * rate // (8 * 10**12)) + 3 * longest + 60 if given is None else given

    def _protocol(self, transport: int, src: int, dst: int) -> Protocol:
        """The transport as it is for a flow from one host to another."""
        owner, table = self.owners[transport], self.case.transports[transport]
        out = self._one_way(src, dst, table.payload + owner.data_overhead)
        rtt, speed = out + self._one_way(dst, src, owner.control_bytes), self.line_speed[src]
        rates = (int(self.case.network.link_rate[link]) for path in self.whole.paths(src, dst) for link in path)
        slowest = -(-(8 * 10**12 << 16) // min(rates))
        if (transport, rtt, speed, slowest) not in self.protocols:
            settings, context = table.model_dump(), Context(PsPerByte(speed), table.payload, Ps(rtt), PsPerByte(slowest))
            slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
            parameters = owner.parameters(settings, context)
            self.protocols[transport, rtt, speed, slowest] = Protocol(
                self.memory, transport, owner, table, parameters, slots
            )
        return self.protocols[transport, rtt, speed, slowest]

    def _one_way(self, src: int, dst: int, size: int) -> int:
        """Picoseconds that a packet takes with nothing in its way, on the slowest of its paths in the whole network."""
        network = self.case.network
        return max(
            sum(
                -(-size * 8 * 10**12 // int(network.link_rate[link])) + int(network.link_latency[link])
                for link in path
            )
            for path in self.whole.paths(src, dst)
        )

    def run(self, until: int) -> Outcome:
        for letter in _unprompted(self.case):
            self._post(letter, self.case.letters[letter].time)
        for change in self.case.changes:
            act = partial(getattr(self, change.what), change.target, change.value)
            self.clock.at(change.time, CHANGE, 0, act)
        self.clock.env.run(until=until)
        self.log.transmissions.sort(key=_by_start)
        return Outcome(
            transmissions=self.log.transmissions,
            drops=_by_time(drop for drop in self.log.drops),
            arrivals=sorted(self.log.arrivals),
            ports=[port.counters() for port in self.ports],
            sent=[flow.sent for flow in self.flows],
            again=[
                sum(Counter(flow.sequences_sent).values()) - len(set(flow.sequences_sent))
                for flow in self.flows
            ],
        )

    def _post(self, letter: int, time: int) -> None:
        what = self.case.letters[letter]
        number = len(self.flows)
        self.letters.append(letter)
        host = self.hosts[what.src]
        entropy = entropy_of(self.case.seed, number)
        protocol = self._protocol(what.transport, what.src, what.dst)
        stream = self._stream(what) if persists(self.case.transports[what.transport]) else None
        self.flows.append(
            (Flow if stream is None else Carried)(
                protocol.memory, protocol, number=number, src=what.src, dst=what.dst, nbytes=what.nbytes,
                priority=what.priority, bound=what.bound, important=what.important,
                entropy=entropy if stream is None else stream.entropy,
                line_speed=self.line_speed[what.src], stream=stream, **self._pair(what),
            )
        )  # fmt: skip
        host.schedule_start(self.flows[-1], time)

    def _pair(self, what: Letter) -> dict[str, Any]:
        """What a message shares with others of its two hosts, if its transport has them share anything."""
        owner = self.owners[what.transport]
        if not shares(owner):
            return {}
        pair = (what.transport, what.src, what.dst)
        words = (
            self._words(at.PAIR_USER + owner.pair_words, "sender", *pair),
            self._words(owner.peer_words, "receiver", *pair),
            self._words(owner.host_words, "host", what.transport, what.dst),
        )
        key = (*pair, what.priority)
        if key not in self.groups:
            self.groups[key] = Group(self.memory, words[0], what.priority)
        return {"group": self.groups[key], "shared": words}

    def _words(self, count: int, *key: str | int) -> int:
        if key not in self.shared:
            self.shared[key] = self.memory.take(count)
        return self.shared[key]

    def _stream(self, what: Letter) -> Stream:
        """The connection that a message goes by: one for each transport, pair of hosts and class."""
        key = (what.transport, what.src, what.dst, what.priority)
        if key not in self.streams:
            protocol = self._protocol(*key[:3])
            packets = sum(
                -(-each.nbytes // protocol.payload)
                for each in self.case.letters
                if (each.transport, each.src, each.dst, each.priority) == key
            )
            self.streams[key] = Stream(
                protocol.memory, protocol, packets=packets, first=records.FIRST_PACKET, number=-1, src=what.src,
                dst=what.dst, priority=what.priority, bound=0.0, important=True,
                entropy=streams.stream_entropy(self.case.seed, *key), line_speed=self.line_speed[what.src],
            )  # fmt: skip
        return self.streams[key]

    # --- changes ------------------------------------------------------------------------------------------------

    def cut(self, link: int, _: None) -> None:
        """A directed link loses everything."""
        if not self.links[link].down:
            self.links[link].down = True
            self.ports[link ^ 1].hear_no_more()

    def mend(self, link: int, _: None) -> None:
        """It works again."""
        if self.links[link].down:
            self.links[link].down = False
            self.ports[link ^ 1].deaf = False
            self.ports[link].repeat()

    def set_rate(self, link: int, rate: int) -> None:
        """Another rate."""
        self.links[link].set_rate(rate)

    def set_loss(self, link: int, loss: float) -> None:
        """Other odds of loss."""
        self.links[link].set_loss(loss)

    def stop_host(self, host: int, _: None) -> None:
        """A host stands still."""
        self.hosts[host].stop()

    def resume_host(self, host: int, _: None) -> None:
        """It goes on."""
        self.hosts[host].resume()

    def reroute(self, without: Sequence[int], _: None) -> None:
        """New routes."""
        self.routing = build_routing(self.case.network, without)

    # --- deliveries ---------------------------------------------------------------------------------------------

    def _delivered(self, time: int, number: int) -> None:
        """Messages that follow are numbered by the time of the delivery, then by the number of the message."""
        if not self.fresh_deliveries:
            self.clock.at(time, SENT_ON, 0, self._follow)
        self.fresh_deliveries.append(number)

    def _follow(self) -> None:
        for number in sorted(self.fresh_deliveries):
            for letter in _prompted(self.case, self.letters[number]):
                self._post(letter, self.clock.now + self.case.letters[letter].time)
        self.fresh_deliveries.clear()


class _Ways:
    """The directed links by which a switch may send a packet on, by destination host; none where there is no way."""

    def __init__(self, oracle: _Oracle, switch: int) -> None:
        self.oracle, self.switch = oracle, switch

    def __call__(self, host: int) -> Sequence[int]:
        routing = self.oracle.routing
        edge = routing.edge_of[host]
        if edge == self.switch:
            return (int(routing.down_link[host]),)
        group = routing.group_of[self.switch, edge]
        return routing.groups[group] if group >= 0 else ()
