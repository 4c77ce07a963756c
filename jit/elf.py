"""A loader for relocatable ELF object files that does not need LLVM.

A compilation (`gradwire.jit.engine_cache`) is stored as relocatable ELF object files. LLVM can load them, but it is 130
MB that a run needs for nothing else: importing it takes 0.03 s, and half a second in a virtual machine that reads it
page by page. Code of the large code model refers to everything by 64-bit addresses, so loading means placing its
sections, writing these addresses, and looking up a few functions of the C library [System V ABI, AMD64 supplement:
relocation].

Everything unknown here (another processor, other kinds of relocations, writable sections) is left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import NamedTuple

HEADER, SECTION, SYMBOL, RELOCATION = "<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ", "<QQq"
ELF64 = b"\x7fELF\x02\x01\x01"
RELOCATABLE, AMD64 = 1, 62
SYMBOLS, RELOCATIONS, EMPTY = 2, 4, 8
WRITE, ALLOCATED, THREADS = 0x1, 0x2, 0x400
UNWIND = 0x70000001
"""Type of the sections with stack-unwinding tables, which are not needed."""
ABSOLUTE = 1
"""R_X86_64_64: the address of a symbol plus an addend."""
ALIGNED = 64


class ElfSection(NamedTuple):
    """A section's header [ELF-64, section header]."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class UnsupportedObject(Exception):
    """The object file has a feature that only LLVM can load."""


_loaded: list[mmap.mmap] = []
"""The memory that holds the code; never freed, since the code may be called at any time."""
_libc = ctypes.CDLL(None, use_errno=True)


def load(code: bytes, symbol: str) -> int | None:
    """Load an object file and return the address of a function in it; None if LLVM has to load it."""
    try:
        return _load(code, symbol)
    except (UnsupportedObject, struct.error, IndexError, ValueError, OSError):
        return None


def _load(code: bytes, symbol: str) -> int:
    header = struct.unpack_from(HEADER, code)
    if not header[0].startswith(ELF64) or header[1:3] != (RELOCATABLE, AMD64):
        raise UnsupportedObject
    first, size, count = header[6], header[11], header[12]
    sections = [ElfSection._make(struct.unpack_from(SECTION, code, first + i * size)) for i in range(count)]
    starts, total = _section_starts(sections)
    (table,) = (section for section in sections if section.kind == SYMBOLS)
    memory = mmap.mmap(-1, max(total, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, start in starts.items():
        section = sections[number]
        memory[start : start + section.size] = code[section.offset : section.offset + section.size]

    def address_of(number: int) -> int:
        name, _, _, index, value, _ = struct.unpack_from(SYMBOL, code, table.offset + number * table.entry)
        if index in starts:
            return base + starts[index] + int(value)
        if index:  # absolute, common, or in a section that is not loaded
            raise UnsupportedObject
        return _libc_address(_text(code, sections[table.link].offset + name))

    for section in sections:
        if section.kind == RELOCATIONS and section.info in starts:
            for entry in range(section.offset, section.offset + section.size, section.entry):
                offset, info, addend = struct.unpack_from(RELOCATION, code, entry)
                if info & 0xFFFFFFFF != ABSOLUTE:
                    raise UnsupportedObject
                value = address_of(info >> 32) + addend & 0xFFFFFFFFFFFFFFFF
                struct.pack_into("<Q", memory, starts[section.info] + offset, value)
    _make_executable(base, len(memory))
    _loaded.append(memory)
    for number in range(table.size // table.entry):
        name, _, _, index, value, _ = struct.unpack_from(SYMBOL, code, table.offset + number * table.entry)
        if index in starts and _text(code, sections[table.link].offset + name) == symbol:
            return base + starts[index] + int(value)
    raise UnsupportedObject


def _section_starts(sections: list[ElfSection]) -> tuple[dict[int, int], int]:
    """Return the offset of each section to load, by its number, and the total size of the memory."""
    starts, total = {}, 0
    for number, section in enumerate(sections):
        if not section.flags & ALLOCATED or section.kind == UNWIND or not section.size:
            continue
        if section.flags & (WRITE | THREADS) or section.kind == EMPTY or section.align > mmap.PAGESIZE:
            raise UnsupportedObject
        align = max(section.align, ALIGNED)
        starts[number] = total = -(-total // align) * align
        total += section.size
    return starts, total


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def _libc_address(name: str) -> int:
    """Return the address of a function of the C library."""
    function = getattr(_libc, name, None)
    address = None if function is None else ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise UnsupportedObject
    return address


def _make_executable(base: int, size: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise UnsupportedObject
