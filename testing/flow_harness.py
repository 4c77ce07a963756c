"""`FlowHarness` runs both ends of one flow of a transport in plain Python; the test delivers the packets.

`FlowHarness` runs the functions of a transport uncompiled, so a debugger can step through them; with `word=Word` a
number that does not fit the engine's 64 bits raises OverflowError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gradwire.jit.records import Record
from gradwire.jit.records import constants as at
from gradwire.jit.records.flows import Pair, Parameters, Receiver, Sender, Stamps
from gradwire.jit.records.packets import with_entropy
from gradwire.jit.records.replies import reply_argument, reply_count, reply_echo, reply_kind, reply_pulls, reply_size
from gradwire.protocols.registry import (
    RECEIVER_SIDE,
    RECORDS,
    SENDER_SIDE,
    check_contract,
    declared_records,
    transport_parameters,
)
from gradwire.protocols.transports.base import Context
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.loading.explain import explain_validation_error, file_location, primary_entries
from gradwire.scenarios.loading.registry import kind_of
from gradwire.scenarios.loading.user_classes import with_free_kind
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import MissingUnitError
from gradwire.scenarios.validation.argument_checks import require_integer
from gradwire.scenarios.wire import ps_per_byte
from gradwire.sim.engine.guarded_rules import check_returned
from gradwire.testing.oracle.rules import rule

US = 10**6
GBPS = 10**9
INNER_UNITS = ("ps", "B", "bps")
"""Units of bare numbers."""


@dataclass(frozen=True)
class ReceiverReply:
    """A receiver's answer."""

    kind: int
    echo: int
    argument: int
    size: int
    count: int
    pulls: int = 0


