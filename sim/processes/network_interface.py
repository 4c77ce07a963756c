"""Protocols declare the methods of a network (`FabricLike`) and of a played program part (`Track`) that the coupling
needs.

The packet engine (`gradwire.sim.engine.fabric`) implements all of it, an ideal network for tests a subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.sim.engine.events import Event
from gradwire.sim.engine.program.completed_step import CompletedStep, HandedOver
from gradwire.sim.processes.message import Importance
from gradwire.workload.program import ProgramPart

if TYPE_CHECKING:
    from gradwire.sim.engine.tables import FabricTables


class FabricLike(Protocol):
    """The part of `gradwire.sim.engine.fabric.Fabric` that jobs need; tests may pass an ideal network."""

    @property
    def now(self) -> Ps: ...

    @property
    def idle(self) -> bool: ...

    @property
    def stalled(self) -> str:
        """Reason why nothing moves although messages are under way; empty otherwise."""

    @property
    def deadlock(self) -> str:
        """Description of a flow-control deadlock; empty if there is none."""

    def send(
        self,
        at_ps: Ps,
        src: int,
        dst: int,
        nbytes: Bytes,
        *,
        transport: int = 0,
        priority: int = 0,
        bound: float = 0.0,
        important: Importance = None,
        settled: bool = False,
        logged: bool = True,
        share: float | None = None,
        pool: int = 0,
        turn: int | None = None,
        since: Ps = Ps(0),
    ) -> int: ...

    def run(self, until_ps: Ps) -> Sequence[Event]: ...

    def finish(self) -> FabricTables: ...


class Track(Protocol):
    """A part of a program that is being played."""

    part: ProgramPart

    @property
    def begun(self) -> Ints:
        """int64[processes]: steps that every process has completed."""

    @property
    def undelivered(self) -> int:
        """Undelivered messages of the steps so far."""

    @property
    def has_more_steps(self) -> bool:
        """True if there are steps that have not been begun."""

    @property
    def finished(self) -> bool:
        """True if all processes have ended and all messages are delivered."""

    @property
    def ended_ps(self) -> Ps:
        """Time of the last event."""

    @property
    def steps(self) -> Sequence[CompletedStep]:
        """The steps so far, without those that were handed over."""

    @property
    def handed(self) -> HandedOver:
        """Totals of the steps that were handed over."""

    def waiting(self) -> list[tuple[int, int]]:
        """Return (process, event) for each waiting process; events are numbered through the part."""

    def slow_host(self, host: int, factor: float) -> None:
        """Let computing take `factor` times as long on a host (a node) from now on."""
