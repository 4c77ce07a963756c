"""A host's interface by hand: a loop whose time passes from one timer to the next, and flows that note what they send.

The interface is the compiled one; the rules of its flows are written in Python, and called by their addresses as
compiled ones are. A line of 8 Gbit/s: a byte takes a nanosecond, so a packet of 100 bytes takes 100 ns.
"""

from __future__ import annotations

import ctypes
import socket

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.nic import Nic, ScheduledFlow
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.system.sockets import Sender, socket_address
from gradwire.jit.records.constants import BLOCKED
from gradwire.scenarios.wire import UDP_OVERHEAD

RATE = 8_000_000_000
LINE = 1000 << 16
NS = 1000
BYTES = 100


class FakeLoop(EpollLoop):
    """Time passes from one timer to the next; `late` : how much later every timer goes off."""

    def __init__(self, late=0):
        super().__init__()
        self.late = late
        self.agent.stands_still, self.agent.is_running = 1, 1

    @property
    def time(self):
        return self.agent.reading_ns

    @time.setter
    def time(self, value):
        self.agent.reading_ns = value

    def first(self):
        """When the next timer is due."""
        self.enter(at.FIRE_TIMERS)  # what has been given up goes, and what is due
        return min(self.agent.armed_ns or at.NEVER, self.agent.python_timer_ns)

    def run(self, until):
        while (when := self.first()) <= until:
            self.time = max(self.time, when + self.late)
        self.time = max(self.time, until)


class _Nowhere:
    """A socket that sends to one that nobody reads."""

    def __init__(self):
        self.there, self.here = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.there.bind(("127.0.0.1", 0))
        self.name = ctypes.create_string_buffer(socket_address("127.0.0.1", self.there.getsockname()[1]), 16)


NOWHERE = _Nowhere()
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)


class Fake(ScheduledFlow):
    """So many packets of 100 bytes; notes when each was asked for and when it was handed over."""

    def __init__(self, log, loop, number, count, priority=0, gap=0, group=None):
        super().__init__(number, priority, group=group)
        self.log, self.loop, self.left = log, loop, count
        self.fired = []
        self._functions = [FUNCTION(self._pull), FUNCTION(self._on_timer)]
        self._table = WordBlock(len(at.RULES))
        for place, function in zip((at.PULL, at.ON_TIMER), self._functions, strict=True):
            self._table.words[place] = ctypes.cast(function, ctypes.c_void_p).value
        flow = self.nic_flow
        self.record.gap, flow.rules, flow.packets = gap, self._table.index, 1 << 20
        flow.payload, flow.nbytes = BYTES - UDP_OVERHEAD, 1 << 30
        flow.file, flow.destination = NOWHERE.here.fileno(), ctypes.addressof(NOWHERE.name)
        self._content = ctypes.create_string_buffer(1 << 20)
        flow.content = ctypes.addressof(self._content)

    timer = property(lambda self: self.record.timer, lambda self, value: setattr(self.record, "timer", value))
    done = property(lambda self: self.record.is_done != 0, lambda self, value: setattr(self.record, "is_done", value))

    def _pull(self, result, _, origin, parameters, record, now):
        assert record == self.record_index
        self.left -= 1
        if self.left >= 0:
            self.at = now
            self.log.append((self.number, now // NS, self.loop.now()))
        ctypes.c_int64.from_address(result).value = max(self.left, BLOCKED)
        self.left = max(self.left, 0)
        return 0

    def _on_timer(self, result, _, origin, parameters, record, now):
        self.fired.append(now // NS)
        ctypes.c_int64.from_address(result).value = 0
        return 0


def bench(late=0, **more):
    loop = FakeLoop(late)
    return loop, Nic(loop, RATE, Sender(), **more), []


def start(nic, *flows):
    for flow in flows:
        nic.begin(flow)
    nic.serve()


def slots(log):
    return [(number, slot) for number, slot, _ in log]
