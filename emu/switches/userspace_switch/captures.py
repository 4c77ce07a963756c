"""Writes packets recorded at the userspace switch, which has no devices, to pcapng files per node.

The rules record packets that begin to cross a link at a captured node and those that have arrived there
(`SwitchMemory.taps`). This module writes them to pcapng files like those of the other backends
(`gradwire.emu.system.capture`): an interface per direction of a cable, marks as after the queue. Times are those of the
rules, exact to the nanosecond however late this process runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from gradwire.emu.planning.plan import TestbedPlan, host_address
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.fabric import Fabric
from gradwire.emu.switches.userspace_switch.layout import PortRow
from gradwire.emu.system.capture import NO_ADDRESSES, PacketFile


class SwitchCaptureFiles:
    """Open capture files by node; raises OSError if one cannot be made or written."""

    def __init__(self, fabric: Fabric, paths: Mapping[int, str]) -> None:
        self._fabric = fabric
        self._files: list[BinaryIO] = []
        self._of: dict[tuple[int, int], tuple[PacketFile, int]] = {}
        self._origin_ns = fabric.state.network.origin_ns + time.time_ns() - time.monotonic_ns()
        plan = fabric.plan
        hosts = {plan.names[host]: host_address(host) for host in range(plan.host_count)}
        for path in paths.values():
            self._files.append(Path(path).open("xb"))
        for node, file in zip(paths, self._files, strict=True):
            self._begin(plan, node, file, hosts)
        fabric.state.network.taps_per_packet = 2 * len(paths)  # no packet passes a node twice
        fabric.grow()  # the rules need space for all records

    def _begin(self, plan: TestbedPlan, node: int, file: BinaryIO, hosts: Mapping[str, str]) -> None:
        ports, rows = plan.ports_of_node(node), self._fabric.state.ports
        names = [name for port in ports for name in (port.name, plan.ports[port.number ^ 1].name)]
        packets = PacketFile(file, names, hosts)
        for index, port in enumerate(ports):
            self._of[port.number, 0] = packets, 2 * index
            self._of[port.number ^ 1, 1] = packets, 2 * index + 1
            PortRow(rows[port.number], 0).taps |= at.AT_SOURCE
            PortRow(rows[port.number ^ 1], 0).taps |= at.AT_END

    def drain(self) -> bool:
        """Write the recorded packets; return True if that freed space."""
        S = self._fabric.state
        rows = S.taps[: S.network.tap_count].tolist()
        for (time_ps, port, incoming, length), frame in zip(rows, S.tap_frames, strict=False):
            packets, interface = self._of[port, incoming]
            data = NO_ADDRESSES + frame[: min(length, len(frame))].tobytes()
            full_length = len(NO_ADDRESSES) + length
            time_ns = self._origin_ns + time_ps // 1000
            packets.write(interface, time_ns, data, outgoing=not incoming, length=full_length)
        S.network.tap_count = 0
        return bool(rows)

    def close(self) -> None:
        """Write the rest and stop recording."""
        stop_recording(self._fabric)
        self.drain()
        for file in self._files:
            file.close()


def stop_recording(fabric: Fabric) -> None:
    fabric.state.ports[:, PortRow.taps.offset] = 0
    fabric.state.network.taps_per_packet = 0
