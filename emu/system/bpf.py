"""Compiles, loads and pins BPF programs, and maps their counters into memory, without libbpf.

A program is one C file that needs only clang: no headers, no libbpf, no BTF. It is compiled into a cache outside the
source tree, under a hash of all inputs. Loading takes the program's sections and the few relocations of maps from the
object file, and calls bpf(2) by ctypes. Maps are arrays mapped into memory (BPF_F_MMAPABLE): counters are read like any
other array, without system calls, and many at once.

Definitions shared by C and Python, the fields of a map's entries, are written in Python and passed to the compiler as
text before the file.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import resource
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import find_tool
from gradwire.emu.system.processes import LIBC
from gradwire.scenarios.cache import cache_folder, private_folder

SYSCALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
MAP_CREATE, PROG_LOAD, OBJ_PIN = 0, 5, 6
ARRAY = 2
MMAPABLE = 1 << 10
SCHED_CLS = 3
PSEUDO_MAP_FD = 1
FLAGS = ("-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-fno-stack-protector")
LICENSE = b"Apache-2.0\0"
COMPILE_SECONDS = 120.0

Entries = NDArray[np.uint64]


def declare(name: str, fields: Sequence[str]) -> str:
    return f"struct {name} {{ {' '.join(f'unsigned long long {field};' for field in fields)} }};\n"


def compile_program(source: Path, prologue: str = "", cache: Path | None = None) -> Path:
    """Return the object file of a C file with `prologue` before it, compiled if the cache has none. Raises TestbedError
    if there is no clang, if it fails, or if the cache cannot be written."""
    text = f'{prologue}\n#line 1 "{source.name}"\n{source.read_text()}'
    key = hashlib.sha256("\0".join([text, *FLAGS]).encode()).hexdigest()[:20]
    try:
        folder = cache or private_folder()
    except OSError as error:
        expected = "your own folder that no other user may write to; set GRADWIRE_CACHE to use another one"
        raise TestbedError(str(error.strerror), str(cache_folder()), expected) from None
    target = folder / f"{source.stem}-{key}.o"
    if target.exists():
        return target
    clang = find_tool("clang")
    if clang is None:
        raise TestbedError("command not found: clang, the compiler of BPF programs", "PATH", "the package clang")
    partial = folder / f".{target.name}.{os.getpid()}"
    try:
        completed = subprocess.run(
            [clang, *FLAGS, "-x", "c", "-c", "-", "-o", str(partial)],
            input=text,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        if completed.returncode != 0:
            raise TestbedError(
                f"clang failed: {completed.stderr.strip()[:500]}", str(source), "a clang with the target bpf"
            )
        partial.replace(target)
    except OSError as error:
        raise TestbedError(f"cannot write {target}: {error.strerror}", str(folder), "a folder to write to") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"clang took longer than {COMPILE_SECONDS:g} s", str(source), "an object file") from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALLS.get(platform.machine())
    if number is None:
        raise TestbedError(
            f"unknown number of bpf(2) on {platform.machine()}", "emu/system/bpf.py", ", ".join(SYSCALLS)
        )
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result: int = LIBC.syscall(number, command, buffer, len(buffer))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class ArrayMap:
    """An array map as a NumPy array of its entries: `entries[number]["field"]`, shared with the kernel."""

    def __init__(self, name: str, fields: Sequence[str], count: int) -> None:
        """`fields`: names of the 64-bit words of an entry."""
        self.name, kind = name, np.dtype([(field, np.uint64) for field in fields])
        label = name.encode()[:15]
        attributes = struct.pack("<7I16s", ARRAY, 4, kind.itemsize, max(1, count), MMAPABLE, 0, 0, label)
        try:
            self.fd = _bpf(MAP_CREATE, attributes)
        except OSError as error:
            raise TestbedError(f"the kernel rejects a BPF map: {error.strerror}", name, "root, kernel 5.5") from None
        length = -(-kind.itemsize * max(1, count) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(self.fd, length)
        self.entries: NDArray[np.void] = np.frombuffer(self._memory, kind, max(1, count))

    def close(self) -> None:
        del self.entries
        self._memory.close()
        os.close(self.fd)


@dataclass(frozen=True)
class ProgramSection:
    """A program of an object file: its instructions, and the indices of those that refer to maps."""

    code: bytes
    maps: tuple[tuple[int, str], ...]


def read_object(path: Path) -> dict[str, ProgramSection]:
    """Return the programs of an object file by section name; raise ValueError if it is not for BPF."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != 247:
        raise ValueError(f"{path} is not an object file for BPF")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<3H", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * index) for index in range(count)]

    def text(strings: int, at: int) -> str:
        start = headers[strings][4] + at
        return data[start : data.index(b"\0", start)].decode()

    def content(index: int) -> bytes:
        return data[headers[index][4] : headers[index][4] + headers[index][5]]

    names = [text(names_at, header[0]) for header in headers]
    symbols: list[str] = []
    for header in headers:
        if header[1] == 2:  # SHT_SYMTAB
            for at in range(header[4], header[4] + header[5], 24):
                symbols.append(text(header[6], struct.unpack_from("<I", data, at)[0]))
    relocations: dict[int, list[tuple[int, str]]] = {}
    for index, header in enumerate(headers):
        if header[1] == 9:  # SHT_REL
            places = relocations.setdefault(header[7], [])
            for at in range(0, header[5], 16):
                offset, info = struct.unpack_from("<QQ", content(index), at)
                places.append((offset // 8, symbols[info >> 32]))
    return {
        names[index].removeprefix("tc/"): ProgramSection(content(index), tuple(relocations.get(index, ())))
        for index, header in enumerate(headers)
        if header[1] == 1 and header[2] & 4 and header[5]  # SHT_PROGBITS, SHF_EXECINSTR
    }


def load(section: ProgramSection, maps: Mapping[str, int], name: str) -> int:
    """Load a program (a traffic classifier) with descriptors of maps; return its descriptor. Raises TestbedError with
    the last lines of the verifier's log."""
    code = bytearray(section.code)
    for at, symbol in section.maps:
        code[8 * at + 1] = (PSEUDO_MAP_FD << 4) | (code[8 * at + 1] & 15)
        struct.pack_into("<i", code, 8 * at + 4, maps[symbol])
    instructions = ctypes.create_string_buffer(bytes(code), len(code))
    license_text = ctypes.create_string_buffer(LICENSE)
    log = ctypes.create_string_buffer(1 << 20)
    for level in (0, 1):  # first without a log, which is slow
        attributes = struct.pack(
            "<IIQQIIQII16s",
            SCHED_CLS,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(license_text),
            level,
            len(log) if level else 0,
            ctypes.addressof(log) if level else 0,
            0,
            0,
            name.encode()[:15],
        )
        try:
            return _bpf(PROG_LOAD, attributes)
        except OSError as error:
            reason = error.strerror
    words = log.value.decode(errors="replace").strip().splitlines()
    raise TestbedError(
        f"the kernel rejects the BPF program {name}: {reason}; {' | '.join(words[-3:])}", "bpf(2)", "kernel 5.12, root"
    )


def pin(fd: int, path: str) -> None:
    """Pin a program in a mounted file system of kind "bpf", where `tc` finds it by name."""
    text = ctypes.create_string_buffer(path.encode())
    try:
        _bpf(OBJ_PIN, struct.pack("<QII", ctypes.addressof(text), fd, 0))
    except OSError as error:
        raise TestbedError(f"cannot pin a BPF program: {error.strerror}", path, "a mounted bpf file system") from None


def lift_memory_limit() -> None:
    """Remove the limit on locked memory, which kernels before 5.11 apply to maps; no effect without the privilege."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        pass
