"""Changes that faults make to a run of the testbed: lossy cables, paused hosts, slow hosts.

Cables change in the switches (`SwitchBackend.set_loss`). Hosts change in their player: an agent pauses itself
(`gradwire.emu.agent.loop`) and slows its computing (`gradwire.emu.agent.script`); a user program is stopped by a signal
(`gradwire.emu.user_programs.player`). Routes never change. `gradwire.emu.planning.faults` makes the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.jit.layout import SLOW_UNIT
from gradwire.scenarios.inner_units import Ps

PS_PER_NS = 1000


@dataclass(frozen=True)
class Change:
    """The changes at `time_ns` since the beginning of the run.

    loss : (port, loss probability from now on).
    stop, go : hosts that pause and that resume.
    slow : (host, factor by which computing takes longer).
    """

    time_ns: int
    loss: tuple[tuple[int, float], ...] = ()
    stop: tuple[int, ...] = ()
    go: tuple[int, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()


def pauses_of(changes: Sequence[Change], node: int) -> list[tuple[int, int]]:
    """Return a host's pauses as (from, to) in ns."""
    stops = [change.time_ns for change in changes if node in change.stop]
    return list(zip(stops, [change.time_ns for change in changes if node in change.go], strict=True))


def slowness_of(changes: Sequence[Change], node: int) -> list[tuple[Ps, int]]:
    """Return a host's compute slowness as (start, factor times `SLOW_UNIT`), ascending; empty if it is never slow."""
    slow_periods = [
        (Ps(change.time_ns * PS_PER_NS), round(factor * SLOW_UNIT))
        for change in changes
        for host, factor in change.slow
        if host == node
    ]
    return [(Ps(0), SLOW_UNIT), *slow_periods] if slow_periods else []
