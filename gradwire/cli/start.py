"""How a command that simulates begins: with imports, which are most of what a short run takes.

Two things are not done meanwhile that Python and NumPy would do. The garbage collector looks through all that has been
made again and again, and nothing of it is garbage: 100,000 objects, 30 ms of a processor; afterwards they are left out
for good, so that it has less to look through in the run, too. And NumPy's linear algebra starts a thread for every
processor, each of which waits for work without sleeping for its first tenth of a second; a run has no work for it.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = "OPENBLAS_NUM_THREADS"


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
