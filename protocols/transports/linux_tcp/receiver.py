"""Decides when the Linux TCP receiver acknowledges a packet, at once or delayed, as the kernel does.

As `delayed_acks`, but the first packets of a connection are acknowledged one by one ("is_quick", sixteen in the kernel)
[net/ipv4/tcp_input.c: `tcp_event_data_recv`], and so is the last packet of a message, which is flagged (PSH) and whose
reader is waiting [net/ipv4/tcp.c: `tcp_cleanup_rbuf`]. On a persistent connection the last packet is unknown.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.protocols.transports.common.delayed_acks import take
from gradwire.protocols.transports.common.window import WindowReceiver
from gradwire.protocols.transports.common.window import on_data as acknowledge_at_once
from gradwire.protocols.transports.linux_tcp.layout import LinuxParameters


class LinuxReceiver(WindowReceiver):
    """The receiver of Linux TCP."""

    quick_acks_sent = Word("packets acknowledged at once so far", "packets")


@njit
def _take(
    params: LinuxParameters, receiver: LinuxReceiver, sequence: int, size: int, ce: int, now: int, alike: int
) -> int:
    """Place the packet, and acknowledge it now or later. `alike`: as in `delayed_acks.take`."""
    is_quick = params.quick_acks > 0 and (
        receiver.quick_acks_sent < params.quick_acks or (params.acks_last and sequence == receiver.packets - 1)
    )
    if is_quick and receiver.has_unacknowledged == 0 and params.ack_delay:
        receiver.quick_acks_sent += 1
        receiver.next_above = max(receiver.next_above, sequence + 1)
        return acknowledge_at_once(params, receiver, sequence, size, ce, now)
    return take(params, receiver, sequence, size, ce, now, alike)


@njit
def on_data(params: LinuxParameters, receiver: LinuxReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, and acknowledge it now or later."""
    return _take(params, receiver, sequence, size, ce, now, 0)


@njit
def on_data_alike(params: LinuxParameters, receiver: LinuxReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Place the packet, and acknowledge it now or later, together with packets of equal mark only."""
    return _take(params, receiver, sequence, size, ce, now, 1)
