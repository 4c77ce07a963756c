"""What Python calls: the functions that are compiled, each with everything that it needs."""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.emu.agent.core import datagrams, loop, turns
from gradwire.emu.agent.core.layout import W_BROKEN
from gradwire.emu.native.calls import words_at

RUN, DUE, BEGIN, HEARD, SERVE, TOOK = range(6)
"""What `enter` does: run the loop; call the timers that are due; a flow has something to send, or has news; send what
can be sent; control packets of so many bytes take their time on the line."""

_run, _due = loop.run, loop.due
_begin, _heard, _serve, _took = turns.begin, turns.heard, turns.serve, turns.took
_add, _flush, _receive = datagrams.add, datagrams.flush, datagrams.receive


@njit("int64(int64, int64, int64)")
def enter(address, what, argument):
    """Do something with the words of an agent; W_BROKEN of it."""
    A = words_at(address)
    if what == RUN:
        _run(A)
    elif what == DUE:
        _due(A)
    elif what == BEGIN:
        _begin(A, argument)
    elif what == HEARD:
        _heard(A, argument)
    elif what == SERVE:
        _serve(A)
    elif what == TOOK:
        _took(A, argument, 1)
    return A[W_BROKEN]


@njit("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def add(address, file, name, tos, first, second, payload, length, fill):
    """`gradwire.emu.agent.core.datagrams.add`, of the arena at an address."""
    return _add(words_at(address), file, name, tos, first, second, payload, length, fill)


@njit("int64(int64)")
def flush(address):
    """The same of `flush`."""
    return _flush(words_at(address))


@njit("int64(int64, int64)")
def receive(address, file):
    """The same of `receive`."""
    return _receive(words_at(address), file)


FUNCTIONS = {"enter": enter, "add": add, "flush": flush, "receive": receive}
