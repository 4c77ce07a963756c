"""Captures at the switches of the userspace backend, which have no devices to listen at.

The rules write down what begins to cross a link at a captured node, and what has arrived there (`State.taps`); this
writes it to pcapng files that look like those of the other backends (`gradwire.emu.system.capture`): an interface per
direction of a cable, marks as they are behind the queue. Times are those of the rules, exact to the nanosecond,
whenever this process came to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from gradwire.emu.planning.plan import Plan, host_address
from gradwire.emu.system.capture import NO_ADDRESSES, PacketFile
from gradwire.emu.userspace import layout as at
from gradwire.emu.userspace.fabric import Fabric


class Taps:
    """Open files of some nodes, by number of the node. OSError if one cannot be made or written."""

    def __init__(self, fabric: Fabric, paths: Mapping[int, str]) -> None:
        self._fabric = fabric
        self._files: list[BinaryIO] = []
        self._of: dict[tuple[int, int], tuple[PacketFile, int]] = {}
        self._origin_ns = int(fabric.state.words[at.W_ORIGIN_NS]) + time.time_ns() - time.monotonic_ns()
        plan = fabric.plan
        hosts = {plan.names[host]: host_address(host) for host in range(plan.host_count)}
        for path in paths.values():
            self._files.append(Path(path).open("xb"))
        for node, file in zip(paths, self._files, strict=True):
            self._begin(plan, node, file, hosts)
        fabric.state.words[at.W_TAPS_PER_PACKET] = 2 * len(paths)  # nobody comes by twice
        fabric.grow()  # the rules count on room for all that they write down

    def _begin(self, plan: Plan, node: int, file: BinaryIO, hosts: Mapping[str, str]) -> None:
        ports, flags = plan.of_node(node), self._fabric.state.ports
        names = [name for port in ports for name in (port.name, plan.ports[port.number ^ 1].name)]
        packets = PacketFile(file, names, hosts)
        for place, port in enumerate(ports):
            self._of[port.number, 0] = packets, 2 * place
            self._of[port.number ^ 1, 1] = packets, 2 * place + 1
            flags[port.number, at.P_TAPS] |= at.AT_SOURCE
            flags[port.number ^ 1, at.P_TAPS] |= at.AT_END

    def drain(self) -> bool:
        """Write what has been seen so far. Whether that made room for a packet more."""
        S = self._fabric.state
        rows = S.taps[: int(S.words[at.W_TAPPED])].tolist()
        for (time_ps, port, incoming, length), frame in zip(rows, S.tapped, strict=False):
            packets, interface = self._of[port, incoming]
            seen = NO_ADDRESSES + frame[: min(length, len(frame))].tobytes()
            whole = len(NO_ADDRESSES) + length
            time_ns = self._origin_ns + time_ps // 1000
            packets.write(interface, time_ns, seen, outgoing=not incoming, length=whole)
        S.words[at.W_TAPPED] = 0
        return bool(rows)

    def close(self) -> None:
        """Write the rest, and no more from now on."""
        untap(self._fabric)
        self.drain()
        for file in self._files:
            file.close()


def untap(fabric: Fabric) -> None:
    """Let the rules write nothing down any more."""
    fabric.state.ports[:, at.P_TAPS] = 0
    fabric.state.words[at.W_TAPS_PER_PACKET] = 0
