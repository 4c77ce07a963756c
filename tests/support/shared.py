"""What one test has to compute and others of its module use as well, in whatever worker of pytest they run."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def computed_once(factory: pytest.TempPathFactory, name: str, compute: Callable[[], T]) -> T:
    """Return what `compute` returns in the first worker that asks; others wait for it. Its value can be pickled."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the session
    answer = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            answer.write_bytes(pickle.dumps(compute()))
    value: T = pickle.loads(answer.read_bytes())
    return value
