"""System calls from compiled code, by the names that the C library has for them.

Pointers are passed as numbers, which is the same on all machines that Linux runs on. What fails returns -1, and `errno`
says why.
"""

from __future__ import annotations

import errno as _numbers
import platform

import numpy as np
from numba import types

from gradwire.emu.userspace.compiled import compiled
from gradwire.emu.userspace.memory import words_at

_int, _size, _pointer = types.int32, types.intp, types.uintp

_read = types.ExternalFunction("read", _size(_int, _pointer, _size))
_write = types.ExternalFunction("write", _size(_int, _pointer, _size))
_clock_gettime = types.ExternalFunction("clock_gettime", _int(_int, _pointer))
_timerfd_settime = types.ExternalFunction("timerfd_settime", _int(_int, _int, _pointer, _pointer))
_epoll_wait = types.ExternalFunction("epoll_wait", _int(_int, _pointer, _int, _int))
_sched_yield = types.ExternalFunction("sched_yield", _int())
_errno_location = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())

MONOTONIC, ABSOLUTE = 1, 1
AGAIN, INTERRUPTED = _numbers.EAGAIN, _numbers.EINTR
EVENT_BYTES, EVENT_FILE = (12, 4) if platform.machine() == "x86_64" else (16, 8)
"""struct epoll_event, and where in it the number of the file is: only there with no gap before it [epoll_wait(2)]."""


@compiled
def error():
    """The number of what failed last."""
    return np.int64(_errno_location()[0])


@compiled
def read(file, address, many):
    """Up to `many` bytes to an address: how many came."""
    return np.int64(_read(np.int32(file), np.uintp(address), many))


@compiled
def write(file, address, many):
    """`many` bytes from an address."""
    return np.int64(_write(np.int32(file), np.uintp(address), many))


@compiled
def monotonic_ns(spec):
    """The time; `spec`: address of two words to work with."""
    _clock_gettime(np.int32(MONOTONIC), np.uintp(spec))
    found = words_at(spec)
    return found[0] * 1_000_000_000 + found[1]


@compiled
def set_timer(file, time_ns, spec):
    """Let a timerfd go off at a time of CLOCK_MONOTONIC; `spec`: address of four words to work with."""
    when = words_at(spec)
    when[0] = 0
    when[1] = 0
    when[2] = time_ns // 1_000_000_000
    when[3] = time_ns % 1_000_000_000
    return np.int64(_timerfd_settime(np.int32(file), np.int32(ABSOLUTE), np.uintp(spec), np.uintp(0)))


@compiled
def wait(file, events, many):
    """Until something of an epoll is ready: how many events were written to an address, `many` at most."""
    return np.int64(_epoll_wait(np.int32(file), np.uintp(events), np.int32(many), np.int32(-1)))


@compiled
def give_way():
    """Let other processes of this real-time priority run first [sched_yield(2)]."""
    _sched_yield()
