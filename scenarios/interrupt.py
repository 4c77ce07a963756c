"""Defers SIGINT and SIGTERM, so that KeyboardInterrupt is raised only where the state is consistent.

Python raises KeyboardInterrupt at an arbitrary bytecode. Inside a job's process, a callback, an import or a clean-up it
can be swallowed or leave an incomplete step, and a partial Result would be inconsistent. `DeferredInterrupt` defers the
first request until its owner calls `check`. A second request is raised at once.

Python's SIGINT handler is replaced while a `DeferredInterrupt` is active. The command line installs `on_signal` for
SIGTERM too, so both signals are handled alike, even if a script started the command with SIGINT ignored.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

REPEAT_S = 0.2
"""Signals within this many seconds are one request: coreutils' `timeout` signals a command and then its process group,
so the command receives two."""

IMPORT_S, RETRY_S = 20.0, 0.02
"""Longest wait for an import, and interval between checks whether it has ended."""
IMPORTER = "<frozen importlib._bootstrap"

received_signals: list[int] = []
"""Numbers of the signals that `on_signal` has handled since `reset_interrupts`."""
_is_raised = False
"""True from a raised KeyboardInterrupt until `mark_caught` is called."""
_last_s = float("-inf")
_outermost: DeferredInterrupt | None = None


def reset_interrupts() -> None:
    """Forget earlier requests at the start of a command."""
    received_signals.clear()
    mark_caught()


def is_raised() -> bool:
    """Return True if a KeyboardInterrupt has been raised and not finally caught. Another exception that escapes then
    stands for it: compiled libraries convert KeyboardInterrupt to their own exceptions."""
    return _is_raised


def mark_caught() -> None:
    """Record that a KeyboardInterrupt has been finally caught and that only orderly shutdown follows."""
    global _is_raised
    _is_raised = False


def on_signal(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT or SIGTERM: defer it while a `DeferredInterrupt` is active or an import is running. Raises
    KeyboardInterrupt if nothing defers it, or it is the second request."""
    global _last_s
    before, _last_s = _last_s, time.monotonic()
    received_signals.append(number)
    if _last_s - before < REPEAT_S:
        return
    _raise_unless_importing(number, frame)


def _raise_unless_importing(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while the main thread imports, retry shortly from SIGALRM. A thread could not do this:
    starting one takes locks that the interrupted code may hold."""
    global _is_raised
    if _outermost is not None and not _outermost.is_requested:
        _outermost.is_requested = True
        return
    ours = signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, _raise_unless_importing)
    if ours and _is_importing(frame) and time.monotonic() - _last_s < IMPORT_S:
        signal.signal(signal.SIGALRM, _raise_unless_importing)
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        return
    _is_raised = True
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTER):
            return True
        frame = frame.f_back
    return False


class DeferredInterrupt:
    """Context that defers an interrupt until `check` or the end of the context.

    It acts in the main thread only, and a program's own SIGINT handler stays in place. Nested contexts share the
    request of the outermost one.

    is_requested : True if an interrupt has been requested.
    """

    def __init__(self) -> None:
        self._asked = self._raised = False
        self._before: Any = None
        self._outer: DeferredInterrupt | None = None

    @property
    def is_requested(self) -> bool:
        return self._asked or (self._outer is not None and self._outer.is_requested)

    @is_requested.setter
    def is_requested(self, value: bool) -> None:
        self._asked = value

    def __enter__(self) -> DeferredInterrupt:
        global _outermost
        if threading.current_thread() is threading.main_thread():
            if _outermost is not None:
                self._outer = _outermost
                return self
            _outermost = self
            if _is_raised and sys.exception() is None:  # a compiled library has swallowed the exception
                self.is_requested = True
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._before = signal.signal(signal.SIGINT, on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _outermost
        if _outermost is not self:
            return
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            mark_caught()  # a program other than the command line handles it now
        _outermost = None
        if self.is_requested and not self._raised and (kind is None or not issubclass(kind, KeyboardInterrupt)):
            raise KeyboardInterrupt from error

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt has been requested."""
        if self.is_requested:
            self._raised = True
            if self._outer is not None:
                self._outer._raised = True
            raise KeyboardInterrupt


defer_interrupt = DeferredInterrupt
"""Defer an interrupt to the end of the block; an enclosing `DeferredInterrupt` keeps it for its own `check`."""
