"""Processes and threads in a virtual machine keep what they reckon with, whatever happens between two instructions."""

from __future__ import annotations

import sys

import pytest

from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.emu.virtual_time.virtual_machine import run_inside

RECKON = """
import ctypes, mmap, os, sys, threading, time
from random import Random

libm = ctypes.CDLL("libm.so.6")

def reckon(seed):
    # Sums of floats between system calls, faults of pages, other threads and other processes.
    draws, found = Random(seed), 1.0
    memory = mmap.mmap(-1, 400 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for step in range(400):
        by = draws.uniform(0.5, 1.5)
        memory[step * 4096] = step % 251
        found = found * by + memory[step * 2048] / 251
        if step % 20 == 0:
            time.sleep(0.001)
        if step % 50 == 0 and not os.fork():
            os._exit(0)
        os.getppid()
    return found

def rounding(mode):
    # How numbers are rounded is part of a thread's registers: up, down, to the nearest.
    libm.fesetround(mode)
    kept = True
    for _ in range(100):
        time.sleep(0.0001)
        kept = kept and libm.fegetround() == mode
    return kept

def several(function, values):
    results = {}
    workers = [threading.Thread(target=lambda n=n: results.update({n: function(n)})) for n in values]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return results

print("gradwire:", several(rounding, (0x0, 0x400, 0x800)), flush=True)
mine = several(reckon, range(3))
for _ in range(3):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, repr(several(reckon, range(3))).encode())
        os._exit(0)
    print("gradwire:", eval(os.read(reading, 4096)) == mine == {n: float(sys.argv[1 + n]) for n in range(3)}, flush=True)
"""


def reckoned(seed: int) -> float:
    """What the program reckons, where nothing interrupts it."""
    from random import Random

    draws, found, memory = Random(seed), 1.0, bytearray(400 * 4096)
    for step in range(400):
        by = draws.uniform(0.5, 1.5)
        memory[step * 4096] = step % 251
        found = found * by + memory[step * 2048] / 251
    return found


@pytest.mark.skipif(find_kernel() is None, reason="there is no virtual-time kernel (make uml)")
def test_float_state_survives_page_faults_syscalls_and_context_switches() -> None:
    heard: list[str] = []
    words: list[str] = []
    command = [sys.executable, "-c", RECKON, *(repr(reckoned(seed)) for seed in range(3))]
    status = run_inside(command, seed=1, limit_s=100, on_line=heard.append, words=words)
    assert (status, heard) == (0, ["{0: True, 1024: True, 2048: True}", *["True"] * 3]), words[-5:]
