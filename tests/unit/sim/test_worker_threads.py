"""Threads of an engine, whose machine code is a Python function here: whichever raises an exception, the others end with it."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from gradwire.components import layout as at
from gradwire.sim.fabric.specialise import Kernel
from gradwire.sim.fabric.workers import WorkerThreads

WORDS = 64


@pytest.mark.parametrize("stopped", [0, 1])
def test_what_one_thread_raises_ends_all(stopped: int) -> None:
    M = np.zeros(WORDS, np.int64)
    ran: list[int] = []

    def run(address: int, number: int, threads: int, epoch: int) -> int:
        """Wait for the others, as the engine's barrier does."""
        ran.append(number)
        if number == stopped:
            raise RuntimeError("it is over")
        seen = (ctypes.c_int64 * WORDS).from_address(address)
        until = time.monotonic() + 60
        while not seen[at.H_QUIT]:
            assert time.monotonic() < until
            time.sleep(0.001)
        return epoch + 1

    workers = WorkerThreads(M, Kernel(run, run, run, ""), 2)
    with pytest.raises(RuntimeError, match="it is over"):
        workers.advance(alone=False)
    for each in threading.enumerate():
        if each.name == "fabric-1":
            each.join(timeout=60)
            assert not each.is_alive()
    before = sorted(ran)
    assert stopped in before
    for alone in (True, False):  # it goes no further
        with pytest.raises(RuntimeError, match="it is over"):
            workers.advance(alone)
    assert sorted(ran) == before
