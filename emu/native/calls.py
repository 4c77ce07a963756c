"""Wraps memory access by address and system calls (`intrinsics`) for the testbed's compiled code.

Pointers are passed as integers. Failed calls return -1, and `error` returns the error number. The layouts are those of
64-bit Linux.
"""

from __future__ import annotations

import errno
import platform
from typing import Final

import numpy as np

from gradwire.jit.compiled import Intrinsic, njit

_HERE = "gradwire.emu.native.intrinsics"
words_at = Intrinsic("words_at")
bytes_at, byte, half, word, put_word, copy, invoke = (
    Intrinsic(name, _HERE) for name in ("bytes_at", "byte", "half", "word", "put_word", "copy", "invoke")
)
_read, _write, clock_gettime, timerfd_settime, epoll_wait, poll, recvmmsg, sendmmsg = (
    Intrinsic(name, _HERE)
    for name in ("read", "write", "clock_gettime", "timerfd_settime", "epoll_wait", "poll", "recvmmsg", "sendmmsg")
)
sched_yield, errno_location = (Intrinsic(name, _HERE) for name in ("sched_yield", "errno_location"))

MONOTONIC, ABSOLUTE = 1, 1
AGAIN, INTERRUPTED, REFUSED, NO_BUFFERS = errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED, errno.ENOBUFS
MSG_DONTWAIT: Final = 0x40
POLLOUT: Final = 4
EVENT_BYTES, EVENT_FILE = (12, 4) if platform.machine() == "x86_64" else (16, 8)
"""Size of struct epoll_event and offset of its file number; packed only on x86-64 [epoll_wait(2)]."""
SECOND: Final = 1_000_000_000
SHARE_NS: Final = 100_000
"""Time after which an agent or the switch yields to processes of the same real-time priority, which otherwise run until
they wait, or for 100 ms (our choice)."""
AT_ONCE_NS: Final = 3_000
"""Waits shorter than this count as no wait: an event was ready. Our choice; sleeping and waking up takes longer."""


@njit
def error():
    return np.int64(errno_location()[0])


@njit
def read(file, address, many):
    return np.int64(_read(np.int32(file), np.uintp(address), many))


@njit
def write(file, address, many):
    return np.int64(_write(np.int32(file), np.uintp(address), many))


@njit
def monotonic_ns(spec):
    """Return the time of CLOCK_MONOTONIC; `spec`: address of two scratch words."""
    clock_gettime(np.int32(MONOTONIC), np.uintp(spec))
    found = words_at(spec)
    return found[0] * SECOND + found[1]


@njit
def set_timer(file, time_ns, spec):
    """Set a timerfd to a time of CLOCK_MONOTONIC, 0: never; `spec`: address of four scratch words."""
    when = words_at(spec)
    when[0] = 0
    when[1] = 0
    when[2] = time_ns // SECOND
    when[3] = time_ns % SECOND
    return np.int64(timerfd_settime(np.int32(file), np.int32(ABSOLUTE), np.uintp(spec), np.uintp(0)))


@njit
def wait(file, events, many, wait_ms):
    """Wait `wait_ms` (-1: for ever) for events of an epoll; return the number written to `events`, at most `many`."""
    return np.int64(epoll_wait(np.int32(file), np.uintp(events), np.int32(many), np.int32(wait_ms)))


@njit
def yield_after_slice(state):
    """Yield to processes of equal real-time priority after a time slice; return the time if there are slices
    [sched_yield(2)]. Otherwise the others would be late by as long as this one has work, such as the messages of an
    iteration that begins."""
    if state.slice_ns == 0:
        return 0
    now = monotonic_ns(state.scratch)
    if now - state.slice_begin_ns > state.slice_ns:
        sched_yield()
        now = monotonic_ns(state.scratch)
        state.slice_begin_ns = now
    return now
