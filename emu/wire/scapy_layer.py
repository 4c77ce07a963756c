"""Defines scapy layers for the gradwire header, from the table in `gradwire.scenarios.wire`, to inspect captures.

    from gradwire.emu.wire.scapy_layer import Gradwire, GradwireStream
    from scapy.all import rdpcap
    for frame in rdpcap("packets.pcapng"): frame.show()

UDP packets from or to port 7117 are dissected as `Gradwire`; the content of TCP segments from or to port 7118 as
`GradwireStream`, a list of headers with data. Segments are dissected separately: one that begins in the middle of a
frame is shown as raw bytes. scapy is an extra: `pip install -e '.[emu]'`.
"""

from __future__ import annotations

from typing import Any

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.scenarios.advice import install
from gradwire.scenarios.wire import CONTROL_PORT, GRADWIRE, GRADWIRE_FLAGS, GRADWIRE_PORT, HEADERS, PACKET_KINDS

try:
    from scapy.fields import BitEnumField, BitField, Field, PacketListField
    from scapy.layers.inet import TCP, UDP
    from scapy.packet import Packet, Padding, Raw, bind_layers
except ImportError:
    raise TestbedError("scapy is not installed", "gradwire.emu.wire.scapy_layer", install("emu")) from None

FORMATS = {1: "B", 2: "H", 4: "I"}


def _flag_fields(size: int) -> list[Any]:
    """Return the bit fields of GRADWIRE_FLAGS, highest first, with unnamed bits in between."""
    fields: list[Any] = []
    top = 8 * size
    for name, mask in sorted(GRADWIRE_FLAGS.items(), key=lambda item: -item[1]):
        low, high = (mask & -mask).bit_length() - 1, mask.bit_length()
        if high < top:
            fields.append(BitField(f"unused{len(fields)}" if fields else "unused", 0, top - high))
        if name == "kind":
            fields.append(BitEnumField(name, 0, high - low, dict(enumerate(PACKET_KINDS))))
        else:
            fields.append(BitField(name, 0, high - low))
        top = low
    return fields


def _fields() -> list[Any]:
    fields: list[Any] = []
    for name, size in HEADERS["gradwire"]:
        fields += _flag_fields(size) if name == "flags" else [Field(name, 0, ">" + FORMATS[size])]
    return fields


class Gradwire(Packet):  # type: ignore[misc]  # scapy has no types here
    """A gradwire header with its data."""

    name = "gradwire"
    fields_desc = _fields()

    def extract_padding(self, rest: bytes) -> tuple[bytes, bytes]:
        """Return the header's data, and the padding of a minimum-size frame."""
        return rest[: self.length], rest[self.length :]

    def mysummary(self) -> str:
        kind = PACKET_KINDS[self.kind]
        return f"gradwire {kind} message {self.message} sequence {self.sequence} length {self.length}"


class GradwireFrame(Gradwire):
    """One frame of a stream, followed by the next one."""

    name = "gradwire frame"
    fields_desc = _fields()


def _next_frame(_packet: Any, frames: list[Any], _current: Any, rest: bytes) -> Any:
    """Return the class of the next frame of a stream; None if the rest is incomplete."""
    if len(rest) < GRADWIRE or len(rest) < GRADWIRE + int.from_bytes(rest[8:10], "big"):
        return None
    return GradwireFrame


class GradwireStream(Packet):  # type: ignore[misc]
    """The side channel: a sequence of frames."""

    name = "gradwire stream"
    fields_desc = [PacketListField("frames", [], next_cls_cb=_next_frame)]  # noqa: RUF012  # scapy wants a list


for _port in ("sport", "dport"):
    bind_layers(UDP, Gradwire, **{_port: GRADWIRE_PORT})
    bind_layers(TCP, GradwireStream, **{_port: CONTROL_PORT})

__all__ = ["Gradwire", "GradwireFrame", "GradwireStream", "Padding", "Raw"]
