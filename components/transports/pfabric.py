"""pFabric (Alizadeh et al., SIGCOMM '13): switches serve the message with the least left, senders hardly slow down.

What is known: every packet carries what is left of its message; switches send the packet of the message with the least
left first, of one message the earliest, and where the buffer is full drop the one with the most left; senders start at
line rate, with a window of one bandwidth-delay product; every packet is acknowledged; losses are found by the time-out
alone, which is fixed and small, about three round trips; after one a slow start begins, with half of the window as its
threshold; after five time-outs in a row a sender only probes, with packets of the smallest size, until something comes
back [recalled]; buffers of two bandwidth-delay products [recalled]. What is left is what has not been acknowledged, in
packets, and additive increase follows slow start, as in a public simulator [code]. Switches that do the ranking are
`shortest_first`.

Our choices: the window does not grow beyond the one it begins with; a time-out counts from the last time that the
first unacknowledged packet moved on; it ends the flow's flight as a whole, as in the window machinery that this is
built on, but what is acknowledged after all is not sent again; a probe asks for the first packet that is missing, and
goes before data, as every control packet does.
"""

from __future__ import annotations

from typing import Literal

from gradwire.components.compiled import njit
from gradwire.components.layout import (
    BITMAP,
    BLOCKED,
    PULL_PROBE,
    S_DONE,
    S_PACKETS,
    S_RIDER,
    S_TIMER,
    S_USER,
)
from gradwire.components.transports.base import Context, packets_of, reply
from gradwire.components.transports.reliable import Reliable
from gradwire.components.transports.window import (
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
from gradwire.components.transports.window import on_timer as time_out
from gradwire.components.transports.window import pull as next_packet
from gradwire.components.transports.window import start as start_window
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.transport_base import Transport, Window
from gradwire.scenarios.units import PositiveTime
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD

# a sender's own words, after those of the window machinery
PROBES = S_USER + 21
DUE = S_USER + 22  # 1: a probe is to be sent

# parameter, after those of the window machinery
K_PATIENCE = 3  # time-outs in a row before it only probes

TRIPS = 3  # unloaded round trips of the time-out


@njit
def start(M, k, f, now):
    """At line rate; all of the message is left."""
    start_window(M, k, f, now)
    M[f + S_RIDER] = M[f + S_PACKETS]


@njit
def pull(M, k, f, now):
    """Packets as the window allows, or a probe."""
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
    """Something came back: what is left, and growth. The answer to a probe tells the cumulative point alone."""
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
    """A time-out: slow start, or the next probe."""
    time_out(M, k, f, now)
    M[f + DUE] = 1


@njit
def on_probe(M, k, r, argument, now):
    """Tell how far the message has come."""
    return reply(BITMAP, 0, M[r + CUMULATIVE], 0, 1)


class PFabric(Reliable, Transport):
    """pFabric (Alizadeh et al., SIGCOMM 2013): the message with the least left goes first.

    It needs `switch.shortest_first`, with a buffer of about two bandwidth-delay products.
    """

    wants_shortest_first = True
    needs_drops = True

    forgets = True
    kind: Literal["pfabric"]
    window: Window | None = None
    """Packets, at first and at most; by default what the longest path holds in an unloaded round trip."""
    rto: PositiveTime | None = None
    """The time-out, always the same; at least one unloaded round trip, three if absent [recalled]."""
    patience: Count = 5
    """After so many time-outs in a row it only probes [recalled]."""

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
        """Packets are never dropped for what they are."""
        return True

    @staticmethod
    def control_important(settings: dict) -> bool:
        """As its data."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Window in packets; the time-out in picoseconds, twice; time-outs in a row before probes."""
        window = settings["window"] or packets_of(context, TCP_OVERHEAD)
        rto = max(settings["rto"] or TRIPS * context.base_rtt, context.base_rtt)
        return [window, rto, rto, settings["patience"]]
