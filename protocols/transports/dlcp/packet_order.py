"""Order and number of the packets that DLCP sends of a message: passes, quota, and required packets.

A message is sent in passes: the first one, and one for the missing packets of each Bitmap. Each walks through the
packets in the order of the message:

* `important_first`: the important packets, then the droppable ones, each starting at a droppable packet that rotates
  from iteration to iteration (by `flow.turn`, from a seeded start). The end of the order is what a bound forgives; if
  packets were sent from first to last, the same tail of every tensor would stay untrained in each step. In n
  consecutive messages each of n droppable packets is the last one once, and among the last k of them k times; the steps
  are near the golden section of n, so that fewer messages also spread well while the same packets are droppable;
* `sequential`: from the first to the last;
* `random`: an arithmetic progression modulo the number of packets, drawn for each message.

A pass ends after its quota. With `stop_policy = "early"` the quota is what the message needs to be delivered: a Stop
that is sent when enough has arrived reaches the sender a round trip too late, when at line rate all the rest has left
already. Other policies send everything. An important packet that must arrive is never left out for a droppable one.
"""

from __future__ import annotations

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import BLOCKED
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.transports.base import bit
from gradwire.protocols.transports.dlcp.layout import EARLY, IMPORTANT_FIRST, RANDOM, REACHED, DlcpFlow, DlcpParameters


@njit
def ones(word: int) -> int:
    """Return the number of bits set in a 32-bit word."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 0xFF


@njit
def _gcd(a: int, b: int) -> int:
    """Return the greatest common divisor."""
    while b:
        remainder = a % b
        a = b
        b = remainder
    return a


@njit
def _begin_pass(params: DlcpParameters, flow: DlcpFlow, arrived: int, missing: int, urgent: int) -> None:
    """Begin a pass: `arrived` packets have arrived, `missing` have not, `urgent` of them important."""
    if params.important_must_arrive == 0:
        urgent = 0
    quota = missing
    if params.stop_policy == EARLY:
        quota = min(missing, max(flow.needed - arrived, urgent, 1))
    flow.quota = quota
    flow.urgent = urgent
    flow.position = 0
    flow.droppable_phase = 0


@njit
def _first_packet(flow: DlcpFlow, packets: int, droppable: int) -> int:
    """Return the first packet in a message's order: the next droppable one in rotation, or any if there are no tags."""
    if droppable == 0:
        return 0
    step = max(droppable * 0x9E37 >> 16, 1)
    while _gcd(step, droppable) != 1:
        step += 1
    rank = flow.turn * step % droppable  # among the droppable packets
    tags = flow.tag_bits
    if flow.tags <= 1:
        return rank
    sequence = 0
    while ones(~tags[sequence >> 5] & 0xFFFFFFFF) <= rank:
        rank -= ones(~tags[sequence >> 5] & 0xFFFFFFFF)
        sequence += 32
    while True:
        if bit(tags, sequence) == 0:
            if rank == 0:
                return sequence
            rank -= 1
        sequence += 1


@njit
def first_pass(params: DlcpParameters, flow: DlcpFlow) -> None:
    """Begin the message: compute its order and the packets it needs."""
    packets = flow.packets
    random = entropy_of(flow.data_header)
    flow.order_stride = 1
    if params.send_order == RANDOM:
        flow.order_offset = random * packets >> 16
        stride = 1 + (random * 0x9E37 & 0xFFFF) * packets // 0x10000
        while _gcd(stride, packets) != 1:
            stride += 1
        flow.order_stride = stride
    flow.needed = packets - flow.allowed_loss // params.payload
    tags = flow.tag_bits
    urgent = flow.tags * packets
    if flow.tags > 1:
        urgent = 0
        for word in range(flow.bitmap_words):
            urgent += ones(tags[word])
    if params.send_order == IMPORTANT_FIRST:
        flow.order_offset = _first_packet(flow, packets, packets - urgent if flow.tags > 1 else packets)
    _begin_pass(params, flow, 0, packets, urgent)


@njit
def begin_resend_pass(params: DlcpParameters, flow: DlcpFlow) -> None:
    """Begin a pass after a complete Bitmap: send the missing packets (`flow.resend`) that are needed."""
    resend = flow.resend
    tags = flow.tag_bits
    missing = 0
    urgent = 0
    for word in range(flow.bitmap_words):
        bits = resend[word]
        missing += ones(bits)
        if flow.tags > 1:
            urgent += ones(bits & tags[word])
    if flow.tags <= 1:
        urgent = flow.tags * missing
    flow.passes += 1
    _begin_pass(params, flow, flow.packets - missing, missing, urgent)


@njit
def next_packet(params: DlcpParameters, flow: DlcpFlow) -> int:
    """Return the next packet of this pass; BLOCKED at its end."""
    quota = flow.quota
    if quota == 0:
        return BLOCKED
    packets = flow.packets
    tags = flow.tag_bits
    resend = flow.resend
    is_resend_pass = flow.passes > 0
    in_phases = params.send_order == IMPORTANT_FIRST and flow.tags > 1
    position = flow.position
    while True:
        if position == packets:
            if not in_phases or flow.droppable_phase:
                flow.quota = 0
                return BLOCKED
            flow.droppable_phase = 1
            position = 0
            if not is_resend_pass:
                flow.midway_state = REACHED
        sequence = (flow.order_offset + position * flow.order_stride) % packets
        position += 1
        if is_resend_pass and bit(resend, sequence) == 0:
            continue
        important = flow.tags if flow.tags <= 1 else bit(tags, sequence)
        if in_phases and important == flow.droppable_phase:
            continue
        if important == 0 and quota <= flow.urgent:
            continue  # the rest of the quota is for important ones
        break
    flow.position = position
    flow.quota = quota - 1
    if important and flow.urgent:
        flow.urgent -= 1
    return sequence
