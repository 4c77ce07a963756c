"""Fields of a receiver's answer to a data packet, which its transport returns as one word.

From the lowest bit on: kind 3 bits, ECN echo 1, size 14, number of control packets 12, with the piggyback 1, pulls 8,
for the previous packet 1, unused 1, argument 22. An answer of 0 sends nothing.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.constants import MASK_SEQUENCE, MASK_SIZE

ECHO_AT, SIZE_AT, COUNT_AT, PIGGYBACK_AT, PULLS_AT, PREVIOUS_AT, ARGUMENT_AT = 3, 4, 18, 30, 31, 39, 40


@njit
def reply(kind: int, echo: int, argument: int, size: int, count: int) -> int:
    """Return a receiver's answer as one word: `count` control packets of `kind`, each of `size` bytes (0 = default)."""
    return kind | (echo << ECHO_AT) | (size << SIZE_AT) | (count << COUNT_AT) | (argument << ARGUMENT_AT)


@njit
def with_piggyback(answer: int) -> int:
    """Return the answer with the piggyback of the answered packet in place of its sequence number."""
    return answer | (1 << PIGGYBACK_AT)


@njit
def with_pulls(answer: int, pulls: int) -> int:
    """Return the answer (0 for none) with a request for `pulls` more pulls of the flow, at most 255."""
    return answer | (pulls << PULLS_AT)


@njit
def for_previous(answer: int) -> int:
    """Return the answer, addressed to the previous data packet."""
    return answer | (1 << PREVIOUS_AT)


@njit
def reply_kind(answer: int) -> int:
    """Return the kind of the control packets: ACK, NACK, ..."""
    return answer & 7


@njit
def reply_echo(answer: int) -> int:
    """Return 1 if the control packets echo a congestion mark."""
    return (answer >> ECHO_AT) & 1


@njit
def reply_size(answer: int) -> int:
    """Return the bytes on the wire of each control packet, 0 = those of the transport."""
    return (answer >> SIZE_AT) & MASK_SIZE


@njit
def reply_count(answer: int) -> int:
    """Return the number of control packets."""
    return (answer >> COUNT_AT) & 0xFFF


@njit
def has_piggyback(answer: int) -> int:
    """Return 1 if a control packet returns the piggyback of the answered packet."""
    return (answer >> PIGGYBACK_AT) & 1


@njit
def reply_pulls(answer: int) -> int:
    """Return the number of pulls that are wanted in addition."""
    return (answer >> PULLS_AT) & 0xFF


@njit
def is_for_previous(answer: int) -> int:
    """Return 1 if the previous data packet is answered."""
    return (answer >> PREVIOUS_AT) & 1


@njit
def reply_argument(answer: int) -> int:
    """Return the argument, such as the cumulative point."""
    return (answer >> ARGUMENT_AT) & MASK_SEQUENCE