class FlowHarness:
    """Sender and receiver of one message in a separate array; the test delivers the packets.

    Attributes
    ----------
    sender, receiver : the records of both ends, with the fields that the transport's functions declare: `flow.sender.timer`.
    parameters : its parameter set.

    Times in ps.
    """

    def __init__(
        self,
        owner: type[Transport],
        packets: int,
        *,
        payload: int = 4096,
        last: int | None = None,
        tags: Sequence[bool] | bool = True,
        allowed: int = 0,
        rate: int = 100 * GBPS,
        base_rtt: int = 10 * US,
        slowest: int | None = None,
        entropy: int = 0,
        turn: int = 0,
        most: int | None = None,
        pool: int = 0,
        word: type[int] = int,
        **settings: object,
    ) -> None:
        """`owner`: a transport class. `settings`: keys of its table; bare numbers are bytes and picoseconds.

        Raises ScenarioError if `owner` is not a transport, a setting is unknown or out of range, or there are no
        packets, or no bytes in them.
        """
        check_contract(owner, getattr(owner, "__name__", repr(owner)), "FlowHarness(owner)")
        require_integer(packets, "FlowHarness(packets)", 1, ScenarioError)
        require_integer(payload, "FlowHarness(payload)", 1, ScenarioError)
        require_integer(rate, "FlowHarness(rate)", 1, ScenarioError)
        settings = _settings(owner, settings)
        line = ps_per_byte(Bps(rate))
        self.packets, self.payload = packets, payload
        self.last = payload if last is None else last
        size = payload * (packets - 1) + self.last
        words = -(-packets // 32)
        self.k, self.f, self.r = 0, Parameters.WORDS, Parameters.WORDS + Sender.WORDS
        tagged = self.r + Receiver.WORDS
        sender_bits = tagged + words
        settings = {"kind": kind_of(owner)} | (owner.defaults() if hasattr(owner, "defaults") else {}) | settings
        if hasattr(owner, "variant"):
            owner = owner.variant(settings)
        receiver_bits = sender_bits + owner.sender_bitmaps * words
        narrow = line if slowest is None else ps_per_byte(Bps(slowest))
        context = Context(line, Bytes(payload), Ps(base_rtt), narrow)
        slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
        stamps = receiver_bits + owner.receiver_bitmaps * words
        pair = stamps + slots * Stamps.WORDS
        peer = pair + Pair.WORDS + getattr(owner, "pair_words", 0)
        host = peer + getattr(owner, "peer_words", 0)
        self.memory: Any = [word(0)] * (host + getattr(owner, "host_words", 0))
        parameters = transport_parameters(owner, settings, context)
        values = dict(enumerate(parameters))
        flags = [] if isinstance(tags, bool) else list(tags)
        for i, flag in enumerate(flags):
            self.memory[tagged + i // 32] |= int(flag) << (i % 32)
        tag_word = int(tags) if isinstance(tags, bool) else tagged
        sender = {
            "packets": packets,
            "bitmaps_base": sender_bits,
            "bitmap_words": words,
            "peer_bitmaps_base": receiver_bits,
            "ps_per_byte": line,
            "tags": tag_word,
            "stamps": stamps,
            "stamp_mask": max(slots - 1, 0),
            "pair": pair,
            "allowed_loss": allowed,
            "turn": turn,
            "data_header": with_entropy(0, entropy),
        }
        receiver = {
            "packets": packets,
            "nbytes": size,
            "payload": payload,
            "bitmaps_base": receiver_bits,
            "bitmap_words": words,
            "tags": tag_word,
            "allowed_loss": allowed,
            "important_packets": sum(flags) if flags else packets * int(tags is True),
            "pair": peer,
            "host": host,
            "max_loss": allowed if most is None else most,
            "pool": pool,
        }
        values |= {self.f + Sender.ENTRIES[name].offset: value for name, value in sender.items()}
        values |= {self.r + Receiver.ENTRIES[name].offset: value for name, value in receiver.items()}
        for index, value in values.items():
            self.memory[index] = word(value)
        names = (*SENDER_SIDE, *RECEIVER_SIDE)
        self.owner = owner
        self.run = {name: rule(owner, name) for name in names if hasattr(owner, name)}
        self.word = word
        self.sender: Any = _records_of(owner, "flow")(self.memory, self.f)
        self.receiver: Any = _records_of(owner, "receiver")(self.memory, self.r)
        self.parameters: Any = _records_of(owner, "params")(self.memory, self.k)
        self.run["start"](self.memory, self.k, self.f, word(0))

    def packets_in(self, bitmap: str) -> list[int]:
        """Return the packets that are set in one of the sender's bitmaps, by its name."""
        words = getattr(self.sender, bitmap)
        return [i for i in range(self.packets) if words[i // 32] >> (i % 32) & 1]

    def pull(self, now: int = 0, most: int | None = None) -> list[int]:
        """Return all packets that the sender can send now (at most `most`), ignoring its pacing. Raises AssertionError
        if it would send for ever: more than the message a hundred times at once."""
        out: list[int] = []
        limit = 100 * self.packets + 1000 if most is None else most
        while len(out) < limit:
            packet = int(self.run["pull"](self.memory, self.k, self.f, self.word(now)))
            if packet == at.BLOCKED:
                break
            check_returned(self.owner, "pull", packet, self.packets)
            out.append(packet)
        else:
            if most is None:
                name = self.owner.__name__
                raise AssertionError(f"pull of {name} has returned {limit} packets at once; expected BLOCKED at last")
        return out

    def control(self, kind: int, sequence: int, argument: int, echo: int = 0, now: int = 0) -> None:
        """Deliver a control packet to the sender."""
        word = self.word
        numbers = (word(kind), word(sequence), word(argument), word(echo), word(now))
        self._call("on_control", self.f, *numbers)

    def ack(self, sequence: int, cumulative: int = 0, *, echo: int = 0, now: int = 0) -> None:
        """Deliver an acknowledgement to the sender."""
        self.control(at.ACK, sequence, cumulative, echo, now)

    def fire(self) -> int:
        """Fire the timer, as the engine does, and return the time."""
        now = int(self.sender.timer)
        assert now > 0, "no timer is set"
        self.sender.timer = self.word(0)
        self._call("on_timer", self.f, self.word(now))
        return now

    def data(self, sequence: int, ce: int = 0, now: int = 0) -> ReceiverReply:
        """Deliver a data packet to the receiver."""
        self._check_sequence(sequence, "data")
        size = self.last if sequence == self.packets - 1 else self.payload
        numbers = (self.word(sequence), self.word(size), self.word(ce), self.word(now))
        return self._reply(self._call("on_data", self.r, *numbers))

    def header(self, sequence: int, now: int = 0) -> ReceiverReply:
        """Deliver the header of a trimmed data packet to the receiver."""
        self._check_sequence(sequence, "header")
        return self._reply(self._call("on_trimmed", self.r, self.word(sequence), self.word(now)))

    def probe(self, number: int, now: int = 0) -> ReceiverReply:
        """Deliver a probe to the receiver."""
        return self._reply(self._call("on_probe", self.r, self.word(number), self.word(now)))

    def _call(self, name: str, record: int, *numbers: int) -> Any:
        if name not in self.run:
            raise ScenarioError(f"has no function {name}, which is needed here", self.owner.__name__, "the function")
        return self.run[name](self.memory, self.k, record, *numbers)

    def _check_sequence(self, sequence: int, name: str) -> None:
        if not 0 <= sequence < self.packets:
            expected = f"a packet of the message: 0 to {self.packets - 1}"
            raise ScenarioError(f"there is no packet {sequence}", f"FlowHarness.{name}(sequence)", expected)

    @staticmethod
    def _reply(word: int) -> ReceiverReply:
        fields = (reply_kind, reply_echo, reply_argument, reply_size, reply_count, reply_pulls)
        return ReceiverReply(*(field(int(word)) for field in fields))


def _records_of(owner: type[Transport], argument: str) -> type[Record]:
    """Return the record class that a transport's functions declare for an argument: the one with the most fields."""
    classes = [
        declared_records(getattr(owner, name).py_func, name).get(argument, RECORDS[argument])
        for name in (*SENDER_SIDE, *RECEIVER_SIDE)
        if hasattr(owner, name)
    ]
    return max(classes, key=lambda record: len(record.ENTRIES))


def _settings(owner: type[Transport], settings: dict[str, object]) -> dict[str, Any]:
    """Return the settings as the transport's rules see them, validated if the class has fields.

    Bare numbers are bytes, picoseconds and bits per second.
    """
    if not hasattr(owner, "model_validate"):
        return settings
    kind = kind_of(owner) or f"{owner.__module__}:{owner.__name__}"
    tables = {"kind": kind, **settings}
    model = with_free_kind(owner)
    for key in sorted(_without_unit(model, tables)):
        for unit in INNER_UNITS:
            with_it = {**tables, key: _with_unit(settings[key], unit)}
            if key not in _without_unit(model, with_it):
                tables = with_it
                break
    try:
        return model.model_validate(tables).model_dump()
    except ValidationError as error:
        mistakes = [
            replace(mistake, path=f"FlowHarness({mistake.path})")
            for mistake in explain_validation_error(error, tables, owner)
        ]
        raise ScenarioError(f"are invalid settings of {owner.__name__}:", "Ends", mistakes=mistakes) from None


def _with_unit(value: Any, unit: str) -> Any:
    """Return a bare number, or a list of them, with a unit, as in a scenario."""
    if isinstance(value, (list, tuple)):
        return [_with_unit(item, unit) for item in value]
    return f"{value}{unit}" if isinstance(value, int) and value >= 0 else value


def _without_unit(model: type[Transport], tables: dict[str, Any]) -> set[str]:
    """Return the keys of quantities without a unit, or with a unit of another kind of quantity."""
    try:
        model.model_validate(tables)
    except ValidationError as error:
        wrong = [entry for entry in primary_entries(error) if _lacks_unit(entry.get("ctx", {}).get("error"))]
        return {str(file_location(entry, tables)[0]) for entry in wrong}
    return set()


def _lacks_unit(error: BaseException | None) -> bool:
    """Return True if the error is that of a quantity, or of one in a list, without a unit."""
    return isinstance(error, MissingUnitError) or (error is not None and isinstance(error.__cause__, MissingUnitError))


def _checked(name: str) -> Any:
    operation, new = getattr(int, name), int.__new__

    def checked(self: int, other: object) -> Any:
        result = operation(self, other)
        if result is NotImplemented:
            return result
        if not -(1 << 63) <= result < 1 << 63:
            raise OverflowError(f"{name}({self}, {other}) does not fit 64 bits")
        return new(Word, result)

    def checked_alone(self: int) -> Any:
        result = operation(self)
        if not -(1 << 63) <= result < 1 << 63:
            raise OverflowError(f"{name}({self}) does not fit 64 bits")
        return new(Word, result)

    return checked_alone if name in ("__neg__", "__abs__", "__invert__") else checked


class Word(int):
    """A 64-bit signed integer: an operation whose result does not fit raises OverflowError."""

    __slots__ = ()
    for _name in (
        "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "lshift", "rlshift", "rshift",
        "rrshift", "and", "rand", "or", "ror", "neg", "abs", "invert",
    ):  # fmt: skip
        locals()[f"__{_name}__"] = _checked(f"__{_name}__")
