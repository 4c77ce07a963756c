"""The transport `constant_rate` sends packets at a fixed share of the line rate, without acknowledgements, until the
receiver's Stop. For tests, background load and examples.

No paper. The sender paces its packets and handles only the Stop that the receiver sends once it has as many bytes as
the bound requires. There are no acknowledgements. If the whole message has been sent and no Stop has come for
`repeat_after`, it is repeated, so that every message ends on lossy links as well; on lossless links every packet is
sent once. Each pass begins elsewhere in the message: constant rates that meet at a full queue lose packets at the same
positions each time, and the same packets would otherwise be lost forever.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gradwire.jit.compiled import njit
from gradwire.jit.records import Word
from gradwire.jit.records.constants import BLOCKED, STOP
from gradwire.jit.records.flows import Parameters, Sender
from gradwire.protocols.transports.base import ONE, Context, bit, fraction, reply, set_bit
from gradwire.protocols.transports.common.window import WindowReceiver
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.units import PositiveTime, Ps
from gradwire.scenarios.wire import DLCP_ACK_BYTES, UDP_OVERHEAD


class ConstantRateFlow(Sender):
    """The sender of a constant rate."""

    sent_once = Word("packets sent at least once", "packets")
    sent_in_pass = Word("packets sent in this pass", "packets")
    first_of_pass = Word("first packet of this pass")


class ConstantRateParameters(Parameters):
    """The parameters of a constant rate."""

    rate_share = Word("share of the line rate", "20-bit fraction")
    repeat_delay = Word("wait for a Stop before the next pass", "ps")


@njit
def start(params: ConstantRateParameters, flow: ConstantRateFlow, now: int) -> None:
    """Set the packet spacing."""
    flow.gap = flow.ps_per_byte * ONE // params.rate_share


@njit
def pull(params: ConstantRateParameters, flow: ConstantRateFlow, now: int) -> int:
    """Return the next packet; after the last one, wait for Stop."""
    packets = flow.packets
    if flow.sent_in_pass == packets:
        if flow.timer == 0:
            flow.timer = now + params.repeat_delay
        return BLOCKED
    sequence = flow.first_of_pass + flow.sent_in_pass
    if sequence >= packets:
        sequence -= packets
    flow.sent_in_pass += 1
    if sequence == flow.sent_once:
        flow.sent_once = sequence + 1
    return sequence


@njit
def on_control(
    params: ConstantRateParameters, flow: ConstantRateFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """End the flow at Stop, the only control packet."""
    flow.is_done = 1
    flow.timer = 0


@njit
def on_timer(params: ConstantRateParameters, flow: ConstantRateFlow, now: int) -> None:
    """Start another pass at another packet. An odd step of 0.618 of the message soon brings every packet to every part
    of a pass, whether whole runs of packets are lost or every other one."""
    flow.timeouts += 1
    packets = flow.packets
    flow.sent_in_pass = 0
    flow.first_of_pass = (flow.first_of_pass + (packets * 633 >> 10 | 1)) % packets


@njit
def on_data(
    params: ConstantRateParameters, receiver: WindowReceiver, sequence: int, size: int, ce: int, now: int
) -> int:
    """Count new packets until enough have arrived; afterwards, answer a duplicate by repeating the Stop, which was
    lost."""
    arrived = receiver.arrived_packets
    is_duplicate = bit(arrived, sequence)
    if receiver.is_done:
        if is_duplicate:
            return reply(STOP, 0, 0, 0, 1)
        return 0
    if is_duplicate == 0:
        set_bit(arrived, sequence)
        receiver.received_bytes += size
    if receiver.nbytes - receiver.received_bytes <= receiver.allowed_loss:
        receiver.is_done = 1
        return reply(STOP, 0, 0, 0, 1)
    return 0


@njit
def on_probe(params: ConstantRateParameters, receiver: WindowReceiver, argument: int, now: int) -> int:
    """Return 0: the sender sends no probes."""
    return 0


class ConstantRate(Transport):
    """Packets at a constant rate over UDP: for tests and background load. Packets are not acknowledged; a delivered
    message is answered by one Stop, a smallest frame on the way back."""

    acknowledges = False

    forgets = True
    kind: Literal["constant_rate"]
    share: Annotated[float, Field(ge=0.00001, le=1, strict=True)] = 1.0
    """Share of the line rate of the sending host."""
    repeat_after: PositiveTime = Ps(1_000_000_000)
    """Silence after the last packet before the message is repeated; at least the longest unloaded round trip. Each
    repetition begins 0.618 of the message further on, so that every packet comes to every position of the order."""

    wire = "udp"

    may_lose = True

    control_bytes = DLCP_ACK_BYTES
    data_overhead = UDP_OVERHEAD
    sender_bitmaps = 0
    receiver_bitmaps = 1
    fresh_word = ConstantRateFlow.sent_once.offset
    probe_word = 0
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return False: untagged packets are droppable, as the sender would not notice a mark."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return the share of the line rate in 20-bit fixed point, and the wait for a Stop in picoseconds."""
        share = max(1, fraction(settings["share"]))
        return [share, max(settings["repeat_after"], context.base_rtt)]
