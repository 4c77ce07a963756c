"""`Fabric` holds the memory of a plan's network for the compiled rules, and reads its counters and lost packets."""

from __future__ import annotations

from typing import NamedTuple

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

    def counters(self) -> tuple[at.Words, at.Words]:
        """Return all counters for `port_counts`; fast, because the network stops meanwhile."""
        columns = [ClassRow.ENTRIES[name].offset for name in at.COUNTED]
        rest = [entry.offset for entry in (PortRow.lost, PortRow.peak, PortRow.queued)]
        return self.state.classes[:, :, columns].transpose(0, 2, 1), self.state.ports[:, rest]


def port_counts(plan: TestbedPlan, counters: tuple[at.Words, at.Words]) -> list[PortCounts]:
    """Return the counts by port from `Fabric.counters`."""
    counts = []
    per_class, rest = (block.tolist() for block in counters)
    for port, block, (lost, peak, waiting) in zip(plan.ports, per_class, rest, strict=True):
        columns = dict(zip(at.COUNTED, block, strict=True))
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
