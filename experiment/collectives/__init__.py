"""Collectives: how the workers of a job exchange their gradients, one file each.

To add one: a file with a subclass of `Exchange`, and a line in EXCHANGES.
"""

from __future__ import annotations

from gradwire.experiment.collectives.base import EVERYTHING, Exchange, Exchanged, JobContext
from gradwire.experiment.collectives.parameter_server import ParameterServers
from gradwire.experiment.collectives.ring import Ring

EXCHANGES: dict[str, type[Exchange]] = {"parameter_server": ParameterServers, "ring": Ring}
"""By the `kind` of the job's exchange."""

__all__ = ["EVERYTHING", "EXCHANGES", "Exchange", "Exchanged", "JobContext", "ParameterServers", "Ring"]
