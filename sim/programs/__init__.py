"""Programs: what jobs and traffic do, written down beforehand as plain data (`gradwire.experiment.program`).

The simulator's jobs (`gradwire.sim.job`, `gradwire.sim.collectives`, `gradwire.experiment.traffic`) act as deliveries
come. A testbed has no common process that could: every host has to know its part. Here is one file for every exchange,
and one for traffic. They ask the same objects for partitions, buckets and messages as the simulator does; what is said
anew is only what follows from what, and tests hold both equal message by message, to the picosecond.

To add one: a file with a function `Job -> None`, and a line in EXCHANGES.
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.sim.programs.builder import Builder, Event, Post
from gradwire.sim.programs.parameter_server import parameter_servers
from gradwire.sim.programs.ring import ring
from gradwire.sim.programs.traffic import add_traffic
from gradwire.sim.programs.workers import Job

EXCHANGES: dict[str, Callable[[Job], None]] = {"parameter_server": parameter_servers, "ring": ring}
"""By the `kind` of the job's exchange."""

__all__ = ["EXCHANGES", "Builder", "Event", "Job", "Post", "add_traffic"]
