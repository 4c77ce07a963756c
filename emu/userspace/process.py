"""The process that is the network: reads what hosts send, asks the fabric, writes what has arrived.

It sleeps until a device, the timer of the fabric's next happening, or its parent has something for it. A packet's time
is the clock's when it is read; where packets go from there on is exact, however late this process wakes up, but for
their delivery. How late deliveries were is counted, and so is the longest time that the process was away.

The parent asks by single letters over a socket (`QUESTIONS`) and gets a length and a pickled answer each. The process
ends when that socket does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from emu.plan import Plan, host_address
from emu.userspace.clock import Timer
from emu.userspace.fabric import Fabric
from emu.userspace.packet import parse, with_mark

COUNTS, DROPS, STATE = b"c", b"d", b"s"
LENGTH = struct.Struct("<Q")
BATCH = 64
"""Packets read from one host in a row (our choice)."""
_DEATH_SIGNAL = 1


@dataclass
class Lateness:
    """How late deliveries were. `buckets[i]`: below 2**i nanoseconds, and not below half of that."""

    buckets: list[int] = field(default_factory=lambda: [0] * 64)
    worst_ns: int = 0
    longest_round_ns: int = 0
    """that the process was busy or away without looking at its devices"""
    strange: int = 0
    """packets of hosts that were for nobody"""
    refused: int = 0
    """packets that the kernel did not take"""

    @property
    def count(self) -> int:
        """Deliveries."""
        return sum(self.buckets)

    def below(self, share: float) -> int:
        """Nanoseconds that at least `share` of the deliveries were late at most, to a factor of two."""
        wanted, seen = share * self.count, 0
        for i, many in enumerate(self.buckets):
            seen += many
            if seen >= wanted:
                return 1 << i
        return 0

    def later_than(self, time_ns: int) -> int:
        """Deliveries that were surely that late."""
        return sum(many for i, many in enumerate(self.buckets) if i and 1 << (i - 1) >= time_ns)


def run(plan: Plan, devices: Sequence[int], control: socket.socket) -> None:
    """Be the network until the parent closes its end of `control`. `devices[host]`: the TUN of every host."""
    _Switch(plan, devices, control).run()


def live(plan: Plan, devices: Sequence[int], control: socket.socket) -> None:
    """What a forked process does: everything, then it ends."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the socket
        _close_others({0, 1, 2, control.fileno(), *devices})
        if plan.clock == "wall":
            _go_first()
        gc.disable()
        run(plan, devices, control)
        code = 0
    except BaseException as error:
        import traceback

        traceback.print_exc()
        _answer(control, ("failed", f"{type(error).__name__}: {error}"))
    finally:
        os._exit(code)


class _Switch:
    def __init__(self, plan: Plan, devices: Sequence[int], control: socket.socket) -> None:
        self.fabric = Fabric(plan)
        self.devices = devices
        self.host_of = {file: host for host, file in enumerate(devices)}
        self.hosts = {socket.inet_aton(host_address(node)): node for node in range(plan.host_count)}
        self.control = control
        self.timer = Timer()
        self.epoll = select.epoll()
        for file in (*devices, self.timer.file, control.fileno()):
            self.epoll.register(file, select.EPOLLIN)
        self.room = plan.largest_frame() + 256
        self.origin = time.monotonic_ns()
        self.lateness = Lateness()
        self.going = True

    def run(self) -> None:
        """Until the parent is gone."""
        timer, timer_file, control_file = self.timer, self.timer.file, self.control.fileno()
        next_time, poll, clock = self.fabric.next_time, self.epoll.poll, time.monotonic_ns
        late = self.lateness
        while self.going:
            due = next_time()
            if due is not None:
                timer.set(self.origin - (-due // 1000))
            ready = poll()
            begin = clock()
            for file, _ in ready:
                if file == timer_file:
                    timer.clear()
                    self.catch_up()
                elif file == control_file:
                    self.reply()
                else:
                    self.read(file)
            self.catch_up()
            taken = clock() - begin
            if taken > late.longest_round_ns:
                late.longest_round_ns = taken

    def catch_up(self) -> int:
        """Bring the fabric to this moment and deliver what has arrived by now. Returns the fabric's time."""
        now = (time.monotonic_ns() - self.origin) * 1000
        for due, host, packet in self.fabric.advance(now):
            try:
                os.write(self.devices[host], with_mark(packet.data) if packet.marked else packet.data)
            except OSError:
                self.lateness.refused += 1
            late = (now - due) // 1000
            self.lateness.buckets[late.bit_length()] += 1
            if late > self.lateness.worst_ns:
                self.lateness.worst_ns = late
        return now

    def read(self, file: int) -> None:
        """Some of the packets that a host has sent."""
        host = self.host_of[file]
        arrive, room, hosts = self.fabric.arrive, self.room, self.hosts
        for _ in range(BATCH):
            try:
                data = os.read(file, room)
            except BlockingIOError:
                return
            packet = parse(data, hosts)
            if packet is None:
                self.lateness.strange += 1
            else:
                arrive(self.catch_up(), host, packet)

    def reply(self) -> None:
        """Answer the parent."""
        question = self.control.recv(1)
        if not question:
            self.going = False
        elif question == COUNTS:
            _answer(self.control, self.fabric.counters().tobytes())
        elif question == DROPS:
            begin = LENGTH.unpack(self.control.recv(LENGTH.size, socket.MSG_WAITALL))[0]
            fresh = [tuple(lost) for lost in self.fabric.drops[begin:]]
            _answer(self.control, (self.origin, fresh))
        elif question == STATE:
            _answer(self.control, self.lateness)


def _go_first() -> None:
    """Run before everything else on this machine, as a network does; where that is not allowed, lateness shows it."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))  # agents have 1
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def _answer(control: socket.socket, answer: Any) -> None:
    data = pickle.dumps(answer, protocol=5)
    with suppress(OSError):  # the parent is gone; the next read says so
        control.sendall(LENGTH.pack(len(data)) + data)


def _close_others(kept: set[int]) -> None:
    """Files of the parent's other children: as long as somebody holds them, nobody notices that the parent is gone."""
    begin = 3
    for file in sorted(kept):
        if file >= begin:
            os.closerange(begin, file)
            begin = file + 1
    os.closerange(begin, max(begin, os.sysconf("SC_OPEN_MAX")))
