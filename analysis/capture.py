"""From the log of packets of a Result to a capture that Wireshark reads.

A packet appears whenever it begins to cross one of the chosen links, on the interface of that name, lost there or not.
Its headers are those of its transport as `gradwire.scenarios.wire` lays them out, its payload is left away: the length
on the link is there, the bytes are not. What the simulator does not know is filled in plainly (all ours):

* a host's addresses follow from its place in the order of names, h0 being 10.0.0.1;
* all packets of a message have its number as the sender's port (modulo 2**14, from 49152 on), and connections are
  neither opened nor closed;
* TCP counts sequence numbers from 0, in every message, and acknowledges what its argument says, which on a connection
  of several messages is in packets of the connection; checksums take the payload for zeros;
* queues are written as DSCP (`gradwire.scenarios.wire.dscp`); important packets are ECN-capable, others are not;
* gradwire headers of control packets have the argument for a sequence number, and 0 for an offset, since the log does
  not tell which packet they answer. That of a Probe, and of DLCP's Bitmap, is the number of the probe, and 4096 times
  the part that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.analysis.pcapng import Frames, write_pcapng
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import new_file
from gradwire.scenarios.result import Result
from gradwire.scenarios.wire import (
    GRADWIRE_FLAGS,
    GRADWIRE_PORT,
    HEADERS,
    MIN_FRAME,
    PACKET_KINDS,
    ROCE_PORT,
    WIRES,
    dscp,
    header_bytes,
)

if TYPE_CHECKING:
    import pyarrow

Integers = NDArray[np.int64]

AT_ONCE = 1 << 16
"""Frames that are made at once."""
DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = range(8)
FORWARD = (DATA, PROBE)
"""Kinds that go from the message's sender to its receiver; the others come back."""
ANSWERS = {ACK: 0x11, NACK: 0x11}
"""Operation codes over RoCE; everything else is a SEND (first, middle, last, only: 0, 1, 2, 4) [recalled]."""
TCP_PROTOCOL, UDP_PROTOCOL = 6, 17
PAUSE_ADDRESS, PAUSE_TYPE, PAUSE_PRIORITIES = 0x0180C2000001, 0x8808, 0x0101
DSCP = np.array([dscp(queue) for queue in range(8)])
FIRST_ADDRESS = 10 << 24
FIRST_PORT = 49152
SNAP = max(header_bytes(*names) for names in (*WIRES.values(), ("ethernet", "pfc")))


def write_capture(result: Result, path: str | Path, ports: Sequence[str]) -> int:
    """Write what crossed the links of `ports` to a new pcapng file. Returns the number of frames.

    Raises
    ------
    ResultError
        The Result has no log of packets, something is at `path`, or it cannot be written.
    """
    table = result.packets
    if not table.num_rows:
        raise ResultError("holds no log of packets", "packets.parquet", "a run with output.packet_log = true")
    if "transports" not in result.summary:
        raise ResultError("does not say what carried its messages", "result.json", "a run of this version")
    place = {name: number for number, name in enumerate(ports)}
    names = table["port"].combine_chunks().dictionary_encode()
    of_port = np.array([place.get(name, -1) for name in names.dictionary.to_pylist()], dtype=np.int64)
    interface = of_port[numpy_of(names.indices)]
    rows = np.flatnonzero(interface >= 0)
    hosts = {name: FIRST_ADDRESS + 1 + number for number, name in enumerate(host_names(result))}
    messages = Messages(result, hosts)

    def frames() -> Iterator[Frames]:
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            yield make_frames(table.take(some), interface[some], messages)

    with new_file(path) as partial, partial.open("wb") as file:
        return write_pcapng(file, ports, hosts, frames(), SNAP)


def host_names(result: Result) -> list[str]:
    """Hosts, or their network cards, in the order of the numbers in their names: all that send or receive."""
    table = result.messages
    found = {*table["src"].unique().to_pylist(), *table["dst"].unique().to_pylist()}
    return sorted(found, key=natural)


