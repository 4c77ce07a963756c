"""A transport in one file, as a user would write it: a constant rate, no acknowledgements, no second chance.

The sender paces its packets at a share of its line rate (`share`, percent; 0 = as fast as the card lets it). The receiver
counts them; when the last byte has come it says so once, in a packet of 60 bytes. A packet that is lost leaves the
message undelivered for ever.
"""

from __future__ import annotations

from numba import njit

from gradwire.jit.layout import BLOCKED, R_BITS, R_BYTES, R_DONE, R_GOT, S_DONE, S_GAP, S_LINE, S_PACKETS, S_USER, STOP
from gradwire.protocols.transports.base import reply, set_bit

NEXT = S_USER
K_SHARE = 0


@njit
def start(M, k, f, now):
    """Set the pace."""
    if M[k + K_SHARE]:
        M[f + S_GAP] = M[f + S_LINE] * 100 // M[k + K_SHARE]


@njit
def pull(M, k, f, now):
    """The next packet."""
    sequence = M[f + NEXT]
    if sequence == M[f + S_PACKETS]:
        return BLOCKED
    M[f + NEXT] = sequence + 1
    return sequence


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """The receiver has everything."""
    M[f + S_DONE] = 1


@njit
def on_timer(M, k, f, now):
    """No timers."""


@njit
def on_data(M, k, r, sequence, size, ce, now):
    """Count."""
    set_bit(M, M[r + R_BITS], sequence)
    M[r + R_GOT] += size
    if M[r + R_GOT] < M[r + R_BYTES]:
        return 0
    M[r + R_DONE] = 1
    return reply(STOP, 0, 0, 0, 1)


@njit
def on_probe(M, k, r, argument, now):
    """No probes."""
    return 0


class ConstantRate:
    """Transport `constant_rate:ConstantRate`."""

    control_bytes = 60
    data_overhead = 58
    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = NEXT
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings):
        """Packets are droppable."""
        return False

    @staticmethod
    def parameters(settings, context):
        """The share of the line rate in percent."""
        return [settings.get("share", 0)]
