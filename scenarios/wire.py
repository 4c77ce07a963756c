"""Declares packet headers and computes packet sizes and times on a link, once for simulator and testbed.

Sizes are counted as Linux `tc` counts them: from the first byte of the Ethernet header to the last byte of the payload,
without preamble, frame check sequence and inter-frame gap. The simulator times packets by these sizes and the testbed
shapes by them, so the two agree without a correction factor. A link of 100 Gbps therefore carries 100 Gbit/s of *these*
bytes, about 24 bytes a packet more than a real Ethernet of that name could.

Packets:

    data over TCP   Ethernet | IPv4 | TCP with timestamps | payload                 (66 bytes of headers)
    data over UDP   Ethernet | IPv4 | UDP | gradwire header | payload               (58 bytes of headers)
    data over RoCE  Ethernet | IPv4 | UDP | BTH | payload | ICRC                    (58 bytes of headers)
    acknowledgement the same headers, no payload, padded to the smallest frame; over RoCE with an AETH (62 bytes)

The TCP header is its fixed 20 bytes [RFC 9293] and 12 bytes of the padded timestamp option [RFC 7323], which Linux
sends by default. The gradwire header (message, offset, length, sequence, flags) of 16 bytes is our choice. RoCEv2 has
the InfiniBand base transport header and its own check sequence; the header of a write (RETH), on the first packet of a
message only, is left out (our choice). HPCC adds the telemetry that switches fill in, two bytes and eight per switch
[recalled from the paper], with space for six switches, and its acknowledgements return it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar, overload

from gradwire.scenarios.inner_units import Bps, Bytes, Ps, PsPerByte

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = TypeVar("Array", NDArray[np.int64], NDArray[np.object_])

ETHERNET: Final = 14
IPV4: Final = 20
UDP: Final = 8
TCP: Final = 20 + 12
GRADWIRE: Final = 16
BTH: Final = 12
AETH: Final = 4
ICRC: Final = 4
TELEMETRY: Final = 2 + 6 * 8

TCP_OVERHEAD: Final = ETHERNET + IPV4 + TCP
"""Header bytes of a data packet over TCP (66)."""
UDP_OVERHEAD: Final = ETHERNET + IPV4 + UDP + GRADWIRE
"""Header bytes of a data packet over UDP (58)."""

ROCE_OVERHEAD: Final = ETHERNET + IPV4 + UDP + BTH + ICRC
"""Header bytes of a data packet over RoCEv2 (58)."""
HPCC_OVERHEAD: Final = ROCE_OVERHEAD + TELEMETRY
"""Header bytes of a data packet that collects telemetry (108)."""

MIN_FRAME: Final = Bytes(60)
"""Smallest Ethernet frame without its check sequence [IEEE 802.3: 64 with it]."""
MAX_FRAME: Final = Bytes(9216)
"""Largest jumbo frame that common switches carry; 802.3 does not define one. Our choice of limit."""

ACK_BYTES: Final = max(TCP_OVERHEAD, MIN_FRAME)
"""TCP acknowledgement without data."""
DLCP_ACK_BYTES: Final = max(UDP_OVERHEAD, MIN_FRAME)
"""DLCP acknowledgement or control packet: 58 bytes of headers, padded."""
SIDE_CHANNEL_BYTES: Final = TCP_OVERHEAD
"""Segment of the simulated reliable side channel: a Stop, or a Bitmap without its bits (66)."""
TESTBED_SIDE_CHANNEL_BYTES: Final = TCP_OVERHEAD + GRADWIRE
"""Segment of the testbed's side channel, with a gradwire header over TCP; Probes included (82)."""
PROBE_BYTES: Final = MIN_FRAME
"""Simulated Probe: the smallest frame, so that it queues behind data and takes almost none of its bandwidth."""
ROCE_ACK_BYTES: Final = ROCE_OVERHEAD + AETH
"""Acknowledgement or negative acknowledgement over RoCEv2 (62)."""
HPCC_ACK_BYTES: Final = ROCE_ACK_BYTES + TELEMETRY
"""Acknowledgement that returns telemetry (112)."""


Fields = tuple[tuple[str, int], ...]
"""Header fields in order, each with its size in bytes, most significant byte first."""

HEADERS: Final[Mapping[str, Fields]] = {
    "ethernet": (("destination", 6), ("source", 6), ("type", 2)),
    "ipv4": (
        ("version_and_length", 1), ("dscp_and_ecn", 1), ("total_length", 2), ("identification", 2), ("fragment", 2),
        ("time_to_live", 1), ("protocol", 1), ("checksum", 2), ("source", 4), ("destination", 4),
    ),
    "udp": (("source_port", 2), ("destination_port", 2), ("length", 2), ("checksum", 2)),
    "tcp": (
        ("source_port", 2), ("destination_port", 2), ("sequence", 4), ("acknowledgement", 4), ("length_and_flags", 2),
        ("window", 2), ("checksum", 2), ("urgent", 2), ("timestamp_option", 4), ("timestamp", 4), ("echoed", 4),
    ),
    "gradwire": (("message", 4), ("offset", 4), ("length", 2), ("sequence", 4), ("flags", 2)),
    "bth": (
        ("opcode", 1), ("flags", 1), ("partition", 2), ("congestion", 1), ("queue_pair", 3), ("ask", 1),
        ("sequence", 3),
    ),
    "pfc": (("opcode", 2), ("classes", 2), *((f"time{queue}", 2) for queue in range(8))),
}  # fmt: skip
"""Headers of packets in captures [RFC 791, 768, 9293, 7323; IEEE 802.1Qbb; the InfiniBand specification's BTH:
recalled].

The gradwire header is ours: number of the message in the Result, then GRADWIRE_FIELDS, numbers modulo the field's size.
"""

