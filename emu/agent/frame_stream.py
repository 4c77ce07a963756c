"""Encodes and decodes the frames between controller and agents, plain values and known records without executable
content.

An agent may be on another machine, and its bytes may be anything: a login banner, another program's output, an attack.
So a frame has a head (magic, version, the run's token, length), and its body has a few kinds of values: numbers, text,
bytes, lists, tuples, dictionaries, arrays of numbers, and records of the classes listed here. Anything else is rejected
by `ForeignDataError`, with one line that shows what arrived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from gradwire.emu.agent.payload.contents import CheckSums
from gradwire.emu.agent.report import HostReport, Received, SentCounts
from gradwire.emu.agent.script import IterationRow
from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan
from gradwire.emu.wire.header import ForeignDataError
from gradwire.scenarios.arrays import AnyArray
from gradwire.workload.program import MessageColumns, Messages, Operation, Process, Program

HEAD: Final = struct.Struct(">4sH16sI")
"""magic, version, token, bytes that follow"""
MAGIC: Final = b"GRWA"
VERSION: Final = 1
MAX_FRAME_BYTES: Final = 1 << 30
"""Frame size limit (our choice): the largest reports, with a check sum per packet, have some hundred MB."""
MAX_DEPTH: Final = 32
"""Limit on nesting; our choice."""
QUOTED_CHARS: Final = 60
TOKEN_BYTES: Final = 16
COUNT, REAL = struct.Struct(">I"), struct.Struct(">d")
DTYPES: Final = tuple(
    np.dtype(each) for each in ("?", "<i1", "<u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
)

Records = Mapping[str, type]
Frame = tuple[Any, ...]
"""A name and encodable values; the receiver checks their types."""


def _named(*classes: type) -> Records:
    return {record_class.__name__: record_class for record_class in classes}


AGENT_RECORDS: Final = _named(HostReport, SentCounts, Received, CheckSums, IterationRow)
"""Records sent by agents."""
PLAN_RECORDS: Final = _named(
    TestbedPlan, Port, Queues, TransportPlan, Program, Messages, Process, Operation, MessageColumns
)
"""Records sent to agents."""
_ALL: Final = {**AGENT_RECORDS, **PLAN_RECORDS}


def token_of(plan: TestbedPlan) -> bytes:
    """Return the token that identifies this run's streams. It is random if other programs could connect
    (`gradwire.emu.control.machines`), otherwise derived from the seed, so that two runs are equal to the byte."""
    random_token = plan.options.get("token")
    return (
        bytes(random_token)
        if random_token is not None
        else hashlib.sha256(b"gradwire %d" % plan.seed).digest()[:TOKEN_BYTES]
    )


def encode(frame: Frame, token: bytes = bytes(TOKEN_BYTES)) -> bytes:
    """Return a frame as bytes; raise TypeError for an unsupported value."""
    body = bytearray()
    _put(body, frame)
    return HEAD.pack(MAGIC, VERSION, token, len(body)) + body


class Decoder:
    """Decoder of a stream of frames.

    token : of the run; None: that of the first frame, from then on (`self.token`).
    records : the accepted classes.
    """

    def __init__(self, token: bytes | None = bytes(TOKEN_BYTES), records: Records = _ALL) -> None:
        self.token, self._records = token, records
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes; yield every complete frame, a tuple that begins with a name. Raises ForeignDataError:
        the bytes are not a frame of this run."""
        self._data += data
        while self._data:
            magic = bytes(self._data[: len(MAGIC)])
            if magic != MAGIC[: len(magic)]:
                raise ForeignDataError(f"invalid frame: got {_shown(self._data)}")
            if len(self._data) < HEAD.size:
                return
            _, version, token, length = HEAD.unpack_from(self._data)
            if version != VERSION:
                raise ForeignDataError(f"frame of version {version}; expected {VERSION}: another release of gradwire")
            if self.token is None:
                self.token = token
            if token != self.token:
                raise ForeignDataError("a frame of another run")
            if length > MAX_FRAME_BYTES:
                raise ForeignDataError(f"a frame claims {length:,} bytes; expected at most {MAX_FRAME_BYTES:,}")
            end = HEAD.size + length
            if end > len(self._data):
                return
            body = bytes(self._data[HEAD.size : end])
            del self._data[:end]
            yield _frame(body, self._records)


