"""Both ends of one flow without a network, in plain Python: packets go where the test takes them.

`Ends` runs the functions of a transport uncompiled, so a debugger can step through them; with `word=Word` a number that
would not fit the engine's 64 bits is an OverflowError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gradwire.components import layout as at
from gradwire.components.find import RECEIVER_SIDE, SENDER_SIDE, check_contract, parameters_of
from gradwire.components.transports.base import Context
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.explain import entries, explain, file_location
from gradwire.scenarios.given import whole_number
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.units import NoUnit
from gradwire.scenarios.user_classes import with_any_name
from gradwire.scenarios.wire import speed_of
from gradwire.sim.fabric.watched import check_returned
from gradwire.testing.oracle.uncompiled import uncompiled

US = 10**6
GBPS = 10**9
INNER_UNITS = ("ps", "B", "bps")
"""What bare numbers are."""


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

    `flow[offset]` reads a sender's word, `at_receiver(offset)` a receiver's. Times in ps.
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
        """Of a transport class and so many packets; `settings` are the keys of its table; bare numbers are bytes
        and picoseconds.

        Raises
        ------
        ScenarioError
            It is no transport, a setting is none of its own or out of range, or there are no packets, or no bytes in them.
        """
        _check_owner(owner)
        whole_number(packets, "Ends(packets)", 1, ScenarioError)
        whole_number(payload, "Ends(payload)", 1, ScenarioError)
        whole_number(rate, "Ends(rate)", 1, ScenarioError)
        settings = _settings(owner, settings)
        line = speed_of(Bps(rate))
        self.packets, self.payload = packets, payload
        self.last = payload if last is None else last
        size = payload * (packets - 1) + self.last
        words = -(-packets // 32)
        self.k, self.f, self.r = 0, at.PARAM_WORDS, at.PARAM_WORDS + at.SENDER_WORDS
        tagged = self.r + at.RECEIVER_WORDS
        sender_bits = tagged + words
        settings = {"kind": kind_of(owner)} | (owner.defaults() if hasattr(owner, "defaults") else {}) | settings
        if hasattr(owner, "variant"):
            owner = owner.variant(settings)
        receiver_bits = sender_bits + owner.sender_bitmaps * words
        narrow = line if slowest is None else speed_of(Bps(slowest))
        context = Context(line, Bytes(payload), Ps(base_rtt), narrow)
        slots = owner.stamp_slots(settings, context) if hasattr(owner, "stamp_slots") else 0
        stamps = receiver_bits + owner.receiver_bitmaps * words
        pair = stamps + slots * at.SLOT_WORDS
        peer = pair + at.PAIR_USER + getattr(owner, "pair_words", 0)
        host = peer + getattr(owner, "peer_words", 0)
        self.M: Any = [word(0)] * (host + getattr(owner, "host_words", 0))
        parameters = parameters_of(owner, settings, context)
        values = dict(enumerate(parameters))
        flags = [] if isinstance(tags, bool) else list(tags)
        for i, flag in enumerate(flags):
            self.M[tagged + i // 32] |= int(flag) << (i % 32)
        where = int(tags) if isinstance(tags, bool) else tagged
        sender = {
            at.S_PACKETS: packets, at.S_BITS: sender_bits, at.S_WORDS: words, at.S_PEER: receiver_bits,
            at.S_LINE: line, at.S_TAGS: where, at.S_STAMPS: stamps, at.S_SLOTS: max(slots - 1, 0),
            at.S_PAIR: pair, at.S_ALLOWED: allowed, at.S_TURN: turn, at.S_DATA: entropy << at.A_ENTROPY,
        }  # fmt: skip
        receiver = {
            at.R_PACKETS: packets, at.R_BYTES: size, at.R_PAYLOAD: payload, at.R_BITS: receiver_bits,
            at.R_WORDS: words, at.R_TAGS: where, at.R_ALLOWED: allowed, at.R_IMPORTANT: sum(flags) if flags else packets * int(tags is True),
            at.R_PAIR: peer, at.R_HOST: host, at.R_MOST: allowed if most is None else most, at.R_POOL: pool,
        }  # fmt: skip
        values |= {self.f + offset: value for offset, value in sender.items()}
        values |= {self.r + offset: value for offset, value in receiver.items()}
        for place, value in values.items():
            self.M[place] = word(value)
        names = (*SENDER_SIDE, *RECEIVER_SIDE)
        self.owner = owner
        self.run = {name: uncompiled(getattr(owner, name)) for name in names if hasattr(owner, name)}
        self.word = word
        self.run["start"](self.M, self.k, self.f, word(0))

    def __getitem__(self, offset: int) -> int:
        return int(self.M[self.f + offset])

    def __setitem__(self, offset: int, value: int) -> None:
        self.M[self.f + offset] = self.word(value)

    def of_pair(self, offset: int) -> int:
        """A word that the messages of its two hosts share at the sender."""
        return int(self.M[self[at.S_PAIR] + offset])

    def set_pair(self, offset: int, value: int) -> None:
        """Write such a word."""
        self.M[self[at.S_PAIR] + offset] = self.word(value)

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
            check_returned(self.owner, "pull", got, self.packets)
            out.append(got)
        return out

    def control(self, kind: int, sequence: int, argument: int, echo: int = 0, now: int = 0) -> None:
        """A control packet reaches the sender."""
        word = self.word
        numbers = (word(kind), word(sequence), word(argument), word(echo), word(now))
        self._call("on_control", self.f, *numbers)

    def ack(self, sequence: int, cumulative: int = 0, *, echo: int = 0, now: int = 0) -> None:
        """An acknowledgement reaches the sender."""
        self.control(at.ACK, sequence, cumulative, echo, now)

    def fire(self) -> int:
        """Let the timer go off, as the engine does. Returns the time."""
        now = self[at.S_TIMER]
        assert now > 0, "no timer is set"
        self[at.S_TIMER] = 0
        self._call("on_timer", self.f, self.word(now))
        return now

    def data(self, sequence: int, ce: int = 0, now: int = 0) -> Reply:
        """A data packet reaches the receiver."""
        self._check_sequence(sequence, "data")
        size = self.last if sequence == self.packets - 1 else self.payload
        numbers = (self.word(sequence), self.word(size), self.word(ce), self.word(now))
        return self._reply(self._call("on_data", self.r, *numbers))

    def header(self, sequence: int, now: int = 0) -> Reply:
        """The header of a data packet reaches the receiver."""
        self._check_sequence(sequence, "header")
        return self._reply(self._call("on_trimmed", self.r, self.word(sequence), self.word(now)))

    def probe(self, number: int, now: int = 0) -> Reply:
        """A probe reaches the receiver."""
        return self._reply(self._call("on_probe", self.r, self.word(number), self.word(now)))

    def _call(self, name: str, record: int, *numbers: int) -> Any:
        if name not in self.run:
            raise ScenarioError(f"has no {name}, which is needed here", self.owner.__name__, "the function")
        return self.run[name](self.M, self.k, record, *numbers)

    def _check_sequence(self, sequence: int, name: str) -> None:
        if not 0 <= sequence < self.packets:
            expected = f"a packet of the message: 0 to {self.packets - 1}"
            raise ScenarioError(f"there is no packet {sequence}", f"Ends.{name}(sequence)", expected)

    @staticmethod
    def _reply(word: int) -> Reply:
        word = int(word)
        return Reply(word & 7, (word >> 3) & 1, word >> 40, (word >> 4) & 0x3FFF, (word >> 18) & 0xFFF, (word >> 31) & 0xFF)


def _check_owner(owner: object) -> None:
    """Raise ScenarioError for what is no transport."""
    check_contract(owner, getattr(owner, "__name__", repr(owner)), "Ends(owner)")


def _settings(owner: type[Transport], given: dict[str, object]) -> dict[str, Any]:
    """The settings that the transport's rules see: checked as in a scenario, where the class has fields; but
    bare numbers are bytes, picoseconds and bits per second."""
    if not hasattr(owner, "model_validate"):
        return given
    kind = kind_of(owner) or f"{owner.__module__}:{owner.__name__}"
    tables = {"kind": kind, **given}
    model = with_any_name(owner)
    for key in sorted(_without_unit(model, tables)):
        for unit in INNER_UNITS:
            with_it = {**tables, key: _with_unit(given[key], unit)}
            if key not in _without_unit(model, with_it):
                tables = with_it
                break
    try:
        return model.model_validate(tables).model_dump()
    except ValidationError as error:
        mistakes = [replace(each, path=f"Ends({each.path})") for each in explain(error, tables, owner)]
        raise ScenarioError(f"are no settings of {owner.__name__}:", "Ends", mistakes=mistakes) from None


def _with_unit(value: Any, unit: str) -> Any:
    """A bare number, or a list of them, as a scenario would have it."""
    if isinstance(value, (list, tuple)):
        return [_with_unit(each, unit) for each in value]
    return f"{value}{unit}" if isinstance(value, int) and value >= 0 else value


def _without_unit(model: type[Transport], tables: dict[str, Any]) -> set[str]:
    """The keys of quantities that have no unit, or one of another kind of quantity."""
    try:
        model.model_validate(tables)
    except ValidationError as error:
        wrong = [each for each in entries(error) if _lacks_unit(each.get("ctx", {}).get("error"))]
        return {str(file_location(each, tables)[0]) for each in wrong}
    return set()


def _lacks_unit(error: BaseException | None) -> bool:
    """Of a quantity, or of one in a list."""
    return isinstance(error, NoUnit) or (error is not None and isinstance(error.__cause__, NoUnit))


def _checked(name: str) -> Any:
    operation, made = getattr(int, name), int.__new__

    def checked(self: int, other: object) -> Any:
        result = operation(self, other)
        if result is NotImplemented:
            return result
        if not -(1 << 63) <= result < 1 << 63:
            raise OverflowError(f"{name}({self}, {other}) does not fit 64 bits")
        return made(Word, result)

    def checked_alone(self: int) -> Any:
        result = operation(self)
        if not -(1 << 63) <= result < 1 << 63:
            raise OverflowError(f"{name}({self}) does not fit 64 bits")
        return made(Word, result)

    return checked_alone if name in ("__neg__", "__abs__", "__invert__") else checked


class Word(int):
    """A 64-bit signed integer: an operation whose result does not fit raises OverflowError."""

    __slots__ = ()
    for _name in (
        "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "lshift", "rlshift", "rshift",
        "rrshift", "and", "rand", "or", "ror", "neg", "abs", "invert",
    ):  # fmt: skip
        locals()[f"__{_name}__"] = _checked(f"__{_name}__")
