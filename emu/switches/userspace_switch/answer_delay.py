"""Measures the delay of hosts' acknowledgements at the userspace switch, from a packet's due time to its answer.
Compiled.

A simulated host acknowledges a packet on arrival. A real one is woken up first, and so is the switch for its answer: on
the wall clock this is part of every round trip, and if round trips are short, rates rise too slowly. So the switch
compares the times of acknowledgements with the due times of their packets at the hosts.

One packet per host is observed at a time, until it is acknowledged.
"""

from __future__ import annotations

from typing import Any

from gradwire.emu.native.calls import words_at
from gradwire.emu.switches.userspace_switch.frames import acknowledged, whose
from gradwire.emu.switches.userspace_switch.layout import ObservedRow, SwitchedNetwork
from gradwire.jit.compiled import njit

FORGOTTEN_PS = 20_000_000_000
"""Time after which a packet counts as never acknowledged, because its message was complete without it (our choice)."""


@njit
def _observed(network: SwitchedNetwork, host: int) -> ObservedRow:
    return ObservedRow(words_at(network.observed), host * ObservedRow.WORDS)


@njit
def on_delivery(network: SwitchedNetwork, host: int, frame: Any, length: int, due: int) -> None:
    """Observe a packet that has been delivered to a host and was due at `due`."""
    observed = _observed(network, host)
    if observed.due and due - observed.due < FORGOTTEN_PS:
        return
    message, number = whose(frame, length)
    if number >= 0:
        observed.message = message
        observed.number = number
        observed.due = due


@njit
def on_packet(network: SwitchedNetwork, host: int, frame: Any, length: int, now: int) -> None:
    """Check a packet sent by a host for the expected acknowledgement."""
    observed = _observed(network, host)
    if not observed.due:
        return
    message, number = acknowledged(frame, length)
    if number >= 0 and message == observed.message and number == observed.number:
        network.answers += 1
        network.answered_late_ns += (now - observed.due) // 1000
        observed.due = 0
