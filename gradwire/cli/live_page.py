"""`LivePage` shows a running command as one HTML file that reloads itself (`--live`).

A thread writes the file at most once a second, atomically; the command only stores its last report. The thread also
writes while nothing is reported, so a page that is silent for `SILENT_S` belongs to a process that is gone, and says so
itself. The page stays after the end.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from gradwire.scenarios import interrupt
from gradwire.scenarios.errors import GradwireError

DEFAULT_FILE, FILE_IN_FOLDER = "gradwire-live.html", "live.html"
EVERY_S, IDLE_S, RELOAD_S, SILENT_S = 1.0, 5.0, 2.0, 15.0
"""Seconds between writes, between writes without news, between reloads, and until silence counts (our choice)."""
MAX_SHARE = 0.01
"""Largest share of the time that writing may take: a page with many points is written less often."""
MOST_POINTS, MOST_SERIES, MOST_MESSAGES = 120, 8, 8
REPORTS = ("report.html", "page.html", "report.md")
"""Reports in an output folder that the page links at the end."""
MARK = '<p id="live"'
ITERATION_TIME = "iteration time, ms"

_page: LivePage | None = None


def current_page() -> LivePage | None:
    """Return the page of the running command, if --live is given."""
    return _page


@contextmanager
def live_page(target: str | None, out: Path | None = None, is_resumable: bool = False) -> Iterator[None]:
    """Write the page of the command that runs in this context. `target`: its file, "" for the default, None for no
    page. `out`: the command's output folder; `is_resumable`: whether it may hold other files during the run."""
    global _page
    if target is None:
        yield
        return
    page = _page = LivePage(_file(target, out, is_resumable), out)
    print(f"live page: {page.path}", file=sys.stderr)
    page.start()
    state, detail = "finished", ""
    try:
        yield
    except GradwireError as error:
        state, detail = "failed", str(error)
        raise
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    except BaseException as error:
        code = getattr(error, "exit_code", getattr(error, "code", None))
        is_exit = isinstance(code, int)
        state, detail = ("ended", f"exit status {code}") if is_exit else ("failed", f"{type(error).__name__}: {error}")
        if interrupt.is_raised() and not is_exit:
            state, detail = "interrupted", ""
        raise
    finally:
        page.end(state, detail)
        _page = None


def _file(target: str, out: Path | None, is_resumable: bool) -> Path:
    """Return the page's file. Raises GradwireError if something else is there or it cannot be written."""
    if target:
        path = Path(target)
    elif out is None:
        path = Path(DEFAULT_FILE)
    else:  # a new folder is put in place when it is complete
        path = out / FILE_IN_FOLDER if is_resumable else out.with_name(f"{out.name}-{FILE_IN_FOLDER}")
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
        if not is_file or MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise GradwireError("exists and is no live page", f"--live {path}", "another file")
    except FileNotFoundError:
        pass
    except OSError as error:
        from gradwire.result_store.folders.output_folder import write_error

        raise write_error(error, f"--live {path}", GradwireError) from None
    if target and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise GradwireError("cannot be written", f"--live {path}", "a file in a folder that exists")
    return path


