"""Notebooks: whether this is one, and progress in it. Elsewhere the Python API says nothing unless it is asked to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

Told = Callable[[float, str], object]
"""Called with the share that is done, and words."""
EVERY_S = 0.2


def in_notebook() -> bool:
    """Whether a kernel runs this, as in Jupyter; IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def heard(title: str, told: Told | None = None) -> Iterator[Told]:
    """`told` itself if there is one; in a notebook a bar below the cell, else nobody."""
    if told is not None:
        yield told
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
    """A line below the cell, with a bar, which is written over as the work goes on."""

    def __init__(self, title: str) -> None:
        self.title, self._last, self._begun = title, 0.0, time.monotonic()
        self._handle: Any = None

    def __call__(self, share: float, words: str) -> None:
        if time.monotonic() - self._last >= EVERY_S:
            self._show(f'<progress max="1" value="{share:.3f}"></progress> {share:.0%} {escape(words)}')

    def end(self, words: str) -> None:
        """What stands there in the end."""
        self._show(f"{escape(words)} after {time.monotonic() - self._begun:.1f} s")

    def _show(self, html: str) -> None:
        from IPython.display import HTML, display

        self._last = time.monotonic()
        shown = HTML(f"<div>{escape(self.title)}: {html}</div>")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)
