"""Machine code is loaded from object files: calls of other functions and of libc, constants, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.jit import machine_code

ROOT = Path(gradwire.__file__).resolve().parents[1]
COMPILES = """
import json, sys
from pathlib import Path
from gradwire.jit import machine_code, whole_program
from gradwire.jit.compiled import njit
from gradwire.emu.native.calls import monotonic_ns, words_at

whole_program.enable_whole_program(Path(sys.argv[1]).parent)
TABLE = (3, 141, 59, 26, 535, 897, 932, 384)

@njit
def inner(x):
    return x * x + 1

@njit("int64(int64, int64)")
def numbers(x, address):
    words = words_at(address)
    for i in range(2, 40):
        words[i] = 0
    where = 0
    for i in range(8):
        if x & 7 == i:
            where = TABLE[i]
    real = float(x) * 0.1 + 2.5
    begun = monotonic_ns(address)
    return inner(where) * 1_000 + int(real) + (1 if begun > 0 else 0)

symbol, code = machine_code.emit(numbers)
open(sys.argv[1], "wb").write(code)
print(json.dumps(symbol))
"""
"""A function that calls another, clears memory (memset), has constants of its own, and reads the clock (libc)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The object file, and the symbol."""
    file = tmp_path_factory.mktemp("elf") / "numbers.o"
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, str(file)], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return file.read_bytes(), json.loads(done.stdout)


def test_loaded_machine_code_computes_the_python_result(made):
    code, symbol = made
    function = machine_code.load(code, symbol, 2)
    table = (3, 141, 59, 26, 535, 897, 932, 384)
    for x in range(20):
        words = np.full(64, -1, dtype=np.int64)
        assert function(x, words.ctypes.data) == (table[x & 7] ** 2 + 1) * 1_000 + int(x * 0.1 + 2.5) + 1
        assert not words[2:40].any() and (words[40:] == -1).all()
