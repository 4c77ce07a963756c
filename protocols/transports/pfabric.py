"""pFabric (Alizadeh et al., SIGCOMM '13) stamps packets with their message's remaining size; the switch option
`shortest_first` serves by it.

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
from gradwire.jit.records import Word
from gradwire.jit.records.constants import BITMAP, BLOCKED, PULL_PROBE
from gradwire.protocols.transports.base import Context, packets_of, reply
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    SHIFT,
    WindowFlow,
    WindowParameters,
    WindowReceiver,
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


class PfabricFlow(WindowFlow):
    """The sender of pFabric."""

    probes_sent = Word("probes sent", at=21)
    probe_due = Word("1: the next packet is a probe")


class PfabricParameters(WindowParameters):
    """The parameters of pFabric."""

    max_timeouts = Word("consecutive time-outs from which on it only probes", at=3)


TRIPS = 3  # time-out in unloaded round trips


@njit
def start(params: PfabricParameters, flow: PfabricFlow, now: int) -> None:
    """Start at line rate, with the whole message left."""
    start_window(params, flow, now)
    flow.piggyback = flow.packets


@njit
def pull(params: PfabricParameters, flow: PfabricFlow, now: int) -> int:
    """Return packets as the window allows, or a probe."""
    if flow.backoff < params.max_timeouts:
        return next_packet(params, flow, now)
    if flow.probe_due == 0:
        return BLOCKED
    flow.probe_due = 0
    flow.timer = now + timeout(params, flow)
    flow.probes_sent += 1
    return PULL_PROBE


@njit
def on_control(
    params: PfabricParameters, flow: PfabricFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an answer: remaining size and growth. The answer to a probe carries the cumulative point alone."""
    if flow.backoff >= params.max_timeouts:
        flow.timer = now + timeout(params, flow)
    flow.backoff = 0
    una = flow.una
    if kind == BITMAP:
        sequence = argument - 1
    newly = acknowledge(params, flow, sequence, argument, now)
    flow.piggyback -= newly
    if flow.is_done == 0 and flow.una > una:
        grow(flow, una, newly)
        flow.cwnd = min(flow.cwnd, params.initial_window << SHIFT)


@njit
def on_timer(params: PfabricParameters, flow: PfabricFlow, now: int) -> None:
    """Handle a time-out: slow start, or the next probe."""
    time_out(params, flow, now)
    flow.probe_due = 1


@njit
def on_probe(params: PfabricParameters, receiver: WindowReceiver, argument: int, now: int) -> int:
    """Report the cumulative point."""
    return reply(BITMAP, 0, receiver.cumulative, 0, 1)


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
    probe_word = PfabricFlow.probes_sent.offset
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
        """Return True: control packets are never dropped selectively."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the window in packets; the time-out in picoseconds, twice; consecutive time-outs before probes."""
        window = settings["window"] or packets_of(context, TCP_OVERHEAD)
        rto = max(settings["rto"] or TRIPS * context.base_rtt, context.base_rtt)
        return [window, rto, rto, settings["patience"]]
