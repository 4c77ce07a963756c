"""Defines the compiled functions by which Python enters the agent's compiled loop, timers, NIC schedule and datagram
calls.
"""

from __future__ import annotations

from gradwire.emu.agent.core import datagrams
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.core.layout import Agent, IncomingDatagrams, NicFlow, OutgoingDatagrams
from gradwire.emu.agent.core.loop import fire_timers, run
from gradwire.emu.agent.core.nic_schedule import begin, occupy, serve, update
from gradwire.emu.native.calls import words_at
from gradwire.jit.compiled import njit

_add, _flush, _receive = datagrams.add, datagrams.flush, datagrams.receive


@njit("int64(int64, int64, int64)")
def enter(address: int, command: int, argument: int) -> int:
    """Run a command on the words of an agent; return its `failure`. `argument`: the index of a flow, or bytes."""
    origin = Agent(words_at(address), 0).origin
    agent = Agent(words_at(origin), address >> 3)  # a record of the memory that begins at `origin`
    if command == at.RUN:
        run(agent)
    elif command == at.FIRE_TIMERS:
        fire_timers(agent)
    elif command == at.BEGIN:
        begin(agent, NicFlow(agent, argument))
    elif command == at.UPDATE:
        update(agent, NicFlow(agent, argument))
    elif command == at.SERVE:
        serve(agent)
    elif command == at.OCCUPY:
        occupy(agent, argument, 1)
    return agent.failure


@njit("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def add(
    address: int, file: int, name: int, tos: int, first: int, second: int, payload: int, length: int, fill: int
) -> int:
    """Call `gradwire.emu.agent.core.datagrams.add` on the batch at an address."""
    return _add(OutgoingDatagrams(words_at(address), 0), file, name, tos, first, second, payload, length, fill)


@njit("int64(int64)")
def flush(address: int) -> int:
    """Call `gradwire.emu.agent.core.datagrams.flush` on the batch at an address."""
    return _flush(OutgoingDatagrams(words_at(address), 0))


@njit("int64(int64, int64)")
def receive(address: int, file: int) -> int:
    """Call `gradwire.emu.agent.core.datagrams.receive` on the batch at an address."""
    return _receive(IncomingDatagrams(words_at(address), 0), file)


FUNCTIONS = {"enter": enter, "add": add, "flush": flush, "receive": receive}
