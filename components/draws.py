"""Counter-based random numbers: a draw is a function of (key, counter), so its value cannot depend on who draws first.

A key is made once per node or link from the seed (`key_of`). It holds two numbers: where its stream begins, and the odd
step from one counter to the next, as in SplitMix (Steele, Lea and Flood, OOPSLA 2014). With one step for all, every
stream would be a stretch of the same cycle of 2**32 numbers, and among thousands of links some would draw the same
numbers as others, a little later; with a step of their own, streams may meet in a number but not stay together.

The mixing function is a 32-bit finaliser of two multiplications with low bias (constants published by C. Wellons'
hash-prospector, "lowbias32" family); both constants are below 2**31, so products stay below 2**63 and Numba and plain
Python integers agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

from gradwire.components.compiled import njit

if TYPE_CHECKING:
    from gradwire.scenarios.arrays import AnyInts, Ints

    N = TypeVar("N", int, Ints)

MASK = 0xFFFFFFFF
STEP = 0x9E3779B1  # 2**32 / golden ratio, odd: consecutive identities land far apart
TIE_BITS = 20
NODE_DRAWS, LINK_DRAWS, RED_DRAWS, TIE_DRAWS = 1, 2, 4, 5
"""Kinds of the keys of nodes, of links, of their marks and of their places among arrivals."""
FLOW_ENTROPY = 3  # kind of the draws that give each message its path entropy


@njit
def mix(x):
    """Scatter the 32 bits of `x` (0 <= x < 2**32)."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & MASK
    return x ^ (x >> 15)


@njit
def draw(key, counter):
    """The `counter`-th 32-bit random number of `key`."""
    return mix(((key & MASK) + (counter & 0x7FFFFFFF) * (key >> 32)) & MASK)


@njit
def tie_break(key, time):
    """What decides between packets that arrive at the same picosecond by different links, lowest first: TIE_BITS bits
    of a hash of the time and the link, whose `key` it is."""
    return draw(key, time ^ (time >> 31)) >> (32 - TIE_BITS)


@njit
def choice(random, n):
    """A 32-bit random number as an index below `n`."""
    return (random * n) >> 32


@njit
def stream(begin, step):
    """The key of a stream: where it begins, and bits for its step, both of 32 bits."""
    return (step >> 1 | 1) << 32 | begin


def kind_key(seed: int, kind: int) -> int:
    """What the keys of all nodes, links or flows are made of."""
    key = mix.py_func(seed & MASK)
    return int(mix.py_func((key + (seed >> 32) * STEP + kind * 0x632BE5AB) & MASK))


@njit
def flow_entropy(key, message):
    """`entropy_of` for compiled code, with the `kind_key` of FLOW_ENTROPY."""
    return mix((key + message * STEP) & MASK) & 0xFFFF


@overload
def key_of(seed: int, kind: int, identity: int) -> int: ...
@overload
def key_of(seed: int, kind: int, identity: AnyInts) -> Ints: ...
def key_of(seed: int, kind: int, identity: int | AnyInts) -> int | Ints:
    """The key of one node or link, or of an array of them. `kind` keeps nodes, links and flows apart."""
    key = kind_key(seed, kind)
    begin = mix.py_func((key + identity * STEP) & MASK)
    # by another way, so that of two kinds that begin alike the steps are not
    return stream.py_func(begin, mix.py_func((mix.py_func(key ^ MASK) + identity * STEP) & MASK))


def entropy_of(seed: int, message: N) -> N:
    """The path entropy of a message by its number, or of an array of them: 16 bits."""
    return mix.py_func((kind_key(seed, FLOW_ENTROPY) + (message & MASK) * STEP) & MASK) & 0xFFFF
