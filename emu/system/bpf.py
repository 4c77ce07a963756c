"""BPF programs and maps without libbpf: compile, load, pin, read.

A program of ours is one C file that needs clang and nothing else - no headers, no libbpf, no BTF. It is compiled into a
cache outside the source tree, under a name that is a hash of everything that goes into it. Loading takes the program's
sections and the few relocations that refer to maps from the object file, and bpf(2) by ctypes. Maps are arrays that the
kernel lets us map into memory (BPF_F_MMAPABLE): a counter is read like any other array, without a system call, and many
at once.

What the C file and Python both have to know - the fields of a map's entry - is written in Python and given to the
compiler as text in front of the file, so that it exists once.
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

from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import find_tool
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

_libc = ctypes.CDLL(None, use_errno=True)


def entry_type(fields: Sequence[str]) -> np.dtype[np.void]:
    """An entry of a map: 64-bit words with names."""
    return np.dtype([(name, np.uint64) for name in fields])


def declare(name: str, fields: Sequence[str]) -> str:
    """The same entry in C."""
    return f"struct {name} {{ {' '.join(f'unsigned long long {field};' for field in fields)} }};\n"


def compile_program(source: Path, prologue: str = "", cache: Path | None = None) -> Path:
    """The object file of a C file with `prologue` in front of it, compiled only if the cache has none.

    TestbedError if there is no clang, if it refuses, or if the cache cannot be written.
    """
    text = f'{prologue}\n#line 1 "{source.name}"\n{source.read_text()}'
    key = hashlib.sha256("\0".join([text, *FLAGS]).encode()).hexdigest()[:20]
    try:
        folder = cache or private_folder()
    except OSError as error:
        expected = "a folder of your own that no other user may write to; GRADWIRE_CACHE names another one"
        raise TestbedError(str(error.strerror), str(cache_folder()), expected) from None
    target = folder / f"{source.stem}-{key}.o"
    if target.exists():
        return target
    clang = find_tool("clang")
    if clang is None:
        raise TestbedError(
            "there is no command clang, which compiles BPF programs", "PATH", "the package clang"
        )
    partial = folder / f".{target.name}.{os.getpid()}"
    try:
        done = subprocess.run(
            [clang, *FLAGS, "-x", "c", "-c", "-", "-o", str(partial)],
            input=text, capture_output=True, text=True, timeout=COMPILE_SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            raise TestbedError(
                f"clang failed: {done.stderr.strip()[:500]}", str(source), "a clang with the target bpf"
            )
        partial.replace(target)
    except OSError as error:
        raise TestbedError(
            f"cannot write {target}: {error.strerror}", str(folder), "a folder to write to"
        ) from None
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"clang did not end within {COMPILE_SECONDS:g} s", str(source), "an object file"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALLS.get(platform.machine())
    if number is None:
        raise TestbedError(
            f"bpf(2) has no known number on {platform.machine()}", "emu/system/bpf.py", ", ".join(SYSCALLS)
        )
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result: int = _libc.syscall(number, command, buffer, len(buffer))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class ArrayMap:
    """An array map, seen as a numpy array of its entries: `entries[number]["field"]`, shared with the kernel."""

    def __init__(self, name: str, kind: np.dtype[np.void], count: int) -> None:
        self.name = name
        label = name.encode()[:15]
        attributes = struct.pack("<7I16s", ARRAY, 4, kind.itemsize, max(1, count), MMAPABLE, 0, 0, label)
        try:
            self.fd = _bpf(MAP_CREATE, attributes)
        except OSError as error:
            raise TestbedError(
                f"the kernel refuses a BPF map: {error.strerror}", name, "root, kernel 5.5"
            ) from None
        length = -(-kind.itemsize * max(1, count) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(self.fd, length)
        self.entries: NDArray[np.void] = np.frombuffer(self._memory, kind, max(1, count))

    def close(self) -> None:
        del self.entries
        self._memory.close()
        os.close(self.fd)


@dataclass(frozen=True)
class Section:
    """A program of an object file: its instructions, and where (in instructions) a map has to be put in."""

    code: bytes
    maps: tuple[tuple[int, str], ...]


def read_object(path: Path) -> dict[str, Section]:
    """The programs of an object file by the names of their sections. ValueError if it is not one for BPF."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != 247:
        raise ValueError(f"{path} is no object file for BPF")
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
        names[index].removeprefix("tc/"): Section(content(index), tuple(relocations.get(index, ())))
        for index, header in enumerate(headers)
        if header[1] == 1 and header[2] & 4 and header[5]  # SHT_PROGBITS, SHF_EXECINSTR
    }


def load(section: Section, maps: Mapping[str, int], name: str) -> int:
    """A descriptor of a program (a traffic classifier), with descriptors of maps put in. A TestbedError has the
    verifier's last words."""
    code = bytearray(section.code)
    for at, symbol in section.maps:
        code[8 * at + 1] = (PSEUDO_MAP_FD << 4) | (code[8 * at + 1] & 15)
        struct.pack_into("<i", code, 8 * at + 4, maps[symbol])
    instructions = ctypes.create_string_buffer(bytes(code), len(code))
    license_text = ctypes.create_string_buffer(LICENSE)
    log = ctypes.create_string_buffer(1 << 20)
    for level in (0, 1):  # a log takes the kernel time, and is only read if it failed without one
        attributes = struct.pack(
            "<IIQQIIQII16s", SCHED_CLS, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(license_text),
            level, len(log) if level else 0, ctypes.addressof(log) if level else 0, 0, 0, name.encode()[:15],
        )  # fmt: skip
        try:
            return _bpf(PROG_LOAD, attributes)
        except OSError as error:
            reason = error.strerror
    words = log.value.decode(errors="replace").strip().splitlines()
    raise TestbedError(
        f"the kernel refuses the BPF program {name}: {reason}; {' | '.join(words[-3:])}",
        "bpf(2)",
        "kernel 5.12, root",
    )


def pin(fd: int, path: str) -> None:
    """Give a program a name in a mounted file system of kind "bpf", by which `tc` finds it."""
    text = ctypes.create_string_buffer(path.encode())
    try:
        _bpf(OBJ_PIN, struct.pack("<QII", ctypes.addressof(text), fd, 0))
    except OSError as error:
        raise TestbedError(
            f"cannot pin a BPF program: {error.strerror}", path, "a mounted bpf file system"
        ) from None


def lift_memory_limit() -> None:
    """Kernels before 5.11 count maps as locked memory, whose limit would refuse them. Without the right: no change."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        pass
