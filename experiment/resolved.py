"""A scenario with everything looked up: what both worlds are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradwire.experiment.placement import Places
from gradwire.experiment.program import Program
from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace


class Resolved(NamedTuple):
    """A scenario with everything looked up.

    places : of the workers and servers of every job.
    traces : the distinct ones; `Table.trace` is an index into them.
    program : tables are the jobs of the scenario, then its traffic.
    """

    network: Network
    routing: Routing
    places: list[Places]
    traces: list[Trace]
    program: Program
