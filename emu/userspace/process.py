"""The process that is the network: reads what hosts send, asks the fabric, writes what has arrived.

All of that is `gradwire.emu.userspace.loop`; here is what is around it.

The parent asks by single letters over a socket (`QUESTIONS`) and gets a length and a pickled answer each. The process
ends when that socket does.
"""

from __future__ import annotations

import ctypes
import errno
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
from typing import TYPE_CHECKING

from gradwire.emu.native import kept
from gradwire.emu.planning.plan import Plan
from gradwire.emu.system.turns import SHARE_NS
from gradwire.emu.userspace import layout as at
from gradwire.emu.userspace import machine
from gradwire.emu.userspace.clock import new_timer

if TYPE_CHECKING:
    from gradwire.emu.userspace.taps import Taps

COUNTS, DROPS, STATE, CAPTURE, WATCH, LOSS = b"c", b"d", b"s", b"p", b"w", b"l"
LENGTH = struct.Struct("<Q")
CHANGE = struct.Struct("<QQ")
"""Number of a port, and in how many of 2**32 cases its cable loses a packet from now on."""
_DEATH_SIGNAL = 1
NEVER = 1 << 62
EARLY_PS = 100_000_000
"""At most so early are packets handed over on the wall clock; our choice. Waking up for every single one takes more
time than anything else here, and what hosts take to answer makes up for it."""


@dataclass
class Lateness:
    """How late deliveries were. `buckets[i]`: below 2**i nanoseconds, and not below half of that."""

    buckets: list[int] = field(default_factory=lambda: [0] * 64)
    worst_ns: int = 0
    refused: int = 0
    """packets that the kernel did not take"""
    answers: int = 0
    """acknowledgements that were waited for (`gradwire.emu.userspace.answers`)"""
    answered_late_ns: int = 0
    """by how much they came after their packets were due, together"""

    @property
    def answered_ns(self) -> float:
        """By how much an answer was late on average."""
        return self.answered_late_ns / max(self.answers, 1)

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
        kept.use(plan.options.get("compiled"))
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


def early_ps(plan: Plan) -> int:
    """How long before a packet is due at its host it may be handed over on the wall clock, with others that are: not
    before the last bit has left its switch."""
    latency = min(port.latency_ps for port in plan.ports if port.dst < plan.host_count)
    return min(latency, EARLY_PS)


class _Switch:
    def __init__(self, plan: Plan, devices: Sequence[int], control: socket.socket) -> None:
        from gradwire.emu.userspace import loop
        from gradwire.emu.userspace.fabric import Fabric

        self.loop = loop
        self.fabric = Fabric(plan)
        self.control = control
        self.epoll, timer = select.epoll(), new_timer()
        for file in (*devices, control.fileno()):
            self.epoll.register(file, select.EPOLLIN)
        self.epoll.register(timer, select.EPOLLIN | select.EPOLLET)
        self.files = loop.Files(self.fabric.state, self.epoll.fileno(), timer, control.fileno(), devices)
        words = self.fabric.state.words
        words[at.W_ORIGIN_NS] = time.monotonic_ns()
        words[at.W_STILL] = plan.clock == "virtual"
        if plan.clock == "wall":
            words[at.W_EARLY] = early_ps(plan)
            if os.sched_getscheduler(0) == os.SCHED_FIFO:
                words[at.W_SHARE_NS] = SHARE_NS
        self.taps: Taps | None = None
        self.not_captured: tuple[int | None, str | None] | None = None
        self.going = True

    def run(self) -> None:
        """Until the parent is gone."""
        loop, serve = self.loop, machine.core()["serve"]
        while self.going:
            why = serve(self.fabric.state.address)
            if why == loop.ASKED:
                self.reply()
            elif why == loop.FULL:
                self.make_room()
            elif why == loop.FAILED:
                number = int(self.fabric.state.words[at.W_ERRNO])
                raise OSError(number, os.strerror(number))

    def make_room(self) -> None:
        """For packets, or for captures."""
        try:
            drained = self.taps is not None and self.taps.drain()
        except OSError as error:  # said when captures end
            from gradwire.emu.userspace.taps import untap

            self.not_captured, self.taps, drained = (error.errno, error.strerror), None, True
            untap(self.fabric)
        if not drained:
            self.fabric.grow()

    def capture(self, paths: dict[int, str]) -> tuple[int | None, str | None] | None:
        """Begin captures at some nodes, into new files; without any, end those that there are. None, or (number, text)
        of the error."""
        from gradwire.emu.userspace.taps import Taps

        try:
            if paths and self.taps is not None:
                return errno.EBUSY, "packets are captured already"
            if paths:
                self.taps = Taps(self.fabric, paths)
            elif self.taps is not None:
                taps, self.taps = self.taps, None
                taps.close()
        except OSError as error:
            return error.errno, error.strerror
        return self.not_captured

    def watch(self, from_ns: int) -> None:
        """Count how late deliveries and answers are, anew, of packets that are due from a time of the monotonic clock
        on, and how long queues get; 0: of none any more."""
        state = self.fabric.state
        words = state.words
        words[at.W_WATCHED] = (from_ns - int(words[at.W_ORIGIN_NS])) * 1000 if from_ns else NEVER
        if from_ns:
            words[[at.W_WORST_NS, at.W_ANSWERS, at.W_ANSWERED_LATE_NS]] = 0
            state.ports[:, at.P_PEAK] = 0
            state.late[:] = 0
            state.asked[:] = 0

    def reply(self) -> None:
        """Answer the parent."""
        question = self.control.recv(1)
        words = self.fabric.state.words
        if not question:
            self.going = False
        elif question == COUNTS:
            _answer(self.control, self.fabric.counters().tobytes())
        elif question == DROPS:
            begin = LENGTH.unpack(self.control.recv(LENGTH.size, socket.MSG_WAITALL))[0]
            fresh = [tuple(lost) for lost in self.fabric.drops(begin)]
            _answer(self.control, (int(words[at.W_ORIGIN_NS]), fresh))
        elif question == CAPTURE:
            length = LENGTH.unpack(self.control.recv(LENGTH.size, socket.MSG_WAITALL))[0]
            _answer(self.control, self.capture(pickle.loads(self.control.recv(length, socket.MSG_WAITALL))))
        elif question == WATCH:
            self.watch(LENGTH.unpack(self.control.recv(LENGTH.size, socket.MSG_WAITALL))[0])
            _answer(self.control, None)
        elif question == LOSS:
            port, odds = CHANGE.unpack(self.control.recv(CHANGE.size, socket.MSG_WAITALL))
            self.fabric.state.ports[port, at.P_ODDS] = odds
            _answer(self.control, None)
        elif question == STATE:
            figures = (at.W_WORST_NS, at.W_REFUSED, at.W_ANSWERS, at.W_ANSWERED_LATE_NS)
            _answer(
                self.control,
                Lateness(self.fabric.state.late.tolist(), *(int(words[each]) for each in figures)),
            )


def _go_first() -> None:
    """Run before everything else on this machine, as a network does, but for the agents; where that is not allowed,
    lateness shows it. Above the agents it would push them from core to core with every packet that they send: measured
    on two cores at 100 Mbit/s, timers then were 12 to 22 ms late in half of the runs."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def _answer(control: socket.socket, answer: object) -> None:
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
