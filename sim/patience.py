"""How long a network may be silent before a run is taken to have stalled: as long as its slowest part may take.

A packet on a link of 2 kbit/s takes 17 s, and where half of all packets are lost a sender may time out a hundred times
in a row. So the limit follows the scenario: `LEAST_PS`, and a dozen full packets across the slowest path, and as many
of the longest time-out in a row as would be needed once in a million messages. Simulated time in which nothing happens
costs nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.wire import frame_bytes

if TYPE_CHECKING:
    from gradwire.experiment.routing import Routing
    from gradwire.experiment.topology import Network
    from gradwire.scenarios.schema.scenario import Scenario

LEAST_PS = Ps(10_000_000_000_000)
"""10 s of simulated time, several of the largest retransmission time-outs (our choice)."""

WAITING_PACKETS = 12
"""Full packets that may be ahead of one on its slowest link: an initial window, and one (our choice)."""

RARE = 1e-6
"""How often a message may be given up although it would have got through (our choice)."""

MOST_TRIES = 1000

ROUND_TRIPS = 24
"""Longest time-outs that follow the round trip, in unloaded ones: those of DLCP's Probes."""

TIMEOUTS = ("max_rto", "min_rto", "rto", "probe_timeout", "min_timeout", "repeat_after")


def patience_ps(scenario: Scenario, network: Network, routing: Routing) -> Ps:
    """Picoseconds without news anywhere after which a run of the scenario has stalled."""
    hops = 2 * (2 + routing.farthest)  # there and back
    rates = [int(network.link_rate.min()), *(getattr(fault, "rate", math.inf) for fault in scenario.fault)]
    losses = [float(network.link_loss.max()), *(getattr(fault, "loss", 0.0) for fault in scenario.fault)]
    frame = max(frame_bytes(each.payload, each.overhead) for each in scenario.transports)
    round_trip = hops * (frame * 8 * 10**12 // int(min(rates)) + int(network.link_latency.max()))
    arrives = (1 - max(losses)) ** hops
    tries = 1 if arrives == 1 else min(MOST_TRIES, math.ceil(math.log(RARE) / math.log1p(-arrives)))
    timeouts = [int(getattr(each, field, None) or 0) for each in scenario.transports for field in TIMEOUTS]
    return Ps(LEAST_PS + WAITING_PACKETS * round_trip + tries * max(ROUND_TRIPS * round_trip, *timeouts))
