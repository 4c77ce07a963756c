"""Limits of what can be numbered: packets of a message, messages under way; and of what the engine has words for."""

MAX_PACKETS = 0x3FFFFF
"""Packets of one message: their numbers have 22 bits, in the simulator and on the wire."""
MAX_FLOWS = 0xFFFFF
"""Messages under way at once: 20 bits."""
ARENA_WORDS = 1 << 31
"""Words of the engine's state that come and go with messages and steps: addresses, of which those take memory that are
used."""
MAX_LAID = ARENA_WORDS // 48
"""Messages that are laid out at once. One takes 22 words there (parameter servers, all-to-alls) to 48 (halving, where a
worker waits for many before it sends), measured."""
LAID_BYTES = 800
"""Memory that a message takes while its step is laid out: measured 680 bytes (overlapped averaging) to 1340 (halving),
740 to 950 with parameter servers and rings. What is refused by this takes 0.85 of a machine's memory at the least."""
