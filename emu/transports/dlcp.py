"""DLCP over real sockets: the rules of `gradwire.sim.transports.dlcp`, where they are described, kept one by one.

`Sender` and `Receiver` are the two ends of a message without any socket, so that tests can drive them beside the
simulator's functions: same news, same answers, same rates. Times are picoseconds, fractions have 20 bits.

What differs from the simulator: Stop, Probe and Bitmap go over TCP (`gradwire.emu.transports.side`), so they are
repeated by the kernel as well; and on the wall clock a probe is repeated after 5 ms at the earliest, because hosts
answer when the scheduler lets them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.agent.nic import Flow
from gradwire.emu.plan import TransportPlan
from gradwire.emu.transports.datagrams import Core, DatagramCarrier, Endpoint, Outgoing
from gradwire.emu.transports.side import SideChannel
from gradwire.emu.wire import ACK, BITMAP, PROBE, STOP, Header
from gradwire.scenarios.wire import BITMAP_PACKETS, UDP_OVERHEAD

ONE = 1 << 20
MUST = 1 << 30
"""Added to a packet's number: sent again, and important for that."""
PULL_PROBE = 1 << 40
"""Added to what a probe asks: its number, modulo 4096, and above it the part of the Bitmap, from 1, or EVERYTHING."""
NUMBER_BITS = 12
NUMBERS = (1 << NUMBER_BITS) - 1
EVERYTHING = 0
LONGEST = 24
HYPERACTIVE = 5
IDLE, QUIET, DUE = 0, -1, -2
EAGER, ON_PROBE = "eager", "on_probe"
WALL_PROBE_PS = 5_000_000_000


