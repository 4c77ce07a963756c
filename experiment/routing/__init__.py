"""Routes: for every switch and destination, all egress links that lie on a shortest path.

Shortest means: the smallest sum of the cables' costs.  A cable costs 1 unless its topology says otherwise, and
then it means the fewest hops.  Ties are all kept.

    routes.py    Routing: what is known of them; build_routing
    wiring.py    the links between switches, and which switches are joined alike
    search.py    what the cheapest paths cost
    groups.py    the links at a switch that begin them
    blocks.py    the table of groups, in blocks of destinations
"""

from gradwire.experiment.routing.blocks import DETAILED, most_words
from gradwire.experiment.routing.routes import Routing, build_routing

__all__ = ["DETAILED", "Routing", "build_routing", "most_words"]
