"""Compiled inner loops of MIPD's server, on the CPU: decoding, and the update of a half.

In torch every operation is a pass over memory, and packed codes need several per bit. Here a code is looked up where it
is unpacked, and a half is updated in one pass. On other devices the trainer uses torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gradwire.jit.compiled import njit

Array = Any
"""A NumPy array that shares the memory of a tensor."""


@njit(nogil=True)
def decode_codes(octets: Array, bits: int, means: Array, centre: float, scale: float, values: Array) -> None:
    """Decode the codes of `bits` bits that lie in bytes without gaps, uint8, to float32 values, (k,).

    means : float32[2^bits], what each code stands for before it is scaled and moved.
    """
    mask = (1 << bits) - 1
    last = len(octets) - 1
    for place in range(len(values)):
        begin = place * bits
        at = begin >> 3
        word = int(octets[at]) | int(octets[min(at + 1, last)]) << 8
        values[place] = centre + scale * means[word >> (begin & 7) & mask]


@njit(nogil=True)
def add_moves(vector: Array, positions: Array, values: Array, weight: float) -> None:
    """Add moves times a weight to a vector, float32, at positions, int64."""
    for place in range(len(positions)):
        vector[positions[place]] += weight * values[place]


@njit(nogil=True)
def add_smoothed_moves(
    vector: Array, smoothed: Array, positions: Array, values: Array, weight: float, share: float, fade: float
) -> None:
    """Add moves to a part of a vector, (k,), and the smoothed move where there is none.

    positions : within the part.
    share : weight of a new move in the smoothed one, below 1. `fade` is 1 - share: where there is none, the smoothed
        move fades by it. All numbers are float32, so that the bits are those of torch.
    """
    for at in range(len(vector)):  # without branches, so that many elements are updated at a time
        vector[at] += weight * smoothed[at]
        smoothed[at] *= fade
    for place in range(len(positions)):
        at = positions[place]
        before = smoothed[at] / fade
        vector[at] += weight * (values[place] - before)
        smoothed[at] = before + share * (values[place] - before)


@cache
def compile_loops() -> None:
    """Compile all loops now, so that no measured time includes it."""
    one, floats, octets, places = np.float32(1), np.zeros(1, np.float32), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    decode_codes(octets, 1, floats.repeat(2), one, one, floats.copy())
    add_moves(floats.copy(), places, floats, one)
    add_smoothed_moves(floats.copy(), floats.copy(), places, floats, one, one, one)
