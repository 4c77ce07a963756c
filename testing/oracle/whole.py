"""The oracle: the network of a case, built from the parts beside this module and run by SimPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gradwire.components import layout as at
from gradwire.components.draws import entropy_of
from gradwire.components.find import parameters_of, resolve
from gradwire.components.layout import H_ENTROPIES, HEADER_WORDS
from gradwire.components.transports.base import Context, carried_out_by, persists, shares
from gradwire.experiment.routing import build_routing
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps, PsPerByte
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loss import Allowance
from gradwire.scenarios.user_classes import table_for
from gradwire.sim.fabric import records, streams
from gradwire.testing.oracle.case import (
    Case,
    Letter,
    Outcome,
    by_start,
    by_time,
    members,
    prompted,
    unprompted,
)
from gradwire.testing.oracle.fans import Fan
from gradwire.testing.oracle.flows import Carried, Flow, Group, Protocol, Stream, Words
from gradwire.testing.oracle.host import Host
from gradwire.testing.oracle.model import CHANGE, SENT_ON, Clock, Link, Log
from gradwire.testing.oracle.packets import PAUSE, Packet
from gradwire.testing.oracle.port import Port
from gradwire.testing.oracle.switch import Switch


class Oracle:
    """The network of a case, built from the parts of `model`."""

    def __init__(self, case: Case, carries: Callable[[int, int], Ints] | None = None) -> None:
        """`carries`: the values in each packet of each letter, which are then moved along; asked when it is sent."""
        self.case, self.carries = case, carries
        network, table = case.network, case.switch
        self.routing = self.whole = routing = build_routing(network)
        self.clock, self.log = Clock(), Log()
        self.flows: list[Flow] = []
        self.letters: list[int] = []
        self.fresh_deliveries: list[int] = []
        self.links = [
            Link(
                self.clock, self.log, index, int(network.link_rate[index]), int(network.link_latency[index]),
                float(network.link_loss[index]), case.seed, self._since,
            )
            for index in range(network.link_count)
        ]  # fmt: skip
        named = [resolve("transport", each.kind, case.folder) for each in case.transports]
        self.tables = [table_for(owner, each) for owner, each in zip(named, case.transports, strict=True)]
        owners = [carried_out_by(owner, each) for owner, each in zip(named, self.tables, strict=True)]
        longest = max(each.payload + owner.data_overhead for owner, each in zip(owners, self.tables, strict=True))
        balancer = resolve("load_balancing", case.balancing, case.folder)
        policy = resolve("queue", table.queue_policy, case.folder)
        self.hosts = [
            Host(
                self.clock, self.log, self.links[up], table.queues, self.flows, self._delivered, balancer,
                table.shortest_first,
            )
            for up in routing.up_link.tolist()
        ]  # fmt: skip
        switches = [
            Switch(
                self.clock, network.host_count + index, case.seed, Ways(self, index), balancer, table, self.flows,
                longest, index,
            )
            for index in range(network.switch_count)
        ]  # fmt: skip
        self.switches = switches
        self.fans: dict[int, Fan] = {}
        self.line_speed = [host.link.speed for host in self.hosts]
        nodes: list[Host | Switch] = [*self.hosts, *switches]
        self.ports: list[Port | Host] = []
        for index, link in enumerate(self.links):
            link.receive = nodes[network.link_dst[index]].receive
            near = nodes[network.link_src[index]]
            if isinstance(near, Switch):
                port = Port(self.log, link, table, case.seed, near.buffer, self.flows, policy)
                near.ports[index] = port
                near.buffer.room[index ^ 1] = self._headroom(link, longest)
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

    def _since(self, packet: Packet) -> int:
        """From when on time counts for a packet's ties."""
        return 0 if packet.kind == PAUSE else self.case.letters[self.letters[packet.flow]].since

    def _headroom(self, link: Link, longest: int) -> int:
        """Rate times round trip of the cable, three full packets and the pause frame."""
        given = self.case.switch.pfc_headroom
        rate = int(self.case.network.link_rate[link.index])
        return -(-2 * link.latency * rate // (8 * 10**12)) + 3 * longest + 60 if given is None else given

    def _protocol(self, transport: int, src: int, dst: int) -> Protocol:
        """The transport as it is for a flow from one host to another."""
        owner, table = self.owners[transport], self.tables[transport]
        out = self._one_way(src, dst, table.payload + owner.data_overhead)
        rtt, speed = out + self._one_way(dst, src, owner.control_bytes), self.line_speed[src]
        rates = (int(self.case.network.link_rate[link]) for path in self.whole.paths(src, dst) for link in path)
        slowest = -(-(8 * 10**12 << 16) // min(rates))
        if (transport, rtt, speed, slowest) not in self.protocols:
            settings, context = table.model_dump(), Context(PsPerByte(speed), table.payload, Ps(rtt), PsPerByte(slowest))
            slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
            parameters = parameters_of(owner, settings, context)
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
        for letter in unprompted(self.case):
            self._post(letter, self.case.letters[letter].time)
        for change in self.case.changes:
            act = partial(getattr(self, change.what), change.target, change.value)
            self.clock.at(change.time, CHANGE, 0, act)
        self.clock.env.run(until=until)
        self.log.transmissions.sort(key=by_start)
        return Outcome(
            transmissions=self.log.transmissions,
            drops=by_time(drop for drop in self.log.drops),
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
        stream = self._stream(what) if persists(self.tables[what.transport]) else None
        self.flows.append(
            (Flow if stream is None else Carried)(
                protocol.memory, protocol, number=number, src=what.src, dst=what.dst, nbytes=what.nbytes,
                priority=what.priority, important=what.important,
                loss=Allowance(what.bound, what.bound if what.share is None else what.share, what.pool),
                turn=number if what.turn is None else what.turn,
                entropy=entropy if stream is None else stream.entropy,
                line_speed=self.line_speed[what.src], stream=stream, **self._pair(what),
            )
        )  # fmt: skip
        if self.carries is not None:
            self.flows[-1].carries = partial(self.carries, letter)
        if what.fan is not None:
            self.flows[-1].fan, self.flows[-1].place = self._fan(what.fan, letter)
        host.schedule_start(self.flows[-1], time)

    def _fan(self, number: int, letter: int) -> tuple[Fan, int]:
        """The fan of a letter, and its place in it."""
        of = members(self.case, number)
        if number not in self.fans:
            found = [self.case.letters[each] for each in of]
            out = all(each.src == found[0].src for each in found)
            edges = [[int(self.routing.edge_of[host]) for host in (each.src, each.dst)] for each in found]
            fan = self.fans[number] = Fan(
                [ends[out] for ends in edges], edges[0][not out], out, self.case.switch.aggregation_levels
            )
            fan.members = [None] * len(of)  # type: ignore[list-item]  # until they are there
        fan, place = self.fans[number], of.index(letter)
        fan.members[place] = self.flows[-1]
        return fan, place

    def _pair(self, what: Letter) -> Json:
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
                dst=what.dst, priority=what.priority, loss=Allowance(0.0, 0.0), turn=0, important=True,
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
            for letter in prompted(self.case, self.letters[number]):
                self._post(letter, self.clock.now + self.case.letters[letter].time)
        self.fresh_deliveries.clear()


class Ways:
    """The directed links by which a switch may send a packet on, by destination host; none where there is no way."""

    def __init__(self, oracle: Oracle, switch: int) -> None:
        self.oracle, self.switch = oracle, switch

    def __call__(self, host: int) -> Sequence[int]:
        routing = self.oracle.routing
        edge = routing.edge_of[host]
        if edge == self.switch:
            return (int(routing.down_link[host]),)
        return routing.next_links(self.switch, int(edge))
