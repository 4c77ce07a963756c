"""Machine instructions that Numba does not expose: ordered loads and stores, an atomic add, a pause, a prefetch.

Two threads share one array. A link's ring has one producer and one consumer, so an ordered store of the producer's
counter and an ordered load of it by the consumer suffice; on x86 both are plain moves, but without them the compiler
could move the counter before the packet. The barrier needs the one atomic add.
"""

from gradwire.jit.compiled import Intrinsic, njit
from gradwire.jit.records import Record

words_at = Intrinsic("words_at")
load_acquire = Intrinsic("load_acquire")
store_release = Intrinsic("store_release")
fetch_add = Intrinsic("fetch_add")
prefetch = Intrinsic("prefetch")
count_trailing_zeros = Intrinsic("count_trailing_zeros")
bit_length = Intrinsic("bit_length")
sched_yield = Intrinsic("sched_yield")

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
