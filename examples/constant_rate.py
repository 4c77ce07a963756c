"""A transport of one's own: sends at a fixed share of the line rate and never listens.

What is lost stays lost, so give the job a loss bound, or links and buffers that lose nothing.
"""

from numba import njit

from gradwire.jit import layout as at
from gradwire.protocols.transports.base import reply, set_bit
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD

NEXT = at.S_USER  # the next packet


@njit
def start(M, k, f, now):
    M[f + at.S_GAP] = M[f + at.S_LINE] * 100 // M[k]


@njit
def pull(M, k, f, now):
    if M[f + NEXT] == M[f + at.S_PACKETS]:
        return at.BLOCKED
    M[f + NEXT] += 1
    return M[f + NEXT] - 1


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    M[f + at.S_DONE] = 1


@njit
def on_data(M, k, r, sequence, size, ce, now):
    M[r + at.R_GOT] += size
    set_bit(M, M[r + at.R_BITS], sequence)
    if M[r + at.R_DONE] == 0 and M[r + at.R_BYTES] - M[r + at.R_GOT] <= M[r + at.R_ALLOWED]:
        M[r + at.R_DONE] = 1
        return reply(at.STOP, 0, 0, 0, 1)
    return 0


class ConstantRate(Transport):
    percent: Count = 100
    """Of the line rate of the sending host."""

    wire, may_lose, control_bytes, data_overhead = "udp", True, DLCP_ACK_BYTES, UDP_OVERHEAD
    sender_bitmaps, receiver_bitmaps, fresh_word, probe_word = 0, 1, NEXT, 0
    start, pull, on_control, on_data = map(staticmethod, (start, pull, on_control, on_data))

    @staticmethod
    def important(settings):
        return True

    @staticmethod
    def parameters(settings, context):
        return [settings["percent"]]