class Rules:
    """The parameters of the transport; names and defaults are those of `gradwire.scenarios.schema_transport.Dlcp`."""

    def __init__(self, settings: Any, *, base_rtt: int, payload: int, clock: str = "virtual") -> None:
        self.eager = settings.get("stop_policy", EAGER) == EAGER
        self.by_delay = settings.get("rate_control", "dctcp") == "delay"
        self.gain = round(settings.get("g", 0.0625) * ONE)
        self.floor = ONE // settings.get("floor", 64)
        self.probe_timeout = settings.get("probe_timeout", 200_000_000)
        if clock == "wall":
            self.probe_timeout = max(self.probe_timeout, WALL_PROBE_PS)
        self.important_must_arrive = bool(settings.get("important_must_arrive", True))
        self.base_rtt = base_rtt
        self.packet = payload + UDP_OVERHEAD
        self.low = settings.get("t_low", 50_000_000)
        self.high = settings.get("t_high", 500_000_000)
        self.beta = round(settings.get("beta", 0.8) * ONE)
        self.ewma = round(settings.get("ewma", 0.875) * ONE)
        self.step = max(1, settings.get("add_rate", 10_000_000) * ONE // 10_000_000_000)


class Sender(Flow):
    """The sending end of one message: see the simulator's `pull`, `on_timer` and `on_control`."""

    __slots__ = (
        "acked", "again", "again_count", "alpha", "asking", "awaited",
        "calm", "last_rtt", "line", "marked", "new", "next",
        "packets", "parts", "probe", "probes", "probing", "rate", "reduced", "round_end", "rules", "slope", "srtt",
        "timed", "timed_at", "wait",
    )  # fmt: skip

    def __init__(self, rules: Rules, number: int, priority: int, packets: int, line: int) -> None:
        super().__init__(number, priority)
        self.rules, self.packets, self.line = rules, packets, line
        self.parts = -(-packets // BITMAP_PACKETS)
        self.new = self.next = 0
        self.again = bytearray(packets)
        self.again_count = 0
        self.rate = ONE
        self.gap = line
        self.alpha = ONE
        self.acked = self.marked = 0
        self.round_end = self.reduced = 0
        self.srtt = rules.base_rtt
        self.timed, self.timed_at = -1, 0
        self.probe = self.probes = 0
        self.probing = IDLE
        self.asking = 0
        self.awaited = bytearray(self.parts)
        self.wait = self.last_rtt = self.slope = self.calm = 0

    def _silence(self) -> int:
        return self.srtt >> 1 if self.last_rtt else self.srtt

    def _question(self, part: int) -> int:
        self.probes += 1
        return PULL_PROBE + (part << NUMBER_BITS | self.probe & NUMBERS)

    def _wait(self, wait: int, now: int) -> None:
        rules = self.rules
        self.wait = min(wait, max(LONGEST * rules.base_rtt, rules.probe_timeout))
        self.timer = now + self.wait

    def _ask(self, now: int) -> int:
        """The first probe of its number: for everything."""
        self.probe += 1
        self.probing = self.parts
        self.awaited[:] = b"\1" * self.parts
        self._wait(max(3 * self.srtt, self.rules.probe_timeout), now)
        return self._question(EVERYTHING)

    def _ask_again(self, now: int) -> int:
        """What is overdue of an answer: everything, or the next part that has not come; -1: these are asked for."""
        if not self.asking:
            if self.probing == self.parts:
                self._wait(2 * self.wait, now)
                return self._question(EVERYTHING)
            self.asking = 1
        part = self.awaited.find(1, self.asking - 1) + 1
        if not part:
            self.asking = 0
            self._wait(2 * self.wait, now)
            return -1
        self.asking = part + 1
        return self._question(part)

    def _send(self, sequence: int, now: int) -> None:
        self.next = sequence + 1
        if self.timed < 0:
            self.timed = sequence
            self.timed_at = now

    def pull(self, now: int) -> int:
        """What the last Bitmap asked for, then new packets, then, when it has been quiet, a Probe."""
        if self.again_count and self.probing == IDLE:
            sequence = self.again.index(1, self.next)
            self.again[sequence] = 0
            self.again_count -= 1
            self._send(sequence, now)
            return sequence | MUST
        sequence = self.new
        if sequence < self.packets:
            self.new = sequence + 1
            self._send(sequence, now)
            return sequence
        state = self.probing
        if state == IDLE:
            self.probing = QUIET
            self.timer = now + self._silence()
        elif state == DUE:
            return self._ask(now)
        elif state > 0 and not self.timer:
            return self._ask_again(now)
        return -1

    def on_timer(self, now: int) -> None:
        if self.probing == QUIET:
            self.probing = DUE

    def on_stop(self) -> None:
        """Nothing more to send."""
        self.done = True
        self.timer = 0

    def on_bitmap(self, first: int, have: np.ndarray[Any, Any], probe: int, now: int) -> None:
        """One part of the answer to a probe: bool[packets], from packet `first` on."""
        part = first // BITMAP_PACKETS
        if self.probing <= 0 or probe & NUMBERS != self.probe & NUMBERS or not self.awaited[part]:
            return
        self.awaited[part] = 0
        missing = np.flatnonzero(~have) + first
        again = self.again
        for sequence in missing.tolist():
            if not again[sequence]:
                again[sequence] = 1
                self.again_count += 1
        self.probing -= 1
        if self.probing == IDLE:
            self.timer = self.asking = 0
            self.next = self.reduced = self.round_end = 0
            self.timed = -1
        elif not self.asking:
            self.timer = now + self.wait

    def on_ack(self, sequence: int, echo: int, now: int) -> None:
        """A packet has arrived; `echo`: with a mark."""
        timed = self.timed
        if sequence == timed:
            rtt = max(now - self.timed_at, 1)  # on the wall clock it may be sent early
            self.timed = -1
            if self.last_rtt == 0:
                self.srtt = self.last_rtt = rtt
            self.srtt += (rtt - self.srtt) >> 3
            if self.rules.by_delay:
                self._by_delay(rtt)
        elif sequence > timed >= 0 and now - self.timed_at > 8 * self.srtt:
            self.timed = -1
        if self.probing == QUIET:
            self.timer = now + self._silence()
        self.acked += 1
        self.marked += echo
        if not self.rules.by_delay:
            self._by_marks(sequence, echo)

    def _set_rate(self, rate: int) -> None:
        self.rate = min(max(rate, self.rules.floor), ONE)
        self.gap = self.line * ONE // self.rate

    def _by_marks(self, sequence: int, echo: int) -> None:
        if echo and sequence >= self.reduced:
            self._set_rate(self.rate - (self.rate * self.alpha >> 21))
            self.reduced = self.next
        if sequence >= self.round_end:
            share = self.marked * ONE // self.acked
            self.alpha += (share - self.alpha) * self.rules.gain >> 20
            if self.marked == 0 and self.rate < ONE:
                packet_time = self.rules.packet * self.line >> 16
                self._set_rate(self.rate + ONE * packet_time // self.srtt)
            self.acked = self.marked = 0
            self.round_end = self.next

    def _by_delay(self, rtt: int) -> None:
        rules = self.rules
        change = rtt - self.last_rtt
        self.last_rtt = rtt
        self.slope += (change - self.slope) * rules.ewma >> 20
        rate = self.rate
        if rtt < rules.low:
            self._set_rate(rate + rules.step)
        elif rtt > rules.high:
            excess = ONE - rules.high * ONE // rtt
            self._set_rate(rate - (rate * (rules.beta * excess >> 20) >> 20))
            self.calm = 0
        elif self.slope <= 0:
            self.calm += 1
            self._set_rate(rate + rules.step * (HYPERACTIVE if self.calm >= HYPERACTIVE else 1))
        else:
            slope = min(self.slope * ONE // rules.base_rtt, ONE)
            self._set_rate(rate - (rate * (rules.beta * slope >> 20) >> 20))
            self.calm = 0


class Receiver(Core):
    """The receiving end of one message: see the simulator's `on_data` and `on_probe`."""

    __slots__ = ("answered", "asked", "important", "important_count", "period", "rules", "snapshot", "wanted")

    def __init__(self, rules: Rules, row: MessageRow, payload: int) -> None:
        super().__init__(row, payload)
        self.rules = rules
        self.important = row.important
        whole = isinstance(row.important, bool)
        self.important_count = self.packets * int(bool(row.important)) if whole else int(np.sum(row.important))
        self.wanted = self.answered = self.period = 0
        self.asked: set[int] = set()
        self.snapshot = b""

    def within_bound(self) -> bool:
        """Whether the message may be delivered as it is."""
        if self.nbytes - self.got > self.allowed:
            return False
        return not self.rules.important_must_arrive or self.wanted == self.important_count

    def on_data(self, sequence: int, size: int, ce: int, now: int) -> int:
        """What to answer: ACK, STOP, or -1 for nothing."""
        if self.done:
            return -1
        if not self.have[sequence]:
            self.have[sequence] = 1
            self.got += size
            tags = self.important
            self.wanted += int(tags) if isinstance(tags, bool) else int(tags[sequence])
            if (self.rules.eager and self.within_bound()) or self.got == self.nbytes:
                self.done = True
                return STOP
        return ACK

    def on_probe(self, question: int, now: int) -> int:
        """What to answer: STOP, BITMAP, or -1 for nothing."""
        if not self.done and self.within_bound():
            self.done = True
        if self.done:
            return STOP
        ahead = (question - self.answered) & NUMBERS
        if ahead > NUMBERS >> 1:
            return -1  # overtaken by a later probe
        if ahead:
            self.answered += ahead
            self.snapshot = bytes(self.have)
        if ahead or now >= self.period + self.rules.base_rtt:
            self.period = now
            self.asked.clear()
        part = question >> NUMBER_BITS
        if part in self.asked:
            return -1  # one of a crowd
        self.asked.add(part)
        return BITMAP

    def bitmap(self, part: int = EVERYTHING) -> list[tuple[int, bytes]]:
        """What was there when the last probe first came: (first packet, bits, lowest first) of each part, or of one."""
        have = np.frombuffer(self.snapshot, dtype=np.uint8)
        starts = range(0, self.packets, BITMAP_PACKETS) if part == EVERYTHING else [(part - 1) * BITMAP_PACKETS]
        return [
            (first, np.packbits(have[first : first + BITMAP_PACKETS], bitorder="little").tobytes()) for first in starts
        ]


class _Outgoing(Outgoing, Sender):
    """A sender with a socket."""

    def __init__(
        self, rules: Rules, row: MessageRow, transport: TransportPlan, host: Host, endpoint: Endpoint, side: SideChannel
    ) -> None:
        packets = max(1, -(-row.nbytes // transport.payload))
        Sender.__init__(self, rules, row.number, row.priority, packets, endpoint.nic.line)
        self.attach(row, transport, host, endpoint)
        self.side = side

    def transmit(self, what: int) -> int:
        if what >= PULL_PROBE:
            question = what - PULL_PROBE
            return self.side.probe(self.row, question & NUMBERS, question >> NUMBER_BITS)
        sequence = what & (MUST - 1)
        return self.put(sequence, bool(what & MUST))

    def on_answer(self, header: tuple[int, int, int, int, int], echo: int, now: int) -> None:
        self.on_ack(header[3], echo, now)


class Dlcp(DatagramCarrier):
    """The transport `dlcp` at one host."""

    untagged_important = True

    def __init__(self, host: Host, transport: TransportPlan, endpoint: Endpoint, side: SideChannel) -> None:
        super().__init__(host, transport, endpoint)
        self.side = side
        self._rules: dict[int, Rules] = {}

    def rules_of(self, row: MessageRow) -> Rules:
        """The rules for a message: those for its base round trip."""
        trip = self.host.base_rtt_ps(row)
        if trip not in self._rules:
            self._rules[trip] = Rules(
                self.transport.parameters, base_rtt=trip, payload=self.transport.payload, clock=self.host.clock
            )
        return self._rules[trip]

    def open(self) -> None:
        super().open()
        self.side.probed = self.on_control
        self.side.open()

    def connect(self, peers: Any) -> None:
        self.side.connect(peers)

    def connected(self) -> bool:
        return self.side.connected()

    def begin(self) -> None:
        super().begin()
        self.side.begin()

    def close(self) -> None:
        super().close()
        self.side.close()

    def make_sender(self, row: MessageRow) -> Any:
        self.side.listen_for(row.number, self.on_control)
        return _Outgoing(self.rules_of(row), row, self.transport, self.host, self.endpoint, self.side)

    def make_receiver(self, row: MessageRow) -> Receiver:
        return Receiver(self.rules_of(row), row, self.transport.payload)

    def answer(self, receiver: Any, kind: int, sequence: int, ce: int, name: int) -> None:
        if kind == ACK:
            self.endpoint.acknowledge(receiver.row, sequence, ce, name)
        else:
            self.side.answer(receiver.row, Header(receiver.row.number, kind=STOP, important=True))

    def on_control(self, header: Header, content: bytes) -> None:
        """Something has come over the side channel: a Probe for a receiver here, or an answer for a sender."""
        if header.kind == PROBE:
            self._probed(header)
            return
        sender = self.endpoint.senders.get(header.message)
        if sender is None or sender.done:
            return
        if header.kind == STOP:
            sender.on_stop()
            self.settle(sender)
            return
        first = header.offset
        if first >= sender.packets:
            return  # there is no such part
        count = min(sender.packets - first, BITMAP_PACKETS)
        bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8), bitorder="little")[:count]
        sender.on_bitmap(first, bits.astype(bool), header.sequence, self.host.loop.now() * 1000)
        self.endpoint.nic.heard(sender)
        self.endpoint.nic.serve()

    def _probed(self, header: Header) -> None:
        receiver = self.endpoint.receiver_of(header.message)
        was = receiver.done
        part = header.offset
        if part > -(-receiver.packets // BITMAP_PACKETS):
            return  # there is no such part
        question = part << NUMBER_BITS | header.sequence & NUMBERS
        kind = receiver.on_probe(question, self.host.loop.now() * 1000)
        if kind == STOP:
            self.side.answer(receiver.row, Header(header.message, kind=STOP, important=True))
            if not was:
                self.endpoint.carriers[receiver.row.transport].deliver(receiver)
        elif kind == BITMAP:
            for first, bits in receiver.bitmap(part):
                answer = Header(header.message, first, len(bits), header.sequence, BITMAP, important=True)
                self.side.answer(receiver.row, answer, bits)
