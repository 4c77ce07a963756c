"""Fields of a packet's two words.

The header (word A) is for switches: destination 18 bits, size 14, kind 3, priority 3, important 1, ce 1, echo 1,
trimmed 1, path entropy 16, logged 1, sum of its whole aggregation group 1, sum of the messages at its first
aggregation node 1, lowest bits first. The body (word B) is for transports: flow 20 bits, sequence 22, argument 22.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import (
    A_ENTROPY,
    A_KIND,
    A_PRIORITY,
    A_SIZE,
    B_ARGUMENT,
    B_SEQUENCE,
    MASK_DESTINATION,
    MASK_FLOW,
    MASK_SEQUENCE,
    MASK_SIZE,
)

SIZE_FIELD = MASK_SIZE << A_SIZE


@njit
def destination_of(header: int) -> int:
    """Return the number of the destination host."""
    return header & MASK_DESTINATION


@njit
def size_of(header: int) -> int:
    """Return the bytes on the wire."""
    return (header >> A_SIZE) & MASK_SIZE


@njit
def with_size(header: int, size: int) -> int:
    """Return the header with another size."""
    return (header & ~SIZE_FIELD) | (size << A_SIZE)


@njit
def kind_of(header: int) -> int:
    """Return the kind: DATA, ACK, ..."""
    return (header >> A_KIND) & 7


@njit
def priority_of(header: int) -> int:
    """Return the priority, 0 first."""
    return (header >> A_PRIORITY) & 7


@njit
def entropy_of(header: int) -> int:
    """Return the path entropy."""
    return (header >> A_ENTROPY) & 0xFFFF


@njit
def with_entropy(header: int, entropy: int) -> int:
    """Return the header with another path entropy."""
    return (header & ~(0xFFFF << A_ENTROPY)) | (entropy << A_ENTROPY)


@njit
def has_flag(header: int, flag: int) -> int:
    """Return 1 if a flag is set, such as A_CE."""
    return (header >> flag) & 1


@njit
def flow_of(body: int) -> int:
    """Return the number of the flow's records; MASK_FLOW if the packet belongs to none."""
    return body & MASK_FLOW


@njit
def sequence_of(body: int) -> int:
    """Return the sequence number."""
    return (body >> B_SEQUENCE) & MASK_SEQUENCE


@njit
def argument_of(body: int) -> int:
    """Return the argument: the cumulative point, or the piggyback value of a data packet."""
    return (body >> B_ARGUMENT) & MASK_SEQUENCE
