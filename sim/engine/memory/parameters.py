"""Binds transports to their settings, and computes their parameters once per base round trip, line rate and slowest
link.

What a transport derives from its settings (windows, timers, targets) depends on the flow's unloaded round trip and on
its sender's line rate. So parameters are computed once for every combination that occurs, when its first flow is
opened, and a flow's record names its set. Most networks have a handful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.records.flows import Parameters
from gradwire.protocols.registry import transport_parameters
from gradwire.protocols.transports.base import (
    Context,
    check_streams,
    control_important,
    delays_acks,
    is_persistent,
    shares_pair_state,
)
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Bytes, Ps, PsPerByte
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.scenarios.wire import ps_per_byte
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.memory.regions import MAX_PARAMETER_SETS
from gradwire.topology.base_rtt import RoundTrips

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.transport_base import Transport


@dataclass(frozen=True)
class BoundTransport:
    """One transport of a run: its class, its settings and the numbers that a message needs.

    control_important : its control packets are important.
    persistent : its connections carry several messages.
    ack_delay : its receivers may delay their answers.
    pairs : its messages between two hosts share words and a pace.
    """

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
    def bind(cls, owner: type[Transport], table: Transport) -> BoundTransport:
        """Bind a transport class to its table of the scenario. Raises ScenarioError if persistent connections are
        requested, but not supported."""
        table = validate_user_table(owner, table)
        settings = table.model_dump()
        priority = settings.get("control_priority", 0)
        check_streams(owner, table)
        with asked(owner, "important", "transport"):
            important = bool(owner.important(settings))
            control = control_important(owner, settings)
        return cls(
            owner,
            settings,
            table.payload,
            priority,
            important,
            control,
            is_persistent(table),
            delays_acks(table),
            shares_pair_state(owner),
        )

    @property
    def frame(self) -> Bytes:
        """Bytes on the wire of a full packet."""
        return Bytes(self.payload + int(self.owner.data_overhead))

    def numbers(self, line: PsPerByte, trip: Ps, slowest: PsPerByte) -> tuple[list[int], int]:
        """Return the parameters of flows, and the number of their telemetry slots (0: none). `line`, `slowest`:
        picoseconds per byte << 16 of the line and the slowest link; `trip`: base round trip (ps)."""
        context = Context(line, self.payload, trip, slowest)
        slots = 0
        if hasattr(self.owner, "stamp_slots"):
            with asked(self.owner, "stamp_slots", "transport"):
                slots = self.owner.stamp_slots(self.settings, context)
        return transport_parameters(self.owner, self.settings, context), slots


def check_settings(transports: Sequence[BoundTransport], lines: Ints, trips: RoundTrips) -> None:
    """Raise ScenarioError if settings do not fit the network. The check uses the fastest line (`lines`: picoseconds per
    byte << 16 of hosts' ports) and the longest base round trip, which have most packets under way."""
    for bound in transports:
        longest = trips.longest(bound.frame, Bytes(bound.owner.control_bytes))
        bound.numbers(PsPerByte(int(lines.min())), longest, PsPerByte(int(lines.max())))


class ParameterSets:
    """The parameter sets of one fabric."""

    def __init__(
        self, memory: EngineMemory, transports: Sequence[BoundTransport], trips: RoundTrips, line: Ints
    ) -> None:
        """`line` : int64[hosts], picoseconds per byte << 16 of every host's port."""
        self.memory, self.transports, self.trips = memory, transports, trips
        self._lines, self._line_of = np.unique(line, return_inverse=True)
        self._speeds = np.unique(ps_per_byte(trips.network.link_rate))
        self._known: dict[tuple[int, int], int] = {}
        self._slots = np.zeros(64, dtype=np.int64)

    def of(self, transport: int, src: Ints, dst: Ints) -> Ints:
        """Return the sets of flows of one transport between hosts: int64[n]."""
        bound = self.transports[transport]
        trips = self.trips.times(src, dst, bound.frame, Bytes(bound.owner.control_bytes))
        slowest = np.searchsorted(self._speeds, self.trips.slowest(src, dst))
        kind = (trips * len(self._lines) + self._line_of[src]) * len(self._speeds) + slowest
        kinds, which = np.unique(kind, return_inverse=True)
        sets = [self._set(transport, kind) for kind in kinds.tolist()]
        return np.array(sets, dtype=np.int64)[which]

    def slots(self, sets: Ints, packets: Ints) -> Ints:
        """Return the telemetry slots of messages by their packets, powers of two: int64[n]."""
        twice = 1 << np.ceil(np.log2(2 * np.maximum(packets, 4))).astype(np.int64)
        return np.asarray(np.minimum(twice, self._slots[sets]))

    def _set(self, transport: int, kind: int) -> int:
        number = self._known.get((transport, kind))
        if number is None:
            number = self._known[transport, kind] = len(self._known)
            if number >= MAX_PARAMETER_SETS:
                raise GradwireError(
                    f"flows have more than {MAX_PARAMETER_SETS} different base round trips",
                    "fabric",
                    "fewer cable lengths",
                )
            if number >= len(self._slots):
                self._slots = np.concatenate((self._slots, np.zeros_like(self._slots)))
            kind, slowest = divmod(kind, len(self._speeds))
            trip, line = divmod(kind, len(self._lines))
            values, self._slots[number] = self.transports[transport].numbers(
                PsPerByte(int(self._lines[line])), Ps(trip), PsPerByte(int(self._speeds[slowest]))
            )
            base = self.memory.params + number * Parameters.WORDS
            self.memory.state[base : base + len(values)] = values
        return number
