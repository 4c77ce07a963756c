"""SIGINT and SIGTERM of the program `gradwire` before its command begins and after it is over.

`take_over` is called before anything else is imported: an exception in the middle of an import could be swallowed, or
leave a module half made. While a command runs, `gradwire.cli.terminal` answers.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM)
WORDS = {signal.SIGINT: b"gradwire: interrupted\n", signal.SIGTERM: b"gradwire: terminated\n"}
_is_over = False


def is_program() -> bool:
    """Return True if this process is the `gradwire` command, and no program that imports it."""
    main = sys.modules.get("__main__")
    package = getattr(getattr(main, "__spec__", None), "name", "") or ""
    return Path(sys.argv[0]).name == "gradwire" or package == "gradwire.__main__"


def take_over() -> None:
    """Answer signals from now on. One that is ignored, as SIGINT is in the background of a script, stays ignored."""
    for number in ENDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, answer)


def command_is_over() -> None:
    """Let the exit status of the command stand from now on, whatever signal comes."""
    global _is_over
    _is_over = True


def answer(number: int, frame: FrameType | None) -> None:
    """End the process at once; after the command, only at the second signal."""
    if _is_over:
        signal.signal(number, signal.SIG_DFL)
        return
    with suppress(OSError):  # standard error may be closed
        os.write(2, WORDS[signal.Signals(number)])
    os._exit(128 + number)
