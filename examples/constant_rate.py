"""A transport of one's own: sends at a fixed share of the line rate and never listens.

What is lost stays lost, so give the job a loss bound, or links and buffers that lose nothing.
"""

from numba import njit

from scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD
from sim.fabric.layout import (
    BLOCKED,
    R_ALLOWED,
    R_BYTES,
    R_DONE,
    R_GOT,
    S_DONE,
    S_GAP,
    S_LINE,
    S_PACKETS,
    S_USER,
    STOP,
)  # fmt: skip
from sim.transports.base import reply

NEXT = S_USER  # the next packet


@njit
def start(M, k, f, now):
    M[f + S_GAP] = M[f + S_LINE] * 100 // M[k]


@njit
def pull(M, k, f, now):
    if M[f + NEXT] == M[f + S_PACKETS]:
        return BLOCKED
    M[f + NEXT] += 1
    return M[f + NEXT] - 1


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    M[f + S_DONE] = 1


@njit
def on_timer(M, k, f, now):
    pass


@njit
def on_data(M, k, r, sequence, size, ce, now):
    M[r + R_GOT] += size
    if M[r + R_DONE] == 0 and M[r + R_BYTES] - M[r + R_GOT] <= M[r + R_ALLOWED]:
        M[r + R_DONE] = 1
        return reply(STOP, 0, 0, 0, 1)
    return 0


@njit
def on_probe(M, k, r, argument, now):
    return 0


class ConstantRate:
    control_bytes, data_overhead = DLCP_ACK_BYTES, UDP_OVERHEAD
    sender_bitmaps, receiver_bitmaps, fresh_word, probe_word = 1, 1, NEXT, 0
    start, pull, on_control, on_timer = map(staticmethod, (start, pull, on_control, on_timer))
    on_data, on_probe = map(staticmethod, (on_data, on_probe))

    @staticmethod
    def important(settings):
        return True

    @staticmethod
    def parameters(settings, context):
        return [int(settings.get("percent", 100))]
