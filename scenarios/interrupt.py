"""Requests to end a program (SIGINT, SIGTERM), raised as KeyboardInterrupt only where the state is consistent.

Python raises KeyboardInterrupt at an arbitrary bytecode. In the middle of a process of a job, a callback, an import or
a clean-up it can be swallowed, or leave half a step behind, and a partial Result would be inconsistent. `CtrlC` defers
the first request; its owner calls `check` where everything is in order. A second request is raised at once.

Python's handler of SIGINT is replaced while a `CtrlC` is entered. The command line installs `on_signal` for SIGTERM,
too, so that both take the same way, also where a script has begun the command with SIGINT ignored.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

REPEAT_S = 0.2
"""Signals that follow each other within this many seconds are one request: `timeout` of coreutils signals a command and
then its process group, so that the command receives two."""

IMPORT_S, RETRY_S = 20.0, 0.02
"""An import is waited for at most so many seconds, and looked at again after so many."""
IMPORTER = "<frozen importlib._bootstrap"

received: list[int] = []
"""Numbers of the signals that `on_signal` has answered since `begin`."""
_is_raised = False
"""KeyboardInterrupt has been raised, and nobody has called `caught` since."""
_last_s = float("-inf")
_outermost: CtrlC | None = None


def begin() -> None:
    """Forget earlier requests: a command begins."""
    received.clear()
    caught()


def is_raised() -> bool:
    """Return True if a KeyboardInterrupt has been raised and not caught for good.

    An exception that escapes then stands for it: libraries of machine code make others of it.
    """
    return _is_raised


def caught() -> None:
    """Say that a KeyboardInterrupt has been caught for good: what follows is work that ends in order."""
    global _is_raised
    _is_raised = False


def on_signal(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT or SIGTERM: defer it if a `CtrlC` is entered, or until an import is over.

    Raises
    ------
    KeyboardInterrupt
        Nothing defers it, or it is the second request.
    """
    global _last_s
    before, _last_s = _last_s, time.monotonic()
    received.append(number)
    if _last_s - before < REPEAT_S:
        return
    _raise_unless_importing(number, frame)


def _raise_unless_importing(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; while the main thread imports, have SIGALRM call this again a moment later.

    No thread does this: to start one takes locks, which the interrupted code may hold.
    """
    global _is_raised
    if _outermost is not None and not _outermost.asked:
        _outermost.asked = True
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


class CtrlC:
    """Context that defers a request to end until `check`, or until it is left.

    It takes effect in the main thread only, and a program with a handler of its own for SIGINT keeps that. Contexts
    inside another one share its request.

    Attributes
    ----------
    asked : there is a request.
    """

    def __init__(self) -> None:
        self._asked = self._raised = False
        self._before: Any = None
        self._outer: CtrlC | None = None

    @property
    def asked(self) -> bool:
        return self._asked or (self._outer is not None and self._outer.asked)

    @asked.setter
    def asked(self, value: bool) -> None:
        self._asked = value

    def __enter__(self) -> CtrlC:
        global _outermost
        if threading.current_thread() is threading.main_thread():
            if _outermost is not None:
                self._outer = _outermost
                return self
            _outermost = self
            if _is_raised and sys.exception() is None:  # machine code of a library has swallowed the exception
                self.asked = True
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
            caught()  # who is no command has it now
        _outermost = None
        if self.asked and not self._raised and (kind is None or not issubclass(kind, KeyboardInterrupt)):
            raise KeyboardInterrupt from error

    def check(self) -> None:
        """Raise KeyboardInterrupt if there is a request."""
        if self.asked:
            self._raised = True
            if self._outer is not None:
                self._outer._raised = True
            raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Defer a request to end until the block is left; an enclosing `CtrlC` keeps it for its own `check`."""
    with CtrlC():
        yield
