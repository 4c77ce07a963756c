"""A host's interface by hand: a loop whose time passes from one timer to the next, and flows that note what they send.

A line of 8 Gbit/s: a byte takes a nanosecond, so a packet of 100 bytes takes 100 ns.
"""

from __future__ import annotations

from heapq import heappop, heappush

from gradwire.emu.agent.nic import Flow, Nic

RATE = 8_000_000_000
LINE = 1000 << 16
NS = 1000


class FakeTimer:
    def __init__(self, time_ns, call):
        self.time, self.call = time_ns, call


class FakeLoop:
    """Time passes from one timer to the next; `late` : how much later every timer goes off."""

    def __init__(self, late=0):
        self.time, self.late, self._timers, self._set, self._called = 0, late, [], 0, None

    def now(self):
        return self.time

    def scheduled(self):
        return self.time if self._called is None else self._called

    def at(self, time_ns, call):
        self._set += 1
        timer = FakeTimer(time_ns, call)
        heappush(self._timers, (time_ns, self._set, timer))
        return timer

    def cancel(self, timer):
        if timer is not None:
            timer.call = None

    def run(self, until):
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heappop(self._timers)
            if timer.call is not None:
                self.time = max(self.time, when + self.late)
                call, timer.call = timer.call, None
                self._called = when
                call()
                self._called = None
        self.time = max(self.time, until)


class FakeSender:
    def __init__(self):
        self.flushes = 0

    def flush(self):
        self.flushes += 1


class Fake(Flow):
    """So many packets of 100 bytes; notes when each was asked for and when it was handed over."""

    def __init__(self, log, loop, number, count, priority=0, gap=0, group=None):
        super().__init__(number, priority, group=group)
        self.log, self.loop, self.left, self.gap = log, loop, count, gap
        self.fired = []

    def pull(self, now):
        if not self.left:
            return -1
        self.left -= 1
        self.at = now
        return self.left

    def transmit(self, what):
        self.log.append((self.number, self.at // NS, self.loop.now()))
        return 100

    def on_timer(self, now):
        self.fired.append(now // NS)


def bench(late=0, **more):
    loop = FakeLoop(late)
    return loop, Nic(loop, RATE, FakeSender(), **more), []


def start(nic, *flows):
    for flow in flows:
        nic.begin(flow)
    nic.serve()


def slots(log):
    return [(number, slot) for number, slot, _ in log]
