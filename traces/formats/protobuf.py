"""Just enough of protocol buffers to read and write Chakra files (protobuf.dev/programming-guides/encoding).

A message is a run of fields, each a number and a wire type: varint, eight or four bytes, or bytes with their
length. A Chakra file is a run of messages, each preceded by its length as a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.source import Source

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types; groups (3, 4) are of protobuf's past
LARGEST_MESSAGE = 1 << 26  # bytes; a longer one is taken for damage

Field = tuple[int, int, int | bytes]


def messages(source: Source) -> Iterator[bytes]:
    """Every length-delimited message of the file, in bounded memory. TraceError if one is cut off or too long."""
    buffer, at, number = b"", 0, 0
    while True:
        length, begin = _length(buffer, at, number, source.where)
        if begin < 0 or begin + length > len(buffer):
            block = source.read()
            if not block:
                if at == len(buffer):
                    return
                raise TraceError(f"ends within message {number + 1}", source.where, "a whole message")
            buffer, at = buffer[at:] + block, 0
            continue
        yield buffer[begin : begin + length]
        at, number = begin + length, number + 1


def _length(buffer: bytes, at: int, number: int, where: str) -> tuple[int, int]:
    """(length, where the message begins) of the message at `at`; begins at -1 if its length is not there yet."""
    value, shift = 0, 0
    for place in range(at, min(at + 10, len(buffer))):
        value |= (buffer[place] & 0x7F) << shift
        if buffer[place] < 0x80:
            if value > LARGEST_MESSAGE:
                raise TraceError(f"message {number + 1} has {value} bytes", where, "at most 64 MiB")
            return value, place + 1
        shift += 7
    if len(buffer) - at >= 10:
        raise TraceError(f"message {number + 1} has no length", where, "a varint")
    return 0, -1


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends). ValueError if it does not end within ten bytes or the data."""
    value, shift = 0, 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise ValueError("a number that does not end")


def fields(data: bytes) -> Iterator[Field]:
    """(number, wire type, value) of each field; integers for varints, bytes for the rest. ValueError if damaged."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == VARINT:
            value, at = varint(data, at)
        else:
            if wire == BYTES:
                size, at = varint(data, at)
            elif wire in (EIGHT, FOUR):
                size = 8 if wire == EIGHT else 4
            else:
                raise ValueError(f"wire type {wire}")
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("a field that is cut off")
        if number == 0:
            raise ValueError("field number 0")
        yield number, wire, value


def numbers(wire: int, value: int | bytes) -> list[int]:
    """A repeated varint field, packed or not."""
    if isinstance(value, int):
        return [value]
    if wire != BYTES:
        raise ValueError("numbers that are none")
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def signed(value: int) -> int:
    """An int32 or int64 from its varint."""
    return value - 2**64 if value >= 2**63 else value


def zigzag(value: int) -> int:
    """A sint32 or sint64 from its varint."""
    return (value >> 1) ^ -(value & 1)


def put_varint(value: int) -> bytes:
    """`value` (negative ones as 64 bits) as a varint."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put(number: int, value: int | bytes | str) -> bytes:
    """One field: a varint for integers, bytes with their length for the rest."""
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(data)) + data


def put_packed(number: int, values: Iterable[int]) -> bytes:
    """A repeated varint field, packed; nothing if there are none."""
    data = b"".join(map(put_varint, values))
    return put(number, data) if data else b""


def put_message(data: bytes) -> bytes:
    """A message with its length before it."""
    return put_varint(len(data)) + data


def real(data: bytes) -> float:
    """A float or double from its four or eight bytes."""
    return float(struct.unpack("<f" if len(data) == 4 else "<d", data)[0])
