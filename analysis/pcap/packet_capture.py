"""Builds frames with headers from a Result's packet log; `pcapng` writes them to a capture that Wireshark reads.

A packet appears when it begins to cross one of the chosen links, on the interface of that name, whether or not it is
lost there. Its headers are those of its transport as `gradwire.scenarios.wire` defines them; its payload is omitted,
but
its length on the link is recorded. Unknown fields are filled in (all our choice):

* a host's address follows from its position in the order of names, h0 being 10.0.0.1;
* all packets of a message have its number as the sender's port (modulo 2**14, from 49152 on); connections are neither
  opened nor closed;
* TCP sequence numbers start from 0 in every message; acknowledgement numbers are the packet's argument, which on a
  connection of several messages counts packets of the connection; checksums assume a payload of zeros;
* queues are written as DSCP (`gradwire.scenarios.wire.dscp`); important packets are ECN-capable, others are not;
* gradwire headers of control packets have the argument as sequence number, and offset 0, since the log does not record
  which packet they answer. The argument of a Probe, and of DLCP's Bitmap, is the number of the probe plus 4096 times
  the requested part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwire.analysis.pcap.pcapng import Frames, write_pcapng
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.folders.output_folder import new_file
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
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


BLOCK_FRAMES = 1 << 16
"""Frames per block of work."""
DATA, ACK, STOP, BITMAP, PROBE, NACK, PULL, PAUSE = range(8)
FORWARD = (DATA, PROBE)
"""Kinds from the message's sender to its receiver; the others travel back."""
ANSWER_OPCODES = {ACK: 0x11, NACK: 0x11}
"""Operation codes over RoCE; everything else is a SEND (first, middle, last, only: 0, 1, 2, 4) [recalled]."""
TCP_PROTOCOL, UDP_PROTOCOL = 6, 17
PAUSE_ADDRESS, PAUSE_TYPE, PAUSE_PRIORITIES = 0x0180C2000001, 0x8808, 0x0101
DSCP = np.array([dscp(queue) for queue in range(8)])
FIRST_ADDRESS = 10 << 24
FIRST_PORT = 49152
SNAP = max(header_bytes(*names) for names in (*WIRES.values(), ("ethernet", "pfc")))


def write_capture(result: Result, path: str | Path, ports: Sequence[str]) -> int:
    """Write the packets on the links of `ports` to a new pcapng file; return the number of frames. Raises `ResultError`
    if the Result has no packet log, `path` exists, or it cannot be written."""
    table = result.packets
    if not table.num_rows:
        raise ResultError("holds no packet log", "packets.parquet", "a run with output.packet_log = true")
    if "transports" not in result.summary:
        raise ResultError("does not record the transports of its messages", "result.json", "a run of this version")
    interface_of = {name: number for number, name in enumerate(ports)}
    names = table["port"].combine_chunks().dictionary_encode()
    of_port = np.array([interface_of.get(name, -1) for name in names.dictionary.to_pylist()], dtype=np.int64)
    interface = of_port[to_numpy(names.indices)]
    rows = np.flatnonzero(interface >= 0)
    hosts = {name: FIRST_ADDRESS + 1 + number for number, name in enumerate(host_names(result))}
    messages = MessageColumns(result, hosts)

    def frames() -> Iterator[Frames]:
        for begin in range(0, len(rows), BLOCK_FRAMES):
            block = rows[begin : begin + BLOCK_FRAMES]
            yield make_frames(table.take(block), interface[block], messages)

    with new_file(path) as partial, partial.open("wb") as file:
        return write_pcapng(file, ports, hosts, frames(), SNAP)


def host_names(result: Result) -> list[str]:
    """Return the hosts, or their NICs, that send or receive, in the order of the numbers in their names."""
    table = result.messages
    names = {*table["src"].unique().to_pylist(), *table["dst"].unique().to_pylist()}
    return sorted(names, key=natural_sort_key)


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: h2 before h10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


class MessageColumns:
    """Columns of the messages that their packets inherit, looked up by message number."""

    def __init__(self, result: Result, hosts: dict[str, int]) -> None:
        table = result.messages
        self._numbers = to_numpy(table["message"])
        transports = result.summary.get("transports", {})
        wires = list(WIRES)
        jobs = table["job"].to_pylist()
        if unknown := set(jobs) - set(transports):
            raise ResultError(f"has no transport of {min(unknown)!r}", "result.json", "one for every job and traffic")
        self._columns: dict[str, Ints] = {
            "wire": np.array([wires.index(transports[job]["wire"]) for job in jobs], dtype=np.int64),
            "payload": np.array([transports[job]["payload"] for job in jobs], dtype=np.int64),
            "overhead": np.array([transports[job]["overhead"] for job in jobs], dtype=np.int64),
            "src": np.array([hosts[name] for name in table["src"].to_pylist()], dtype=np.int64),
            "dst": np.array([hosts[name] for name in table["dst"].to_pylist()], dtype=np.int64),
        }
        for name in ("message", "bytes"):
            self._columns[name] = to_numpy(table[name]).astype(np.int64)

    def of(self, numbers: Ints) -> dict[str, Ints]:
        """Return the columns of some messages; pause frames, which belong to none, get those of any."""
        rows = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        return {name: values[rows] for name, values in self._columns.items()}


