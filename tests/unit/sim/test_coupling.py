"""The coupling of jobs and fabric, with a fabric that follows a script."""

from __future__ import annotations

import pytest
from ideal_fabric import Delivery

from gradwire.scenarios.errors import StallError
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.message import Message


class Scripted:
    """Delivers message n at `times[n]`, stops `stop` after the first delivery of a call, and keeps a diary."""

    stalled = deadlock = ""

    def __init__(self, times, stop):
        self.times, self.stop = times, stop
        self.now = 0
        self.diary = []
        self._open = {}

    @property
    def idle(self):
        return not self._open

    def send(self, at_ps, src, dst, nbytes, **_):
        assert at_ps >= self.now, "a message enters the past"
        number = len(self.diary)
        self.diary.append(at_ps)
        self._open[number] = self.times[number]
        return number

    def run(self, until_ps):
        assert until_ps >= self.now
        due = [time for time in self._open.values() if time < until_ps]
        if due:
            until_ps = min(until_ps, min(due) + self.stop)
        found = [Delivery(number, time, 1, 0) for number, time in self._open.items() if time < until_ps]
        for delivery in found:
            del self._open[delivery.message]
        self.now = until_ps
        return found[::-1]


def message(arrived):
    return Message("j", "flow", 0, 0, 0, 0, 1, 1, 0, 0.0, True, arrived)


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_deliveries_at_one_time_precede_processes_in_message_order(stop):
    """Messages 0, 1, 2 arrive at 99, 100 and 100. Two processes wake at 100; one scheduled its timeout late."""
    fabric = Scripted([99, 100, 100], stop)
    coupling = Coupling(fabric, 5, ["a", "b"])
    log = []

    def sleeper(start, until):
        yield coupling.env.timeout(start)
        yield coupling.env.timeout(until - start)
        log.append(("process", start, coupling.now))

    coupling.env.process(sleeper(1, 100))
    coupling.env.process(sleeper(98, 100))
    for _ in range(3):
        coupling.send(message(lambda each: log.append(("message", each.number, coupling.now))))
    coupling.run(lambda: len(log) == 5)
    assert log == [
        ("message", 0, 99),
        ("message", 1, 100),
        ("message", 2, 100),
        ("process", 1, 100),
        ("process", 98, 100),
    ]


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_reply_enters_network_one_latency_after_delivery(stop):
    """A chain of replies runs beside a process that sends all the time. No message may come early, late or in the
    past."""
    latency, hops = 7, 40
    times = [0] * 400
    fabric = Scripted(times, stop)
    coupling = Coupling(fabric, latency, ["a", "b"])
    seen = []

    def deliver_after(delay, arrived):
        number = len(fabric.diary)
        times[number] = coupling.now + latency + delay
        coupling.send(message(arrived))

    def answer(each):
        seen.append(coupling.now)
        if len(seen) < hops:
            deliver_after(3, answer)

    def busy():
        for _ in range(100):
            yield coupling.env.timeout(2)
            deliver_after(1, lambda each: None)

    coupling.env.process(busy())
    deliver_after(3, answer)
    coupling.run(lambda: len(seen) == hops)
    assert seen == [10 * n for n in range(1, hops + 1)]


def test_coupling_time_limit_is_exclusive():
    fabric = Scripted([50], 1)
    coupling = Coupling(fabric, 5, ["a", "b"])
    log = []
    coupling.send(message(lambda each: log.append(coupling.now)))
    assert not coupling.run(lambda: bool(log), until=50)
    assert coupling.undelivered == 1 and not log
    assert coupling.run(lambda: bool(log), until=51)
    assert coupling.undelivered == 0 and log == [50]


def test_coupling_rejects_zero_latency():
    with pytest.raises(ValueError, match="lookahead"):
        Coupling(Scripted([], 1), 0, [])


def test_network_deadlock_ends_run_with_its_ports_named():
    fabric = Scripted([10**9], 1)
    fabric.deadlock = "flow-control deadlock: a->b waits for b->a waits for a->b"
    coupling = Coupling(fabric, 5, ["a", "b"])

    def sender():
        coupling.send(message(lambda _: None))
        yield coupling.env.timeout(10**12)

    coupling.env.process(sender())
    with pytest.raises(StallError, match="a->b waits for b->a"):
        coupling.run(lambda: False)
