"""Speeds up the start of commands by importing modules without garbage collection and during the run.

Two defaults of Python and NumPy are avoided meanwhile. The garbage collector would scan all new objects repeatedly,
although none is garbage: 100,000 objects, 30 ms of processor time; afterwards they are frozen, so that the run scans
less, too. And NumPy's linear algebra would start a thread per processor, each of which spins for its first tenth of a
second; a run has no work for it.

Modules that are needed only after the run are imported during it, since the engine releases the interpreter.
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
DEFERRED_IMPORTS = ("pyarrow", "gradwire.analysis.comparison.compare", "rich.table")
"""Modules that write and show a run."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Run a command's imports and preparation without garbage collection."""
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
    """Import NumPy with one BLAS thread, unless the environment sets more. Child processes do not inherit this."""
    if THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[THREADS]


def import_during_run(on_progress: Callable[[T], None], threads: int) -> Callable[[T], None]:
    """Return a progress callback that also imports `DEFERRED_IMPORTS` in a thread from its first call on. Without a
    free processor beside the run's threads it is the given callback."""
    if threads >= (os.cpu_count() or 1):
        return on_progress
    importer = threading.Thread(target=_import_all, args=(DEFERRED_IMPORTS,), daemon=True)

    def start_importer(progress: T) -> None:
        if importer.ident is None:
            importer.start()
        on_progress(progress)

    return start_importer


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        with suppress(Exception):  # the module that needs it imports it again, and reports the error
            importlib.import_module(name)
