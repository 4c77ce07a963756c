"""Flowlets that take the way with the shortest queue of the switch: CONGA (SIGCOMM '14) without its feedback from far
switches [recalled]."""

from gradwire.components.balancers.base import Balancer
from gradwire.components.balancers.flowlet import ENTRIES, entry_of
from gradwire.components.balancers.least_queue import soonest
from gradwire.components.compiled import njit
from gradwire.components.layout import H_FLOWLET_GAP


@njit
def choose(M, node, ways, n, A, B, count, now):
    """The way of the flow's last packet if that was not long ago, else the one on which a packet leaves soonest."""
    entry = entry_of(M, node, A)
    way = M[entry] - 1
    if way < 0 or way >= n or now - M[entry + 1] > M[H_FLOWLET_GAP]:
        way = soonest(M, node, ways, n, count, now)
        M[entry] = way + 1
    M[entry + 1] = now
    return way


class FlowletLeastQueue(Balancer):
    """Load balancer `flowlet_least_queue`."""

    kind = "flowlet_least_queue"
    choose = staticmethod(choose)
    sees_queues = True
    table_words = 2 * ENTRIES
