"""Exchanges: how the workers' gradients of one iteration become the parameters of the next.

To add one: a file with a class derived from `Exchange`, and a line in EXCHANGES. One that is known beforehand but for
its times can run as a program inside the fabric too: a line in COMPILED.
"""

from __future__ import annotations

from gradwire.sim.collectives.base import ALL_LAYERS, Exchange, Inbox, JobContext
from gradwire.sim.collectives.parameter_server import ParameterServers
from gradwire.sim.collectives.ring import Ring
from gradwire.sim.collectives.ring_program import RingProgram

EXCHANGES: dict[str, type[Exchange]] = {
    "parameter_server": ParameterServers,
    "ring": Ring,
}
"""By the `kind` of the job's exchange."""

COMPILED: dict[str, type[Exchange]] = {"ring": RingProgram}
"""The same exchanges, as programs that the fabric runs by itself."""


def make_exchange(kind: str, context: JobContext) -> Exchange:
    """The exchange of a job, compiled where that is possible."""
    if context.coupling is not None and kind in COMPILED:
        return COMPILED[kind](context)
    return EXCHANGES[kind](context)


__all__ = [
    "ALL_LAYERS", "COMPILED", "EXCHANGES", "Exchange", "Inbox", "JobContext", "ParameterServers", "Ring",
    "RingProgram", "make_exchange",
]  # fmt: skip
