"""Moves a flow after a gap between its packets to the next hop with the switch's shortest queue.

This is CONGA (SIGCOMM '14) without its feedback from remote switches [recalled].
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Words
from gradwire.jit.records.network import Switch
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.load_balancers.flowlet import ENTRIES, entry_of
from gradwire.protocols.load_balancers.least_queue import shortest_wait


@njit
def select(switch: Switch, next_hops: Words, hop_count: int, header: int, body: int, draws: int, now: int) -> int:
    """Return the next hop of the flow's last packet if that is recent, else the one with the shortest wait."""
    entry = entry_of(switch, header)
    hop = entry.next_hop - 1
    if hop < 0 or hop >= hop_count or now - entry.last_packet_at > switch.state.flowlet_gap:
        hop = shortest_wait(switch, next_hops, hop_count, draws, now)
        entry.next_hop = hop + 1
    entry.last_packet_at = now
    return hop


class FlowletLeastQueue(Balancer):
    """Load balancer `flowlet_least_queue`."""

    kind = "flowlet_least_queue"
    select = staticmethod(select)
    sees_queues = True
    table_words = 2 * ENTRIES