WIRES: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("ethernet", "ipv4", "tcp"),
    "udp": ("ethernet", "ipv4", "udp", "gradwire"),
    "roce": ("ethernet", "ipv4", "udp", "bth"),
}
"""Headers of a data packet, by the `wire` of its transport."""

GRADWIRE_FLAGS: Final[Mapping[str, int]] = {"kind": 0x7, "important": 0x8, "trimmed": 0x10, "echo": 0x20}
"""Bits of the gradwire header's flags; the kind is an index into PACKET_KINDS."""
PACKET_KINDS: Final = ("data", "ack", "stop", "bitmap", "probe", "nack", "pull", "pause")
GRADWIRE_FIELDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "data": ("byte of the message at which the payload begins", "bytes of payload", "number of the packet"),
    "ack": ("argument, such as a cumulative acknowledgement", "0", "number of the packet that it answers"),
    "stop": ("0", "0", "0"),
    "bitmap": ("packet that the first bit stands for", "bytes of bits, lowest first", "number of the probe mod 4096"),
    "probe": ("part of the Bitmap that it asks for, counted from 1; 0: all", "0", "number of the probe mod 4096"),
    "nack": ("argument, such as the packet that is expected", "0", "number of the packet that it answers"),
    "pull": ("0", "0", "how many there were so far"),
    "pause": ("0", "0", "0"),
}
"""Offset, length and sequence of a gradwire header, by packet kind. A message over TCP is a stream that begins with the
header of a data packet whose offset, length and sequence are 0."""
BITMAP_PACKETS: Final = 8192
"""Maximum packets that one part of a Bitmap covers: 1 KiB of bits."""
GRADWIRE_PORT: Final = 7117
"""UDP and TCP port of gradwire's packets; our choice."""
CONTROL_PORT: Final = 7118
"""TCP port of the side channel of Stop, Probe and Bitmap: headers, each followed by `length` bytes."""
SOURCE_PORTS: Final = range(49152, 49152 + 32)
"""UDP source ports of data on the testbed, by message number, so that ECMP hashes spread flows."""
ROCE_PORT: Final = 4791


def header_bytes(*names: str) -> Bytes:
    """Return the total bytes of the named headers."""
    return Bytes(sum(size for name in names for _, size in HEADERS[name]))


def tos_byte(priority: int, important: bool) -> int:
    """Return the IPv4 byte that switches inspect: DSCP and ECN (ECT(0) or Not-ECT)."""
    return dscp(priority) << 2 | (2 if important else 0)


def dscp(priority: int) -> int:
    """Return the code point of a queue: class selectors [RFC 2474], descending from CS7 for queue 0, served first."""
    return (7 - priority) << 3


def frame_bytes(payload: Bytes, overhead: Bytes) -> Bytes:
    """Return the bytes on the link of a packet with `payload` bytes of data and `overhead` bytes of headers."""
    return Bytes(max(MIN_FRAME, payload + overhead))


@overload
def serialisation_ps(frame: Bytes, rate: Bps) -> Ps: ...
@overload
def serialisation_ps(frame: Bytes, rate: Array) -> Array: ...
def serialisation_ps(frame: Bytes, rate: Bps | Array) -> int | Array:
    """Return the picoseconds that `frame` bytes occupy a link of `rate` bit/s, rounded up."""
    return -(-frame * 8 * 1_000_000_000_000 // rate)


SPEED_SHIFT: Final = 16


@overload
def ps_per_byte(rate: Bps) -> PsPerByte: ...
@overload
def ps_per_byte(rate: Array) -> Array: ...
def ps_per_byte(rate: Bps | Array) -> int | Array:
    """Return a rate in bits per second as picoseconds per byte << SPEED_SHIFT, rounded up: the simulator's unit."""
    return -(-(8_000_000_000_000 << SPEED_SHIFT) // rate)


@overload
def crossing_ps(frame: Bytes, rate: Bps, latency: Ps) -> Ps: ...
@overload
def crossing_ps(frame: Bytes, rate: Array, latency: Array) -> Array: ...
def crossing_ps(frame: Bytes, rate: Bps | Array, latency: Ps | Array) -> int | Array:
    """Return the picoseconds that an uncongested link takes to carry `frame` bytes, from first bit in to last bit out.
    Base round trips are sums of these. `rate` (bit/s) and `latency` (ps): numbers or arrays."""
    return serialisation_ps(frame, rate) + latency
