"""A fully resolved scenario, the common input of simulator and emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradwire.topology import Network
from gradwire.topology.placement import HostAssignment
from gradwire.topology.routing import Routing
from gradwire.workload.program import Program

if TYPE_CHECKING:
    from gradwire.traces.trace import Trace


class Resolved(NamedTuple):
    """A fully resolved scenario.

    places : of the workers and servers of every job.
    traces : the distinct ones; `Table.trace` is an index into them.
    program : tables are the jobs of the scenario, then its traffic.
    """

    network: Network
    routing: Routing
    places: list[HostAssignment]
    traces: list[Trace]
    program: Program
