"""A host's interface by hand: a loop whose time passes from one timer to the next, and flows that note what they send.

The interface is the compiled one; the rules of its flows are written in Python, and called by their addresses as
compiled ones are. A line of 8 Gbit/s: a byte takes a nanosecond, so a packet of 100 bytes takes 100 ns.
"""

from __future__ import annotations

import ctypes
import socket

from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.nic import DONE, GAP, TIMER, Flow, Nic
from gradwire.emu.agent.shared_words import WordBlock
from gradwire.emu.system.sockets import Sender, socket_address
from gradwire.jit import layout
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
        self.words[at.W_STILL], self.words[at.W_RUNNING] = 1, 1

    @property
    def time(self):
        return self.words[at.W_SEEN]

    @time.setter
    def time(self, value):
        self.words[at.W_SEEN] = value

    def first(self):
        """When the next timer is due."""
        words = self.words
        self.enter(at.DUE)  # what has been given up goes, and what is due
        return min(words[at.W_ARMED] or at.NEVER, words[at.W_PYTHON_TIME])

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


class Fake(Flow):
    """So many packets of 100 bytes; notes when each was asked for and when it was handed over."""

    def __init__(self, log, loop, number, count, priority=0, gap=0, group=None):
        super().__init__(number, priority, group=group)
        self.log, self.loop, self.left = log, loop, count
        self.fired = []
        self._functions = [FUNCTION(self._pull), FUNCTION(self._on_timer)]
        self._table = WordBlock(len(at.RULES))
        for place, function in zip((at.L_PULL, at.L_ON_TIMER), self._functions, strict=True):
            self._table.words[place] = ctypes.cast(function, ctypes.c_void_p).value
        words = self.block.words
        words[GAP], words[at.F_RULES], words[at.F_PACKETS] = gap, self._table.index, 1 << 20
        words[at.F_PAYLOAD], words[at.F_NBYTES] = BYTES - UDP_OVERHEAD, 1 << 30
        words[at.F_FILE], words[at.F_NAME] = NOWHERE.here.fileno(), ctypes.addressof(NOWHERE.name)
        self._content = ctypes.create_string_buffer(1 << 20)
        words[at.F_CONTENT] = ctypes.addressof(self._content)

    timer = property(
        lambda self: self.block.words[TIMER], lambda self, value: self.block.words.__setitem__(TIMER, value)
    )
    done = property(
        lambda self: self.block.words[DONE] != 0, lambda self, value: self.block.words.__setitem__(DONE, value)
    )

    def _pull(self, result, _, origin, parameters, record, now):
        assert record == self.index + at.SENDER_RECORD
        self.left -= 1
        if self.left >= 0:
            self.at = now
            self.log.append((self.number, now // NS, self.loop.now()))
        ctypes.c_int64.from_address(result).value = max(self.left, layout.BLOCKED)
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
