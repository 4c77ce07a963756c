"""LetFlow (NSDI '17 [recalled]) moves a flow to a random next hop after a gap between its packets.

A burst after a gap longer than the difference of the paths' delays cannot overtake the burst before. Long queues cause
gaps, so flows leave congested paths more often. The gap is `switch.flowlet_gap`.

A switch has a table of 1024 entries (next hop, time of the last packet) indexed by a hash of the flow, like hardware;
flows that share an entry share their path.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.counter_rng import choice, draw, mix
from gradwire.jit.records import Word, Words
from gradwire.jit.records.header import StateRecord
from gradwire.jit.records.network import Switch
from gradwire.jit.records.packets import destination_of, entropy_of
from gradwire.protocols.load_balancers.base import Balancer

ENTRIES = 1024


class FlowletEntry(StateRecord):
    """An entry of a switch's table of flowlets."""

    next_hop = Word("1 + index of the next hop, 0 = none yet")
    last_packet_at = Word("time of the last packet", "ps")


@njit
def entry_of(switch: Switch, header: int) -> FlowletEntry:
    """Return the entry of a packet's flow."""
    flow = entropy_of(header) << 16 ^ destination_of(header)
    return FlowletEntry(switch, switch.balancer_table + 2 * (mix(flow) & (ENTRIES - 1)))


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop of the flow's last packet if that is recent, else a random one."""
    entry = entry_of(switch, header)
    hop = entry.next_hop - 1
    if hop < 0 or hop >= hop_count or now - entry.last_packet_at > switch.state.flowlet_gap:
        hop = choice(draw(switch.key, draws), hop_count)
        entry.next_hop = hop + 1
    entry.last_packet_at = now
    return hop


class Flowlet(Balancer):
    """Load balancer `flowlet`."""

    kind = "flowlet"
    select = staticmethod(select)
    table_words = 2 * ENTRIES
