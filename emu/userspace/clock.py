"""A timer that a process can wait for together with its devices (timerfd, in nanoseconds of CLOCK_MONOTONIC).

The standard library has it from Python 3.13 on; waits of `epoll` itself are in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import time

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_libc = ctypes.CDLL(None, use_errno=True)


def new_timer() -> int:
    """File that is readable from the time on that is set last (`gradwire.emu.native.calls.set_timer`)."""
    file: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK)
    if file < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return file
