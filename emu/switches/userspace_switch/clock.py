"""A timer that can be waited for together with devices (timerfd, in nanoseconds of CLOCK_MONOTONIC).

The standard library has it since Python 3.13; timeouts of `epoll` are in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import time

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_libc = ctypes.CDLL(None, use_errno=True)


def new_timer() -> int:
    """Return a file that is readable after the time set last (`gradwire.emu.native.calls.set_timer`)."""
    file: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK)
    if file < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return file
