"""Routes: for every switch and destination, all egress links on a shortest path.

A path's length is the sum of its cables' costs. A cable costs 1 unless its topology sets another cost, so by default
the shortest paths have the fewest hops. All equal-cost paths are used.

    routes.py    Routing and build_routing
    search.py    costs of the cheapest paths between kinds of switches
    groups.py    the first links of these paths
    blocks.py    the table of groups, in blocks of destinations
"""

from gradwire.topology.routing.blocks import DETAILED, max_entries
from gradwire.topology.routing.routes import Routing, build_routing

__all__ = ["DETAILED", "Routing", "build_routing", "max_entries"]
