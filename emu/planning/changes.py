"""Changes: what faults do to a run of the testbed - which cables lose what, and which hosts stand still or are slow.

Cables change in the switches (`SwitchBackend.set_loss`), hosts in whatever plays them: an agent stands still by itself
(`gradwire.emu.agent.loop`) and computes more slowly (`gradwire.emu.agent.script`), a program of the user's own is
stopped by a signal (`gradwire.emu.programs.player`). Routes stay what they were. `gradwire.emu.planning.faults` makes
them; this is what the inside needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.components.layout import SLOW_UNIT
from gradwire.scenarios.inner_units import Ps

PS_PER_NS = 1000


@dataclass(frozen=True)
class Change:
    """What changes at `time_ns` since the beginning: the ports in `loss` lose packets with these probabilities from
    then on, the hosts `stop` stand still, those at `go` go on, and those in `slow` compute so many times longer."""

    time_ns: int
    loss: tuple[tuple[int, float], ...] = ()
    stop: tuple[int, ...] = ()
    go: tuple[int, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()


def pauses_of(changes: Sequence[Change], node: int) -> list[tuple[int, int]]:
    """When a host stands still: (from, to) in ns."""
    stops = [change.time_ns for change in changes if node in change.stop]
    return list(zip(stops, [change.time_ns for change in changes if node in change.go], strict=True))


def slowness_of(changes: Sequence[Change], node: int) -> list[tuple[Ps, int]]:
    """How slowly a host computes: (from when on, times `SLOW_UNIT`), rising; nothing where it never is slow."""
    found = [
        (Ps(change.time_ns * PS_PER_NS), round(factor * SLOW_UNIT))
        for change in changes
        for host, factor in change.slow
        if host == node
    ]
    return [(Ps(0), SLOW_UNIT), *found] if found else []
