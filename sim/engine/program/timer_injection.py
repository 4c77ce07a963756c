"""`post` lets Python set a timer of a host or of a program between calls of the engine."""

from gradwire.jit.compiled import njit
from gradwire.jit.records.header import State
from gradwire.jit.records.network import Host
from gradwire.sim.engine.core.program_steps import set_timer
from gradwire.sim.engine.memory.atomics import words_at
from gradwire.sim.engine.memory.timer_heap import push


@njit("void(int64, int64, int64, int64)")
def post(address: int, node: int, time: int, key: int) -> None:
    """Put an entry on a host's heap, between calls of `run`; without a node (0) set a timer of a program."""
    state = State(words_at(address), 0)
    if node == 0:
        set_timer(state, time, key)
        return
    host = Host(state, node)
    push(host, time, key)
    if time < state.next_events[host.position]:
        state.next_events[host.position] = time
