"""What an agent does while nothing is due."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from gradwire.emu.agent.agent import Agent
from gradwire.emu.agent.loop import EpollLoop

MS = 1_000_000


def test_idle_callback_runs_until_it_returns_false():
    loop, calls, seen = EpollLoop(), [], []

    def idle() -> bool:
        calls.append(loop.now())
        return len(calls) < 3

    loop.idle = idle
    begin = loop.now()
    for after in (20, 40, 60):
        loop.at(begin + after * MS, lambda: seen.append(len(calls)))
    loop.at(begin + 80 * MS, loop.stop)
    loop.run()
    loop.close()
    assert seen == [3, 3, 3] and loop.idle is None


def test_idle_callback_is_postponed_if_a_timer_is_due_soon():
    loop, calls = EpollLoop(), []
    loop.idle = lambda: bool(calls.append(1))
    loop.at(loop.now() + 2 * MS, loop.stop)
    loop.run()
    loop.close()
    assert calls == [] and loop.idle is not None


def test_sending_a_message_schedules_preparation_of_the_next():
    files = os.pipe()
    agent = Agent(*files)
    made = memoryview(b"bytes")
    agent._contents = SimpleNamespace(outgoing=lambda message: made, prepare_next=lambda most: False)
    assert agent.outgoing(1) is made and agent.loop.idle is None  # virtual time: contents cost nothing there
    agent._ahead = lambda: False
    assert agent.outgoing(2) is made and agent.loop.idle is agent._ahead
    agent.loop.close()
    for file in files:
        os.close(file)


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_contents_are_prepared_ahead_only_on_the_wall_clock(clock):
    files = os.pipe()
    agent, left = Agent(*files), [1, 1, 1]
    agent.clock = clock
    agent._contents = SimpleNamespace(prepare_next=lambda most: bool(left and left.pop()))
    agent._do_open()
    assert (agent._ahead is None) == (clock == "virtual")
    assert left == ([] if clock == "wall" else [1, 1, 1])
    agent.loop.close()
    for file in files:
        os.close(file)


def test_carriers_begin_on_the_clock_of_the_run():
    files = os.pipe()
    agent, heard = Agent(*files), []
    carriers = [SimpleNamespace(begin=lambda: heard.append(agent.loop.now())) for _ in range(2)]
    agent._carriers = dict(enumerate(carriers))
    agent._script = SimpleNamespace(start=lambda: heard.append("start"))
    agent.loop.at(agent.loop.now() + MS, lambda: time.sleep(0.02))
    agent.loop.at(agent.loop.now() + 2 * MS, agent.loop.stop)
    agent.loop.run()
    assert agent.loop.punctuality()["max_ns"] >= 15 * MS
    agent._do_go(time.monotonic_ns() + 500 * MS)
    assert [type(each) for each in heard] == [int, int, str] and max(heard[:2]) <= -400 * MS
    assert agent.loop.punctuality()["timers"] == 0, "what was late before does not count"
    agent.loop.close()
    for file in files:
        os.close(file)


def test_agent_collects_garbage_before_reporting_ready(monkeypatch):
    files, done = os.pipe(), []
    agent = Agent(*files)
    for name in ("collect", "freeze", "disable"):
        monkeypatch.setattr(f"gradwire.emu.agent.agent.gc.{name}", lambda name=name: done.append(name))
    monkeypatch.setattr(agent, "_reply", lambda *words: done.append(*words))
    ready = []
    agent._carriers = {0: SimpleNamespace(connected=lambda: bool(ready))}
    agent._check_connected()
    assert done == []
    ready.append(1)
    agent._check_connected()
    assert done == ["collect", "freeze", "disable", "connected"]
    agent.loop.close()
    for file in files:
        os.close(file)


def test_event_loop_uses_no_cpu_time_while_waiting():
    """Timers are also set by other timers."""
    loop, gone = EpollLoop(), []
    begin, used = loop.now(), time.process_time()

    def first() -> None:
        gone.append(loop.now() - begin)
        loop.at(begin + 150 * MS, lambda: gone.append(loop.now() - begin))
        loop.at(begin + 300 * MS, loop.stop)

    loop.at(begin + 10 * MS, first)
    loop.run()
    loop.close()
    assert 10 * MS <= gone[0] and 150 * MS <= gone[1]
    assert time.process_time() - used < 0.1


def test_uncounted_timers_do_not_affect_punctuality():
    loop, begin = EpollLoop(), time.monotonic_ns()
    loop.agent.begin_ns = begin
    late = []
    loop.at(5 * MS, lambda: time.sleep(0.5))
    loop.at(6 * MS, lambda: late.append(time.monotonic_ns() - begin - 6 * MS), counts=False)
    loop.at(1000 * MS, loop.stop)
    loop.run()
    loop.close()
    assert loop.punctuality()["timers"] == 2 and loop.punctuality()["max_ns"] < min(late)
