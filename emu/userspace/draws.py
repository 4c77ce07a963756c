"""Random numbers by counter: a draw is a function of (key, counter), so its value cannot depend on when it is drawn.
Here are the keys; draws themselves are compiled (`gradwire.emu.userspace.rules.draw`).

The same functions and keys as the simulator's (`gradwire.components.draws`, which are compiled and not to be imported
here), so that with one seed both lose the same packets of a link and spray alike; a test holds the two equal.
"""

from __future__ import annotations

MASK = 0xFFFFFFFF
STEP = 0x9E3779B1
TIE_BITS = 20
OF_NODE, OF_LINK, OF_ARRIVALS = 1, 2, 5
"""Kinds of keys."""


def mix(x: int) -> int:
    """Scatter the 32 bits of `x` (0 <= x < 2**32)."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & MASK
    return x ^ (x >> 15)


def key_of(seed: int, kind: int, identity: int) -> int:
    """The key of one node or link: where its stream begins, and its step."""
    key = mix(seed & MASK)
    key = mix((key + (seed >> 32) * STEP + kind * 0x632BE5AB) & MASK)
    begin = mix((key + identity * STEP) & MASK)
    return (mix((mix(key ^ MASK) + identity * STEP) & MASK) >> 1 | 1) << 32 | begin
