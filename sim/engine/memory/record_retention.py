"""Management of messages and their records for Python, between two calls of the engine."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import H_NODES, NODE_WORDS
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.stretch_allocator import allocate, free
from gradwire.sim.engine.program.flow_setup import new_record, open_some, write_records
from gradwire.sim.engine.program.flow_teardown import close_some, count_some

OPEN, NEW, WRITE, CLOSE, COUNT, ALLOCATE, FREE = range(7)
"""Operations: OPEN (base of a message's words, how many messages); NEW records (source, destination); WRITE (base of a
message's words, number of records, for a stream); CLOSE (at least so many); COUNT (first message, how many); ALLOCATE
(words); FREE (words, base)."""


@njit("int64(int64, int64, int64, int64)")
def keep(address, what, first, second):
    """Perform one of these operations on the state at a machine address."""
    M = words_at(address)
    if what == OPEN:
        open_some(M, first, second)
    elif what == NEW:
        return new_record(M, M[H_NODES] + first * NODE_WORDS, M[H_NODES] + second * NODE_WORDS)
    elif what == WRITE:
        write_records(M, first, second, 0)
    elif what == CLOSE:
        return close_some(M, first)
    elif what == COUNT:
        count_some(M, first, second)
    elif what == ALLOCATE:
        return allocate(M, first)
    else:
        free(M, first, second)
    return 0
