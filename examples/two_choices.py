"""A user-defined load balancer: the shortest queue of two random next hops and the last winner.

This is DRILL(2, 1) of Ghorbani et al., SIGCOMM 2017 [recalled]: two samples are nearly as good as all queues.
"""

from numba import njit

from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.records import Record, Word, Words
from gradwire.jit.records.constants import SPEED_SHIFT
from gradwire.jit.records.network import Port, Switch
from gradwire.protocols.load_balancers.base import Balancer


class Memory(Record):
    """What a switch remembers."""

    last_winner = Word("index of the next hop chosen last")


@njit
def wait(port: Port, now: int) -> int:
    """Return the picoseconds until the port has sent all its packets."""
    return max(port.busy_until - now, 0) + ((port.queue >> 8) * port.ps_per_byte >> SPEED_SHIFT)


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the last winner, unless one of two random next hops has a shorter queue."""
    memory = Memory(switch, switch.balancer_table)
    best = min(memory.last_winner, hop_count - 1)
    least = wait(Port(switch, next_hops[best]), now)
    for i in range(2):
        hop = choice(draw(switch.key, 2 * draws + i), hop_count)
        time = wait(Port(switch, next_hops[hop]), now)
        if time < least:
            best, least = hop, time
    memory.last_winner = best
    return best


class TwoChoices(Balancer):
    select = staticmethod(select)
    sees_queues = True
    table_words = Memory.WORDS
