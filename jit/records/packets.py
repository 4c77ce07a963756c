"""Declares the bit fields of a packet's two words, the header (read by switches) and the body (read by transports)."""

from gradwire.jit.compiled import njit
from gradwire.jit.records.bit_fields import BitField

destination_of = BitField(0, 18, "number of the destination host")
size_of = BitField(18, 14, "bytes on the wire")
with_size = size_of.replaced
kind_of = BitField(32, 3, "DATA, ACK, ...")
with_kind = kind_of.replaced
priority_of = BitField(35, 3, "priority, 0 is served first")
with_priority = priority_of.replaced
is_important = BitField(38, 1, "1: ECN-capable, marked instead of dropped; 0: droppable")
with_importance = is_important.replaced
is_marked = BitField(39, 1, "1: a switch has marked the packet (CE)")
with_mark = is_marked.replaced
has_echo = BitField(40, 1, "1: a control packet that echoes a mark")
with_echo = has_echo.replaced
is_trimmed = BitField(41, 1, "1: a switch has cut the packet to its header")
with_trimmed = is_trimmed.replaced
entropy_of = BitField(42, 16, "path entropy")
with_entropy = entropy_of.replaced
is_logged = BitField(58, 1, "1: the packet log records it")
with_logged = is_logged.replaced
is_group_sum = BitField(59, 1, "1: the sum of its whole aggregation group")
with_group_sum = is_group_sum.replaced
is_node_sum = BitField(60, 1, "1: the sum of the messages at its first aggregation node")
with_node_sum = is_node_sum.replaced

flow_of = BitField(0, 20, "number of the flow's records; MASK_FLOW if the packet belongs to none")
sequence_of = BitField(20, 22, "sequence number")
sequence_and_argument_of = BitField(20, 44, "both: a key that orders packets of one flow")
argument_of = BitField(42, 22, "the cumulative point, or the piggyback value of a data packet")


@njit
def body_of(flow: int, sequence: int, argument: int) -> int:
    return flow | (sequence << 20) | (argument << 42)
