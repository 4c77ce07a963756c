"""Runs the userspace switch's main loop, which sleeps, reads packets from TUN devices, applies `rules`, and writes
packets. Compiled.

It sleeps until a device, the timer of the next event, or the parent is ready. A packet's time is the clock's when it is
read; its further times are exact, however late the process wakes up, except for its delivery, whose lateness is
counted. If time stands still while code runs (`stands_still`: virtual time), the clock is read only on waking up, since
reading it is an expensive system call there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.emu.native import calls
from gradwire.emu.native.calls import bytes_at, words_at
from gradwire.emu.switches.userspace_switch import answer_delay, rules
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.frames import parse
from gradwire.emu.switches.userspace_switch.layout import SwitchedNetwork
from gradwire.jit.compiled import njit

ASKED, FULL, INTERRUPTED, FAILED = range(4)
"""Reasons for which `serve` returns: a request of the parent, no space for packets, a signal, a failed system call."""
BATCH = 64
"""Packets read from one host in a row (our choice)."""
EVENTS = 64


class Files:
    """The files to wait for, entered into the words of a `SwitchMemory`; must live as long as the state is used.

    epoll, timer, control : file numbers; the epoll has all others.
    devices : the TUN of every host.
    """

    def __init__(self, state: at.SwitchMemory, epoll: int, timer: int, control: int, devices: Sequence[int]) -> None:
        self._devices = np.array(devices, dtype=np.int64)
        self._host_of = np.full(max(timer, control, *devices) + 1, -1, dtype=np.int64)
        self._host_of[self._devices] = np.arange(len(devices))
        self._events = np.zeros(EVENTS * calls.EVENT_BYTES, dtype=np.uint8)
        self._scratch = np.zeros(4, dtype=np.int64)
        network = state.network
        network.epoll, network.timer_file, network.control_file = epoll, timer, control
        network.devices, network.host_of_file = self._devices.ctypes.data, self._host_of.ctypes.data
        network.epoll_events, network.scratch = self._events.ctypes.data, self._scratch.ctypes.data


@njit("int64(int64)")
def serve(address: int) -> int:
    """Run the network of the words at `address` until one of the reasons above."""
    network = SwitchedNetwork(words_at(address), 0)
    network.timer_ns = 0  # the previous call may have ended before it handled the timer's event
    while True:
        wake = rules.wake_time(network)
        if wake >= 0:
            due_ns = network.origin_ns - (-wake // 1000)
            if due_ns != network.timer_ns:
                network.timer_ns = due_ns
                if calls.set_timer(network.timer_file, due_ns, network.scratch) < 0:
                    return _failed(network)
        waiting = calls.yield_after_slice(network)
        ready = calls.wait(network.epoll, network.epoll_events, EVENTS, -1)
        if ready < 0:
            return _failed(network)
        network.woken_ns = calls.monotonic_ns(network.scratch)
        if network.woken_ns - waiting > calls.AT_ONCE_NS:
            network.slice_begin_ns = network.woken_ns
        asked = False
        for i in range(ready):
            number = bytes_at(network.epoll_events + i * calls.EVENT_BYTES + calls.EVENT_FILE)
            file = int(number[0]) | int(number[1]) << 8 | int(number[2]) << 16 | int(number[3]) << 24
            if file == network.timer_file:
                network.timer_ns = 0  # edge-triggered: nothing has to be read
                _catch_up(network)
            elif file == network.control_file:
                asked = True
            elif not _read(network, words_at(network.host_of_file)[file]):
                return FAILED if network.error else FULL
        _catch_up(network)
        if asked:
            return ASKED


@njit
def _failed(network: SwitchedNetwork) -> int:
    error = calls.error()
    if error == calls.INTERRUPTED:
        return INTERRUPTED
    network.error = error
    return FAILED


@njit
def _catch_up(network: SwitchedNetwork) -> None:
    """Advance the network to the present and deliver packets that have arrived."""
    clock = network.woken_ns if network.stands_still else calls.monotonic_ns(network.scratch)
    until = (clock - network.origin_ns) * 1000
    while True:
        packet = rules.next_reached(network, until)
        if packet < 0:
            return
        host, length = network.reached_host, rules.packet_of(network, packet).length
        device = words_at(network.devices)[host]
        if calls.write(device, network.frames + packet * network.frame_bytes, length) < 0:
            network.refused += 1
        if network.reached_at >= network.watched_from:
            answer_delay.on_delivery(network, host, rules.frame_of(network, packet), length, network.reached_at)
            _count(network, max(until - network.reached_at, 0) // 1000)
        rules.release(network, packet)


@njit
def _count(network: SwitchedNetwork, late_ns: int) -> None:
    bits = 0
    while late_ns >> bits:
        bits += 1
    words_at(network.lateness)[bits] += 1
    network.worst_ns = max(network.worst_ns, late_ns)


@njit
def _read(network: SwitchedNetwork, host: int) -> bool:
    """Read some packets of a host; return False if there is no space, or on an error."""
    device = words_at(network.devices)[host]
    for _ in range(BATCH):
        if not rules.has_space(network):
            return False
        packet = rules.take(network)
        length = calls.read(device, network.frames + packet * network.frame_bytes, network.frame_bytes)
        if length < 0:
            rules.release(network, packet)
            if calls.error() == calls.AGAIN:
                return True
            network.error = calls.error()
            return False
        frame, row = rules.frame_of(network, packet), rules.packet_of(network, packet)
        if parse(frame, row, length, network.first_address, network.host_count):
            _catch_up(network)
            answer_delay.on_packet(network, host, frame, length, network.now)
            rules.arrive(network, host, packet)
        else:
            rules.release(network, packet)  # not for a host
    return True
