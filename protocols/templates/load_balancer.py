"""This user-defined load balancer sends each packet to the shorter of two random queues.

This file is complete and runs as it is. Change `select` and repeat its test, test_two_random.py.

docs/extending.md of gradwire lists the arguments, the fields of the records, and functions for load balancers whose
sending hosts choose the path. The functions are compiled: they hold no floats and cannot print.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw
from gradwire.jit.records import Words
from gradwire.jit.records.network import Port, Switch
from gradwire.protocols.load_balancers.base import Balancer


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the index of the next hop, below `hop_count`, for a packet with several equally short paths.

    `Port(switch, next_hops[i])` is the egress port to the i-th next hop. `draws` counts the packets that the switch has
    balanced: a random number is `draw(switch.key, n)`, with another n for each. `now` is the time in picoseconds.
    """
    one = choice(draw(switch.key, 2 * draws), hop_count)
    other = choice(draw(switch.key, 2 * draws + 1), hop_count)
    if Port(switch, next_hops[other]).queue < Port(switch, next_hops[one]).queue:
        return other
    return one


class TwoRandom(Balancer):
    """Names the function, and what it needs."""

    per_packet = True  # packets of one message may take different paths
    sees_queues = True  # it reads `queue` or `busy_until` of ports
    table_words = 0  # words of the record that every switch keeps for it, at switch.balancer_table
    select = staticmethod(select)