def natural(name: str) -> list[tuple[int, str]]:
    """For sorting names by the numbers in them: h2 before h10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


class Messages:
    """What packets inherit from their messages, as columns that are looked up by number."""

    def __init__(self, result: Result, hosts: dict[str, int]) -> None:
        table = result.messages
        self._numbers = numpy_of(table["message"])
        transports = result.summary.get("transports", {})
        wires = list(WIRES)
        jobs = table["job"].to_pylist()
        if unknown := set(jobs) - set(transports):
            raise ResultError(f"names no transport of {min(unknown)!r}", "result.json", "that of every job and traffic")
        self._columns: dict[str, Integers] = {
            "wire": np.array([wires.index(transports[job]["wire"]) for job in jobs], dtype=np.int64),
            "payload": np.array([transports[job]["payload"] for job in jobs], dtype=np.int64),
            "overhead": np.array([transports[job]["overhead"] for job in jobs], dtype=np.int64),
            "src": np.array([hosts[name] for name in table["src"].to_pylist()], dtype=np.int64),
            "dst": np.array([hosts[name] for name in table["dst"].to_pylist()], dtype=np.int64),
        }
        for name in ("message", "bytes"):
            self._columns[name] = numpy_of(table[name]).astype(np.int64)

    def of(self, numbers: Integers) -> dict[str, Integers]:
        """The columns of some messages; pause frames, which belong to none, get those of any."""
        rows = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        return {name: values[rows] for name, values in self._columns.items()}


def make_frames(packets: pyarrow.Table, interface: Integers, messages: Messages) -> Frames:
    """Frames of some rows of the log of packets."""
    log: Json = {
        name: numpy_of(packets[name]).astype(np.int64)
        for name in (
            "message", "packet", "bytes", "priority", "important", "marked", "trimmed", "echo", "argument",
            "start_ps",
        )
    }  # fmt: skip
    log["kind"] = np.array([PACKET_KINDS.index(kind) for kind in packets["kind"].to_pylist()], dtype=np.int64)
    of = messages.of(log["message"])
    length, wire = log["bytes"], np.where(log["kind"] == PAUSE, -1, of["wire"])
    data = np.zeros((len(length), SNAP), dtype=np.uint8)
    captured = np.zeros(len(length), dtype=np.int64)
    for number, (name, headers) in enumerate(WIRES.items()):
        rows = np.flatnonzero(wire == number)
        if len(rows):
            values = field_values(
                name,
                {key: column[rows] for key, column in log.items()},
                {key: c[rows] for key, c in of.items()},
            )
            fill(data, rows, headers, values)
            captured[rows] = header_bytes(*headers)
    rows = np.flatnonzero(wire < 0)
    if len(rows):
        fill(data, rows, ("ethernet", "pfc"), pause_values(log["argument"][rows]))
        captured[rows] = header_bytes("ethernet", "pfc")
    return Frames(interface, log["start_ps"] // 1000, length, np.minimum(captured, length), data)


def field_values(wire: str, log: dict[str, Integers], of: dict[str, Integers]) -> Json:
    """The fields of the headers of packets of one wire, by "header.field"; what is not there is zero."""
    kind, packet, argument = log["kind"], log["packet"], log["argument"]
    forward = np.isin(kind, FORWARD)
    is_data = kind == DATA
    begin = np.where(is_data, packet * of["payload"], 0)
    content = np.clip(np.minimum(of["payload"], of["bytes"] - begin), 0, None)
    content = np.where(log["trimmed"] == 1, np.maximum(log["bytes"] - of["overhead"], 0), content)
    small = log["bytes"] <= MIN_FRAME  # padded, if there is nothing in it
    content = np.where(is_data, content, np.where(small, 0, np.maximum(log["bytes"] - of["overhead"], 0)))
    extra = of["overhead"] - header_bytes(*WIRES[wire])  # of the transport, behind the headers written here
    total = np.minimum(
        header_bytes(*WIRES[wire][1:]) + extra + content, log["bytes"] - header_bytes("ethernet")
    )
    src, dst = np.where(forward, of["src"], of["dst"]), np.where(forward, of["dst"], of["src"])
    own, known = FIRST_PORT + of["message"] % (1 << 14), ROCE_PORT if wire == "roce" else GRADWIRE_PORT
    values: Json = {
        "ethernet.destination": (2 << 40) + dst,
        "ethernet.source": (2 << 40) + src,
        "ethernet.type": 0x0800,
        "ipv4.version_and_length": 0x45,
        "ipv4.dscp_and_ecn": DSCP[log["priority"]] << 2
        | np.where(log["marked"] == 1, 3, 2 * log["important"]),
        "ipv4.total_length": total,
        "ipv4.fragment": 0x4000,
        "ipv4.time_to_live": 64,
        "ipv4.protocol": TCP_PROTOCOL if wire == "tcp" else UDP_PROTOCOL,
        "ipv4.source": src,
        "ipv4.destination": dst,
    }
    transport = "tcp" if wire == "tcp" else "udp"
    values[f"{transport}.source_port"] = np.where(forward, own, known)
    values[f"{transport}.destination_port"] = np.where(forward, known, own)
    if wire == "tcp":
        flags = 0x10 | 0x40 * log["echo"]
        values |= {
            "tcp.sequence": begin,
            "tcp.acknowledgement": np.where(forward, 0, np.minimum(argument * of["payload"], of["bytes"])),
            "tcp.length_and_flags": header_bytes("tcp") // 4 << 12 | flags,
            "tcp.window": 0xFFFF,
            "tcp.timestamp_option": 0x0101080A,
            "tcp.timestamp": log["start_ps"] // 1_000_000,
        }
    else:
        values["udp.length"] = total - header_bytes("ipv4")
    if wire == "udp":
        values |= _gradwire_fields(log, of, begin, content)
    elif wire == "roce":
        values |= _roce_fields(log, of, begin)
    values["ipv4.checksum"] = checksum(values, "ipv4")
    if wire == "tcp":
        pseudo = {"ipv4.protocol": TCP_PROTOCOL, "ipv4.source": src, "ipv4.destination": dst}
        values["tcp.checksum"] = checksum(values, "tcp", pseudo, total - header_bytes("ipv4"))
    return values


def _gradwire_fields(log: dict[str, Integers], of: dict[str, Integers], begin: Integers, content: Integers) -> Json:
    """Of the header of our own, for payload that begins at byte `begin` of its message, `content` bytes of it."""
    shifted = [log[name] * (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()]  # to where its mask begins
    return {
        "gradwire.message": of["message"],
        "gradwire.offset": begin,
        "gradwire.length": content,
        "gradwire.sequence": np.where(log["kind"] == DATA, log["packet"], log["argument"]),
        "gradwire.flags": np.sum(shifted, axis=0),
    }


def _roce_fields(log: dict[str, Integers], of: dict[str, Integers], begin: Integers) -> Json:
    """Of the base transport header."""
    kind, is_data = log["kind"], log["kind"] == DATA
    first, last = begin == 0, begin + of["payload"] >= of["bytes"]
    send = np.where(first & last, 4, np.where(first, 0, np.where(last, 2, 1)))
    answer = np.isin(kind, list(ANSWERS))
    return {
        "bth.opcode": np.where(answer, ANSWERS[ACK], send),
        "bth.partition": 0xFFFF,
        "bth.congestion": 0x40 * log["echo"],
        "bth.queue_pair": of["message"],
        "bth.ask": np.where(is_data, 0x80, 0),
        "bth.sequence": np.where(is_data, log["packet"], log["argument"] - (kind == ACK)),
    }


def pause_values(classes: Integers) -> Json:
    """The fields of pause frames: which queues are to stop; the time of one is as long as it can be, until the next
    frame."""
    found: Json = {
        "ethernet.destination": PAUSE_ADDRESS,
        "ethernet.source": 2 << 40,
        "ethernet.type": PAUSE_TYPE,
        "pfc.opcode": PAUSE_PRIORITIES,
        "pfc.classes": 0xFF,
    }
    for queue in range(8):
        found[f"pfc.time{queue}"] = (classes >> queue & 1) * 0xFFFF
    return found


def fill(data: NDArray[np.uint8], rows: Integers, headers: Sequence[str], values: Json) -> None:
    """Write headers into rows of bytes, field by field."""
    at = 0
    for header in headers:
        for field, size in HEADERS[header]:
            value = values.get(f"{header}.{field}")
            if value is not None:
                wide = np.broadcast_to(np.asarray(value, dtype=np.int64), len(rows))
                for place in range(size):
                    data[rows, at + place] = (wide >> 8 * (size - 1 - place)) & 0xFF
            at += size


def checksum(values: Json, header: str, pseudo: Json | None = None, more: Any = 0) -> Any:
    """The internet checksum [RFC 1071] of a header, of what is in front of it for TCP, and of a length."""
    total: Any = more
    for name, fields, source in (
        (header, HEADERS[header], values),
        ("ipv4", HEADERS["ipv4"] if pseudo else (), pseudo or {}),
    ):
        at = 0
        for field, size in fields:
            value = source.get(f"{name}.{field}", 0)
            wide = np.asarray(value, dtype=np.int64) & ((1 << 8 * size) - 1)
            if size == 1:
                total = total + (wide << (0 if at % 2 else 8))
            else:
                total = total + sum(wide >> 16 * word & 0xFFFF for word in range(size // 2))
            at += size
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
