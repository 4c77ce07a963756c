"""Computes the simulated time without progress after which a run of a scenario counts as stalled.

A packet on a link of 2 kbit/s takes 17 s, and where half of all packets are lost a sender may time out a hundred times
in a row. So the limit follows the scenario: `MIN_STALL_TIMEOUT`, plus a dozen full packets across the slowest path,
plus as many of the longest time-out in a row as one message in a million would need. Idle simulated time costs nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.wire import frame_bytes

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.topology import Network
    from gradwire.topology.routing import Routing

MIN_STALL_TIMEOUT = Ps(10_000_000_000_000)
"""10 s of simulated time, several of the largest retransmission time-outs (our choice)."""

WAITING_PACKETS = 12
"""Full packets that may be queued on the slowest link: an initial window and one more (our choice)."""

FALSE_STALL_PROBABILITY = 1e-6
"""Probability of giving up a message that would have got through (our choice)."""

MAX_TIMEOUTS = 1000

ROUND_TRIPS = 24
"""Longest time-outs that follow the round trip, in unloaded round trips: those of DLCP's Probes."""

TIMEOUT_FIELDS = ("max_rto", "min_rto", "rto", "probe_timeout", "min_timeout", "repeat_after")


def stall_timeout_ps(scenario: Scenario, network: Network, routing: Routing) -> Ps:
    """Return the picoseconds without progress after which a run of the scenario has stalled."""
    hops = 2 * (2 + routing.longest_path)  # there and back
    rates = [int(network.link_rate.min()), *(getattr(fault, "rate", math.inf) for fault in scenario.fault)]
    losses = [float(network.link_loss.max()), *(getattr(fault, "loss", 0.0) for fault in scenario.fault)]
    frame = max(frame_bytes(transport.payload, transport.overhead) for transport in scenario.transports)
    round_trip = hops * (frame * 8 * 10**12 // int(min(rates)) + int(network.link_latency.max()))
    arrives = (1 - max(losses)) ** hops
    tries = (
        1 if arrives == 1 else min(MAX_TIMEOUTS, math.ceil(math.log(FALSE_STALL_PROBABILITY) / math.log1p(-arrives)))
    )
    timeouts = [
        int(getattr(transport, field, None) or 0) for transport in scenario.transports for field in TIMEOUT_FIELDS
    ]
    return Ps(MIN_STALL_TIMEOUT + WAITING_PACKETS * round_trip + tries * max(ROUND_TRIPS * round_trip, *timeouts))
