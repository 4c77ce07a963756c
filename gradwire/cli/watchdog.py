"""Ends the process if compiled code ignores SIGINT, SIGTERM or the end of `--max-wall`.

Python handles signals between bytecodes only. The packet engine returns every twentieth of a second for that, but a
user's compiled rule may loop for ever, and then neither Ctrl-C nor SIGTERM nor a time limit would have an effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gradwire.cli.signals import ENDS

GRACE_S = 10.0
"""Processor time in seconds that compiled code may take after a signal; our choice."""
LOOK_S = 0.1
WORDS = (
    "gradwire: ended without a Result: compiled code has not returned for {:g} s; does a user-defined compiled rule "
    "loop for ever?\n"
)


@contextmanager
def wall_limit(seconds: float | None) -> Iterator[None]:
    """Context in which compiled code that does not return is ended `GRACE_S` after a time limit; None for no limit."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)  # the listener hears of it; the run ends by itself
    signal.setitimer(signal.ITIMER_REAL, seconds, GRACE_S)  # again, as an engine may be compiling at the first time
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def watchdog() -> Iterator[None]:
    """Context of a command: an unhandled signal ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before == -1:
        threading.Thread(target=_listen, args=(reading, threading.get_ident()), daemon=True).start()
    else:  # another listener is installed
        signal.set_wakeup_fd(before)
        os.close(reading)
    try:
        yield
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)
        os.close(writing)


def _listen(reading: int, main: int) -> None:
    with os.fdopen(reading, "rb", buffering=0) as signals:
        while numbers := signals.read(1):
            if numbers[0] in (*ENDS, signal.SIGALRM):
                _wait(main, numbers[0])


def _wait(main: int, number: int) -> None:
    """Wait until the main thread has left compiled code, or end the process."""
    call, begun = _machine_code(main), time.process_time()
    while call is not None and _machine_code(main) is call:
        if time.process_time() - begun > GRACE_S:
            os.write(2, WORDS.format(GRACE_S).encode())
            os._exit(1 if number == signal.SIGALRM else 128 + number)
        time.sleep(LOOK_S)


def _machine_code(main: int) -> FrameType | None:
    """Return the frame of the main thread's call of compiled code, or None."""
    module = sys.modules.get("gradwire.jit.machine_code")
    frame = sys._current_frames().get(main)
    inside = module is not None and frame is not None and frame.f_code is module.NativeFunction.__call__.__code__
    return frame if inside else None
