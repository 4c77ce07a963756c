"""This user-defined transport keeps a fixed window of packets, and repeats from the first unacknowledged packet after a
time-out.

This file is complete and runs as it is. Change one part at a time and repeat its test, test_fixed_window.py:

1. `pull` decides which packet is sent next, and `on_control` handles acknowledgements: most of a transport is there.
2. State that they keep is declared as fields of `Flow`; settings are declared in `FixedWindow` and `Settings`.
3. `on_data` is the receiver: it counts packets and answers them.

docs/extending.md of gradwire lists all functions, all fields of the records, and the features of networks. Times are
picoseconds, sizes are bytes. The functions are compiled: they hold no floats, cannot print, and keep no other state.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records import Bitmap, Word
from gradwire.jit.records.constants import ACK, BLOCKED
from gradwire.jit.records.flows import Parameters, Receiver, Sender
from gradwire.protocols.transports.base import Context, bit, reply, set_bit
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD


class Flow(Sender):
    """The sender of one message. All fields begin at zero; add the state of your transport here."""

    una = Word("first unacknowledged packet")
    nxt = Word("next packet to send")
    sent_once = Word("packets sent at least once", "packets")


class Arrivals(Receiver):
    """The receiver of one message."""

    cumulative = Word("first packet that has not arrived")
    arrived_packets = Bitmap(0, "packets that have arrived")


class Settings(Parameters):
    """The integers that `parameters` returns, in the same order."""

    window = Word("packets in flight", "packets")
    rto = Word("time without progress until retransmission", "ps")


@njit
def start(params: Settings, flow: Flow, now: int) -> None:
    """Prepare the sender when its message enters the host: set fields that do not begin at zero."""


@njit
def pull(params: Settings, flow: Flow, now: int) -> int:
    """Return the packet to send now, or BLOCKED. The NIC asks when it is free and it is this flow's turn."""
    if flow.nxt == flow.packets or flow.nxt - flow.una >= params.window:
        return BLOCKED
    sequence = flow.nxt
    flow.nxt += 1
    flow.sent_once = max(flow.sent_once, flow.nxt)
    if flow.timer == 0:
        flow.timer = now + params.rto
    return sequence


@njit
def on_control(params: Settings, flow: Flow, kind: int, sequence: int, argument: int, echo: int, now: int) -> None:
    """Process an answer of the receiver. Its `argument` is the first packet that has not arrived.

    `echo` is 1 if a switch marked packet `sequence`: a transport with congestion control slows down here.
    """
    if argument > flow.una:
        flow.una = argument
        flow.nxt = max(flow.nxt, argument)
        flow.timer = now + params.rto
    if flow.una == flow.packets:
        flow.is_done = 1  # ends the sender
        flow.timer = 0


@njit
def on_timer(params: Settings, flow: Flow, now: int) -> None:
    """Go back to the first unacknowledged packet. The time in `flow.timer` has come; `pull` sets it again."""
    flow.timeouts += 1  # counted in the Result
    flow.nxt = flow.una


@njit
def on_data(params: Settings, receiver: Arrivals, sequence: int, size: int, ce: int, now: int) -> int:
    """Count a packet and acknowledge it. `ce` is 1 if a switch marked it; the answer echoes that."""
    arrived = receiver.arrived_packets
    if bit(arrived, sequence) == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
    while receiver.cumulative < receiver.packets and bit(arrived, receiver.cumulative):
        receiver.cumulative += 1
    if receiver.received_bytes == receiver.nbytes:
        receiver.is_done = 1  # delivers the message
    return reply(ACK, ce, receiver.cumulative, 0, 1)


class FixedWindow(Transport):
    """Names the functions, and a few numbers. Annotated fields are the keys of the `[transport]` table."""

    window: Count = 32
    """Packets in flight."""

    wire = "udp"  # headers of its packets: tcp, udp or roce
    control_bytes = DLCP_ACK_BYTES  # size of an answer
    data_overhead = UDP_OVERHEAD  # bytes of headers per data packet
    sender_bitmaps = 0  # bitmaps of `Flow`
    receiver_bitmaps = 1  # bitmaps of `Arrivals`; the first says which packets have arrived
    fresh_word = Flow.sent_once.offset  # the field that counts packets sent at least once
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True if switches never drop its packets selectively, but mark them."""
        return True

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the fields of `Settings`. `context` describes a flow: packet size, link speed, base round trip."""
        return [settings["window"], 10 * context.base_rtt]
