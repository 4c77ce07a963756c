"""Encodes and decodes protocol buffers for Chakra files (protobuf.dev/programming-guides/encoding), as far as they
need.

A message is a sequence of fields, each a number and a wire type: varint, eight or four bytes, or bytes with their
length. A Chakra file is a sequence of messages, each preceded by its length as a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.source import Source

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types; groups (3, 4) are obsolete
MAX_MESSAGE_BYTES = 1 << 26  # bytes; a longer one counts as damage

Field = tuple[int, int, int | bytes]


def messages(source: Source) -> Iterator[bytes]:
    """Yield every length-delimited message of the file, in bounded memory; TraceError if one is truncated or
    too long."""
    buffer, at, number = b"", 0, 0
    while True:
        length, begin = _length(buffer, at, number, source.where)
        if begin < 0 or begin + length > len(buffer):
            block = source.read()
            if not block:
                if at == len(buffer):
                    return
                raise TraceError(f"ends within message {number + 1}", source.where, "a complete message")
            buffer, at = buffer[at:] + block, 0
            continue
        yield buffer[begin : begin + length]
        at, number = begin + length, number + 1


def _length(buffer: bytes, at: int, number: int, where: str) -> tuple[int, int]:
    """Return (length, start) of the message at `at`; the start is -1 if its length is incomplete."""
    try:
        value, begin = varint(buffer, at)
    except ValueError:
        if len(buffer) - at >= 10:
            raise TraceError(f"message {number + 1} has no length", where, "a varint") from None
        return 0, -1
    if value > MAX_MESSAGE_BYTES:
        raise TraceError(f"message {number + 1} has {value} bytes", where, "at most 64 MiB")
    return value, begin


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, end); ValueError if it does not end within ten bytes or the data."""
    value, shift = 0, 0
    for index in range(at, min(at + 10, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise ValueError("a varint that does not end")


def fields(data: bytes) -> Iterator[Field]:
    """Yield (number, wire type, value) of each field, integers for varints, else bytes; ValueError if damaged."""
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
                raise ValueError("a truncated field")
        if number == 0:
            raise ValueError("field number 0")
        yield number, wire, value


def numbers(wire: int, value: int | bytes) -> list[int]:
    """Return a repeated varint field, packed or not."""
    if isinstance(value, int):
        return [value]
    if wire != BYTES:
        raise ValueError("not a list of varints")
    values, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        values.append(number)
    return values


def signed(value: int) -> int:
    """Return an int32 or int64 from its varint."""
    return value - 2**64 if value >= 2**63 else value


def zigzag(value: int) -> int:
    """Return a sint32 or sint64 from its varint."""
    return (value >> 1) ^ -(value & 1)


def put_varint(value: int) -> bytes:
    """Return `value` (negative ones as 64 bits) as a varint."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put(number: int, value: int | bytes | str) -> bytes:
    """Return one field: a varint for integers, bytes with their length for the rest."""
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(data)) + data


def put_packed(number: int, values: Iterable[int]) -> bytes:
    """Return a repeated varint field, packed; empty without values."""
    data = b"".join(map(put_varint, values))
    return put(number, data) if data else b""


def put_message(data: bytes) -> bytes:
    """Return a message preceded by its length."""
    return put_varint(len(data)) + data


def real(data: bytes) -> float:
    """Return a float or double from its four or eight bytes."""
    return float(struct.unpack("<f" if len(data) == 4 else "<d", data)[0])
