"""Random numbers by counter: a draw is a function of (key, counter), so its value cannot depend on who draws first.

A key is made once per node or link from the seed (`key_of`). The mixing function is a 32-bit finaliser of two
multiplications with low bias (constants published by C. Wellons' hash-prospector, "lowbias32" family); both constants
are below 2**31, so products stay below 2**63 and Numba and plain Python integers agree.
"""

from typing import Any

from numba import njit

MASK = 0xFFFFFFFF
STEP = 0x9E3779B1  # 2**32 / golden ratio, odd: consecutive counters land far apart


@njit
def mix(x):
    """Scatter the 32 bits of `x` (0 <= x < 2**32)."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & MASK
    return x ^ (x >> 15)


@njit
def draw(key, counter):
    """The `counter`-th 32-bit random number of `key`."""
    return mix((key + (counter & 0x7FFFFFFF) * STEP) & MASK)


@njit
def choice(random, n):
    """A 32-bit random number as an index below `n`."""
    return (random * n) >> 32


def key_of(seed: int, kind: int, identity: Any) -> Any:
    """The key of one node or link, or of an array of them. `kind` keeps nodes, links and flows apart."""
    key = mix.py_func(seed & MASK)
    key = mix.py_func((key + (seed >> 32) * STEP + kind * 0x632BE5AB) & MASK)
    return mix.py_func((key + identity * STEP) & MASK)
