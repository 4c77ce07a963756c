"""Sends netlink requests for the two queueing disciplines that `tc` cannot configure exactly, `red` and `netem`.

`red` on the instantaneous queue: tc computes the weight of its moving average from a burst, at most one half; the
kernel accepts a weight of 2**0. The table that ages the average over an idle time is filled with the largest shift, so
that an empty queue counts as empty at once.

    Kmin = Kmax = K: below K nothing happens; from K on, ECN-capable packets are marked, and others are dropped, or with
    `nodrop` (Linux 5.7) queued.

`netem` with nanoseconds: tc (iproute2 6.1) rounds latencies down to whole microseconds and further to ticks of 64 ns.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.emu.switches.backend_kind import TestbedError

RTM_NEWQDISC, RTM_GETQDISC = 36, 38
F_REQUEST, F_ACK, F_DUMP, F_CREATE = 1, 4, 0x300, 0x400
ERROR, DONE = 2, 3
TCA_KIND, TCA_OPTIONS = 1, 2
ROOT = 0xFFFFFFFF
RED_PARMS, RED_STAB, RED_MAX_P, RED_FLAGS = 1, 2, 3, 4
RED_ECN, RED_NODROP = 1, 8
RED_IDLE_SHIFT = 31
NETEM_RATE, NETEM_RATE64, NETEM_LATENCY64 = 6, 8, 10
NETEM_LIMIT = 10_000_000
"""Packets on a cable at once: practically unlimited."""
ANSWER_SECONDS = 5.0
_TCMSG = "=BxxxiIII"


@dataclass(frozen=True)
class Wire:
    """A netem as configured in the kernel. `loss` in 2**-32."""

    latency_ns: int
    byte_rate: int
    loss: int


def red_words(threshold: int, limit: int, frame: int, rate: int, drop: bool) -> str:
    """Return the initial `tc` arguments; `limit` is the tail in bytes."""
    threshold = max(1, threshold)
    return (
        f"red limit {limit} min {threshold} max {threshold} avpkt {frame} burst {threshold // frame + 1} "
        f"bandwidth {rate}bit probability 1 ecn{'' if drop else ' nodrop'}"
    )


def make_instantaneous(index: int, parent: int, handle: int, threshold: int, limit: int, drop: bool) -> None:
    """Change the red at `parent` of the device with number `index`, in this thread's network namespace."""
    threshold = max(1, threshold)
    flags = RED_ECN if drop else 0  # either here or in the newer attribute, not both
    options = _attribute(RED_PARMS, struct.pack("=IIIBBBB", limit, threshold, threshold, 0, 32, 0, flags))
    options += _attribute(RED_STAB, bytes([RED_IDLE_SHIFT]) * 256) + _attribute(RED_MAX_P, struct.pack("=I", 0))
    if not drop:
        options += _attribute(RED_FLAGS, struct.pack("=II", RED_ECN | RED_NODROP, RED_ECN | RED_NODROP))
    _put(index, parent, handle, "red", options, 0)


def loss_word(probability: float) -> int:
    """Return a probability in netem's units; at 1 nothing passes."""
    return min(round(probability * (1 << 32)), (1 << 32) - 1)


def put_wire(index: int, wire: Wire, *, new: bool) -> None:
    """Make a netem the root of device number `index` in this thread's network namespace, or change it. Packets in
    flight then keep their times of arrival."""
    options = struct.pack("=6I", 0, NETEM_LIMIT, wire.loss, 0, 0, 0)
    options += _attribute(NETEM_LATENCY64, struct.pack("=q", wire.latency_ns))
    options += _attribute(NETEM_RATE, struct.pack("=IiIi", min(wire.byte_rate, 0xFFFFFFFF), 0, 0, 0))
    if wire.byte_rate > 0xFFFFFFFF:
        options += _attribute(NETEM_RATE64, struct.pack("=Q", wire.byte_rate))
    _put(index, ROOT, 1 << 16, "netem", options, F_CREATE if new else 0)


def read_wires() -> dict[int, Wire]:
    """Return every netem of this thread's network namespace, by device number."""
    wires = {}
    for index, kind, options in _dump():
        if kind == "netem":
            inner = dict(_attributes(options[24:]))
            (rate,) = struct.unpack_from("=I", inner.get(NETEM_RATE, bytes(4)))
            if NETEM_RATE64 in inner:
                (rate,) = struct.unpack("=Q", inner[NETEM_RATE64])
            (latency,) = struct.unpack("=q", inner.get(NETEM_LATENCY64, bytes(8)))
            wires[index] = Wire(latency, rate, struct.unpack_from("=I", options, 8)[0])
    return wires


def _put(index: int, parent: int, handle: int, kind: str, options: bytes, flags: int) -> None:
    body = struct.pack(_TCMSG, socket.AF_UNSPEC, index, handle, parent, 0)
    body += _attribute(TCA_KIND, kind.encode() + b"\0") + _attribute(TCA_OPTIONS, options)
    with _send_request(RTM_NEWQDISC, F_REQUEST | F_ACK | flags, body) as opened:
        (error,) = struct.unpack_from("=i", opened.recv(8192), 16)
    if error:
        raise TestbedError(f"{kind} rejected: {os.strerror(-error)}", f"device number {index}", "Linux 5.7 or later")


def _dump() -> Iterator[tuple[int, str, bytes]]:
    """Yield device, kind and options of every queueing discipline."""
    with _send_request(RTM_GETQDISC, F_REQUEST | F_DUMP, struct.pack(_TCMSG, socket.AF_UNSPEC, 0, 0, 0, 0)) as opened:
        while True:
            data, offset = opened.recv(1 << 18), 0
            while offset < len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind in (ERROR, DONE):
                    return
                inner = dict(_attributes(data[offset + 36 : offset + length]))
                (index,) = struct.unpack_from("=i", data, offset + 20)
                yield index, inner[TCA_KIND].rstrip(b"\0").decode(), inner.get(TCA_OPTIONS, b"")
                offset += -(-length // 4) * 4


def _send_request(kind: int, flags: int, body: bytes) -> socket.socket:
    """Send a request; return a socket that receives the answer within a time limit."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    opened.settimeout(ANSWER_SECONDS)
    opened.bind((0, 0))
    opened.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    return opened


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += -(-length // 4) * 4
