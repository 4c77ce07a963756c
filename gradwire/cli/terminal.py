"""What a person at a terminal sees besides results: refusals and progress.

Both go to stderr, so that stdout holds results only and can be piped. Progress is a moving bar on a terminal
and a plain line now and then elsewhere (a log file, CI).
"""

from __future__ import annotations

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
from gradwire.cli.deaf import heard_anyway
from gradwire.scenarios import interrupt
from gradwire.scenarios.errors import NO_MEMORY, GradwireError, ScenarioNote, is_memory_shortage, no_memory
from gradwire.scenarios.terminal_text import EscapingStream, console, printable
from gradwire.scenarios.trust import trusting

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[float, str], None]
"""Called now and then by long work: the share that is done (0 to 1), and a few words on where it is, parted by commas,
what matters most first: where a line is short the last ones are left out."""

LINE_EVERY_S = 5.0
PATIENCE_S = 1.5
"""After this long without a report, a person wants to know what is going on."""
WIDE, BAR_WIDTH = 120, 20
"""From so many characters a line on a bar is shown, so long."""
NAME_SHARE = 0.4
"""What a name may take of a line."""
STDIN, STDOUT, STDERR = range(3)
INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT and SIGTERM, as shells have it


def for_people(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command end with one message and its status.

    2 (or the error's own code) for a refusal or a shortage of memory, 130 for Ctrl-C, 143 for SIGTERM. Any other
    exception is a bug and keeps its traceback. With --json a refusal is a JSON object on stdout, too.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            question = None if kwargs.get("as_json") else _question()
            with _answered_signals(), heard_anyway(), _notes(), trusting(bool(kwargs.get("trust")), question):
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
                raise SystemExit(_say_ended()) from None
            if not is_memory_shortage(error):
                raise
            print(f"gradwire: {no_memory()}", file=sys.stderr)
            code = GradwireError.exit_code
            _short_of_memory.append(code)
        raise SystemExit(code)

    return guarded


def _question() -> Callable[[str], bool] | None:
    """Return what asks a person yes or no; None without a terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return None

    def ask(words: str) -> bool:
        print(f"{words} [y/N]", file=sys.stderr, flush=True)  # a whole line: a progress bar leaves only such alone
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def _say_ended(stop: BaseException | None = None) -> int:
    """Say that a request has ended the command, with the notes of the exception. Returns its exit status."""
    terminated = signal.SIGTERM in interrupt.received
    notes = "".join(f": {note}" for note in getattr(stop, "__notes__", ()))
    print(f"gradwire: {'terminated' if terminated else 'interrupted'}{notes}", file=sys.stderr)
    return TERMINATED if terminated else INTERRUPTED


@contextmanager
def _notes() -> Iterator[None]:
    """A note on a scenario is one line of stderr; other warnings are shown as they were."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> None:
        if issubclass(category, ScenarioNote):
            print(f"note: {message}", file=sys.stderr)
        else:
            others(message, category, *more, **named)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ScenarioNote)
        warnings.showwarning = show
        yield


@contextmanager
def _answered_signals() -> Iterator[None]:
    """Answer SIGTERM, by which batch systems end what has had its time, as Ctrl-C: deferred until the state is
    consistent. An ignored SIGINT stays ignored, as shells and `nohup` mean it."""
    interrupt.begin()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = (signals.answer, signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in signals.ENDS}
    before = {number: handler for number, handler in before.items() if handler in ours}
    try:
        for number in before:
            signal.signal(number, interrupt.on_signal)
        yield
    finally:
        if signals.answer in before.values():
            signals.command_is_over()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Patient(io.RawIOBase):
    """A standard stream that goes on whatever becomes of it: a reader may have seen enough (`gradwire ... | head`), the
    disk behind it be full, or the stream be closed. The work, and what it writes elsewhere, must not end with that."""

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
        """Return a text stream over it that escapes what a terminal would obey, with the encoding of another one."""
        encoding = getattr(like, "encoding", None) or "utf-8"
        errors = getattr(like, "errors", None) or "backslashreplace"
        at_once = self.isatty() or self._number == STDERR
        return EscapingStream(io.BufferedWriter(self), encoding=encoding, errors=errors, line_buffering=at_once)


def _open_closed() -> None:
    """Open the standard streams that are closed, so that no file of the work takes their numbers. What is written to
    them fails."""
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest free number


@contextmanager
def patient_streams() -> Iterator[None]:
    """Let a command run to its end whatever becomes of its standard streams: a reader, a full disk, a closed stream.

    A command that could not write its output ends with 2; one whose reader has gone away, as if all had been read.
    Messages that cannot be written change no status.
    """
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
    if _short_of_memory:  # libraries that could not start may crash when they are taken down
        sys.stderr.flush()
        os._exit(_short_of_memory[0])
    raise SystemExit(code)


_short_of_memory: list[int] = []
"""Status of a command that has ended for lack of memory."""


@contextmanager
def progress(title: str, quiet: bool = False, at_first: str = "") -> Iterator[Progress]:
    """Show how far a piece of work called `title` is; yields the function that the work calls.

    `at_first` says what the work is probably doing if it has not reported anything after `PATIENCE_S`.
    """
    if quiet:
        yield lambda share, words: None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar(title) as show, _patience(show, at_first) as watched:
            yield watched
    else:
        lines = _Lines(title)
        with _patience(lines.now, at_first, lines) as watched:
            yield watched
        lines.done()


@contextmanager
def _patience(early: Progress, words: str, show: Progress | None = None) -> Iterator[Progress]:
    """`show` (or `early` itself); unless it has been called in time, `early` is called once with `words`."""
    timer = threading.Timer(PATIENCE_S, lambda: early(0.0, words))
    timer.daemon = True

    def watched(share: float, said: str) -> None:
        timer.cancel()
        (show or early)(share, said)

    if words:
        timer.start()
    try:
        yield watched
    finally:
        timer.cancel()


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """The name, how much is done, as many words as there is room for, and the time so far: whatever the width, the name
    and the share are there."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    terminal = console(stderr=True)
    width = terminal.width
    bar = [BarColumn(BAR_WIDTH)] if width >= WIDE else []  # the words say more
    name = shortened(printable(title), int(width * NAME_SHARE))
    taken = len(name) + len(" 100%") + len(" 0:00:00 ") + (BAR_WIDTH + 1) * len(bar)
    texts = [TextColumn(text, markup=False) for text in ("{task.percentage:3.0f}%", "{task.fields[words]}")]
    columns = (TextColumn("{task.description}", markup=False), *bar, *texts, TimeElapsedColumn())
    with RichProgress(*columns, console=terminal, transient=True) as shown:
        task = shown.add_task(name, total=1.0, words="")
        yield lambda share, words: shown.update(task, completed=share, words=fitting(printable(words), width - taken))


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters: what it begins and what it ends with."""
    if len(name) <= most:
        return name
    kept = max(most - 1, 0)
    return name[: kept - kept // 2] + "\N{HORIZONTAL ELLIPSIS}" + name[len(name) - kept // 2 :]


def fitting(words: str, room: int) -> str:
    """As many of the parts of `words`, which commas part, as there is room for; of the first one what there is."""
    while len(words) > room and ", " in words:
        words = words.rpartition(", ")[0]
    return words if len(words) <= room else words[: max(room - 1, 0)] + "\N{HORIZONTAL ELLIPSIS}"


class _Lines:
    """Plain lines: one now and then, and one at the end with the last thing that was reported."""

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
