"""The order and number of packets that DLCP sends of a message: passes, quota, and required packets.

A message is sent in passes: the first one, and one for the missing packets of each Bitmap. Each walks through the
packets in the order of the message:

* `important_first`: the important packets, then the droppable ones, each starting at a droppable packet that rotates
  from iteration to iteration (by `S_TURN`, from a seeded start). The end of the order is what a bound forgives; if
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
from gradwire.jit.layout import A_ENTROPY, BLOCKED, S_ALLOWED, S_BITS, S_DATA, S_PACKETS, S_TAGS, S_TURN, S_WORDS
from gradwire.protocols.transports.base import bit
from gradwire.protocols.transports.dlcp.layout import (
    EARLY,
    IMPORTANT_FIRST,
    K_IMPORTANT,
    K_ORDER,
    K_PAYLOAD,
    K_POLICY,
    MIDWAY,
    NEEDED,
    OFFSET,
    PASS,
    POSITION,
    QUOTA,
    RANDOM,
    REACHED,
    RESEND,
    STRIDE,
    TURN,
    URGENT,
)


@njit
def ones(word):
    """Return the number of bits set in a 32-bit word."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return (((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 0xFF


@njit
def _shared(a, b):
    """Return the greatest common divisor."""
    while b:
        rest = a % b
        a = b
        b = rest
    return a


@njit
def _quota(M, k, f, here, absent, urgent):
    """Begin a pass: `here` packets have arrived, `absent` have not, `urgent` of them important."""
    if M[k + K_IMPORTANT] == 0:
        urgent = 0
    quota = absent
    if M[k + K_POLICY] == EARLY:
        quota = min(absent, max(M[f + NEEDED] - here, urgent, 1))
    M[f + QUOTA] = quota
    M[f + URGENT] = urgent
    M[f + POSITION] = 0
    M[f + TURN] = 0


@njit
def _beginning(M, f, packets, droppable):
    """Return the first packet of a message's order: the next droppable one in rotation, or any if there are no tags."""
    if droppable == 0:
        return 0
    step = max(droppable * 0x9E37 >> 16, 1)
    while _shared(step, droppable) != 1:
        step += 1
    left = M[f + S_TURN] * step % droppable
    tags = M[f + S_TAGS]
    if tags <= 1:
        return left
    sequence = 0
    while ones(~M[tags + (sequence >> 5)] & 0xFFFFFFFF) <= left:
        left -= ones(~M[tags + (sequence >> 5)] & 0xFFFFFFFF)
        sequence += 32
    while True:
        if bit(M, tags, sequence) == 0:
            if left == 0:
                return sequence
            left -= 1
        sequence += 1


@njit
def first_pass(M, k, f):
    """Begin the message: compute its order and the packets it needs."""
    packets = M[f + S_PACKETS]
    random = (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF
    M[f + STRIDE] = 1
    if M[k + K_ORDER] == RANDOM:
        M[f + OFFSET] = random * packets >> 16
        stride = 1 + (random * 0x9E37 & 0xFFFF) * packets // 0x10000
        while _shared(stride, packets) != 1:
            stride += 1
        M[f + STRIDE] = stride
    M[f + NEEDED] = packets - M[f + S_ALLOWED] // M[k + K_PAYLOAD]
    tags = M[f + S_TAGS]
    urgent = tags * packets
    if tags > 1:
        urgent = 0
        for word in range(M[f + S_WORDS]):
            urgent += ones(M[tags + word])
    if M[k + K_ORDER] == IMPORTANT_FIRST:
        M[f + OFFSET] = _beginning(M, f, packets, packets - urgent if tags > 1 else packets)
    _quota(M, k, f, 0, packets, urgent)


@njit
def begin_resend_pass(M, k, f):
    """Begin a pass after a complete Bitmap: send the missing packets (RESEND) that are needed."""
    resend = M[f + S_BITS] + RESEND * M[f + S_WORDS]
    tags = M[f + S_TAGS]
    absent = 0
    urgent = 0
    for word in range(M[f + S_WORDS]):
        missing = M[resend + word]
        absent += ones(missing)
        if tags > 1:
            urgent += ones(missing & M[tags + word])
    if tags <= 1:
        urgent = tags * absent
    M[f + PASS] += 1
    _quota(M, k, f, M[f + S_PACKETS] - absent, absent, urgent)


@njit
def next_packet(M, k, f):
    """Return the next packet of this pass; BLOCKED at its end."""
    quota = M[f + QUOTA]
    if quota == 0:
        return BLOCKED
    packets = M[f + S_PACKETS]
    tags = M[f + S_TAGS]
    resend = M[f + S_BITS] + RESEND * M[f + S_WORDS]
    again = M[f + PASS]
    in_turns = M[k + K_ORDER] == IMPORTANT_FIRST and tags > 1
    position = M[f + POSITION]
    while True:
        if position == packets:
            if not in_turns or M[f + TURN]:
                M[f + QUOTA] = 0
                return BLOCKED
            M[f + TURN] = 1
            position = 0
            if again == 0:
                M[f + MIDWAY] = REACHED
        sequence = (M[f + OFFSET] + position * M[f + STRIDE]) % packets
        position += 1
        if again and bit(M, resend, sequence) == 0:
            continue
        important = tags if tags <= 1 else bit(M, tags, sequence)
        if in_turns and important == M[f + TURN]:
            continue
        if important == 0 and quota <= M[f + URGENT]:
            continue  # the rest of the quota is for important ones
        break
    M[f + POSITION] = position
    M[f + QUOTA] = quota - 1
    if important and M[f + URGENT]:
        M[f + URGENT] -= 1
    return sequence
