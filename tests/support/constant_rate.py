"""A transport in one file, as a user would write it: a constant rate, no acknowledgements, no second chance.

The sender paces its packets at a share of its line rate (`share`, percent; 0 = as fast as the card lets it). The receiver
counts them; when the last byte has come it says so once, in a packet of 60 bytes. A packet that is lost leaves the
message undelivered for ever.
"""

from __future__ import annotations

from numba import njit

from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import BLOCKED, STOP
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.protocols.transports.base import reply, set_bit


class RateParameters(Parameters):
    """The parameters."""

    share = Word("share of the line rate, 0 = as fast as the port", "%")


class RateFlow(Sender):
    """The words of the sender."""

    next_packet = Word("number of the next packet")


class RateReceiver(Receiver):
    """The words of the receiver."""

    arrived_packets = Bitmap(0, "packets that have arrived")


@njit
def start(params: RateParameters, flow: RateFlow, now: int) -> None:
    """Set the pace."""
    if params.share:
        flow.gap = flow.ps_per_byte * 100 // params.share


@njit
def pull(params: RateParameters, flow: RateFlow, now: int) -> int:
    """Return the next packet."""
    sequence = flow.next_packet
    if sequence == flow.packets:
        return BLOCKED
    flow.next_packet = sequence + 1
    return sequence


@njit
def on_control(params, flow, kind, sequence, argument, echo, now):
    """The receiver has everything."""
    flow.is_done = 1


@njit
def on_timer(params, flow, now):
    """No timers."""


@njit
def on_data(params: RateParameters, receiver: RateReceiver, sequence: int, size: int, ce: int, now: int) -> int:
    """Count."""
    set_bit(receiver.arrived_packets, sequence)
    receiver.received_bytes += size
    if receiver.received_bytes < receiver.nbytes:
        return 0
    receiver.is_done = 1
    return reply(STOP, 0, 0, 0, 1)


@njit
def on_probe(params, receiver, argument, now):
    """No probes."""
    return 0


class ConstantRate:
    """Transport `constant_rate:ConstantRate`."""

    control_bytes = 60
    data_overhead = 58
    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = RateFlow.next_packet.offset
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
