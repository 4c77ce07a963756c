"""Flowlets that take the next hop with the shortest queue of the switch.

This is CONGA (SIGCOMM '14) without its feedback from remote switches [recalled].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.layout import H_FLOWLET_GAP
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.flowlet import ENTRIES, entry_of
from gradwire.protocols.load_balancers.least_queue import shortest_wait


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Return the next hop of the flow's last packet if that is recent, else the one with the shortest wait."""
    entry = entry_of(M, node, A)
    way = M[entry] - 1
    if way < 0 or way >= n or now - M[entry + 1] > M[H_FLOWLET_GAP]:
        way = shortest_wait(M, node, ways, n, count, now)
        M[entry] = way + 1
    M[entry + 1] = now
    return way


class FlowletLeastQueue(Balancer):
    """Load balancer `flowlet_least_queue`."""

    kind = "flowlet_least_queue"
    choose = staticmethod(choose)
    sees_queues = True
    table_words = 2 * ENTRIES
