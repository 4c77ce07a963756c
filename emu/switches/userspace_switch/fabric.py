"""`Fabric` holds the memory of a plan's network for the compiled rules, and reads its counters and lost packets."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import PortCounts
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.layout import ClassRow, PortRow


class LostPacket(NamedTuple):
    """A packet that did not arrive."""

    time_ps: int
    port: int
    cause: str
    important: bool
    priority: int
    message: int
    packet: int


class Fabric:
    """All ports and links of a plan; `state` is the input of the functions in `rules` and `loop`."""

    def __init__(self, plan: TestbedPlan, state: at.SwitchMemory | None = None) -> None:
        self.plan = plan
        self.state = at.state_of(plan) if state is None else state

    def grow(self) -> None:
        """Double the space for packets, and provide space for twice as many drops as they may need."""
        S = self.state
        packets = len(S.packets) * (1 if S.network.free_count else 2)
        self.state = at.grown(S, packets, max(len(S.drops), 2 * (S.network.drop_count + packets)))

    def drops(self, first: int = 0) -> list[LostPacket]:
        """Return lost packets from the `first`-th on, in order of detection."""
        rows = self.state.drops[first : self.state.network.drop_count].tolist()
        return [
            LostPacket(time, port, at.CAUSES[cause], bool(important), *rest)
            for time, port, cause, important, *rest in rows
        ]

    def counters(self) -> array[int]:
        """Return all counters in the order that `port_counts` expects; fast, because the network stops meanwhile."""
        columns = [ClassRow.ENTRIES[name].offset for name in at.COUNTED]
        per_class = self.state.classes[:, :, columns].transpose(0, 2, 1)
        rest = self.state.ports[:, [entry.offset for entry in (PortRow.lost, PortRow.peak, PortRow.queued)]]
        return array("q", np.concatenate([per_class.ravel(), rest.ravel()]).tobytes())


def port_counts(plan: TestbedPlan, counters: Sequence[int]) -> list[PortCounts]:
    """Return the counts by port from `Fabric.counters`."""
    counts = []
    width = at.CLASSES * len(at.COUNTED)
    rest = width * len(plan.ports)
    for port in plan.ports:
        block = counters[width * port.number : width * (port.number + 1)]
        columns = {name: list(block[at.CLASSES * i : at.CLASSES * (i + 1)]) for i, name in enumerate(at.COUNTED)}
        lost, peak, waiting = counters[rest + 3 * port.number : rest + 3 * port.number + 3]
        counts.append(
            PortCounts(
                port.name,
                **{name: sum(column) for name, column in columns.items()},
                drops_loss=lost,
                peak_queue_bytes=peak,
                queue_bytes=waiting,
                by_queue=[{name: column[c] for name, column in columns.items()} for c in range(plan.queues.count)],
            )
        )
    return counts
