"""Entry points of the compiled agent for Python."""

from __future__ import annotations

from gradwire.emu.agent.core import datagrams, loop, nic_schedule
from gradwire.emu.agent.core import layout as at
from gradwire.emu.native.calls import words_at
from gradwire.jit.compiled import njit

_run, _due = loop.run, loop.due
_begin, _heard, _serve, _took = nic_schedule.begin, nic_schedule.heard, nic_schedule.serve, nic_schedule.took
_add, _flush, _receive = datagrams.add, datagrams.flush, datagrams.receive


@njit("int64(int64, int64, int64)")
def enter(address, what, argument):
    """Run a command on the words of an agent; return W_BROKEN."""
    A = words_at(address)
    if what == at.RUN:
        _run(A)
    elif what == at.DUE:
        _due(A)
    elif what == at.BEGIN:
        _begin(A, argument)
    elif what == at.HEARD:
        _heard(A, argument)
    elif what == at.SERVE:
        _serve(A)
    elif what == at.TOOK:
        _took(A, argument, 1)
    return A[at.W_BROKEN]


@njit("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def add(address, file, name, tos, first, second, payload, length, fill):
    """Call `gradwire.emu.agent.core.datagrams.add` on the arena at an address."""
    return _add(words_at(address), file, name, tos, first, second, payload, length, fill)


@njit("int64(int64)")
def flush(address):
    """Call `gradwire.emu.agent.core.datagrams.flush` on the arena at an address."""
    return _flush(words_at(address))


@njit("int64(int64, int64)")
def receive(address, file):
    """Call `gradwire.emu.agent.core.datagrams.receive` on the arena at an address."""
    return _receive(words_at(address), file)


FUNCTIONS = {"enter": enter, "add": add, "flush": flush, "receive": receive}