def _shown(data: bytes | bytearray) -> str:
    line = bytes(data[:400]).decode(errors="replace").strip().splitlines()
    return repr(line[0][:QUOTED_CHARS]) if line else repr(bytes(data[:QUOTED_CHARS]))


def _frame(body: bytes, records: Records) -> Frame:
    reader = _Reader(body, records)
    try:
        frame = reader.value(0)
    except (struct.error, ValueError, TypeError, OverflowError, IndexError) as error:
        if isinstance(error, ForeignDataError):
            raise
        raise ForeignDataError(f"invalid frame body: {error}") from None
    if reader.at != len(body):
        raise ForeignDataError(f"{len(body) - reader.at} extra bytes in a frame")
    if not isinstance(frame, tuple) or not frame or not isinstance(frame[0], str):
        raise ForeignDataError("a frame without a name")
    return frame


# encoding of values: a letter for the kind, then its data


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
        for item in value:
            _put(out, item)
    elif isinstance(value, Mapping):
        out += b"M" + COUNT.pack(len(value))
        for key, item in value.items():
            _put(out, key)
            _put(out, item)
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
        raise TypeError(f"cannot encode {kind.__name__}")


def _put_bytes(out: bytearray, letter: bytes, data: bytes | bytearray) -> None:
    out += letter + COUNT.pack(len(data)) + data


def _put_array(out: bytearray, value: AnyArray) -> None:
    dtype = value.dtype.newbyteorder("<") if value.dtype.byteorder == ">" else value.dtype
    if dtype not in DTYPES:
        raise TypeError(f"cannot encode an array of {value.dtype}")
    out += b"A" + bytes((DTYPES.index(dtype), value.ndim)) + b"".join(COUNT.pack(size) for size in value.shape)
    out += np.ascontiguousarray(value, dtype=dtype).tobytes()


def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)  # type: ignore[attr-defined]


class _Reader:
    """Decoder of values; never allocates more than the body's bytes allow."""

    def __init__(self, data: bytes, records: Records) -> None:
        self.data, self.at, self._records = data, 0, records
        self._kinds: dict[bytes, Callable[[int], object]] = {
            b"N": lambda depth: None,
            b"T": lambda depth: True,
            b"F": lambda depth: False,
            b"I": lambda depth: int.from_bytes(self._take(self._take(1)[0]), "big", signed=True),
            b"D": lambda depth: REAL.unpack(self._take(REAL.size))[0],
            b"S": lambda depth: self._take(self._count()).decode(),
            b"B": lambda depth: self._take(self._count()),
            b"L": lambda depth: self._repeat(self._count(), depth),
            b"U": lambda depth: tuple(self._repeat(self._count(), depth)),
            b"M": self._mapping,
            b"A": self._array,
            b"R": self._record,
        }

    def value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise ForeignDataError(f"values nested more than {MAX_DEPTH} deep in a frame")
        letter = self._take(1)
        if letter not in self._kinds:
            raise ForeignDataError(f"unknown kind of value {letter!r}")
        return self._kinds[letter](depth)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ForeignDataError("a frame's body ends early")
        data = self.data[self.at : end]
        self.at = end
        return data

    def _count(self) -> int:
        count: int = COUNT.unpack(self._take(COUNT.size))[0]
        return count

    def _repeat(self, count: int, depth: int) -> list[object]:
        if count > len(self.data) - self.at:  # a value has at least one byte
            raise ForeignDataError("a frame's body ends early")
        return [self.value(depth + 1) for _ in range(count)]

    def _mapping(self, depth: int) -> dict[object, object]:
        flat = self._repeat(2 * self._count(), depth)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _array(self, depth: int) -> AnyArray:
        number, dimensions = self._take(2)
        dtype = DTYPES[number]
        shape = tuple(self._count() for _ in range(min(dimensions, 33)))
        data = self._take(math.prod(shape) * dtype.itemsize)
        if number == 0 and any(byte > 1 for byte in data):
            raise ForeignDataError("a bool is neither 0 nor 1")
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()

    def _record(self, depth: int) -> object:
        name = self._take(self._count()).decode()
        kind = self._records.get(name)
        if kind is None:
            raise ForeignDataError(f"unexpected record {name[:QUOTED_CHARS]!r}")
        values = self._repeat(self._count(), depth)
        if len(values) != len(_fields(kind)):
            raise ForeignDataError(f"a record {name} has {len(values)} fields; expected {len(_fields(kind))}")
        return kind(*values)
