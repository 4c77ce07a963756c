"""Exchanges: how the workers' gradients of one iteration become the parameters of the next.

To add one: a file with a class derived from `Exchange`, and a line in EXCHANGES.
"""

from __future__ import annotations

from sim.collectives.base import ALL_LAYERS, Exchange, Inbox, JobContext
from sim.collectives.parameter_server import ParameterServers
from sim.collectives.ring import Ring

EXCHANGES: dict[str, type[Exchange]] = {
    "parameter_server": ParameterServers,
    "ring": Ring,
}
"""By the `kind` of the job's exchange."""

__all__ = ["ALL_LAYERS", "EXCHANGES", "Exchange", "Inbox", "JobContext", "ParameterServers", "Ring"]
