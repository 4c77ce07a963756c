"""`Encoded` holds a tensor as a reducer encoded it, and splits it into packets that are decoded independently.

An encoded tensor is a run of equal *units* - a value; a value and its index; a bucket of quantised values with its norm
- and a *head* that every packet repeats, such as the scale of the whole tensor. A unit never spans packets, so a packet
can be decoded without any other: a receiver can use any subset that has arrived, in any order. The alternative, one
buffer cut at arbitrary bytes, makes each lost packet damage its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradwire.scenarios.lazily import Tensor, torch

PAYLOAD = 4096
"""Default payload of a packet in bytes, as everywhere in gradwire."""


@dataclass(frozen=True)
class Encoded:
    """A tensor in the form in which it is sent; U units.

    fields : tensors of shape (U, ...), contiguous, on one device; row u of all of them is unit u.
    head : tensors that every packet repeats.
    known : what the receiver has without sending, such as indices drawn from a shared seed. Costs no bytes.
    """

    fields: tuple[Tensor, ...]
    head: tuple[Tensor, ...] = ()
    known: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Number of units, U."""
        return self.fields[0].shape[0]

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit."""
        return sum(_row_bytes(tensor) for tensor in self.fields)

    @property
    def head_bytes(self) -> int:
        """Bytes that every packet repeats."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.head)

    def magnitudes(self) -> Tensor:
        """Return the mean magnitude of each unit's first field, (units,) float32, for encodings whose fields hold
        values."""
        return self.fields[0].detach().float().abs().reshape(self.units, -1).mean(dim=1)

    def units_per_packet(self, payload: int = PAYLOAD) -> int:
        """Return the whole units that fit a packet of `payload` bytes beside the head. Raises ValueError if not even
        one fits."""
        count = (payload - self.head_bytes) // max(self.unit_bytes, 1)
        if count < 1:
            what = f"a unit of {self.unit_bytes} bytes and a head of {self.head_bytes}"
            raise ValueError(f"{what} do not fit a packet of {payload}")
        return int(count)

    def packets(self, payload: int = PAYLOAD) -> int:
        """Return the number of packets of at most `payload` bytes; 0 if there is nothing to send."""
        return -(-self.units // self.units_per_packet(payload)) if self.units else 0

    def nbytes(self, payload: int = PAYLOAD) -> int:
        """Return the bytes of all packets' payloads, including repeated heads, excluding network headers."""
        return self.units * self.unit_bytes + self.packets(payload) * self.head_bytes

    def arrived(self, received: Tensor | None, payload: int = PAYLOAD) -> Any:
        """Return the units that arrived, (U,) bool on the fields' device, given the packets that did, (packets,) bool;
        None, for all, if `received` is."""
        if received is None:
            return None
        if received.shape != (self.packets(payload),):
            raise ValueError(f"a mask of {tuple(received.shape)} for {self.packets(payload)} packets")
        packet_mask = received.to(self.fields[0].device)
        return packet_mask.repeat_interleave(self.units_per_packet(payload))[: self.units]

    def to_packets(self, payload: int = PAYLOAD) -> list[bytes]:
        """Return the payloads, little-endian: the head, then the packet's units, each with all of its fields."""
        rows = torch.cat([_bytes(tensor.cpu(), self.units) for tensor in self.fields], dim=1).numpy()
        head = b"".join(_bytes(tensor.cpu(), 1).numpy().tobytes() for tensor in self.head)
        step = self.units_per_packet(payload)
        return [head + rows[first : first + step].tobytes() for first in range(0, self.units, step)]

    def from_packets(self, packets: Sequence[bytes | None], payload: int = PAYLOAD) -> tuple[Encoded, Tensor]:
        """Decode payloads, None for each that has not arrived, into (encoded, units that arrived). `self` gives only
        the layout - shapes, types and what is `known`; none of its values is read. Units that have not arrived are
        zero, and so is the head if nothing has. Everything is on the device of `self`."""
        step, start = self.units_per_packet(payload), self.head_bytes
        rows = torch.zeros(self.units, self.unit_bytes, dtype=torch.uint8)
        head = torch.zeros(start, dtype=torch.uint8)
        unit_mask = torch.zeros(self.units, dtype=torch.bool)
        for number, packet in enumerate(packets):
            if packet is None:
                continue
            content = torch.frombuffer(bytearray(packet), dtype=torch.uint8)
            head = content[:start]
            here = slice(number * step, min((number + 1) * step, self.units))
            rows[here] = content[start:].view(-1, self.unit_bytes)
            unit_mask[here] = True
        fields, heads = _split(rows, self.fields), _split(head[None], self.head, is_whole=True)
        return replace(self, fields=fields, head=heads), unit_mask.to(self.fields[0].device)


def _row_bytes(rows: Tensor) -> int:
    return rows[:1].numel() * rows.element_size() if rows.shape[0] else rows.stride(0) * rows.element_size()


def _bytes(values: Tensor, rows: int) -> Tensor:
    """Return any tensor as rows of bytes."""
    if not values.numel():
        return torch.empty(rows, 0, dtype=torch.uint8)
    return values.contiguous().view(torch.uint8).reshape(rows, -1)


def _split(rows: Tensor, like: Sequence[Tensor], is_whole: bool = False) -> tuple[Tensor, ...]:
    """Return rows of bytes as tensors of the shapes, types and devices of others."""
    tensors, at = [], 0
    for tensor in like:
        width = tensor.numel() * tensor.element_size() if is_whole else _row_bytes(tensor)
        part = rows[:, at : at + width].reshape(-1).clone()
        tensors.append(part.view(tensor.dtype).reshape(tensor.shape).to(tensor.device))
        at += width
    return tuple(tensors)
