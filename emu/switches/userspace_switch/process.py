"""Runs the userspace switch's process, its compiled loop and its answers to the parent's requests for counts, drops and
captures.

The parent sends requests over a connection, the name of a method of `SwitchProcess` with its arguments, and receives an
answer to each. The process ends when that connection is closed.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from gradwire.emu.native import code_cache
from gradwire.emu.native.calls import SHARE_NS
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.userspace_switch import compiled_switch
from gradwire.emu.switches.userspace_switch.layout import PortRow, Words
from gradwire.emu.system.processes import new_timer

if TYPE_CHECKING:
    from gradwire.emu.switches.userspace_switch.captures import SwitchCaptureFiles

NEVER = 1 << 62
EARLY_PS = 100_000_000
"""Maximum time by which packets are delivered early on the wall clock; our choice. Waking up for every single one is
the most expensive operation here, and the delay of hosts' answers compensates for it."""


@dataclass
class Lateness:
    """Distribution of the lateness of deliveries; `buckets[i]`: below 2**i nanoseconds and not below half of that."""

    buckets: list[int] = field(default_factory=lambda: [0] * 64)
    worst_ns: int = 0
    refused: int = 0
    """packets that the kernel did not accept"""
    answers: int = 0
    """observed acknowledgements (`gradwire.emu.switches.userspace_switch.answer_delay`)"""
    answered_late_ns: int = 0
    """total delay after the due times of their packets"""

    @property
    def answered_ns(self) -> float:
        """Return the mean delay of an answer."""
        return self.answered_late_ns / max(self.answers, 1)

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def count_later_than(self, time_ns: int) -> int:
        """Return the number of deliveries that were certainly later than `time_ns`."""
        return sum(bucket_count for i, bucket_count in enumerate(self.buckets) if i and 1 << (i - 1) >= time_ns)


def run_process(plan: TestbedPlan, devices: Sequence[int], control: Connection) -> int:
    """Run the network in the forked process until the parent closes its end of `control`; return the exit status.
    `devices[host]`: the TUN of every host."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the connection
        _close_others({0, 1, 2, control.fileno(), *devices})
        code_cache.use(plan.options.get("compiled"))
        if plan.clock == "wall":
            _raise_priority()
        gc.disable()
        SwitchProcess(plan, devices, control).run()
    except BaseException as error:
        with suppress(OSError):
            control.send(RuntimeError(f"{type(error).__name__}: {error}"))
        raise
    return 0


def early_ps(plan: TestbedPlan) -> int:
    """Return how early packets may be delivered on the wall clock, together with others. A packet never arrives before
    its last bit has left its switch."""
    latency = min(port.latency_ps for port in plan.ports if port.dst < plan.host_count)
    return min(latency, EARLY_PS)


class SwitchProcess:
    """The network in its process, and the answers to the parent's requests."""

    def __init__(self, plan: TestbedPlan, devices: Sequence[int], control: Connection) -> None:
        from gradwire.emu.switches.userspace_switch import loop
        from gradwire.emu.switches.userspace_switch.fabric import Fabric

        self.loop = loop
        self.fabric = Fabric(plan)
        self.control = control
        self.epoll, timer = select.epoll(), new_timer()
        for file in (*devices, control.fileno()):
            self.epoll.register(file, select.EPOLLIN)
        self.epoll.register(timer, select.EPOLLIN | select.EPOLLET)
        self.files = loop.Files(self.fabric.state, self.epoll.fileno(), timer, control.fileno(), devices)
        network = self.fabric.state.network
        network.origin_ns = time.monotonic_ns()
        network.stands_still = plan.clock == "virtual"
        if plan.clock == "wall":
            network.early = early_ps(plan)
            if os.sched_getscheduler(0) == os.SCHED_FIFO:
                network.slice_ns = SHARE_NS
        self.taps: SwitchCaptureFiles | None = None
        self.not_captured: tuple[int | None, str | None] | None = None
        self.going = True

    def run(self) -> None:
        loop, serve = self.loop, compiled_switch.core()["serve"]
        while self.going:
            reason = serve(self.fabric.state.address)
            if reason == loop.ASKED:
                self.reply()
            elif reason == loop.FULL:
                self.make_room()
            elif reason == loop.FAILED:
                number = self.fabric.state.network.error
                raise OSError(number, os.strerror(number))

    def make_room(self) -> None:
        try:
            drained = self.taps is not None and self.taps.drain()
        except OSError as error:  # reported when captures end
            from gradwire.emu.switches.userspace_switch.captures import stop_recording

            self.not_captured, self.taps, drained = (error.errno, error.strerror), None, True
            stop_recording(self.fabric)
        if not drained:
            self.fabric.grow()

    def capture(self, paths: dict[int, str]) -> tuple[int | None, str | None] | None:
        """Begin captures of nodes in new files, or end them if `paths` is empty. Returns None, or (number, text) of an
        error."""
        from gradwire.emu.switches.userspace_switch.captures import SwitchCaptureFiles

        try:
            if paths and self.taps is not None:
                return errno.EBUSY, "packets are captured already"
            if paths:
                self.taps = SwitchCaptureFiles(self.fabric, paths)
            elif self.taps is not None:
                taps, self.taps = self.taps, None
                taps.close()
        except OSError as error:
            return error.errno, error.strerror
        return self.not_captured

    def watch(self, from_ns: int) -> None:
        """Restart counting of lateness and peak queues for packets due from a monotonic time on; 0: stop counting."""
        state = self.fabric.state
        network = state.network
        network.watched_from = (from_ns - network.origin_ns) * 1000 if from_ns else NEVER
        if from_ns:
            network.worst_ns = network.answers = network.answered_late_ns = 0
            state.ports[:, PortRow.peak.offset] = 0
            state.lateness[:] = 0
            state.observed[:] = 0

    def counts(self) -> tuple[Words, Words]:
        return self.fabric.counters()

    def drops(self, begin: int) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the time of the machine's clock at time 0, and the lost packets from the `begin`-th on."""
        return self.fabric.state.network.origin_ns, [tuple(lost) for lost in self.fabric.drops(begin)]

    def set_loss(self, port: int, odds: int) -> None:
        """Set the loss probability of a port's cable, times 2**32."""
        PortRow(self.fabric.state.ports[port], 0).loss_odds = odds

    def lateness(self) -> Lateness:
        state, network = self.fabric.state, self.fabric.state.network
        figures = network.worst_ns, network.refused, network.answers, network.answered_late_ns
        return Lateness(state.lateness.tolist(), *figures)

    def reply(self) -> None:
        try:
            name, *arguments = self.control.recv()
        except (EOFError, OSError):
            self.going = False
            return
        answer = getattr(self, name)(*arguments)
        with suppress(OSError):  # the parent has ended; the next read detects it
            self.control.send(answer)


def _raise_priority() -> None:
    """Run this process before all others except agents, if allowed; otherwise lateness will show it.

    With a priority above that of agents it would move them between cores with every packet they send: on two cores at
    100 Mbit/s, timers were then 12 to 22 ms late in half of the runs.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def _close_others(kept_files: set[int]) -> None:
    """Close files of the parent's other children, which would hide the end of the parent from them."""
    begin = 3
    for file in sorted(kept_files):
        if file >= begin:
            os.closerange(begin, file)
            begin = file + 1
    os.closerange(begin, max(begin, os.sysconf("SC_OPEN_MAX")))
