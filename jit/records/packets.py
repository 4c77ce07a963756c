"""Fields of a packet's two words.

The header, the first word, is for switches. From the lowest bit on: destination 18 bits, size 14, kind 3, priority 3,
important 1, ce 1, echo 1, trimmed 1, path entropy 16, logged 1, sum of its whole aggregation group 1, sum of the
messages at its first aggregation node 1. The body, the second word, is for transports: flow 20 bits, sequence 22,
argument 22.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import (
    ARGUMENT_SHIFT,
    ENTROPY_SHIFT,
    IMPORTANT_BIT,
    KIND_SHIFT,
    MASK_DESTINATION,
    MASK_FLOW,
    MASK_SEQUENCE,
    MASK_SIZE,
    PRIORITY_SHIFT,
    SEQUENCE_SHIFT,
    SIZE_SHIFT,
)

SIZE_FIELD = MASK_SIZE << SIZE_SHIFT


@njit
def destination_of(header: int) -> int:
    """Return the number of the destination host."""
    return header & MASK_DESTINATION


@njit
def size_of(header: int) -> int:
    """Return the bytes on the wire."""
    return (header >> SIZE_SHIFT) & MASK_SIZE


@njit
def with_size(header: int, size: int) -> int:
    """Return the header with another size."""
    return (header & ~SIZE_FIELD) | (size << SIZE_SHIFT)


@njit
def kind_of(header: int) -> int:
    """Return the kind: DATA, ACK, ..."""
    return (header >> KIND_SHIFT) & 7


@njit
def priority_of(header: int) -> int:
    """Return the priority, 0 first."""
    return (header >> PRIORITY_SHIFT) & 7


@njit
def entropy_of(header: int) -> int:
    """Return the path entropy."""
    return (header >> ENTROPY_SHIFT) & 0xFFFF


@njit
def with_entropy(header: int, entropy: int) -> int:
    """Return the header with another path entropy."""
    return (header & ~(0xFFFF << ENTROPY_SHIFT)) | (entropy << ENTROPY_SHIFT)


@njit
def has_flag(header: int, flag: int) -> int:
    """Return 1 if a flag is set, such as CE_BIT."""
    return (header >> flag) & 1


@njit
def is_important(header: int) -> int:
    """Return 1 if the packet is important: ECN-capable, marked instead of dropped; 0 if it is droppable."""
    return (header >> IMPORTANT_BIT) & 1


@njit
def with_kind(header: int, kind: int) -> int:
    """Return a header of kind 0 (DATA) with another kind."""
    return header | (kind << KIND_SHIFT)


@njit
def with_flag(header: int, flag: int) -> int:
    """Return the header with a flag set, such as CE_BIT."""
    return header | (1 << flag)


@njit
def with_lower_priority(header: int) -> int:
    """Return the header with the next lower priority; its priority must not be the lowest."""
    return header + (1 << PRIORITY_SHIFT)


@njit
def body_of(flow: int, sequence: int, argument: int) -> int:
    """Return the body of a packet."""
    return flow | (sequence << SEQUENCE_SHIFT) | (argument << ARGUMENT_SHIFT)


@njit
def flow_of(body: int) -> int:
    """Return the number of the flow's records; MASK_FLOW if the packet belongs to none."""
    return body & MASK_FLOW


@njit
def sequence_of(body: int) -> int:
    """Return the sequence number."""
    return (body >> SEQUENCE_SHIFT) & MASK_SEQUENCE


@njit
def argument_of(body: int) -> int:
    """Return the argument: the cumulative point, or the piggyback value of a data packet."""
    return (body >> ARGUMENT_SHIFT) & MASK_SEQUENCE