def make_frames(packets: pyarrow.Table, interface: Ints, messages: MessageColumns) -> Frames:
    """Build the frames of some rows of the packet log."""
    names = "message packet bytes priority important marked trimmed echo argument start_ps".split()
    log: Json = {name: to_numpy(packets[name]).astype(np.int64) for name in names}
    log["kind"] = np.array([PACKET_KINDS.index(kind) for kind in packets["kind"].to_pylist()], dtype=np.int64)
    of = messages.of(log["message"])
    length, wire = log["bytes"], np.where(log["kind"] == PAUSE, -1, of["wire"])
    data = np.zeros((len(length), SNAP), dtype=np.uint8)
    captured = np.zeros(len(length), dtype=np.int64)
    for number, (name, headers) in enumerate(WIRES.items()):
        rows = np.flatnonzero(wire == number)
        if len(rows):
            log_rows, of_rows = ({key: column[rows] for key, column in table.items()} for table in (log, of))
            values = field_values(name, log_rows, of_rows)
            write_headers(data, rows, headers, values)
            captured[rows] = header_bytes(*headers)
    rows = np.flatnonzero(wire < 0)
    if len(rows):
        write_headers(data, rows, ("ethernet", "pfc"), pause_values(log["argument"][rows]))
        captured[rows] = header_bytes("ethernet", "pfc")
    return Frames(interface, log["start_ps"] // 1000, length, np.minimum(captured, length), data)


def field_values(wire: str, log: dict[str, Ints], of: dict[str, Ints]) -> Json:
    """Return the header fields of packets of one wire format, by "header.field"; absent ones are zero."""
    kind, packet, argument = log["kind"], log["packet"], log["argument"]
    forward = np.isin(kind, FORWARD)
    is_data = kind == DATA
    begin = np.where(is_data, packet * of["payload"], 0)
    content = np.clip(np.minimum(of["payload"], of["bytes"] - begin), 0, None)
    content = np.where(log["trimmed"] == 1, np.maximum(log["bytes"] - of["overhead"], 0), content)
    small = log["bytes"] <= MIN_FRAME  # padded if it has no content
    content = np.where(is_data, content, np.where(small, 0, np.maximum(log["bytes"] - of["overhead"], 0)))
    extra = of["overhead"] - header_bytes(*WIRES[wire])  # of the transport, after the headers written here
    total = np.minimum(header_bytes(*WIRES[wire][1:]) + extra + content, log["bytes"] - header_bytes("ethernet"))
    src, dst = np.where(forward, of["src"], of["dst"]), np.where(forward, of["dst"], of["src"])
    own, known = FIRST_PORT + of["message"] % (1 << 14), ROCE_PORT if wire == "roce" else GRADWIRE_PORT
    values: Json = {
        "ethernet.destination": (2 << 40) + dst,
        "ethernet.source": (2 << 40) + src,
        "ethernet.type": 0x0800,
        "ipv4.version_and_length": 0x45,
        "ipv4.dscp_and_ecn": DSCP[log["priority"]] << 2 | np.where(log["marked"] == 1, 3, 2 * log["important"]),
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


def _gradwire_fields(log: dict[str, Ints], of: dict[str, Ints], begin: Ints, content: Ints) -> Json:
    """Return fields of gradwire's header, for `content` bytes of payload from byte `begin` of the message."""
    shifted = [log[name] * (mask & -mask) for name, mask in GRADWIRE_FLAGS.items()]
    return {
        "gradwire.message": of["message"],
        "gradwire.offset": begin,
        "gradwire.length": content,
        "gradwire.sequence": np.where(log["kind"] == DATA, log["packet"], log["argument"]),
        "gradwire.flags": np.sum(shifted, axis=0),
    }


def _roce_fields(log: dict[str, Ints], of: dict[str, Ints], begin: Ints) -> Json:
    kind, is_data = log["kind"], log["kind"] == DATA
    first, last = begin == 0, begin + of["payload"] >= of["bytes"]
    send = np.where(first & last, 4, np.where(first, 0, np.where(last, 2, 1)))
    answer = np.isin(kind, list(ANSWER_OPCODES))
    return {
        "bth.opcode": np.where(answer, ANSWER_OPCODES[ACK], send),
        "bth.partition": 0xFFFF,
        "bth.congestion": 0x40 * log["echo"],
        "bth.queue_pair": of["message"],
        "bth.ask": np.where(is_data, 0x80, 0),
        "bth.sequence": np.where(is_data, log["packet"], log["argument"] - (kind == ACK)),
    }


def pause_values(classes: Ints) -> Json:
    """Return the fields of pause frames: the queues to stop, for the longest time or until the next frame."""
    return {
        "ethernet.destination": PAUSE_ADDRESS,
        "ethernet.source": 2 << 40,
        "ethernet.type": PAUSE_TYPE,
        "pfc.opcode": PAUSE_PRIORITIES,
        "pfc.classes": 0xFF,
        **{f"pfc.time{queue}": (classes >> queue & 1) * 0xFFFF for queue in range(8)},
    }


def write_headers(data: NDArray[np.uint8], rows: Ints, headers: Sequence[str], values: Json) -> None:
    """Write headers into rows of bytes, field by field."""
    at = 0
    for header in headers:
        for field, size in HEADERS[header]:
            value = values.get(f"{header}.{field}")
            if value is not None:
                wide = np.broadcast_to(np.asarray(value, dtype=np.int64), len(rows))
                for byte in range(size):
                    data[rows, at + byte] = (wide >> 8 * (size - 1 - byte)) & 0xFF
            at += size


def checksum(values: Json, header: str, pseudo: Json | None = None, more: Any = 0) -> Any:
    """Return the internet checksum [RFC 1071] of a header, of TCP's pseudo-header, and of a length (`more`)."""
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
