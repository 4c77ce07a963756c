"""What an agent does while nothing is due."""

from __future__ import annotations

import os
from types import SimpleNamespace

from emu.agent.agent import Agent
from emu.agent.loop import EpollLoop

MS = 1_000_000


def test_work_that_can_wait_is_asked_for_until_there_is_none():
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


def test_what_is_due_soon_goes_first():
    loop, calls = EpollLoop(), []
    loop.idle = lambda: bool(calls.append(1))
    loop.at(loop.now() + 2 * MS, loop.stop)
    loop.run()
    loop.close()
    assert calls == [] and loop.idle is not None


def test_a_message_that_is_asked_for_leaves_room_to_make_another():
    files = os.pipe()
    agent = Agent(*files)
    made = memoryview(b"bytes")
    agent._contents = SimpleNamespace(outgoing=lambda message: made, make_ahead=lambda most: False)
    assert agent.outgoing(1) is made and agent.loop.idle is None  # virtual time: contents cost nothing there
    agent._ahead = agent._make_ahead
    assert agent.outgoing(2) is made and agent.loop.idle == agent._make_ahead
    agent.loop.close()
    for file in files:
        os.close(file)
