"""Changes the content of good files at random: bytes, numbers, lines, JSON, TOML, protobuf fields and Parquet tables."""

from __future__ import annotations

import io
import json
import re
import tomllib
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradwire.scenarios.loading.toml import write_toml
from gradwire.traces.formats import protobuf as pb

ODD = (
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**30,
    1e308,
    1e999,
    -1e999,
    float("nan"),
    0.5,
    True,
    None,
    "",
    "x",
    "9" * 400,
    [],
    {},
)


TEXTS = (
    b"0", b"-1", b"1e999", b"nan", b"inf", b"9" * 30, b"1000000000000", b"", b"\r", b"\n", b"\r\n", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b'"', b",", b";", b"{", b"}", b"[", b"]", b" -- ", b"#", b"\t", b"float16", b"complex64", b"\xc2\xb2",
)  # fmt: skip


def by_bytes(data: bytes, rng: Random) -> bytes:
    """`data` with a few of its bytes changed, lost, repeated or moved."""
    bent = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 30))):
        at = rng.randrange(len(bent) + 1)
        length = min(rng.choice((1, 1, 2, 8, 60, 900)), len(bent) - at)
        match rng.randrange(8):
            case 0 | 1 if at < len(bent):
                bent[at] = rng.choice((0, 10, 13, 32, 45, 57, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del bent[at : at + length]
            case 3:
                bent[at:at] = bent[at : at + length] * rng.choice((1, 2, 20))
            case 4:
                bent[at : at + length] = rng.choice(TEXTS)
            case 5:
                bent[at:at] = rng.choice(TEXTS)
            case 6 if rng.random() < 0.3:
                del bent[at:]
            case _:
                there = rng.randrange(len(bent) + 1)
                bent[at : at + length], bent[there : there + length] = (
                    bent[there : there + length],
                    bent[at : at + length],
                )
    return bytes(bent)


_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def by_numbers(data: bytes, rng: Random) -> bytes:
    """`data` with some of the numbers in it replaced."""
    spots = [match.span() for match in _NUMBER.finditer(data)]
    for begin, end in sorted(rng.sample(spots, min(len(spots), rng.choice((1, 1, 2, 4)))), reverse=True):
        data = data[:begin] + str(rng.choice(ODD)).encode() + data[end:]
    return data


def by_lines(data: bytes, rng: Random) -> bytes:
    """`data` with lines lost, repeated, in another order, or with other words and cells."""
    end = rng.choice((b"\n", b"\n", b"\r\n", b"\r"))
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 6))):
        at, there = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(5):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(there, lines[at])
            case 2:
                lines[at], lines[there] = lines[there], lines[at]
            case _:
                separator = rng.choice((b",", b" ", b"\t", b" -- ", b"="))
                words = lines[at].split(separator)
                words[rng.randrange(len(words))] = rng.choice((*TEXTS, *words))
                lines[at] = separator.join(words)
    return end.join(lines)


def by_json(data: bytes, rng: Random) -> bytes:
    """A JSON text with values of other kinds, keys lost and things repeated; also beyond what JSON allows."""
    try:
        tree = json.loads(data)
    except ValueError:
        return by_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        holder, key = tree, None
        while isinstance(holder, (dict, list)) and holder:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = rng.choice(keys)
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.15:
                break
            holder = inner
        if key is None:
            break
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(rng.randrange(len(holder)), holder[key])
            case 2 if isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
                by = rng.choice((-1, 0, 1, 1000, 10**20))
                holder[key] = rng.choice((holder[key] * by, holder[key] + by))
            case _:
                holder[key] = rng.choice(ODD)
    return json.dumps(tree).encode()


def by_toml(data: bytes, rng: Random) -> bytes:
    """A TOML text with values of other kinds, keys lost and things repeated."""
    try:
        tables = tomllib.loads(data.decode())
        return write_toml(json.loads(by_json(json.dumps(tables).encode(), rng))).encode()
    except (ValueError, TypeError, AttributeError):
        return by_bytes(data, rng)


def by_fields(data: bytes, rng: Random) -> bytes:
    """A run of protobuf messages with fields and whole messages changed, lost, repeated or moved."""
    messages, at = [], 0
    try:
        while at < len(data):
            size, at = pb.varint(data, at)
            messages.append(data[at : at + size])
            at += size
    except ValueError:  # it was damaged before
        return by_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 3, 8))):
        at = rng.randrange(len(messages))
        match rng.randrange(5):
            case 0 if len(messages) > 1:
                del messages[at]
            case 1:
                messages.insert(rng.randrange(len(messages)), messages[at])
            case 2:
                messages[at] = by_bytes(messages[at], rng)
            case _:
                messages[at] = _with_other_field(messages[at], rng)
    return b"".join(map(pb.put_message, messages))


def _with_other_field(message: bytes, rng: Random) -> bytes:
    try:
        parts = [(number, wire, value) for number, wire, value in pb.fields(message) if wire in (pb.VARINT, pb.BYTES)]
    except ValueError:
        return message
    if not parts:
        return message
    place = rng.randrange(len(parts))
    number, _, value = parts[place]
    others: tuple[int | bytes, ...] = (0, 1, 2, 7, 2**31, 2**63, 2**64 - 1, b"", b"\xff", b"x" * 50)
    changed = rng.choice(others)
    if isinstance(value, bytes) and rng.random() < 0.5:
        changed = by_bytes(value, rng) if value else b"\x00"
    parts[place] = (rng.choice((number, number, number, rng.randrange(1, 12))), 0, changed)
    return b"".join(pb.put(number, value) for number, _, value in parts)


def by_table(data: bytes, rng: Random) -> bytes:
    """A Parquet table with values, rows, columns or types changed, as another writer might have left it."""
    try:
        table = pq.read_table(io.BytesIO(data))
        column = rng.choice(table.column_names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return by_bytes(data, rng)
    place, rows = table.column_names.index(column), table[column].to_pylist()
    try:
        match rng.randrange(7):
            case 0:
                table = table.drop_columns([column])
            case 1:
                table = table.slice(0, rng.randrange(table.num_rows + 1))
            case 2:
                table = pa.concat_tables([table, table])
            case 3:
                table = table.set_column(
                    place, column, table[column].cast(rng.choice((pa.int64(), pa.float64(), pa.string())))
                )
            case 4:
                rng.shuffle(rows)
                table = table.set_column(place, table.schema.field(column), pa.array(rows, table[column].type))
            case _:
                at = rng.randrange(len(rows))
                rows[at] = _other(rows[at], rng)
                table = table.set_column(place, table.schema.field(column), pa.array(rows, table[column].type))
    except (pa.ArrowException, ValueError, TypeError, OverflowError, IndexError):
        return by_bytes(data, rng)
    out = io.BytesIO()
    pq.write_table(table, out, write_page_checksum=True)
    return out.getvalue()


def _other(value: Any, rng: Random) -> Any:
    if isinstance(value, list):
        return rng.choice((value[:-1], [*value, 1], [], [_other(v, rng) for v in value], [-v for v in value]))
    if isinstance(value, (int, float)):
        return type(value)(rng.choice((0, -1, 1, 2**31 - 1, 2**62, value + 1, -value, float("nan"))))
    return rng.choice(("", "x", "complex64", "float16", None))
