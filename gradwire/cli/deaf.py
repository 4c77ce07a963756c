"""What ends a command whose machine code never returns, when it is asked to end.

Python answers signals between two of its own steps. The packet engine comes back for that every twentieth of a second,
but a compiled rule of the user's own may loop for ever, and then neither Ctrl-C nor SIGTERM would be heard.
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

DEAF_S = 10.0
"""So long machine code may go on computing after it was asked to end, in seconds of processor time; our choice."""
LOOK_S = 0.1
ENDS = (signal.SIGINT, signal.SIGTERM)
WORDS = (
    "gradwire: ended, with nothing left of this run: machine code has computed for {:g} s without coming back; does a "
    "compiled rule of your own loop for ever?\n"
)


@contextmanager
def heard_anyway() -> Iterator[None]:
    """Around a command: a signal that is not answered ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before == -1:
        threading.Thread(target=_listen, args=(reading, threading.get_ident()), daemon=True).start()
    else:  # somebody else listens
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
            if numbers[0] in ENDS:
                _wait(main, numbers[0])


def _wait(main: int, number: int) -> None:
    """Until the main thread is back from machine code; or the end."""
    call, begun = _machine_code(main), time.process_time()
    while call is not None and _machine_code(main) is call:
        if time.process_time() - begun > DEAF_S:
            os.write(2, WORDS.format(DEAF_S).encode())
            os._exit(128 + number)
        time.sleep(LOOK_S)


def _machine_code(main: int) -> FrameType | None:
    """The call of machine code that the main thread is in, if it is in one."""
    objects = sys.modules.get("gradwire.components.objects")
    frame = sys._current_frames().get(main)
    inside = objects is not None and frame is not None and frame.f_code is objects.Native.__call__.__code__
    return frame if inside else None
