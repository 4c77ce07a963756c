"""Bytes on a link: the one place that says how large a packet is.

Sizes are counted as Linux `tc` counts them: from the first byte of the Ethernet header to the last byte of
the payload, without preamble, frame check sequence and inter-frame gap. The simulator times packets by these
sizes and the emulated testbed shapes by the same ones, so the two agree without a correction factor. A link
of 100 Gbps therefore carries 100 Gbit/s of *these* bytes, which is about 24 bytes a packet more than a real
Ethernet of that name could.

A packet is one of

    data over TCP   Ethernet | IPv4 | TCP with timestamps | payload                 (66 bytes of headers)
    data over UDP   Ethernet | IPv4 | UDP | gradwire header | payload               (58 bytes of headers)
    data over RoCE  Ethernet | IPv4 | UDP | BTH | payload | ICRC                    (58 bytes of headers)
    acknowledgement the same headers, no payload, padded to the smallest frame; over RoCE with an AETH (62 bytes)

The TCP header is its fixed 20 bytes [RFC 9293] and the 12 bytes that the timestamp option takes with its
padding [RFC 7323], which Linux sends by default. The gradwire header (tensor, offset, length, sequence,
flags) of 16 bytes is our choice. RoCEv2 has the InfiniBand base transport header and a check sequence of its own; the
header of a write (RETH), on the first packet of a message only, is left out (our choice). HPCC adds the telemetry that
switches fill in, two bytes and eight per switch [recalled from the paper], with room for six switches from the start,
and its acknowledgements carry it back.
"""

from __future__ import annotations

from typing import Final

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

MIN_FRAME: Final = 60
"""The smallest Ethernet frame without its check sequence [IEEE 802.3: 64 with it]."""
MAX_FRAME: Final = 9216
"""The largest jumbo frame that common switches carry; 802.3 does not define one. Our choice of limit."""

ACK_BYTES: Final = max(TCP_OVERHEAD, MIN_FRAME)
"""A TCP acknowledgement without data."""
DLCP_ACK_BYTES: Final = max(UDP_OVERHEAD, MIN_FRAME)
"""A DLCP acknowledgement or control packet: 58 bytes of headers, padded."""
ROCE_ACK_BYTES: Final = ROCE_OVERHEAD + AETH
"""An acknowledgement or refusal over RoCEv2 (62)."""
HPCC_ACK_BYTES: Final = ROCE_ACK_BYTES + TELEMETRY
"""One that carries telemetry back (112)."""


def frame_bytes(payload: int, overhead: int) -> int:
    """Bytes on the link of a packet with `payload` bytes of data and `overhead` bytes of headers."""
    return max(MIN_FRAME, payload + overhead)


def serialisation_ps(frame: int, rate: int) -> int:
    """Picoseconds that `frame` bytes occupy a link of `rate` bit/s, rounded up to whole picoseconds."""
    return -(-frame * 8 * 1_000_000_000_000 // rate)
