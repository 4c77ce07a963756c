"""Pieces of engines that are kept in one folder, each under a key of all that it is made of.

A file is a digest and what is kept, and appears complete or not at all. One that is not what was written counts as not
there; one that is read counts as used. A disk that is full or cannot be written keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from gradwire.components import objects
from gradwire.components.compiled import Compiled
from gradwire.components.identity import made_by, made_of

DIGEST = 32  # bytes before what is kept


def key_of(*made_of: object) -> str:
    """The name of a piece that is made of these."""
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def read(folder: Path, key: str) -> Any:
    """What is kept under a key, or None."""
    try:
        path = folder / key
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        os.utime(path)
    except OSError:
        return None
    return pickle.loads(data[DIGEST:])


def write(folder: Path, key: str, piece: object) -> None:
    """Keep it."""
    data = pickle.dumps(piece)
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(file.name, folder / key)


def machine_code(function: Compiled, folder: Path) -> tuple[str, bytes]:
    """The machine code of a function that is the same in many engines, as `objects.emitted` returns it: translated for
    the first of them, and taken from there by all others."""
    known = made_of(cast(FunctionType, function.py_func), {})
    if known is None:
        return objects.emitted(function)
    key = key_of("machine code", known, function.declared, made_by())
    found: tuple[str, bytes] | None = read(folder, key)
    if found is None:
        found = objects.emitted(function)
        write(folder, key, found)
    return found
