"""Loader: machine code out of an object file, without LLVM.

What is kept of a compilation (`gradwire.components.engines`) are relocatable object files in ELF. LLVM can load them,
but is 130 MB that a run needs for nothing else: importing it takes 0.03 s, in a virtual machine that reads it page by
page half a second. Code of the large code model refers to everything by 64-bit addresses, so loading it is to give its
sections a place, to write these addresses down, and to look up a few functions of the C library [System V ABI, AMD64
supplement: relocation].

What is not known here - another processor, other kinds of relocations, sections that are written to - is left to LLVM.
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
"""Type of the sections that say how to unwind a stack: nobody does."""
ABSOLUTE = 1
"""R_X86_64_64: the address of a symbol, plus a number."""
ALIGNED = 64


class Section(NamedTuple):
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


class Unknown(Exception):
    """Something that LLVM has to load."""


_loaded: list[mmap.mmap] = []
"""What holds the code: it may never go while somebody could call it."""
_libc = ctypes.CDLL(None, use_errno=True)


def load(code: bytes, symbol: str) -> int | None:
    """The address of a function in an object file, which is loaded; None if LLVM has to do it."""
    try:
        return _load(code, symbol)
    except (Unknown, struct.error, IndexError, ValueError, OSError):
        return None


def _load(code: bytes, symbol: str) -> int:
    head = struct.unpack_from(HEADER, code)
    if not head[0].startswith(ELF64) or head[1:3] != (RELOCATABLE, AMD64):
        raise Unknown
    first, size, many = head[6], head[11], head[12]
    sections = [Section._make(struct.unpack_from(SECTION, code, first + i * size)) for i in range(many)]
    places, room = _laid_out(sections)
    (table,) = (each for each in sections if each.kind == SYMBOLS)
    memory = mmap.mmap(-1, max(room, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, place in places.items():
        each = sections[number]
        memory[place : place + each.size] = code[each.offset : each.offset + each.size]

    def address_of(number: int) -> int:
        name, _, _, where, value, _ = struct.unpack_from(SYMBOL, code, table.offset + number * table.entry)
        if where in places:
            return base + places[where] + int(value)
        if where:  # absolute, common, or in a section that is not loaded
            raise Unknown
        return _known(_text(code, sections[table.link].offset + name))

    for each in sections:
        if each.kind == RELOCATIONS and each.info in places:
            for at in range(each.offset, each.offset + each.size, each.entry):
                offset, info, more = struct.unpack_from(RELOCATION, code, at)
                if info & 0xFFFFFFFF != ABSOLUTE:
                    raise Unknown
                value = address_of(info >> 32) + more & 0xFFFFFFFFFFFFFFFF
                struct.pack_into("<Q", memory, places[each.info] + offset, value)
    _make_executable(base, len(memory))
    _loaded.append(memory)
    for number in range(table.size // table.entry):
        name, _, _, where, value, _ = struct.unpack_from(SYMBOL, code, table.offset + number * table.entry)
        if where in places and _text(code, sections[table.link].offset + name) == symbol:
            return base + places[where] + int(value)
    raise Unknown


def _laid_out(sections: list[Section]) -> tuple[dict[int, int], int]:
    """Where each section that is needed lies, from the beginning of the memory on, and how much that is in all."""
    places, room = {}, 0
    for number, each in enumerate(sections):
        if not each.flags & ALLOCATED or each.kind == UNWIND or not each.size:
            continue
        if each.flags & (WRITE | THREADS) or each.kind == EMPTY or each.align > mmap.PAGESIZE:
            raise Unknown
        align = max(each.align, ALIGNED)
        places[number] = room = -(-room // align) * align
        room += each.size
    return places, room


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def _known(name: str) -> int:
    """The address of a function of the C library."""
    found = getattr(_libc, name, None)
    address = None if found is None else ctypes.cast(found, ctypes.c_void_p).value
    if address is None:
        raise Unknown
    return address


def _make_executable(base: int, size: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise Unknown
