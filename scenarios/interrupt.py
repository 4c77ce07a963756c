"""Ctrl-C as a wish, granted between two steps of a run.

Python raises KeyboardInterrupt wherever it happens to be. In the middle of a SimPy process, a callback or a clean-up it
can be swallowed (while a process is being forked, for one) or leave half a step behind, and then a partial Result would
not be one. So while jobs run, the first Ctrl-C is noted and raised where everything is in order; a second one is raised
at once.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class CtrlC:
    """Context in which `check()` raises the KeyboardInterrupt that has been asked for.

    Only Python's own handler is replaced, and only in the main thread: a program that handles the signal itself keeps
    doing so."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> CtrlC:
        own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if own and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """Raise what was asked for."""
        if self.asked:
            raise KeyboardInterrupt
