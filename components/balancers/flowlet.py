"""LetFlow: a flow that was silent for a while goes on along a way drawn at random (NSDI '17 [recalled]).

A burst that comes after a gap longer than the difference of the ways' delays cannot overtake the one before. Long
queues make gaps, so flows leave crowded ways more often: that is all there is to it. The gap is `switch.flowlet_gap`.

A switch has a table of 1024 entries (way, time of the last packet) found by a hash of the flow, as hardware has; flows
that share an entry share their way.
"""

from gradwire.components.balancers.base import Balancer
from gradwire.components.compiled import njit
from gradwire.components.draws import choice, draw, mix
from gradwire.components.layout import A_ENTROPY, H_FLOWLET_GAP, MASK_DESTINATION, N_KEY, N_TABLE

ENTRIES = 1024


@njit
def entry_of(M, node, A):
    """Where a flow's entry is: 1 + its way (0: none yet), and the time of its last packet."""
    flow = ((A >> A_ENTROPY) & 0xFFFF) << 16 ^ (A & MASK_DESTINATION)
    return M[node + N_TABLE] + 2 * (mix(flow) & (ENTRIES - 1))


@njit
def choose(M, node, ways, n, A, B, count, now):
    """The way of the flow's last packet if that was not long ago, else a new one."""
    entry = entry_of(M, node, A)
    way = M[entry] - 1
    if way < 0 or way >= n or now - M[entry + 1] > M[H_FLOWLET_GAP]:
        way = choice(draw(M[node + N_KEY], count), n)
        M[entry] = way + 1
    M[entry + 1] = now
    return way


class Flowlet(Balancer):
    """Load balancer `flowlet`."""

    kind = "flowlet"
    choose = staticmethod(choose)
    table_words = 2 * ENTRIES
