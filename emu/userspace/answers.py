"""How soon hosts answer. Compiled.

A simulated host acknowledges a packet the moment it arrives. A real one is woken up first, and so is the switch for its
answer: on the wall clock that is part of every round trip, and where round trips are short, rates rise more slowly
than they should. So the switch compares when acknowledgements come with when the packets were due at their hosts.

Watched is one packet per host at a time, until it is acknowledged.
"""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.emu.native.calls import words_at
from gradwire.emu.userspace import layout as at
from gradwire.emu.userspace.frames import acknowledged, whose

FORGOTTEN_PS = 20_000_000_000
"""A packet that has not been acknowledged so long after it was due will not be: the message was complete without it
(our choice)."""


@njit
def _asked(W, host):
    return words_at(W[at.A_ASKED] + host * (8 * at.HOST_WORDS))


@njit
def delivered(W, host, frame, length, due):
    """A host has been given a packet that was due at `due`."""
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
    """A host has sent a packet, which may be the answer."""
    asked = _asked(W, host)
    if not asked[at.H_DUE]:
        return
    message, number = acknowledged(frame, length)
    if number >= 0 and message == asked[at.H_MESSAGE] and number == asked[at.H_NUMBER]:
        W[at.W_ANSWERS] += 1
        W[at.W_ANSWERED_LATE_NS] += (now - asked[at.H_DUE]) // 1000
        asked[at.H_DUE] = 0
