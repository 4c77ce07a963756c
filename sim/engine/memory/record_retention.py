"""Gives Python a compiled function that opens and closes messages, and allocates records and memory, between engine
calls.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.header import State
from gradwire.jit.records.programs import ProgramMessage
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.stretch_allocator import allocate, free
from gradwire.sim.engine.program.flow_setup import host_at, new_record, open_some, write_records
from gradwire.sim.engine.program.flow_teardown import close_some, count_some

OPEN, NEW, WRITE, CLOSE, COUNT, ALLOCATE, FREE = range(7)
"""Operations: OPEN (base of a message's words, how many messages); NEW records (source, destination); WRITE (base of a
message's words, number of records, for a stream); CLOSE (at least so many); COUNT (first message, how many); ALLOCATE
(words); FREE (words, base)."""


@njit("int64(int64, int64, int64, int64)")
def keep(address: int, what: int, first: int, second: int) -> int:
    """Perform one of these operations on the state at a machine address."""
    state = State(words_at(address), 0)
    if what == OPEN:
        open_some(state, ProgramMessage(state, first), second)
    elif what == NEW:
        return new_record(state, host_at(state, first), host_at(state, second))
    elif what == WRITE:
        write_records(state, ProgramMessage(state, first), second, 0)
    elif what == CLOSE:
        return close_some(state, first)
    elif what == COUNT:
        count_some(state, first, second)
    elif what == ALLOCATE:
        return allocate(state, first)
    else:
        free(state, first, second)
    return 0
