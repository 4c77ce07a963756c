"""The object cache stores a shared function's machine code or bitcode under a hash of everything it depends on.

    32 bytes          SHA-256 of the rest
    {"symbol": ...}   one line of JSON: metadata
    ...               machine code (an object file) or LLVM bitcode

Reading a file creates no objects and imports no modules, unlike a pickle. A file appears complete or not at all. A file
with another digest, or one that cannot be read, counts as absent; reading a file marks it as used. Nothing is stored if
the disk is full or read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from types import FunctionType
from typing import NamedTuple, cast

from gradwire.jit import machine_code as objects
from gradwire.jit.compiled import Compiled
from gradwire.jit.fingerprint import compiler_digest, made_of
from gradwire.scenarios.cache import PRIVATE
from gradwire.scenarios.json_data import Json

DIGEST = 32  # bytes


class CacheEntry(NamedTuple):
    """A cache entry: JSON metadata and code."""

    about: Json
    code: bytes


def key_of(*made_of: object) -> str:
    """Return the name of the cache entry that depends on these values."""
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def read(folder: Path, key: str) -> CacheEntry | None:
    """Return the cache entry under a key; None if it is absent or damaged."""
    try:
        path = folder / key
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        os.utime(path)
        about, _, code = data[DIGEST:].partition(b"\n")
        return CacheEntry(json.loads(about), code)
    except (OSError, ValueError):
        return None


def write(folder: Path, key: str, piece: CacheEntry) -> None:
    data = json.dumps(piece.about).encode() + b"\n" + piece.code
    with contextlib.suppress(OSError):
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(file.name, folder / key)


def machine_code(function: Compiled, folder: Path) -> tuple[str, bytes]:
    """Return the machine code of a function that many engines share, as `objects.emitted` does. It is translated for
    the first engine and read from `folder` for the others."""
    known = made_of(cast(FunctionType, function.py_func), {})
    if known is None:
        return objects.emit(function)
    key = key_of("machine code", known, function.declared, compiler_digest())
    piece = read(folder, key)
    if piece is not None:
        return str(piece.about["symbol"]), piece.code
    symbol, code = objects.emit(function)
    write(folder, key, CacheEntry({"symbol": symbol}, code))
    return symbol, code
