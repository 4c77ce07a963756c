"""Starts processes that end with their parent, and wraps C library calls that Python lacks (prctl, timerfd)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29


def tied_to_parent() -> Callable[[], None]:
    """Return a `preexec_fn` for a child that must be killed when this process ends, even if it ends now."""
    parent = os.getpid()

    def prepare() -> None:
        if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(1)

    return prepare


def fork(run: Callable[[], int]) -> int:
    """Run a function in a forked process that ends with this one; return its process number. Its exit status is the
    function's result, or 1 after an exception, which is printed."""
    prepare = tied_to_parent()
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number == 0:
        status = 1
        try:
            prepare()
            status = run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return number


def set_timer_slack() -> None:
    """Let timers of this process be at most a nanosecond late by the kernel's choice, instead of 50 us."""
    LIBC.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def new_timer() -> int:
    """Return a timerfd of CLOCK_MONOTONIC (`gradwire.emu.native.calls.set_timer`): the standard library has it since
    Python 3.13."""
    file: int = LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
    if file < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return file
