"""`Oracle`, the engine's plain-Python reference, builds a case's network from the modules beside it, and runs it with
SimPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gradwire.jit.counter_rng import draw_entropy
from gradwire.jit.records.flows import Pair
from gradwire.jit.records.header import State
from gradwire.protocols.registry import resolve_component, transport_parameters
from gradwire.protocols.transports.base import Context, implementation_of, is_persistent, shares_pair_state
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Ps, PsPerByte
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.scenarios.loss import LossAllowance
from gradwire.sim.engine.memory import connections, records
from gradwire.testing.oracle.aggregation import AggregationGroup
from gradwire.testing.oracle.case import (
    Case,
    MessageSpec,
    Outcome,
    following_letters,
    initial_letters,
    members,
    sorted_by_time,
    start_key,
)
from gradwire.testing.oracle.clock import CHANGE, SENT_ON, Clock, Link, OracleLog
from gradwire.testing.oracle.flows import Flow, Memory, PairGroup, Protocol, Stream, StreamMessage
from gradwire.testing.oracle.host import OracleHost
from gradwire.testing.oracle.packets import PAUSE, Packet
from gradwire.testing.oracle.port import OraclePort
from gradwire.testing.oracle.switch import OracleSwitch
from gradwire.topology.port_settings import port_settings
from gradwire.topology.routing import build_routing


class Oracle:
    """The network of a case."""

    def __init__(self, case: Case, carries: Callable[[int, int], Ints] | None = None) -> None:
        """`carries`: callback for the values in each packet of each letter, called when it is sent."""
        self.case, self.carries = case, carries
        network, table = case.network, case.switch
        self.routing = self.whole = routing = build_routing(network)
        self.clock, self.log = Clock(), OracleLog()
        self.flows: list[Flow] = []
        self.letters: list[int] = []
        self.fresh_deliveries: list[int] = []
        self.links = [
            Link(
                self.clock,
                self.log,
                index,
                int(network.link_rate[index]),
                int(network.link_latency[index]),
                float(network.link_loss[index]),
                case.seed,
                self._since,
            )
            for index in range(network.link_count)
        ]
        named = [resolve_component("transport", transport.kind, case.folder) for transport in case.transports]
        self.tables = [
            validate_user_table(owner, transport) for owner, transport in zip(named, case.transports, strict=True)
        ]
        owners = [implementation_of(owner, transport) for owner, transport in zip(named, self.tables, strict=True)]
        longest = max(t.payload + owner.data_overhead for owner, t in zip(owners, self.tables, strict=True))
        balancer = resolve_component("load_balancing", case.balancing, case.folder)
        policy = resolve_component("queue", table.queue_policy, case.folder)
        self.hosts = [
            OracleHost(
                self.clock,
                self.log,
                self.links[up],
                table.queues,
                self.flows,
                self._delivered,
                balancer,
                table.shortest_first,
            )
            for up in routing.up_link.tolist()
        ]
        switches = [
            OracleSwitch(
                self.clock,
                network.host_count + index,
                case.seed,
                NextHops(self, index),
                balancer,
                table,
                self.flows,
                longest,
                index,
            )
            for index in range(network.switch_count)
        ]
        self.switches = switches
        self.fans: dict[int, AggregationGroup] = {}
        self.line_speed = [host.link.speed for host in self.hosts]
        nodes: list[OracleHost | OracleSwitch] = [*self.hosts, *switches]
        self.ports: list[OraclePort | OracleHost] = []
        settings, which = port_settings(network, table)
        for index, link in enumerate(self.links):
            link.receive = nodes[network.link_dst[index]].receive
            near = nodes[network.link_src[index]]
            if isinstance(near, OracleSwitch):
                own = settings[which[index]]
                port = OraclePort(self.log, link, own, case.seed, near.buffer, self.flows, policy)
                near.ports[index] = port
                near.buffer.room[index ^ 1] = self._headroom(link, longest)
                self.ports.append(port)
            else:
                self.ports.append(near)
        self.memory = Memory([0] * State.WORDS)
        self.memory[State.path_entropies.offset] = table.path_entropies or 0
        self.owners = owners
        self.protocols: dict[tuple[int, int, int, int], Protocol] = {}
        self.streams: dict[tuple[int, int, int, int], Stream] = {}
        self.groups: dict[tuple[int, int, int, int], PairGroup] = {}
        self.shared: dict[tuple[str | int, ...], int] = {}

    def _since(self, packet: Packet) -> int:
        """Return the start of a packet's relative time, which breaks ties."""
        return 0 if packet.kind == PAUSE else self.case.letters[self.letters[packet.flow]].since

    def _headroom(self, link: Link, longest: int) -> int:
        """Return rate times round trip of the cable, plus three full packets and the pause frame, or the configured
        value."""
        configured = self.case.switch.pfc_headroom
        rate = int(self.case.network.link_rate[link.index])
        computed = -(-2 * link.latency * rate // (8 * 10**12)) + 3 * longest + 60
        return computed if configured is None else configured

    def _protocol(self, transport: int, src: int, dst: int) -> Protocol:
        owner, table = self.owners[transport], self.tables[transport]
        out = self._one_way_ps(src, dst, table.payload + owner.data_overhead)
        rtt, speed = out + self._one_way_ps(dst, src, owner.control_bytes), self.line_speed[src]
        rates = (int(self.case.network.link_rate[link]) for path in self.whole.paths(src, dst) for link in path)
        slowest = -(-(8 * 10**12 << 16) // min(rates))
        if (transport, rtt, speed, slowest) not in self.protocols:
            settings, context = (
                table.model_dump(),
                Context(PsPerByte(speed), table.payload, Ps(rtt), PsPerByte(slowest)),
            )
            slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
            parameters = transport_parameters(owner, settings, context)
            self.protocols[transport, rtt, speed, slowest] = Protocol(
                self.memory, transport, owner, table, parameters, slots
            )
        return self.protocols[transport, rtt, speed, slowest]

    def _one_way_ps(self, src: int, dst: int, size: int) -> int:
        """Return the unloaded picoseconds of a packet on the slowest of its paths in the whole network."""
        network = self.case.network
        return max(
            sum(
                -(-size * 8 * 10**12 // int(network.link_rate[link])) + int(network.link_latency[link]) for link in path
            )
            for path in self.whole.paths(src, dst)
        )

    def run(self, until: int) -> Outcome:
        for letter in initial_letters(self.case):
            self._post(letter, self.case.letters[letter].time)
        for change in self.case.changes:
            act = partial(getattr(self, change.what), change.target, change.value)
            self.clock.at(change.time, CHANGE, 0, act)
        self.clock.env.run(until=until)
        self.log.transmissions.sort(key=start_key)
        return Outcome(
            transmissions=self.log.transmissions,
            drops=sorted_by_time(drop for drop in self.log.drops),
            arrivals=sorted(self.log.arrivals),
            ports=[port.counters() for port in self.ports],
            sent=[flow.sender.sent for flow in self.flows],
            again=[sum(Counter(flow.sequences_sent).values()) - len(set(flow.sequences_sent)) for flow in self.flows],
        )

    def _post(self, letter: int, time: int) -> None:
        message = self.case.letters[letter]
        number = len(self.flows)
        self.letters.append(letter)
        host = self.hosts[message.src]
        entropy = draw_entropy(self.case.seed, number)
        protocol = self._protocol(message.transport, message.src, message.dst)
        stream = self._stream(message) if is_persistent(self.tables[message.transport]) else None
        self.flows.append(
            (Flow if stream is None else StreamMessage)(
                protocol.memory,
                protocol,
                number=number,
                src=message.src,
                dst=message.dst,
                nbytes=message.nbytes,
                priority=message.priority,
                important=message.important,
                loss=LossAllowance(
                    message.bound, message.bound if message.share is None else message.share, message.pool
                ),
                turn=number if message.turn is None else message.turn,
                entropy=entropy if stream is None else stream.entropy,
                line_speed=self.line_speed[message.src],
                stream=stream,
                **self._pair(message),
            )
        )
        if self.carries is not None:
            self.flows[-1].carries = partial(self.carries, letter)
        if message.fan is not None:
            self.flows[-1].fan, self.flows[-1].place = self._fan(message.fan, letter)
        host.schedule_start(self.flows[-1], time)

    def _fan(self, number: int, message: int) -> tuple[AggregationGroup, int]:
        group = members(self.case, number)
        if number not in self.fans:
            letters = [self.case.letters[member] for member in group]
            out = all(item.src == letters[0].src for item in letters)
            edges = [[int(self.routing.edge_of[host]) for host in (item.src, item.dst)] for item in letters]
            fan = self.fans[number] = AggregationGroup(
                [ends[out] for ends in edges], edges[0][not out], out, self.case.switch.aggregation_levels
            )
            fan.members = [None] * len(group)  # type: ignore[list-item]  # filled in below
        fan, place = self.fans[number], group.index(message)
        fan.members[place] = self.flows[-1]
        return fan, place

    def _pair(self, message: MessageSpec) -> Json:
        """Return the words that a message shares with others of its two hosts, if its transport shares any."""
        owner = self.owners[message.transport]
        if not shares_pair_state(owner):
            return {}
        pair = (message.transport, message.src, message.dst)
        words = (
            self._words(Pair.WORDS + owner.pair_words, "sender", *pair),
            self._words(owner.peer_words, "receiver", *pair),
            self._words(owner.host_words, "host", message.transport, message.dst),
        )
        key = (*pair, message.priority)
        if key not in self.groups:
            self.groups[key] = PairGroup(self.memory, words[0], message.priority)
        return {"group": self.groups[key], "shared": words}

    def _words(self, count: int, *key: str | int) -> int:
        if key not in self.shared:
            self.shared[key] = self.memory.take(count)
        return self.shared[key]

    def _stream(self, message: MessageSpec) -> Stream:
        """Return the connection of a message: one for each transport, pair of hosts and class."""
        key = (message.transport, message.src, message.dst, message.priority)
        if key not in self.streams:
            protocol = self._protocol(*key[:3])
            packets = sum(
                -(-item.nbytes // protocol.payload)
                for item in self.case.letters
                if (item.transport, item.src, item.dst, item.priority) == key
            )
            self.streams[key] = Stream(
                protocol.memory,
                protocol,
                packets=packets,
                first=records.FIRST_PACKET,
                number=-1,
                src=message.src,
                dst=message.dst,
                priority=message.priority,
                loss=LossAllowance(0.0, 0.0),
                turn=0,
                important=True,
                entropy=connections.stream_entropy(self.case.seed, *key),
                line_speed=self.line_speed[message.src],
            )
        return self.streams[key]

    # --- changes ------------------------------------------------------------------------------------------------

    def cut(self, link: int, _: None) -> None:
        if not self.links[link].down:
            self.links[link].down = True
            self.ports[link ^ 1].cut_incoming()

    def mend(self, link: int, _: None) -> None:
        if self.links[link].down:
            self.links[link].down = False
            self.ports[link ^ 1].deaf = False
            self.ports[link].repeat()

    def set_rate(self, link: int, rate: int) -> None:
        self.links[link].set_rate(rate)

    def set_loss(self, link: int, loss: float) -> None:
        self.links[link].set_loss(loss)

    def stop_host(self, host: int, _: None) -> None:
        self.hosts[host].stop()

    def resume_host(self, host: int, _: None) -> None:
        self.hosts[host].resume()

    def reroute(self, without: Sequence[int], _: None) -> None:
        """Recompute the routes without some links."""
        self.routing = build_routing(self.case.network, without)

    # --- deliveries ---------------------------------------------------------------------------------------------

    def _delivered(self, time: int, number: int) -> None:
        """Schedule the messages that follow, numbered by the time of the delivery, then by the delivered message."""
        if not self.fresh_deliveries:
            self.clock.at(time, SENT_ON, 0, self._follow)
        self.fresh_deliveries.append(number)

    def _follow(self) -> None:
        for number in sorted(self.fresh_deliveries):
            for letter in following_letters(self.case, self.letters[number]):
                self._post(letter, self.clock.now + self.case.letters[letter].time)
        self.fresh_deliveries.clear()


class NextHops:
    """Next hops of a switch: the directed links towards a destination host, () if there are none."""

    def __init__(self, oracle: Oracle, switch: int) -> None:
        self.oracle, self.switch = oracle, switch

    def __call__(self, host: int) -> Sequence[int]:
        routing = self.oracle.routing
        edge = routing.edge_of[host]
        if edge == self.switch:
            return (int(routing.down_link[host]),)
        return routing.next_links(self.switch, int(edge))
