"""Declares the limits of packet and message numbers and of the engine's memory."""

MAX_PACKETS = 0x3FFFFF
"""Packets of one message: their numbers have 22 bits, in the simulator and on the wire."""
MAX_FLOWS = 0xFFFFF
"""Messages in flight at once: 20 bits."""
ARENA_WORDS = 1 << 31
"""Words of the engine's state that are allocated per message and step: address space, of which only used pages take
memory."""
MAX_LOADED_MESSAGES = ARENA_WORDS // 48
"""Messages loaded at once. One takes 22 words of the arena (parameter servers, all-to-alls) to 48 (halving, where a
worker waits for many messages before it sends), measured."""
LOADED_MESSAGE_BYTES = 800
"""Memory that a message takes while its step is loaded. Measured: 680 bytes (overlapped averaging) to 1340
(halving), 740 to 950 with parameter servers and rings. Whatever this estimate refuses takes at least 0.85 of a
machine's memory."""
