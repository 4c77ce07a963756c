"""How a command that simulates begins: with imports, which are most of what a short run takes.

Two things are not done meanwhile that Python and NumPy would do. The garbage collector looks through all that has been
made again and again, and nothing of it is garbage: 100,000 objects, 30 ms of a processor; afterwards they are left out
for good, so that it has less to look through in the run, too. And NumPy's linear algebra starts a thread for every
processor, each of which waits for work without sleeping for its first tenth of a second; a run has no work for it.

What is needed only when the run is over is imported while it is under way, for the engine leaves Python to others.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

THREADS = "OPENBLAS_NUM_THREADS"
AFTERWARDS = ("pyarrow", "gradwire.analysis.compare", "rich.table")
"""What a run is written and shown with."""


@contextmanager
def light_start() -> Iterator[None]:
    """Around what a command imports and makes before it begins to work."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        _import_numpy()
        yield
    finally:
        if collecting:
            gc.enable()
            gc.freeze()


def _import_numpy() -> None:
    """Import NumPy with one thread, unless somebody has asked for more; programs that a command starts do not hear of
    it."""
    if THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[THREADS]


def importing(told: Callable[[T], None], threads: int) -> Callable[[T], None]:
    """Progress of a run, told as before; from the first time on, `AFTERWARDS` are imported beside the run, if its
    threads leave a processor to do so."""
    if threads >= (os.cpu_count() or 1):
        return told
    beside = threading.Thread(target=_import_all, args=(AFTERWARDS,), daemon=True)

    def first(standing: T) -> None:
        if beside.ident is None:
            beside.start()
        told(standing)

    return first


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        with suppress(Exception):  # who needs it imports it again, and says what is wrong
            importlib.import_module(name)
