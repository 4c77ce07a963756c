"""Injection of entries into a host's heap, or of timers of programs, between calls of the engine."""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import H_NEXT, N_POSITION
from gradwire.sim.engine.core.program_steps import set_timer
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.timer_heap import push


@njit("void(int64, int64, int64, int64)")
def post(address, node, time, key):
    """Put an entry on a host's heap, between calls of `run`; without a node (0) set a timer of a program."""
    M = words_at(address)
    if node == 0:
        set_timer(M, time, key)
        return
    push(M, node, time, key)
    due = M[H_NEXT] + M[node + N_POSITION]
    if time < M[due]:
        M[due] = time