class LivePage:
    """The page of one command; `path` is its file, `out` the output folder to link."""

    def __init__(self, path: Path, out: Path | None) -> None:
        self.path, self._out = path, out
        self.name = shlex.join(["gradwire", *sys.argv[1:]])
        self._begun = time.time()
        self._title, self._share, self._words = "", 0.0, ""
        self._messages: deque[tuple[float, str]] = deque(maxlen=MOST_MESSAGES)
        self._series: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._news, self._ended = True, threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._write_repeatedly, daemon=True)

    def start(self) -> None:
        """Begin to write."""
        import gradwire.analysis.report.html_page  # noqa: F401  # now: an import in a thread may hold locks in a fork

        self._thread.start()

    def report(self, title: str, share: float, words: str) -> None:
        """Store the progress of a part of the command."""
        if title != self._title:
            self.note(title)
            self._series.pop("progress", None)
        self._title, self._share, self._words, self._news = title, share, words, True
        self.value("progress", title, time.time() - self._begun, share)

    def note(self, message: str) -> None:
        """Add a message."""
        self._messages.append((time.time(), message))
        self._news = True

    def value(self, chart: str, series: str, x: float, y: float) -> None:
        """Add a point to a chart."""
        points = self._series.setdefault(chart, {}).setdefault(series, [])
        if points and points[-1][0] == x:
            points.pop()
        points.append((x, y))
        if len(points) > MOST_POINTS:
            del points[1:-1:2]
        self._news = True

    def training(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """Add values of a training run, as `gradwire.train` logs them."""
        for name in ("validation/accuracy", "train/loss", "network/time_ms"):
            if name in values:
                self.value(name.replace("/", " ").replace("time_ms", "time per step, ms"), run, step, values[name])

    def point(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Add the measures of a point of a sweep, as `gradwire.sweep` logs them."""
        for measure, value in list(values.items())[:MOST_SERIES]:
            done = self._series.get(measure, {}).get("", ())
            self.value(measure, "", done[-1][0] + 1 if done else 1, value)

    def end(self, state: str, detail: str) -> None:
        """Write the page for the last time."""
        self._ended.set()
        self._thread.join()
        if state == "finished":  # nothing may have been reported: a resumed command can find everything done
            self._share = 1.0
            if self._title:
                self.value("progress", self._title, time.time() - self._begun, 1.0)
        self._write(state, detail)

    def _write_repeatedly(self) -> None:
        last = took = 0.0
        while True:
            if self._news or time.monotonic() - last >= IDLE_S:
                self._news, last = False, time.monotonic()
                self._write("running", "")
                took = time.monotonic() - last
            if self._ended.wait(max(EVERY_S, took / MAX_SHARE)):
                return

    def _write(self, state: str, detail: str) -> None:
        if self._broken or not self.path.parent.is_dir():
            return
        if self.path.name == FILE_IN_FOLDER and not any(self.path.parent.iterdir()):
            return  # the command has not claimed its folder yet
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            partial.write_text(self._html(state, detail), encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            self._broken = True
            print(f"note: the live page cannot be written: {error.strerror}", file=sys.stderr)

    def _html(self, state: str, detail: str) -> str:
        from gradwire.analysis.report.html_page import LIVE_SCRIPTS, PageSection, bullet_list, html_page, paragraph
        from gradwire.scenarios.readable import wall_text

        now, share, title = time.time(), self._share, self._title
        parts = [part for part in self._words.split(", ") if part]
        left = next((part for part in parts if part.endswith(" left")), "")
        label = f"{share:.0%}" if state == "running" else state
        clock = f'data-written="{now * 1000:.0f}" data-silent="{SILENT_S * 1000:g}" data-reload="{RELOAD_S * 1000:g}"'
        section = PageSection(f"{label} · {self.name}", "")
        section.add(
            f'{MARK} class="lead" role="status" data-state="{state}" {clock}>',
            f"<b>{escape(state)}</b> {escape(detail or title)}</p>",
            '<p id="silent" class="lead" role="alert" hidden></p>',
            f'<p><progress max="1" value="{share:.4f}" aria-label="progress">{share:.0%}</progress></p>',
            '<div class="tiles">',
            _tile(f"{share:.0%}", f"of {title}" if title and state == "running" else "done"),
            _tile(wall_text(now - self._begun), f"elapsed, begun at {_clock(self._begun)}"),
            _tile(left.removesuffix(" left"), f"remaining of {title}") if state == "running" and left else "",
            "</div>",
            paragraph(", ".join(part for part in parts if part != left)),
            *(self._links() if state != "running" else ()),
            bullet_list(f"{_clock(at)} {text}" for at, text in reversed(list(self._messages))),
            *(_chart(name, dict(list(series.items())[-MOST_SERIES:])) for name, series in list(self._series.items())),
        )
        return html_page(section.title, [section], scripts=LIVE_SCRIPTS)

    def _links(self) -> Iterator[str]:
        """Yield a link to each report in the output folder."""
        for path in [self._out / name for name in REPORTS] if self._out is not None else ():
            if path.is_file():
                target = os.path.relpath(path, self.path.parent)
                yield f'<p>Report: <a href="{escape(target)}">{escape(str(path))}</a></p>'


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"


def _tile(figure: str, words: str) -> str:
    return f'<div class="tile"><b>{escape(figure)}</b><p>{escape(words)}</p></div>'


def _chart(name: str, series: Mapping[str, Any]) -> str:
    from gradwire.analysis.report.charts import Axis, Lines, Series
    from gradwire.analysis.report.html_page import chart

    is_sweep = list(series) == [""]
    x = {"progress": "elapsed, s", ITERATION_TIME: "iteration"}.get(name, "points done" if is_sweep else "step")
    lines = [Series(label, list(points), dots=is_sweep, line=not is_sweep) for label, points in series.items()]
    return chart(Lines(name, "", x=Axis(x), y=Axis(name), series=lines))
