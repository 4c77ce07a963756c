"""The stream between a controller and an agent: frames of plain values, and nothing that could run.

An agent may be another machine's, and what it sends may be anything: the banner of a login, another program's output,
somebody's attack. So a frame has a head (magic, version, the run's token, length), its body is made of a few kinds of
values - numbers, text, bytes, lists, tuples, dictionaries, arrays of numbers, and records of classes that are listed
here - and whatever is not exactly that is refused: `NotOurs` with one line that says what came instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from gradwire.emu.agent.contents import CheckSums
from gradwire.emu.agent.report import HostReport, Received, Sent
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.planning.plan import Plan, Port, Queues, TransportPlan
from gradwire.emu.wire.header import NotOurs
from gradwire.experiment.program import Messages, Operation, Process, Program, Table
from gradwire.scenarios.arrays import AnyArray

HEAD: Final = struct.Struct(">4sH16sI")
"""magic, version, token, bytes that follow"""
MAGIC: Final = b"GRWA"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 30
"""Of a frame (our choice): reports of the largest runs, with a check sum per packet, have some hundred MB."""
DEEPEST: Final = 32
"""Values within values; our choice."""
SHOWN: Final = 60
TOKEN_BYTES: Final = 16
COUNT, REAL = struct.Struct(">I"), struct.Struct(">d")
DTYPES: Final = tuple(
    np.dtype(each) for each in ("?", "<i1", "<u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
)

Records = Mapping[str, type]
Frame = tuple[Any, ...]
"""A name, and values of the kinds that go over the stream; who takes one looks whether they are what they should be."""


def _named(*classes: type) -> Records:
    return {each.__name__: each for each in classes}


REPORTED: Final = _named(HostReport, Sent, Received, CheckSums, IterationRow)
"""What agents tell of."""
PLANNED: Final = _named(Plan, Port, Queues, TransportPlan, Program, Messages, Process, Operation, Table)
"""What they are told."""
_ALL: Final = {**REPORTED, **PLANNED}


def token_of(plan: Plan) -> bytes:
    """What the ends of this run's streams know each other by: drawn at random where others could reach them
    (`gradwire.emu.control.machines`), and from the seed elsewhere, so that two runs are the same to the byte."""
    drawn = plan.options.get("token")
    return bytes(drawn) if drawn is not None else hashlib.sha256(b"gradwire %d" % plan.seed).digest()[:TOKEN_BYTES]


def encode(frame: Frame, token: bytes = bytes(TOKEN_BYTES)) -> bytes:
    """One frame. TypeError for a value of a kind that there is not."""
    body = bytearray()
    _put(body, frame)
    return HEAD.pack(MAGIC, VERSION, token, len(body)) + body


class Decoder:
    """Takes the stream apart.

    Parameters
    ----------
    token : of the run; None: that of the first frame, from then on (`self.token`).
    records : the classes that may come.
    """

    def __init__(self, token: bytes | None = bytes(TOKEN_BYTES), records: Records = _ALL) -> None:
        self.token, self._records = token, records
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add what has arrived; gives every frame that is complete now: a tuple that begins with a name.

        Raises
        ------
        NotOurs
            That is no frame of this run's.
        """
        self._data += data
        while self._data:
            seen = bytes(self._data[: len(MAGIC)])
            if seen != MAGIC[: len(seen)]:
                raise NotOurs(f"what came is no frame: {_shown(self._data)}")
            if len(self._data) < HEAD.size:
                return
            _, version, token, length = HEAD.unpack_from(self._data)
            if version != VERSION:
                raise NotOurs(f"frames are of version {version}, and not {VERSION}: another release of gradwire")
            if self.token is None:
                self.token = token
            if token != self.token:
                raise NotOurs("a frame is of another run")
            if length > MOST_BYTES:
                raise NotOurs(f"a frame claims {length:,} bytes, and {MOST_BYTES:,} are the most")
            end = HEAD.size + length
            if end > len(self._data):
                return
            body = bytes(self._data[HEAD.size : end])
            del self._data[:end]
            yield _frame(body, self._records)


def _shown(data: bytes | bytearray) -> str:
    line = bytes(data[:400]).decode(errors="replace").strip().splitlines()
    return repr(line[0][:SHOWN]) if line else repr(bytes(data[:SHOWN]))


def _frame(body: bytes, records: Records) -> Frame:
    reader = _Reader(body, records)
    try:
        found = reader.value(0)
    except (struct.error, ValueError, TypeError, OverflowError, IndexError) as error:
        if isinstance(error, NotOurs):
            raise
        raise NotOurs(f"a frame's body is none: {error}") from None
    if reader.at != len(body):
        raise NotOurs(f"{len(body) - reader.at} bytes are left over in a frame")
    if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
        raise NotOurs("a frame has no name")
    return found


