"""What Python asks of the keeping of messages, between two calls of the engine."""

from gradwire.components.compiled import njit
from gradwire.components.layout import H_NODES, NODE_WORDS
from gradwire.sim.fabric.atomics import words_at
from gradwire.sim.fabric.closing import close_some, count_some
from gradwire.sim.fabric.opening import new_record, open_some, write_records
from gradwire.sim.fabric.stretches import allocate, free

OPEN, NEW, WRITE, CLOSE, COUNT, ALLOCATE, FREE = range(7)
"""OPEN (base of a message's words, how many messages); NEW records (source, destination); WRITE (base of a message's
words, number of records, for a stream); CLOSE (at least so many); COUNT (first message, how many); ALLOCATE (words);
FREE (words, base)."""


@njit("int64(int64, int64, int64, int64)")
def keep(address, what, first, second):
    """Do one of these things on the state at a machine address; see there and the functions."""
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
