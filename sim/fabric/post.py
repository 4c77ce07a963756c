"""What Python puts into a host's heap, or among the timers of programs, between calls of the engine."""

from gradwire.components.compiled import njit
from gradwire.components.layout import H_NEXT, N_POSITION
from gradwire.sim.fabric.atomics import words_at
from gradwire.sim.fabric.core.play import set_timer
from gradwire.sim.fabric.heap import push


@njit("void(int64, int64, int64, int64)")
def post(address, node, time, key):
    """Put an entry on a host's heap from outside, between calls of `run`; without a node (0) a timer of a
    program."""
    M = words_at(address)
    if node == 0:
        set_timer(M, time, key)
        return
    push(M, node, time, key)
    due = M[H_NEXT] + M[node + N_POSITION]
    if time < M[due]:
        M[due] = time