# values to bytes: a letter that says which kind, then what it takes


def _put(out: bytearray, value: Any) -> None:
    kind = type(value)
    if value is None or kind is bool:
        out += {None: b"N", True: b"T", False: b"F"}[value]
    elif kind is int:
        data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        if len(data) > 255:
            raise TypeError("an integer of more than 255 bytes")
        out += b"I" + bytes((len(data),)) + data
    elif kind is float:
        out += b"D" + REAL.pack(value)
    elif kind is str:
        _put_bytes(out, b"S", value.encode())
    elif kind in (bytes, bytearray):
        _put_bytes(out, b"B", value)
    elif kind in (list, tuple):
        out += (b"L" if kind is list else b"U") + COUNT.pack(len(value))
        for each in value:
            _put(out, each)
    elif isinstance(value, Mapping):
        out += b"M" + COUNT.pack(len(value))
        for key, each in value.items():
            _put(out, key)
            _put(out, each)
    elif isinstance(value, np.ndarray):
        _put_array(out, value)
    elif isinstance(value, np.generic):
        _put(out, value.item())
    elif _ALL.get(kind.__name__) is kind:
        fields = _fields(kind)
        _put_bytes(out, b"R", kind.__name__.encode())
        out += COUNT.pack(len(fields))
        for name in fields:
            _put(out, getattr(value, name))
    else:
        raise TypeError(f"{kind.__name__} does not go over the stream")


def _put_bytes(out: bytearray, letter: bytes, data: bytes | bytearray) -> None:
    out += letter + COUNT.pack(len(data)) + data


def _put_array(out: bytearray, value: AnyArray) -> None:
    dtype = value.dtype.newbyteorder("<") if value.dtype.byteorder == ">" else value.dtype
    if dtype not in DTYPES:
        raise TypeError(f"an array of {value.dtype} does not go over the stream")
    out += b"A" + bytes((DTYPES.index(dtype), value.ndim)) + b"".join(COUNT.pack(size) for size in value.shape)
    out += np.ascontiguousarray(value, dtype=dtype).tobytes()


def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)  # type: ignore[attr-defined]


class _Reader:
    """Bytes to values. Whatever a count claims, no more is made than there are bytes for."""

    def __init__(self, data: bytes, records: Records) -> None:
        self.data, self.at, self._records = data, 0, records
        self._kinds: dict[bytes, Callable[[int], object]] = {
            b"N": lambda depth: None, b"T": lambda depth: True, b"F": lambda depth: False,
            b"I": lambda depth: int.from_bytes(self._take(self._take(1)[0]), "big", signed=True),
            b"D": lambda depth: REAL.unpack(self._take(REAL.size))[0],
            b"S": lambda depth: self._take(self._count()).decode(),
            b"B": lambda depth: self._take(self._count()),
            b"L": lambda depth: self._many(self._count(), depth),
            b"U": lambda depth: tuple(self._many(self._count(), depth)),
            b"M": self._mapping, b"A": self._array, b"R": self._record,
        }  # fmt: skip

    def value(self, depth: int) -> object:
        if depth > DEEPEST:
            raise NotOurs(f"values lie more than {DEEPEST} deep in a frame")
        letter = self._take(1)
        if letter not in self._kinds:
            raise NotOurs(f"there is no kind of value {letter!r}")
        return self._kinds[letter](depth)

    def _take(self, many: int) -> bytes:
        end = self.at + many
        if end > len(self.data):
            raise NotOurs("a frame's body ends early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def _count(self) -> int:
        count: int = COUNT.unpack(self._take(COUNT.size))[0]
        return count

    def _many(self, count: int, depth: int) -> list[object]:
        if count > len(self.data) - self.at:  # a value takes a byte at least
            raise NotOurs("a frame's body ends early")
        return [self.value(depth + 1) for _ in range(count)]

    def _mapping(self, depth: int) -> dict[object, object]:
        flat = self._many(2 * self._count(), depth)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _array(self, depth: int) -> AnyArray:
        number, dimensions = self._take(2)
        dtype = DTYPES[number]
        shape = tuple(self._count() for _ in range(min(dimensions, 33)))
        data = self._take(math.prod(shape) * dtype.itemsize)
        if number == 0 and any(each > 1 for each in data):
            raise NotOurs("a truth value is neither 0 nor 1")
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()

    def _record(self, depth: int) -> object:
        name = self._take(self._count()).decode()
        kind = self._records.get(name)
        if kind is None:
            raise NotOurs(f"a record {name[:SHOWN]!r} is none that comes this way")
        values = self._many(self._count(), depth)
        if len(values) != len(_fields(kind)):
            raise NotOurs(f"a record {name} has {len(values)} fields, and not {len(_fields(kind))}")
        return kind(*values)
