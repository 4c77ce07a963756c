"""Measurement of the delay of hosts' acknowledgements. Compiled.

A simulated host acknowledges a packet on arrival. A real one is woken up first, and so is the switch for its answer: on
the wall clock this is part of every round trip, and if round trips are short, rates rise too slowly. So the switch
compares the times of acknowledgements with the due times of their packets at the hosts.

One packet per host is observed at a time, until it is acknowledged.
"""

from __future__ import annotations

from gradwire.emu.native.calls import words_at
from gradwire.emu.switches.userspace_switch import layout as at
from gradwire.emu.switches.userspace_switch.frames import acknowledged, whose
from gradwire.jit.compiled import njit

FORGOTTEN_PS = 20_000_000_000
"""Time after which a packet counts as never acknowledged, because its message was complete without it (our choice)."""


@njit
def _asked(W, host):
    return words_at(W[at.A_ASKED] + host * (8 * at.HOST_WORDS))


@njit
def delivered(W, host, frame, length, due):
    """Observe a packet that has been delivered to a host and was due at `due`."""
    asked = _asked(W, host)
    if asked[at.H_DUE] and due - asked[at.H_DUE] < FORGOTTEN_PS:
        return
    message, number = whose(frame, length)
    if number >= 0:
        asked[at.H_MESSAGE] = message
        asked[at.H_NUMBER] = number
        asked[at.H_DUE] = due


@njit
def heard(W, host, frame, length, now):
    """Check a packet sent by a host for the expected acknowledgement."""
    asked = _asked(W, host)
    if not asked[at.H_DUE]:
        return
    message, number = acknowledged(frame, length)
    if number >= 0 and message == asked[at.H_MESSAGE] and number == asked[at.H_NUMBER]:
        W[at.W_ANSWERS] += 1
        W[at.W_ANSWERED_LATE_NS] += (now - asked[at.H_DUE]) // 1000
        asked[at.H_DUE] = 0
