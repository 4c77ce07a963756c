"""Declares the bit fields of a receiver's answer to a data packet, which its transport returns as one word. 0: nothing
is sent.
"""

from gradwire.jit.compiled import njit
from gradwire.jit.records.bit_fields import BitField

reply_kind = BitField(0, 3, "kind of the control packets: ACK, NACK, ...")
reply_echo = BitField(3, 1, "1: they echo a congestion mark")
reply_size = BitField(4, 14, "bytes on the wire of each of them, 0 = those of the transport")
reply_count = BitField(18, 12, "number of control packets")
has_piggyback = BitField(30, 1, "1: they return the piggyback of the answered packet, not its sequence number")
reply_pulls = BitField(31, 8, "pulls that are wanted in addition")
is_for_previous = BitField(39, 1, "1: the previous data packet is answered")
reply_argument = BitField(40, 22, "argument, such as the cumulative point")
with_pulls = reply_pulls.replaced


@njit
def reply(kind: int, echo: int, argument: int, size: int, count: int) -> int:
    """Return a receiver's answer as one word: `count` control packets of `kind`, each of `size` bytes (0 = default)."""
    return kind | (echo << 3) | (size << 4) | (count << 18) | (argument << 40)


@njit
def with_piggyback(answer: int) -> int:
    """Return the answer with the piggyback of the answered packet in place of its sequence number."""
    return answer | (1 << 30)


@njit
def for_previous(answer: int) -> int:
    """Return the answer, addressed to the previous data packet."""
    return answer | (1 << 39)
