"""The network of a plan as Python sees it: the compiled rules with their state, and what they have counted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import PortCounts
from gradwire.emu.userspace.layout import (
    C_PACKETS,
    CAUSES,
    CLASSES,
    COUNTED,
    P_LOST,
    P_PEAK,
    P_WAITING,
    W_DROPPED,
    W_FREE_COUNT,
    State,
    grown,
    state_of,
)


class Lost(NamedTuple):
    """A packet that did not arrive."""

    time_ps: int
    port: int
    cause: str
    important: bool
    priority: int
    message: int
    packet: int


class Fabric:
    """All ports and links of a plan. `state` is what the functions of `gradwire.emu.userspace.rules` and `loop` work
    on."""

    def __init__(self, plan: Plan, state: State | None = None) -> None:
        self.plan = plan
        self.state = state_of(plan) if state is None else state

    def grow(self) -> None:
        """Twice the room for packets, and for drops as much as they all need, twice over."""
        S = self.state
        packets = len(S.packets) * (1 if S.words[W_FREE_COUNT] else 2)
        self.state = grown(S, packets, max(len(S.drops), 2 * (int(S.words[W_DROPPED]) + packets)))

    def drops(self, first: int = 0) -> list[Lost]:
        """Packets that were lost, from the `first`-th on, in the order in which it came to light."""
        rows = self.state.drops[first : int(self.state.words[W_DROPPED])].tolist()
        return [
            Lost(time, port, CAUSES[cause], bool(important), *rest)
            for time, port, cause, important, *rest in rows
        ]

    def counters(self) -> array[int]:
        """All counters, in the order in which `port_counts` reads them. Quick: the network stands still meanwhile."""
        per_class = self.state.classes[:, :, C_PACKETS : C_PACKETS + len(COUNTED)].transpose(0, 2, 1)
        rest = self.state.ports[:, [P_LOST, P_PEAK, P_WAITING]]
        return array("q", np.concatenate([per_class.ravel(), rest.ravel()]).tobytes())


def port_counts(plan: Plan, counters: Sequence[int]) -> list[PortCounts]:
    """What `Fabric.counters` says, by port."""
    counts = []
    width = CLASSES * len(COUNTED)
    rest = width * len(plan.ports)
    for port in plan.ports:
        block = counters[width * port.number : width * (port.number + 1)]
        columns = {name: list(block[CLASSES * i : CLASSES * (i + 1)]) for i, name in enumerate(COUNTED)}
        lost, peak, waiting = counters[rest + 3 * port.number : rest + 3 * port.number + 3]
        counts.append(
            PortCounts(
                port.name,
                **{name: sum(column) for name, column in columns.items()},
                drops_loss=lost,
                peak_queue_bytes=peak,
                queue_bytes=waiting,
                by_queue=[
                    {name: column[c] for name, column in columns.items()} for c in range(plan.queues.count)
                ],
            )
        )
    return counts
