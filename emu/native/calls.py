"""What compiled code of the testbed asks the machine for: memory by address, and system calls.

Pointers are passed as numbers. What fails returns -1, and `error` says why. The layouts are those of 64-bit Linux.
"""

from __future__ import annotations

import errno
import platform
from typing import Final

import numpy as np

from gradwire.components.compiled import Intrinsic, njit

_HERE = "gradwire.emu.native.intrinsics"
words_at = Intrinsic("words_at")
bytes_at, byte, half, put_half, word, put_word, copy, invoke = (
    Intrinsic(name, _HERE) for name in ("bytes_at", "byte", "half", "put_half", "word", "put_word", "copy", "invoke")
)
_read, _write, clock_gettime, timerfd_settime, epoll_wait, poll, recvmmsg, sendmmsg = (
    Intrinsic(name, _HERE)
    for name in (
        "read", "write", "clock_gettime", "timerfd_settime", "epoll_wait", "poll", "recvmmsg", "sendmmsg",
    )
)  # fmt: skip
sched_yield, errno_location = (Intrinsic(name, _HERE) for name in ("sched_yield", "errno_location"))

MONOTONIC, ABSOLUTE = 1, 1
AGAIN, INTERRUPTED, REFUSED, NO_BUFFERS = errno.EAGAIN, errno.EINTR, errno.ECONNREFUSED, errno.ENOBUFS
MSG_DONTWAIT: Final = 0x40
POLLOUT: Final = 4
EVENT_BYTES, EVENT_FILE = (12, 4) if platform.machine() == "x86_64" else (16, 8)
"""struct epoll_event, and where in it the number of the file is: only there with no gap before it [epoll_wait(2)]."""
SECOND: Final = 1_000_000_000


@njit
def error():
    """The number of what failed last."""
    return np.int64(errno_location()[0])


@njit
def read(file, address, many):
    """Up to `many` bytes to an address: how many came."""
    return np.int64(_read(np.int32(file), np.uintp(address), many))


@njit
def write(file, address, many):
    """`many` bytes from an address."""
    return np.int64(_write(np.int32(file), np.uintp(address), many))


@njit
def monotonic_ns(spec):
    """The time of CLOCK_MONOTONIC; `spec`: address of two words to work with."""
    clock_gettime(np.int32(MONOTONIC), np.uintp(spec))
    found = words_at(spec)
    return found[0] * SECOND + found[1]


@njit
def set_timer(file, time_ns, spec):
    """Let a timerfd go off at a time of CLOCK_MONOTONIC, 0: never; `spec`: address of four words to work with."""
    when = words_at(spec)
    when[0] = 0
    when[1] = 0
    when[2] = time_ns // SECOND
    when[3] = time_ns % SECOND
    return np.int64(timerfd_settime(np.int32(file), np.int32(ABSOLUTE), np.uintp(spec), np.uintp(0)))


@njit
def wait(file, events, many, wait_ms):
    """Until something of an epoll is ready, or so long (-1: for ever): how many events were written to an address, at
    most `many`."""
    return np.int64(epoll_wait(np.int32(file), np.uintp(events), np.int32(many), np.int32(wait_ms)))


@njit
def give_way():
    """Let other processes of this real-time priority run first [sched_yield(2)]."""
    sched_yield()
