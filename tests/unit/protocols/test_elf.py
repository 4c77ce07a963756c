"""Machine code out of object files without LLVM: it does what LLVM loads, and leaves to LLVM what it does not know."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.jit import elf, machine_code

ROOT = Path(gradwire.__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not sys.platform.startswith("linux"), reason="LLVM loads everything here"
)
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


def called(address, x):
    """What the function at an address returns."""
    words = np.full(64, -1, dtype=np.int64)
    found = machine_code.NativeFunction(address, "numbers", 2)(x, words.ctypes.data)
    assert not words[2:40].any() and (words[40:] == -1).all()
    return found


def test_it_does_what_it_says(made):
    code, symbol = made
    address = elf.load(code, symbol)
    table = (3, 141, 59, 26, 535, 897, 932, 384)
    for x in range(20):
        assert called(address, x) == (table[x & 7] ** 2 + 1) * 1_000 + int(x * 0.1 + 2.5) + 1
    assert elf.load(code, symbol) != address, "each time anew"


def test_llvm_is_not_asked(made, tmp_path):
    code, symbol = made
    (tmp_path / "o").write_bytes(code)
    said = subprocess.check_output(
        [sys.executable, "-c", "import sys\nfrom gradwire.jit import machine_code\n"
         "machine_code.load(open(sys.argv[1], 'rb').read(), sys.argv[2], 2)\nmachine_code.target_description()\n"
         "print(sorted({'llvmlite', 'numba'} & set(sys.modules)))", str(tmp_path / "o"), symbol],
        text=True, timeout=60, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert said == "[]\n"


# --- what it does not know


def sections(code):
    """(where each section's header is, the section)."""
    head = struct.unpack_from(elf.HEADER, code)
    places = [head[6] + i * head[11] for i in range(head[12])]
    return [(at, elf.ElfSection._make(struct.unpack_from(elf.SECTION, code, at))) for at in places]


def with_flag(code, flag):
    """A section of constants is written to, or each thread's own."""
    changed = bytearray(code)
    at, each = next((at, e) for at, e in sections(code) if e.flags & elf.ALLOCATED and e.size and not e.flags & 4)
    struct.pack_into(elf.SECTION, changed, at, *each._replace(flags=each.flags | flag))
    return bytes(changed)


def with_relocation(code, kind):
    changed = bytearray(code)
    loaded = {i for i, (_, e) in enumerate(sections(code)) if e.flags & elf.ALLOCATED and e.kind != elf.UNWIND}
    each = next(e for _, e in sections(code) if e.kind == elf.RELOCATIONS and e.info in loaded)
    offset, info, more = struct.unpack_from(elf.RELOCATION, code, each.offset)
    struct.pack_into(elf.RELOCATION, changed, each.offset, offset, info >> 32 << 32 | kind, more)
    return bytes(changed)


def test_what_is_unknown_is_left_to_llvm(made, monkeypatch):
    code, symbol = made
    for changed in (
        with_flag(code, elf.WRITE), with_flag(code, elf.THREADS), with_relocation(code, 2),
        code.replace(b"clock_gettime\0", b"clock_gettume\0"), code[: len(code) // 2], code[:40], b"", b"\xcf\xfa" + code[2:],
        code[:18] + struct.pack("<H", 183) + code[20:],  # another processor
    ):  # fmt: skip
        assert changed != code
        assert elf.load(changed, symbol) is None
    assert elf.load(code, "another") is None

    asked = []
    monkeypatch.setattr(elf, "load", lambda code, symbol: asked.append(symbol))
    words = np.zeros(64, dtype=np.int64)
    assert machine_code.load(code, symbol, 2)(5, words.ctypes.data) == (897**2 + 1) * 1_000 + 4 and asked == [symbol]


def test_code_cannot_be_written_to_nor_data_outside_of_it_run(made):
    code, symbol = made
    address = elf.load(code, symbol)
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            assert line.split()[1] == "r-xp"
            break
    else:
        raise AssertionError("it is nowhere")
    assert ctypes.string_at(address, 1)
