"""For tests of transports: messages through a real fabric (who finished when, and what it cost), and the two ends of
one flow without a network, as plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from gradwire.components import layout as at
from gradwire.components.find import RECEIVER_SIDE, SENDER_SIDE
from gradwire.components.layout import A_KIND, B_SEQUENCE, DATA, MASK_SEQUENCE, PROBE
from gradwire.components.transports.base import Context
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import LinkSpec, Network, Override, star
from gradwire.scenarios.schema.scenario import Switch, Transport
from gradwire.scenarios.schema.transport import AnyTransport
from gradwire.sim.fabric.fabric import Fabric

US, MS = 10**6, 10**9
GBPS = 10**9
SECOND = 1000 * MS


def transport(kind: str, **settings: Any) -> Transport:
    """The transport table of a scenario."""
    table: Transport = TypeAdapter(AnyTransport).validate_python({"kind": kind, **settings})
    return table


@dataclass(frozen=True)
class Flow:
    """One message: it starts at `at` ps; `droppable` is the share of its packets tagged droppable, drawn at random."""

    src: int
    dst: int
    nbytes: int
    at: int = 0
    bound: float = 0.0
    droppable: float = 0.0
    priority: int = 0


@dataclass(frozen=True)
class Outcome:
    """What happened. Per message: delivery (ps), bytes lost, packets sent and sent again; the rest over all."""

    ends: list[int]
    lost: list[int]
    sent: list[int]
    again: list[int]
    drops: dict[str, int]
    marks: int
    redundant: int
    probes: int
    finished_ps: int


def play(
    network: Network,
    flows: Sequence[Flow],
    table: Transport,
    *,
    balancing: str = "ecmp",
    buffer: int = 100_000,
    threshold: int | None = None,
    selective: bool = False,
    seed: int = 1,
    limit_ps: int = 100 * SECOND,
    log: bool = False,
    **more: Any,
) -> Outcome:
    """Run until nothing moves any more; with `log`, find out which packets were sent although they were already
    there or still on their way. `more`: further keys of the switch table.

    Raises
    ------
    AssertionError
        Something still moves at `limit_ps`, or a message was not delivered.
    """
    switch = Switch(
        buffer=f"{buffer}B",
        ecn_threshold=None if threshold is None else f"{threshold}B",
        selective_drop=selective,
        **more,
    )  # type: ignore[arg-type]  # sizes are text with a unit
    fabric = Fabric(
        network, build_routing(network), switch=switch, transports=[table], balancing=balancing, seed=seed,
        packet_log=log,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    for flow in sorted(flows, key=lambda flow: flow.at):
        tags: Any = None
        if flow.droppable:
            tags = rng.random(-(-flow.nbytes // table.payload)) >= flow.droppable
        fabric.send(
            flow.at, flow.src, flow.dst, flow.nbytes,
            priority=flow.priority, bound=flow.bound, important=tags,
        )  # fmt: skip
    ends, lost = [0] * len(flows), [0] * len(flows)
    while not fabric.idle and fabric.now < limit_ps:
        for delivery in fabric.run(min(fabric.now + 10 * MS, limit_ps)):
            ends[delivery.message] = delivery.time_ps
            lost[delivery.message] = delivery.lost_bytes
    assert fabric.idle, f"still something on its way at {fabric.now} ps"
    assert all(ends), "undelivered messages"
    tables = fabric.finish()
    drops = {"tail": 0, "selective": 0, "link_loss": 0}
    for cause in tables.drops["cause"]:
        drops[cause] = drops.get(cause, 0) + 1
    redundant, probes = _redundant(fabric, network) if log else (-1, -1)
    finished = fabric.now
    fabric.close()
    return Outcome(
        ends, lost, tables.sent_packets, tables.retransmitted, drops, int(tables.ports["marks"].sum()), redundant,
        probes, finished,
    )  # fmt: skip


def _redundant(fabric: Fabric, network: Network) -> tuple[int, int]:
    """From the packet log: data packets sent again although a copy sent before was not lost; and probes."""
    log, drops = fabric.packet_log(), fabric.drop_log()
    hosts = network.host_count
    first = log[
        np.isin(log[:, 1], [link for link in range(len(network.link_src)) if network.link_src[link] < hosts])
    ]
    kinds = (first[:, 2] >> A_KIND) & 7
    data = first[kinds == DATA]
    lost: dict[tuple[int, int], int] = {}
    for row in drops[((drops[:, 2] >> A_KIND) & 7) == DATA]:
        key = (int(row[4]), int(row[3] >> B_SEQUENCE) & MASK_SEQUENCE)
        lost[key] = lost.get(key, 0) + 1
    sent: dict[tuple[int, int], int] = {}
    for row in data:
        key = (int(row[5]), int(row[3] >> B_SEQUENCE) & MASK_SEQUENCE)
        sent[key] = sent.get(key, 0) + 1
    # of n copies, l were lost: the l lost ones had to be replaced, and one must arrive or may be given up
    redundant = sum(max(0, n - 1 - lost.get(key, 0)) for key, n in sent.items())
    return redundant, int((kinds == PROBE).sum())


def incast(senders: int, nbytes: int, **fields: Any) -> list[Flow]:
    """Hosts 1 to `senders` send to host 0 at once."""
    return [Flow(source, 0, nbytes, **fields) for source in range(1, senders + 1)]


def star_of(hosts: int, rate: int = 100 * GBPS, loss: float = 0.0) -> Network:
    """A star with 1 us links; `loss` on the cable of host 0, both ways."""
    overrides = [Override(("h0", "s0"), loss=loss)] if loss else []
    return star(hosts, LinkSpec(rate, US), overrides)


# --- both ends of one flow, without a network -------------------------------------------------------------------


def plain(function: Any, made: dict[Any, Any] | None = None) -> Any:
    """A compiled function as plain Python, and so every function that it calls."""
    made = {} if made is None else made
    if function not in made:
        source = function.py_func
        names = dict(source.__globals__)
        made[function] = copy = FunctionType(source.__code__, names, source.__name__, source.__defaults__)
        for name in source.__code__.co_names:
            if hasattr(names.get(name), "py_func"):
                names[name] = plain(names[name], made)
        return copy
    return made[function]


@dataclass(frozen=True)
class Reply:
    """What a receiver answered."""

    kind: int
    echo: int
    argument: int
    size: int
    count: int
    pulls: int = 0


class Ends:
    """Sender and receiver of one message in an array of their own; packets go where the test takes them.

    `words[offset]` reads a sender's word, `at_receiver(offset)` a receiver's. Times in ps.
    """

    def __init__(
        self,
        owner: Any,
        packets: int,
        *,
        payload: int = 4096,
        last: int | None = None,
        tags: Sequence[bool] | bool = True,
        allowed: int = 0,
        rate: int = 100 * GBPS,
        base_rtt: int = 10 * US,
        slowest: int | None = None,
        word: type[int] = int,
        **settings: Any,
    ) -> None:
        line = -(-(8_000_000_000_000 << 16) // rate)
        self.packets, self.payload = packets, payload
        self.last = payload if last is None else last
        size = payload * (packets - 1) + self.last
        words = -(-packets // 32)
        self.k, self.f, self.r = 0, at.PARAM_WORDS, at.PARAM_WORDS + at.SENDER_WORDS
        tagged = self.r + at.RECEIVER_WORDS
        sender_bits = tagged + words
        receiver_bits = sender_bits + owner.sender_bitmaps * words
        context = Context(line, payload, base_rtt, line if slowest is None else -(-(8_000_000_000_000 << 16) // slowest))
        slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
        stamps = receiver_bits + owner.receiver_bitmaps * words
        self.M: Any = [word(0)] * (stamps + slots * at.SLOT_WORDS)
        settings = (owner.defaults() if hasattr(owner, "defaults") else {}) | settings
        parameters = owner.parameters(settings, context)
        values = dict(enumerate(parameters))
        flags = [] if isinstance(tags, bool) else list(tags)
        for i, flag in enumerate(flags):
            self.M[tagged + i // 32] |= int(flag) << (i % 32)
        where = int(tags) if isinstance(tags, bool) else tagged
        sender = {
            at.S_PACKETS: packets, at.S_BITS: sender_bits, at.S_WORDS: words, at.S_PEER: receiver_bits,
            at.S_LINE: line, at.S_TAGS: where, at.S_STAMPS: stamps, at.S_SLOTS: max(slots - 1, 0),
        }  # fmt: skip
        receiver = {
            at.R_PACKETS: packets, at.R_BYTES: size, at.R_PAYLOAD: payload, at.R_BITS: receiver_bits,
            at.R_WORDS: words, at.R_TAGS: where, at.R_ALLOWED: allowed, at.R_IMPORTANT: sum(flags) if flags else packets * int(tags is True),
        }  # fmt: skip
        values |= {self.f + offset: value for offset, value in sender.items()}
        values |= {self.r + offset: value for offset, value in receiver.items()}
        for place, value in values.items():
            self.M[place] = word(value)
        made: dict[Any, Any] = {}
        names = (*SENDER_SIDE, *RECEIVER_SIDE)
        self.run = {name: plain(getattr(owner, name), made) for name in names if hasattr(owner, name)}
        self.word = word
        self.run["start"](self.M, self.k, self.f, word(0))

    def __getitem__(self, offset: int) -> int:
        return int(self.M[self.f + offset])

    def __setitem__(self, offset: int, value: int) -> None:
        self.M[self.f + offset] = self.word(value)

    def at_receiver(self, offset: int) -> int:
        """A word of the receiver's record."""
        return int(self.M[self.r + offset])

    def bits(self, bitmap: int) -> list[int]:
        """Packets that are set in one of the sender's bitmaps."""
        base = self[at.S_BITS] + bitmap * self[at.S_WORDS]
        return [i for i in range(self.packets) if int(self.M[base + i // 32]) >> (i % 32) & 1]

    def pull(self, now: int = 0, most: int = 1 << 30) -> list[int]:
        """Everything the sender wants to send now (at most `most`)."""
        out: list[int] = []
        while len(out) < most:
            got = int(self.run["pull"](self.M, self.k, self.f, self.word(now)))
            if got == at.BLOCKED:
                break
            out.append(got)
        return out

    def control(self, kind: int, sequence: int, argument: int, echo: int = 0, now: int = 0) -> None:
        """A control packet reaches the sender."""
        word = self.word
        numbers = (word(kind), word(sequence), word(argument), word(echo), word(now))
        self.run["on_control"](self.M, self.k, self.f, *numbers)

    def ack(self, sequence: int, cumulative: int = 0, *, echo: int = 0, now: int = 0) -> None:
        """An acknowledgement reaches the sender."""
        self.control(at.ACK, sequence, cumulative, echo, now)

    def fire(self) -> int:
        """Let the timer go off, as the engine does. Returns the time."""
        now = self[at.S_TIMER]
        assert now > 0, "no timer is set"
        self[at.S_TIMER] = 0
        self.run["on_timer"](self.M, self.k, self.f, self.word(now))
        return now

    def data(self, sequence: int, ce: int = 0, now: int = 0) -> Reply:
        """A data packet reaches the receiver."""
        size = self.last if sequence == self.packets - 1 else self.payload
        numbers = (self.word(sequence), self.word(size), self.word(ce), self.word(now))
        return self._reply(self.run["on_data"](self.M, self.k, self.r, *numbers))

    def header(self, sequence: int, now: int = 0) -> Reply:
        """The header of a data packet reaches the receiver."""
        return self._reply(self.run["on_trimmed"](self.M, self.k, self.r, self.word(sequence), self.word(now)))

    def probe(self, number: int, now: int = 0) -> Reply:
        """A probe reaches the receiver."""
        return self._reply(self.run["on_probe"](self.M, self.k, self.r, self.word(number), self.word(now)))

    @staticmethod
    def _reply(word: int) -> Reply:
        word = int(word)
        return Reply(word & 7, (word >> 3) & 1, word >> 40, (word >> 4) & 0x3FFF, (word >> 18) & 0xFFF, (word >> 31) & 0xFF)


def _checked(name: str) -> Any:
    operation = getattr(int, name)

    def checked(self: int, *others: Any) -> Any:
        result = operation(self, *others)
        if result is NotImplemented:
            return result
        if not -(1 << 63) <= result < 1 << 63:
            raise OverflowError(f"{name}({self}, {others}) does not fit 64 bits")
        return Word(result)

    return checked


class Word(int):
    """A 64-bit signed integer: an operation whose result does not fit raises OverflowError."""

    __slots__ = ()
    for _name in (
        "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "lshift", "rlshift", "rshift",
        "rrshift", "and", "rand", "or", "ror", "neg", "abs", "invert",
    ):  # fmt: skip
        locals()[f"__{_name}__"] = _checked(f"__{_name}__")
