"""What the coupling asks of a network: messages sent through it, parts of programs played on it, and its time.

The packet engine (`gradwire.sim.fabric.fabric`) answers all of it; an ideal network, in tests, what it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gradwire.experiment.program import Part
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.sim.fabric.events import Event
from gradwire.sim.fabric.over import Handed, Over
from gradwire.sim.message import Importance

if TYPE_CHECKING:
    from gradwire.sim.fabric.tables import Tables


class FabricLike(Protocol):
    """The part of `gradwire.sim.fabric.fabric.Fabric` that jobs need; tests put an ideal network in its place."""

    @property
    def now(self) -> Ps: ...

    @property
    def idle(self) -> bool: ...

    @property
    def stalled(self) -> str:
        """Why nothing moves any more though messages are under way; empty while something does."""

    @property
    def deadlock(self) -> str:
        """How flow control has stopped part of the network for good; empty while it has not."""

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

    def finish(self) -> Tables: ...


class Track(Protocol):
    """A part of a program that is being played."""

    part: Part

    @property
    def begun(self) -> Ints:
        """int64[processes]: how many steps every process has come to the end of."""

    @property
    def left(self) -> int:
        """Messages of the steps so far that have not been delivered."""

    @property
    def more_to_come(self) -> bool:
        """Whether there are steps that have not been begun."""

    @property
    def finished(self) -> bool:
        """Whether everything has been played: the courses of all processes, and all messages delivered."""

    @property
    def ended_ps(self) -> Ps:
        """When the last thing happened."""

    @property
    def steps(self) -> Sequence[Over]:
        """What is known of every step so far, without those that were handed over."""

    @property
    def handed(self) -> Handed:
        """How much has been."""

    def waiting(self) -> list[tuple[int, int]]:
        """(process, event) of those that wait; events are counted through the part."""

    def slow(self, host: int, factor: float) -> None:
        """From now on computing takes `factor` times as long on a host (a node)."""
