"""What a person at a terminal sees besides results: refusals and progress.

Both go to stderr, so that stdout holds results only and can be piped. Progress is a moving bar on a terminal
and a plain line now and then elsewhere (a log file, CI).
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from scenarios.errors import GradwireError

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[float, str], None]
"""Called now and then by long work: the share that is done (0 to 1), and a few words on where it is."""

LINE_EVERY_S = 5.0
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def for_people(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command end as promised: 2 (or the error's own code) and one message for a refusal, 130 for
    Ctrl-C. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GradwireError as error:
            print(f"gradwire: {error}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt:
            print("gradwire: interrupted", file=sys.stderr)
            code = INTERRUPTED
        raise SystemExit(code)

    return guarded


@contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Progress]:
    """Show how far a piece of work called `title` is; yields the function that the work calls."""
    if quiet:
        yield lambda share, words: None
    elif sys.stderr.isatty():
        yield from _bar(title)
    else:
        yield _lines(title)


def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with RichProgress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=1.0, words="")
        yield lambda share, words: shown.update(task, completed=share, words=words)


def _lines(title: str) -> Progress:
    last = time.monotonic()

    def line(share: float, words: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            print(f"{title}: {share:4.0%} {words}", file=sys.stderr, flush=True)

    return line
