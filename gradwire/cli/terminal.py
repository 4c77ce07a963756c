"""Wraps commands in error messages, exit statuses, signal handling, robust output streams and progress display for a
terminal.

Errors and progress go to stderr, so that stdout holds results only and can be piped. Progress is a moving bar on a
terminal and an occasional plain line elsewhere (a log file, CI).
"""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from gradwire.cli import signals
from gradwire.cli.live_page import current_page, live_page
from gradwire.cli.watchdog import watchdog
from gradwire.scenarios import interrupt
from gradwire.scenarios.errors import NO_MEMORY, GradwireError, ScenarioNote, is_memory_shortage, memory_shortage_error
from gradwire.scenarios.loading.trust import trust_scope
from gradwire.scenarios.terminal_text import EscapingStream, console, printable

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[float, str], None]
"""Progress callback of long work: the fraction done (0 to 1), and a short message.

The message consists of parts separated by commas, most important first; the last ones are dropped on a short line.
"""

LINE_EVERY_S = 5.0
PATIENCE_S = 1.5
"""Seconds without a report after which a message says what is going on."""
WIDE, BAR_WIDTH = 120, 20
"""Minimum width of a terminal for a bar, and the bar's length, in characters."""
RESUMABLE = ("cmd_train", "cmd_sweep", "cmd_recommend", "cmd_reproduce")
"""Commands whose output folder may hold other files while they run."""
NAME_SHARE = 0.4
"""Maximum share of a line for the name."""
STDIN, STDOUT, STDERR = range(3)
INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT and SIGTERM, as shells have it


