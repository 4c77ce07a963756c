"""Declares atomic loads, stores and adds, prefetch and bit counts for compiled code, with Python equivalents;
`gradwire.jit.intrinsics` emits them.

Two threads share one array. A link's ring has one producer and one consumer, so an ordered store of the producer's
counter and an ordered load of it by the consumer suffice; on x86 both are plain moves, but without them the compiler
could move the counter before the packet. The barrier needs the one atomic add.
"""

import ctypes
import os
from typing import Any

from gradwire.jit.compiled import Intrinsic, njit
from gradwire.jit.records import Record


def _words_at(address: int) -> Any:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))


def _load(record: Any, index: int) -> int:
    words, base = (record.words, record.base) if isinstance(record, Record) else (record, 0)
    return int(words[base + index])


def _store(record: Any, index: int, value: int) -> None:
    words, base = (record.words, record.base) if isinstance(record, Record) else (record, 0)
    words[base + index] = value


def _fetch_add(record: Any, index: int, value: int) -> int:
    before = _load(record, index)
    _store(record, index, before + value)
    return before


def _trailing_zeros(value: int) -> int:
    return (value & -value).bit_length() - 1 if value else 64


# Plain Python advances a network in one thread, so order and atomicity are given.
words_at = Intrinsic("words_at", python=_words_at)
load_acquire = Intrinsic("load_acquire", python=_load)
store_release = Intrinsic("store_release", python=_store)
fetch_add = Intrinsic("fetch_add", python=_fetch_add)
prefetch = Intrinsic("prefetch", python=lambda record, index: None)
count_trailing_zeros = Intrinsic("count_trailing_zeros", python=_trailing_zeros)
bit_length = Intrinsic("bit_length", python=lambda value: (value & (1 << 64) - 1).bit_length())
sched_yield = Intrinsic("sched_yield", python=os.sched_yield)

SPINS_BEFORE_YIELDING = 4000


@njit
def wait_while_equal(record: Record, index: int, value: int, over: int) -> None:
    """Spin while word `index` of a record equals `value` and word `over` is 0; yield the processor after a while."""
    spins = 0
    while load_acquire(record, index) == value and load_acquire(record, over) == 0:
        spins += 1
        if spins > SPINS_BEFORE_YIELDING:
            sched_yield()


__all__ = [
    "bit_length",
    "count_trailing_zeros",
    "fetch_add",
    "load_acquire",
    "prefetch",
    "sched_yield",
    "store_release",
    "wait_while_equal",
    "words_at",
]
