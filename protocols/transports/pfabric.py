"""pFabric (Alizadeh et al., SIGCOMM '13): switches serve the message with the least left, senders hardly slow down.

Known from the paper: every packet carries the remaining size of its message; switches send the packet of the message
with the least left first, the earliest within a message, and if the buffer is full drop the one with the most left;
senders start at line rate, with a window of one bandwidth-delay product; every packet is acknowledged; losses are
detected by the time-out alone, which is fixed and small, about three round trips; it starts a slow start with half of
the window as its threshold; after five consecutive time-outs a sender only probes, with packets of the smallest size,
until something comes back [recalled]; buffers of two bandwidth-delay products [recalled]. The remaining size is the
number of unacknowledged packets, and additive increase follows slow start, as in a public simulator [code]. The option
`shortest_first` makes switches rank packets.

Our choices: the window does not grow beyond its initial value; a time-out counts from the last progress of the first
unacknowledged packet; it ends the whole flight, as in the window machinery underneath, but packets acknowledged after
all are not retransmitted; a probe asks for the first missing packet, and precedes data, as every control packet does.
"""

from __future__ import annotations

from typing import Literal

from gradwire.jit.compiled import njit
from gradwire.jit.layout import BITMAP, BLOCKED, PULL_PROBE, S_DONE, S_PACKETS, S_RIDER, S_TIMER, S_USER
from gradwire.protocols.transports.base import Context, packets_of, reply
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    BACKOFF,
    CUMULATIVE,
    CWND,
    K_INITIAL,
    SHIFT,
    UNA,
    acknowledge,
    grow,
    on_data,
    timeout,
)
from gradwire.protocols.transports.common.window import on_timer as time_out
from gradwire.protocols.transports.common.window import pull as next_packet
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.transport_base import Transport, Window
from gradwire.scenarios.units import PositiveTime
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD

# a sender's own words, after those of the window machinery
PROBES = S_USER + 21
DUE = S_USER + 22  # 1: a probe is to be sent

# parameter, after those of the window machinery
K_PATIENCE = 3  # consecutive time-outs before it only probes

TRIPS = 3  # time-out in unloaded round trips


@njit
def start(M, k, f, now):
    """Start at line rate, with the whole message left."""
    start_window(M, k, f, now)
    M[f + S_RIDER] = M[f + S_PACKETS]


@njit
def pull(M, k, f, now):
    """Return packets as the window allows, or a probe."""
    if M[f + BACKOFF] < M[k + K_PATIENCE]:
        return next_packet(M, k, f, now)
    if M[f + DUE] == 0:
        return BLOCKED
    M[f + DUE] = 0
    M[f + S_TIMER] = now + timeout(M, k, f)
    M[f + PROBES] += 1
    return PULL_PROBE


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """Process an answer: remaining size and growth. The answer to a probe carries the cumulative point alone."""
    if M[f + BACKOFF] >= M[k + K_PATIENCE]:
        M[f + S_TIMER] = now + timeout(M, k, f)
    M[f + BACKOFF] = 0
    una = M[f + UNA]
    if kind == BITMAP:
        sequence = argument - 1
    newly = acknowledge(M, k, f, sequence, argument, now)
    M[f + S_RIDER] -= newly
    if M[f + S_DONE] == 0 and M[f + UNA] > una:
        grow(M, f, una, newly)
        M[f + CWND] = min(M[f + CWND], M[k + K_INITIAL] << SHIFT)


@njit
def on_timer(M, k, f, now):
    """Handle a time-out: slow start, or the next probe."""
    time_out(M, k, f, now)
    M[f + DUE] = 1


@njit
def on_probe(M, k, r, argument, now):
    """Report the cumulative point."""
    return reply(BITMAP, 0, M[r + CUMULATIVE], 0, 1)


class PFabric(Reliable, Transport):
    """pFabric (Alizadeh et al., SIGCOMM 2013): the message with the least left goes first. It needs
    `switch.shortest_first`, with a buffer of about two bandwidth-delay products."""

    wants_shortest_first = True
    needs_drops = True

    forgets = True
    kind: Literal["pfabric"]
    window: Window | None = None
    """Initial and largest window in packets; by default the unloaded bandwidth-delay product of the longest path."""
    rto: PositiveTime | None = None
    """Fixed time-out; at least one unloaded round trip, by default three [recalled]."""
    patience: Count = 5
    """Consecutive time-outs after which it only probes [recalled]."""

    control_bytes = ACK_BYTES
    data_overhead = TCP_OVERHEAD
    probe_word = PROBES
    rides = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True: packets are never dropped selectively."""
        return True

    @staticmethod
    def control_important(settings: dict) -> bool:
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the window in packets; the time-out in picoseconds, twice; consecutive time-outs before probes."""
        window = settings["window"] or packets_of(context, TCP_OVERHEAD)
        rto = max(settings["rto"] or TRIPS * context.base_rtt, context.base_rtt)
        return [window, rto, rto, settings["patience"]]
