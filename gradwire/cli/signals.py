"""Handles SIGINT and SIGTERM of the `gradwire` program before its command begins and after it ends.

`install_handlers` is called before all other imports: an exception during an import could be swallowed, or leave a
module half initialised. While a command runs, `gradwire.cli.terminal` handles signals.
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
    """Return True if this process is the `gradwire` command, not a program that imports it."""
    main = sys.modules.get("__main__")
    package = getattr(getattr(main, "__spec__", None), "name", "") or ""
    return Path(sys.argv[0]).name == "gradwire" or package == "gradwire.__main__"


def install_handlers() -> None:
    """Handle signals from now on. An ignored signal, such as SIGINT in the background of a script, stays ignored."""
    for number in ENDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, handle_signal)


def command_is_over() -> None:
    """Keep the exit status of the command from now on, whatever signal arrives."""
    global _is_over
    _is_over = True


def handle_signal(number: int, frame: FrameType | None) -> None:
    """End the process at once; after the command, only at the second signal."""
    if _is_over:
        signal.signal(number, signal.SIG_DFL)
        return
    with suppress(OSError):  # standard error may be closed
        os.write(2, WORDS[signal.Signals(number)])
    os._exit(128 + number)
