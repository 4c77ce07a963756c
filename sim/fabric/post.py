"""What Python puts into a host's heap, between calls of the engine."""

from gradwire.sim.fabric.atomics import words_at
from gradwire.sim.fabric.compiled import njit
from gradwire.sim.fabric.heap import push
from gradwire.sim.fabric.layout import H_NEXT, N_POSITION


@njit("void(int64, int64, int64, int64)")
def post(address, node, time, key):
    """Put an entry on a host's heap from outside, between calls of `advance`."""
    M = words_at(address)
    push(M, node, time, key)
    due = M[H_NEXT] + M[node + N_POSITION]
    if time < M[due]:
        M[due] = time
