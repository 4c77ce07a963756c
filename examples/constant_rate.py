"""A user-defined transport: sends at a fixed share of the line rate, ignores all feedback, resends nothing."""

from numba import njit

from gradwire.jit.records import Word
from gradwire.jit.records.constants import BLOCKED, STOP
from gradwire.jit.records.flows import Parameters, Sender
from gradwire.protocols.transports.base import reply, set_bit
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD


class RateParameters(Parameters):
    percent = Word("share of the line rate", "%")


class RateFlow(Sender):
    next_packet = Word("number of the next packet")


@njit
def start(params: RateParameters, flow: RateFlow, now):
    flow.gap = flow.ps_per_byte * 100 // params.percent


@njit
def pull(params, flow: RateFlow, now):
    if flow.next_packet == flow.packets:
        return BLOCKED
    flow.next_packet += 1
    return flow.next_packet - 1


@njit
def on_control(params, flow, kind, sequence, argument, echo, now):
    flow.is_done = 1


@njit
def on_data(params, receiver, sequence, size, ce, now):
    if receiver.is_done:
        return 0  # what arrives after the Stop is lost
    receiver.received_bytes += size
    set_bit(receiver.bitmaps, sequence)
    receiver.is_done = int(receiver.nbytes - receiver.received_bytes <= receiver.allowed_loss)
    return reply(STOP, 0, 0, 0, 1) if receiver.is_done else 0


class ConstantRate(Transport):
    percent: Count = 100  # of the line rate of the sending host
    wire, may_lose, control_bytes, data_overhead = "udp", True, DLCP_ACK_BYTES, UDP_OVERHEAD
    sender_bitmaps, receiver_bitmaps, fresh_word, probe_word = 0, 1, RateFlow.next_packet.offset, 0
    start, pull, on_control, on_data = map(staticmethod, (start, pull, on_control, on_data))
    important = staticmethod(lambda settings: True)

    @staticmethod
    def parameters(settings, context):
        return [settings["percent"]]
