"""What an agent plays and what it carries, made from its plan.

The script is that of `emu.agent.script`. Contents here are patterns: bytes that follow from the number of the message
and are compared where they arrive, for traffic and for runs whose gradients nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emu.agent.base import Arrival, Loop, MessageRow
from emu.plan import Plan

PERIOD = 1 << 16
PRIME = 4099


def make_parts(plan: Plan, node: int, loop: Loop, send: Callable[[int], None]) -> tuple[Any, Any]:
    """(script, contents) of a host."""
    script = import_module("emu.agent.script")
    latency = plan.software_latency_ps if plan.clock == "virtual" else 0
    playing = script.Script(script.part_of(plan.program, node), loop, send, latency)
    payloads = {number: transport.payload for number, transport in enumerate(plan.transports)}
    return playing, Patterns(playing.part.rows, payloads, plan.seed)


class Patterns:
    """Contents that follow from the number of the message; `wrong` are messages that arrived otherwise."""

    def __init__(self, rows: Mapping[int, MessageRow], payloads: Mapping[int, int], seed: int) -> None:
        self._rows, self._payloads = rows, payloads
        largest = max((row.nbytes for row in rows.values()), default=0)
        block = np.random.default_rng(seed).integers(1, 256, PERIOD, dtype=np.uint8)
        self._pattern: NDArray[np.uint8] = np.resize(block, largest + PERIOD)
        self._here: dict[int, NDArray[np.uint8]] = {}
        self.wrong: list[int] = []

    def _right(self, message: int) -> NDArray[np.uint8]:
        first = message * PRIME % PERIOD
        return self._pattern[first : first + self._rows[message].nbytes]

    def outgoing(self, message: int) -> memoryview:
        """The bytes of a message."""
        return self._right(message).data

    def incoming(self, message: int) -> memoryview:
        """Where they go."""
        self._here[message] = np.zeros(self._rows[message].nbytes, dtype=np.uint8)
        return self._here[message].data

    def arrived(self, arrival: Arrival) -> None:
        """Compare: what arrived is right, the rest is zeros."""
        row, here = self._rows[arrival.message], self._here.pop(arrival.message)
        right = self._right(arrival.message)
        if arrival.have is not None:
            right = right * np.repeat(arrival.have, self._payloads[row.transport])[: row.nbytes]
        if not np.array_equal(here, right):
            self.wrong.append(arrival.message)

    def settled(self, message: int) -> None:
        """Nothing to give back."""

    def report(self) -> dict[str, Any]:
        """Messages that arrived otherwise than they were sent."""
        return {"wrong": self.wrong}
