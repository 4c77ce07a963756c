"""The queueing discipline `red` as a threshold on the instantaneous queue.

`tc` cannot say that: it computes the weight of the moving average from a burst, and the largest is one half. The kernel
can: a weight of 2**0, sent as a netlink message. So tc makes the discipline and one message changes it. The table that
ages the average over an idle time is filled with the largest shift, so that an empty queue counts as empty at once.

    Kmin = Kmax = K: below K nothing happens; from K on, packets that understand marks (ECT) are marked, and others are
    dropped, or with `nodrop` (Linux 5.7) queued.
"""

from __future__ import annotations

import os
import socket
import struct

from emu.switches.base import TestbedError

RTM_NEWQDISC = 36
F_REQUEST, F_ACK = 1, 4
TCA_KIND, TCA_OPTIONS = 1, 2
RED_PARMS, RED_STAB, RED_MAX_P, RED_FLAGS = 1, 2, 3, 4
FLAG_ECN, FLAG_NODROP = 1, 8
IDLE_SHIFT = 31
ANSWER_SECONDS = 5.0


def red_words(threshold: int, limit: int, frame: int, rate: int, drop: bool) -> str:
    """What `tc` is told first; `limit` is the tail, in bytes."""
    threshold = max(1, threshold)
    burst = threshold // frame + 1
    return (
        f"red limit {limit} min {threshold} max {threshold} avpkt {frame} burst {burst} bandwidth {rate}bit "
        f"probability 1 ecn{'' if drop else ' nodrop'}"
    )


def make_instantaneous(index: int, parent: int, handle: int, threshold: int, limit: int, drop: bool) -> None:
    """Change the red at a place of the device with number `index`, in this thread's network namespace."""
    parameters = struct.pack("=IIIBBBB", limit, max(1, threshold), max(1, threshold), 0, 32, 0, FLAG_ECN)
    flags = FLAG_ECN if drop else FLAG_ECN | FLAG_NODROP
    options = [_attribute(RED_PARMS, parameters), _attribute(RED_STAB, bytes([IDLE_SHIFT]) * 256),
               _attribute(RED_MAX_P, struct.pack("=I", 0))]  # fmt: skip
    if not drop:
        options.append(_attribute(RED_FLAGS, struct.pack("=II", flags, FLAG_ECN | FLAG_NODROP)))
    body = struct.pack("=BxxxiIII", socket.AF_UNSPEC, index, handle, parent, 0)
    body += _attribute(TCA_KIND, b"red\0") + _attribute(TCA_OPTIONS, b"".join(options))
    message = struct.pack("=IHHII", 16 + len(body), RTM_NEWQDISC, F_REQUEST | F_ACK, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as opened:
        opened.settimeout(ANSWER_SECONDS)
        opened.bind((0, 0))
        opened.send(message)
        answer = opened.recv(8192)
    (error,) = struct.unpack_from("=i", answer, 16)
    if error:
        raise TestbedError(f"red with an instantaneous queue is refused: {os.strerror(-error)}", f"device {index}", "Linux 5.7")


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
