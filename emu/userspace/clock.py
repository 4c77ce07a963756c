"""A timer that a process can wait for together with its devices (timerfd, in nanoseconds of CLOCK_MONOTONIC).

The standard library has it from Python 3.13 on; waits of `epoll` itself are in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Spec(ctypes.Structure):
    """struct itimerspec of 64-bit systems: interval and value, each seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class Timer:
    """Readable from the time on that was set last."""

    def __init__(self) -> None:
        self.file: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK)
        if self.file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Spec()
        self._address = ctypes.byref(self._spec)
        self._set = _libc.timerfd_settime
        self.time_ns = 0
        """What it is set to; 0: nothing."""

    def set(self, time_ns: int) -> None:
        """At a time of CLOCK_MONOTONIC, at once if it is past."""
        if time_ns == self.time_ns:
            return
        self.time_ns = time_ns
        self._spec.s, self._spec.ns = divmod(time_ns, 1_000_000_000)
        if self._set(self.file, _ABSOLUTE, self._address, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """It has gone off and is not set any more."""
        self.time_ns = 0
        with suppress(BlockingIOError):  # it was set again meanwhile
            os.read(self.file, 8)

    def close(self) -> None:
        """Give the file back."""
        os.close(self.file)
