"""Parameter sets: the numbers of a transport for flows of one base round trip, one line rate and one slowest link.

What a transport derives from its settings - windows, timers, targets - depends on how long the flow's own round trip is
without queues, and on how fast its sender's line is. So its parameters are worked out once for every pair of these
that occurs, when the first flow of that kind is opened, and a flow's record says which set is its own. Most networks
have a handful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components import layout as at
from gradwire.components.find import parameters_of
from gradwire.components.transports.base import (
    Context,
    answers_late,
    check_streams,
    control_important,
    persists,
    shares,
)
from gradwire.experiment.trips import RoundTrips
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.asked import asked
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Bytes, Ps, PsPerByte
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.user_classes import table_for
from gradwire.scenarios.wire import speed_of
from gradwire.sim.fabric.memory import Memory
from gradwire.sim.fabric.regions import MOST_SETS

if TYPE_CHECKING:
    from gradwire.scenarios.schema.transport_base import Transport


@dataclass(frozen=True)
class Bound:
    """One transport of a run: its class, its settings and the numbers that a message needs. `persistent`: its
    connections carry message after message. `ack_delay`: its receivers may put off their answers. `pairs`: its messages
    between two hosts share words and a pace. `control_important`: whether its control packets are."""

    owner: type[Transport]
    settings: Json
    payload: Bytes
    control_priority: int
    important: bool
    control_important: bool
    persistent: bool = False
    ack_delay: bool = False
    pairs: bool = False

    @classmethod
    def to(cls, owner: type[Transport], table: Transport) -> Bound:
        """A transport class and its table of the scenario.

        Raises
        ------
        ScenarioError
            It is to have persistent connections, and knows none.
        """
        table = table_for(owner, table)
        settings = table.model_dump()
        priority = settings.get("control_priority", 0)
        check_streams(owner, table)
        with asked(owner, "important", "transport"):
            important = bool(owner.important(settings))
            control = control_important(owner, settings)
        return cls(
            owner, settings, table.payload, priority, important, control, persists(table), answers_late(table),
            shares(owner),
        )  # fmt: skip

    @property
    def frame(self) -> Bytes:
        """Bytes on the wire of a full packet."""
        return Bytes(self.payload + int(self.owner.data_overhead))

    def numbers(self, line: PsPerByte, trip: Ps, slowest: PsPerByte) -> tuple[list[int], int]:
        """The parameters of flows with this line and slowest link (picoseconds per byte << 16) and base round trip
        (ps), and of how many of their packets under way stamps are kept apart, 0 = it wants none."""
        context = Context(line, self.payload, trip, slowest)
        slots = 0
        if hasattr(self.owner, "stamp_slots"):
            with asked(self.owner, "stamp_slots", "transport"):
                slots = self.owner.stamp_slots(self.settings, context)
        return parameters_of(self.owner, self.settings, context), slots


def check_settings(transports: Sequence[Bound], lines: Ints, trips: RoundTrips) -> None:
    """Raise ScenarioError for settings that do not fit the network: those of the fastest line (`lines`: picoseconds per
    byte << 16 of hosts' ports) and the longest base round trip, of which most is under way."""
    for bound in transports:
        longest = trips.longest(bound.frame, Bytes(bound.owner.control_bytes))
        bound.numbers(PsPerByte(int(lines.min())), longest, PsPerByte(int(lines.max())))


class ParameterSets:
    """The parameter sets of one fabric."""

    def __init__(
        self, memory: Memory, transports: Sequence[Bound], trips: RoundTrips, line: Ints
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory, self.transports, self.trips = memory, transports, trips
        self._lines, self._line_of = np.unique(line, return_inverse=True)
        self._speeds = np.unique(speed_of(trips.network.link_rate))
        self._known: dict[tuple[int, int], int] = {}
        self._slots = np.zeros(64, dtype=np.int64)
        self.of_pair = lru_cache(1 << 16)(self._of_pair)

    def of(self, transport: int, src: Ints, dst: Ints) -> Ints:
        """The sets of flows of one transport from hosts to hosts: int64[n]."""
        bound = self.transports[transport]
        trips = self.trips.times(src, dst, bound.frame, Bytes(bound.owner.control_bytes))
        slowest = np.searchsorted(self._speeds, self.trips.slowest(src, dst))
        kind = (trips * len(self._lines) + self._line_of[src]) * len(self._speeds) + slowest
        kinds, which = np.unique(kind, return_inverse=True)
        sets = [self._set(transport, kind) for kind in kinds.tolist()]
        return np.array(sets, dtype=np.int64)[which]

    def slots(self, sets: Ints, packets: Ints) -> Ints:
        """How many slots for stamps messages of so many packets get (powers of two): int64[n]."""
        twice = 1 << np.ceil(np.log2(2 * np.maximum(packets, 4))).astype(np.int64)
        return np.asarray(np.minimum(twice, self._slots[sets]))

    def _of_pair(self, transport: int, src: int, dst: int) -> int:
        return int(self.of(transport, np.array([src]), np.array([dst]))[0])

    def _set(self, transport: int, kind: int) -> int:
        number = self._known.get((transport, kind))
        if number is None:
            number = self._known[transport, kind] = len(self._known)
            if number >= MOST_SETS:
                raise GradwireError(
                    f"flows of more than {MOST_SETS} different base round trips", "fabric", "cables of fewer lengths"
                )
            if number >= len(self._slots):
                self._slots = np.concatenate((self._slots, np.zeros_like(self._slots)))
            kind, slowest = divmod(kind, len(self._speeds))
            trip, line = divmod(kind, len(self._lines))
            values, self._slots[number] = self.transports[transport].numbers(
                PsPerByte(int(self._lines[line])), Ps(trip), PsPerByte(int(self._speeds[slowest]))
            )
            base = self.memory.params + number * at.PARAM_WORDS
            self.memory.M[base : base + len(values)] = values
        return number