def for_people(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command to end with one message and an exit status. 2 (or the error's own code) for an input error or
    a shortage of memory, 130 for Ctrl-C, 143 for SIGTERM. Any other exception is a bug and keeps its traceback. With
    --json an error is also printed as a JSON object on stdout."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        values: dict[str, Any] = kwargs
        try:
            question = None if kwargs.get("as_json") else _question()
            with (
                _long_names_refused(),
                _answered_signals(),
                watchdog(),
                _notes(),
                trust_scope(bool(kwargs.get("trust")), question),
                live_page(values.get("live"), values.get("out"), command.__name__ in RESUMABLE),
            ):
                return command(*args, **kwargs)
        except GradwireError as error:
            if kwargs.get("as_json"):
                print(json.dumps({"error": error.as_dict()}))
            print(f"gradwire: {error}", file=sys.stderr)
            code = error.exit_code
            _short_of_memory.extend([code] if error.what == NO_MEMORY[0] else [])
        except KeyboardInterrupt as stop:
            code = _say_ended(stop)
        except Exception as error:
            if interrupt.is_raised():
                raise SystemExit(_say_ended(error)) from None
            if not is_memory_shortage(error):
                raise
            print(f"gradwire: {memory_shortage_error()}", file=sys.stderr)
            code = GradwireError.exit_code
            _short_of_memory.append(code)
        raise SystemExit(code)

    return guarded


@contextmanager
def _long_names_refused() -> Iterator[None]:
    """Turn the file system's error at a name that is too long, which any look at a path may raise, into a message."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise GradwireError("the name is too long", str(error.filename), "at most 255 bytes") from None


def _question() -> Callable[[str], bool] | None:
    """Return a function that asks the user yes or no; None without a terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return None

    def ask(words: str) -> bool:
        print(f"{words} [y/N]", file=sys.stderr, flush=True)  # a whole line: a progress bar overwrites partial ones
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def _say_ended(stop: BaseException | None = None) -> int:
    """Print that a signal has ended the command, with the exception's notes; return the exit status."""
    terminated = signal.SIGTERM in interrupt.received_signals
    notes = "".join(f": {note}" for note in getattr(stop, "__notes__", ()))
    print(f"gradwire: {'terminated' if terminated else 'interrupted'}{notes}", file=sys.stderr)
    return TERMINATED if terminated else INTERRUPTED


@contextmanager
def _notes() -> Iterator[None]:
    """Print notes on scenarios as one line of stderr; show other warnings as before."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> None:
        if issubclass(category, ScenarioNote):
            print(f"note: {message}", file=sys.stderr)
            if (page := current_page()) is not None:
                page.note(str(message))
        else:
            others(message, category, *more, **named)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ScenarioNote)
        warnings.showwarning = show
        yield


@contextmanager
def _answered_signals() -> Iterator[None]:
    """Handle SIGTERM, which batch systems send at a time limit, like Ctrl-C: deferred until the state is consistent. An
    ignored SIGINT stays ignored, as shells and `nohup` intend."""
    interrupt.reset_interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = (signals.handle_signal, signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in signals.ENDS}
    before = {number: handler for number, handler in before.items() if handler in ours}
    try:
        for number in before:
            signal.signal(number, interrupt.on_signal)
        yield
    finally:
        if signals.handle_signal in before.values():
            signals.command_is_over()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Patient(io.RawIOBase):
    """Standard stream whose write errors do not stop the work. A reader may have seen enough (`gradwire ... | head`),
    the disk may be full, or the stream closed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.failed: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Buffer) -> int:
        size = memoryview(data).nbytes
        if self.failed is None:
            try:
                return os.write(self._number, data)
            except OSError as error:
                self.failed = error
        return size

    def text(self, like: TextIO | None) -> io.TextIOWrapper:
        """Return a text stream over it that escapes control characters, with the encoding of `like`."""
        encoding = getattr(like, "encoding", None) or "utf-8"
        errors = getattr(like, "errors", None) or "backslashreplace"
        at_once = self.isatty() or self._number == STDERR
        return EscapingStream(io.BufferedWriter(self), encoding=encoding, errors=errors, line_buffering=at_once)


def _open_closed() -> None:
    """Open closed standard streams, so that no file gets their descriptors. Writing to them fails."""
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest free number


@contextmanager
def robust_streams() -> Iterator[None]:
    """Run a command to its end despite errors of its standard streams: a closed pipe, a full disk, a closed stream. A
    command whose output could not be written ends with 2, but with its own status if the reader has closed the pipe.
    Messages that cannot be written change no status."""
    _open_closed()
    out, err = _Patient(STDOUT), _Patient(STDERR)
    sys.stdout, sys.stderr = out.text(sys.stdout), err.text(sys.stderr)
    code: int | str | None = 0
    try:
        yield
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
    if out.failed is not None and not isinstance(out.failed, BrokenPipeError):
        print(f"gradwire: standard output: {out.failed.strerror}", file=sys.stderr)
        code = code or 2
    if _short_of_memory:  # libraries that could not start may crash at exit
        sys.stderr.flush()
        os._exit(_short_of_memory[0])
    raise SystemExit(code)


_short_of_memory: list[int] = []
"""Exit status of a command that has run out of memory."""


@contextmanager
def progress(title: str, quiet: bool = False, at_first: str = "") -> Iterator[Progress]:
    """Show the progress of the work `title`, also on a live page; yields the callback for the work. `at_first` is the
    message shown if nothing has been reported after `PATIENCE_S`."""
    page = current_page()
    with _on_terminal(title, quiet, at_first) as show:
        if page is None:
            yield show
            return
        page.report(title, 0.0, at_first)

        def report(share: float, words: str) -> None:
            page.report(title, share, words)
            show(share, words)

        yield report


@contextmanager
def _on_terminal(title: str, quiet: bool, at_first: str) -> Iterator[Progress]:
    """Show progress as a bar or as lines."""
    if quiet:
        yield lambda share, words: None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar(title) as show, _patience(show, at_first) as on_progress:
            yield on_progress
    else:
        lines = _Lines(title)
        with _patience(lines.now, at_first, lines) as on_progress:
            yield on_progress
        lines.done()


@contextmanager
def _patience(early: Progress, words: str, show: Progress | None = None) -> Iterator[Progress]:
    """Yield `show` (or `early` itself); call `early` once with `words` if it is not called in time."""
    timer = threading.Timer(PATIENCE_S, lambda: early(0.0, words))
    timer.daemon = True

    def on_progress(share: float, message: str) -> None:
        timer.cancel()
        (show or early)(share, message)

    if words:
        timer.start()
    try:
        yield on_progress
    finally:
        timer.cancel()


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """Show a line with the name, the percentage, as much of the message as fits, and the elapsed time. The name and the
    percentage are shown at any width."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    terminal = console(stderr=True)
    width = terminal.width
    bar = [BarColumn(BAR_WIDTH)] if width >= WIDE else []  # on a narrow terminal, the message is more useful
    name = shorten_middle(printable(title), int(width * NAME_SHARE))
    taken = len(name) + len(" 100%") + len(" 0:00:00 ") + (BAR_WIDTH + 1) * len(bar)
    texts = [TextColumn(text, markup=False) for text in ("{task.percentage:3.0f}%", "{task.fields[words]}")]
    columns = (TextColumn("{task.description}", markup=False), *bar, *texts, TimeElapsedColumn())
    with RichProgress(*columns, console=terminal, transient=True) as bars:
        task = bars.add_task(name, total=1.0, words="")
        yield lambda share, words: bars.update(task, completed=share, words=fit_parts(printable(words), width - taken))


def shorten_middle(name: str, most: int) -> str:
    """Return a name cut in the middle to at most `most` characters."""
    if len(name) <= most:
        return name
    length = max(most - 1, 0)
    return name[: length - length // 2] + "\N{HORIZONTAL ELLIPSIS}" + name[len(name) - length // 2 :]


def fit_parts(words: str, room: int) -> str:
    """Return as many comma-separated parts of `words` as fit into `room` characters, truncating the first if needed."""
    while len(words) > room and ", " in words:
        words = words.rpartition(", ")[0]
    return words if len(words) <= room else words[: max(room - 1, 0)] + "\N{HORIZONTAL ELLIPSIS}"


class _Lines:
    """Progress as plain lines: one now and then, and one at the end with the last report."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._start = self._last = time.monotonic()
        self._reported: tuple[float, str] | None = None

    def __call__(self, share: float, words: str) -> None:
        self._reported = share, words
        if time.monotonic() - self._last >= LINE_EVERY_S:
            self.now(share, words)

    def now(self, share: float, words: str) -> None:
        self._last = time.monotonic()
        print(f"{self.title}: {share:4.0%} {words}", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._reported is not None:
            share, words = self._reported
            self.now(share, f"{words}, after {time.monotonic() - self._start:.1f} s")
