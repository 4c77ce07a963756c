"""Limits of what can be numbered: packets of a message, messages under way."""

MAX_PACKETS = 0x3FFFFF
"""Packets of one message: their numbers have 22 bits, in the simulator and on the wire."""
MAX_FLOWS = 0xFFFFF
"""Messages under way at once: 20 bits."""
