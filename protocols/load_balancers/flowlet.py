"""LetFlow: a flow that was silent for a while continues on a random path (NSDI '17 [recalled]).

A burst after a gap longer than the difference of the paths' delays cannot overtake the burst before. Long queues cause
gaps, so flows leave congested paths more often. The gap is `switch.flowlet_gap`.

A switch has a table of 1024 entries (next hop, time of the last packet) indexed by a hash of the flow, like hardware;
flows that share an entry share their path.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw, mix
from gradwire.jit.layout import A_ENTROPY, H_FLOWLET_GAP, MASK_DESTINATION, N_KEY, N_TABLE
from gradwire.protocols.load_balancers.base import Balancer

ENTRIES = 1024


@njit
def entry_of(M, node, A):
    """Return the base of a flow's entry: 1 + its next hop (0: none yet), and the time of its last packet."""
    flow = ((A >> A_ENTROPY) & 0xFFFF) << 16 ^ (A & MASK_DESTINATION)
    return M[node + N_TABLE] + 2 * (mix(flow) & (ENTRIES - 1))


@njit
def choose(M, node, ways, n, A, B, count, now):
    """Return the next hop of the flow's last packet if that is recent, else a random one."""
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
