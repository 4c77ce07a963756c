"""Detects notebooks, and shows a progress bar in them. Elsewhere the Python API is silent unless given a callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

ProgressCallback = Callable[[float, str], object]
"""Progress callback: (fraction, message)."""
EVERY_S = 0.2


def in_notebook() -> bool:
    """Return True if a kernel runs this, as in Jupyter, but not for IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def heard(title: str, on_progress: ProgressCallback | None = None) -> Iterator[ProgressCallback]:
    """Yield the given callback if there is one; in a notebook a bar below the cell, else a callback that does
    nothing."""
    if on_progress is not None:
        yield on_progress
    elif in_notebook():
        bar = _Bar(title)
        try:
            yield bar
        except BaseException as error:
            bar.end(f"ended by {type(error).__name__}")
            raise
        bar.end("done")
    else:
        yield lambda share, words: None


class _Bar:
    """A progress bar below the cell, updated in place."""

    def __init__(self, title: str) -> None:
        self.title, self._last, self._begun = title, 0.0, time.monotonic()
        self._handle: Any = None

    def __call__(self, share: float, message: str) -> None:
        if time.monotonic() - self._last >= EVERY_S:
            self._show(f'<progress max="1" value="{share:.3f}"></progress> {share:.0%} {escape(message)}')

    def end(self, message: str) -> None:
        """Show the final text."""
        self._show(f"{escape(message)} after {time.monotonic() - self._begun:.1f} s")

    def _show(self, html: str) -> None:
        from IPython.display import HTML, display

        self._last = time.monotonic()
        content = HTML(f"<div>{escape(self.title)}: {html}</div>")
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)
