"""Computes counter-based random numbers, each of which depends only on key and counter, never on the order of draws.

A key is derived once per node or link from the seed (`key_of`). It holds two numbers: the start of its stream and the
odd step from one counter to the next, as in SplitMix (Steele, Lea and Flood, OOPSLA 2014). With one common step, all
streams would be segments of one cycle of 2**32 numbers, and among thousands of links some would draw the same sequence
with an offset. With individual steps, streams may share a number but not a sequence.

The mixing function is a 32-bit finaliser of two multiplications with low bias (constants from C. Wellons'
hash-prospector, "lowbias32" family). Both constants are below 2**31, so products stay below 2**63 and Numba and plain
Python integers agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

from gradwire.jit.compiled import njit

if TYPE_CHECKING:
    from gradwire.scenarios.arrays import AnyInts, Ints

    N = TypeVar("N", int, Ints)

MASK = 0xFFFFFFFF
KEY_STEP = 0x9E3779B1  # 2**32 / golden ratio, odd: keys of consecutive identities are far apart
TIE_BITS = 20
NODE_DRAWS, LINK_DRAWS, RED_DRAWS, TIE_DRAWS = 1, 2, 4, 5
"""Kinds of keys: of nodes, links, RED marks and tie-breaks between arrivals."""
FLOW_ENTROPY = 3  # kind of the draws that give each message its path entropy


@njit
def mix(x: int) -> int:
    """Scatter the 32 bits of `x` (0 <= x < 2**32)."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & MASK
    return x ^ (x >> 15)


@njit
def draw(key: int, counter: int) -> int:
    """Return the `counter`-th 32-bit random number of `key`."""
    return mix(((key & MASK) + (counter & 0x7FFFFFFF) * (key >> 32)) & MASK)


@njit
def tie_break(key: int, time: int) -> int:
    """Return the rank of a packet among arrivals of the same picosecond by different links; the lowest is handled
    first. The rank is TIE_BITS bits of a hash of the time and the link's `key`."""
    return draw(key, time ^ (time >> 31)) >> (32 - TIE_BITS)


@njit
def choice(random: int, n: int) -> int:
    """Map a 32-bit random number to an index below `n`."""
    return (random * n) >> 32


@njit
def stream(begin: int, step: int) -> int:
    """Return the key of a stream from its start and the bits of its step, 32 bits each."""
    return (step >> 1 | 1) << 32 | begin


def kind_key(seed: int, kind: int) -> int:
    """Return the common part of all keys of one kind (nodes, links or flows)."""
    key = mix.py_func(seed & MASK)
    return int(mix.py_func((key + (seed >> 32) * KEY_STEP + kind * 0x632BE5AB) & MASK))


@njit
def flow_entropy(key: int, message: int) -> int:
    """Return what `draw_entropy` returns, for compiled code; `key` is the `kind_key` of FLOW_ENTROPY."""
    return mix((key + message * KEY_STEP) & MASK) & 0xFFFF


@overload
def key_of(seed: int, kind: int, identity: int) -> int: ...
@overload
def key_of(seed: int, kind: int, identity: AnyInts) -> Ints: ...
def key_of(seed: int, kind: int, identity: int | AnyInts) -> int | Ints:
    """Return the key of a node or link, or of an array of them; `kind` separates nodes, links and flows."""
    key = kind_key(seed, kind)
    begin = mix.py_func((key + identity * KEY_STEP) & MASK)
    # mixed differently, so that two kinds with equal starts have different steps
    return stream.py_func(begin, mix.py_func((mix.py_func(key ^ MASK) + identity * KEY_STEP) & MASK))


def draw_entropy(seed: int, message: N) -> N:
    """Return the 16-bit path entropy of a message by its number, or of an array of messages."""
    return mix.py_func((kind_key(seed, FLOW_ENTROPY) + (message & MASK) * KEY_STEP) & MASK) & 0xFFFF
