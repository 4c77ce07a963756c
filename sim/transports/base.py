"""What every transport is made of: six compiled functions and a class that names them.

A transport is a class with

* `control_bytes`, `data_overhead` - bytes on the wire of a control packet, and of a data packet beyond its payload;
* `sender_bitmaps`, `receiver_bitmaps` - how many bitmaps of one bit per packet each side of a flow needs;
* `fresh_word` - offset of the sender's word that counts packets sent for the first time, `probe_word` the one that
  counts probes (0 = none);
* `important(settings) -> bool` - whether untagged packets are important (ECN-capable);
* `parameters(settings, context) -> list[int]` - its numbers, at most 32, found at `k` by its functions;
* the functions `start`, `pull`, `on_control`, `on_timer` (sender), `on_data`, `on_probe` (receiver), all `@njit`.

The state of a flow is a record of integers in `M`. A sender's own words begin at `f + S_USER`, a receiver's at
`r + R_USER`; the words before belong to the engine, of which a transport writes S_TIMER (call me then), S_GAP and
S_PACE (pacing), S_DONE (nothing more to send), R_GOT and R_DONE (delivered), and the priority in S_DATA, which
holds from the next packet on. Functions use integers only, so that the
oracle of the tests can run the very same code uncompiled.

A sequence number that `pull` returns may carry MUST (the packet is made important whatever its tag says).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import njit

MUST = 1 << 30  # added to a sequence number by `pull`: never droppable
ONE = 1 << 20  # fixed point for fractions


@njit
def reply(kind, echo, argument, size, count):
    """A receiver's answer as one word: `count` control packets of `kind`, each of `size` bytes (0 = as usual)."""
    return kind | (echo << 3) | (size << 4) | (count << 18) | (argument << 40)


@njit
def bit(M, base, index):
    """Bit `index` of the bitmap at `base`: 32 to a word, so that plain integers and machine words agree."""
    return (M[base + (index >> 5)] >> (index & 31)) & 1


@njit
def set_bit(M, base, index):
    """Set bit `index` of the bitmap at `base`."""
    M[base + (index >> 5)] |= 1 << (index & 31)


@njit
def clear_bit(M, base, index):
    """Clear bit `index` of the bitmap at `base`."""
    M[base + (index >> 5)] &= ~(1 << (index & 31))


@dataclass(frozen=True)
class Context:
    """What a transport may want to know of the run when it makes its parameters.

    `speed`: picoseconds per byte << 16 of the fastest host link; `payload`: bytes of payload of a full packet;
    `base_rtt`: picoseconds there and back along the longest path without queueing.
    """

    speed: int
    payload: int
    base_rtt: int


def fraction(value: float) -> int:
    """A fraction in fixed point (20 bits)."""
    return round(value * ONE)
