"""Files of the engine cache: a digest, a line of JSON and bytes, each under a key of all that it is made of.

    32 bytes          SHA-256 of the rest
    {"symbol": ...}   one line of JSON: what describes the bytes
    ...               machine code (an object file) or LLVM bitcode

Nothing that is read here makes objects or names modules to import, as a pickle would. A file appears complete or not at
all. One with another digest, or that cannot be read, counts as absent; one that is read counts as used. A disk that is
full or cannot be written keeps nothing.
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

from gradwire.components import objects
from gradwire.components.compiled import Compiled
from gradwire.components.identity import made_by, made_of
from gradwire.scenarios.cache import PRIVATE
from gradwire.scenarios.json_data import Json

DIGEST = 32  # bytes


class Piece(NamedTuple):
    """One file: what describes its code, as JSON has it, and the code."""

    about: Json
    code: bytes


def key_of(*made_of: object) -> str:
    """Return the name of a piece that is made of these."""
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:32]


def read(folder: Path, key: str) -> Piece | None:
    """Return the piece under a key; None if there is none, or not what was written."""
    try:
        path = folder / key
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        os.utime(path)
        about, _, code = data[DIGEST:].partition(b"\n")
        return Piece(json.loads(about), code)
    except (OSError, ValueError):
        return None


def write(folder: Path, key: str, piece: Piece) -> None:
    """Write a piece under a key."""
    data = json.dumps(piece.about).encode() + b"\n" + piece.code
    with contextlib.suppress(OSError):
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(file.name, folder / key)


def machine_code(function: Compiled, folder: Path) -> tuple[str, bytes]:
    """Return the machine code of a function that many engines have, as `objects.emitted` does. It is translated for the
    first of them, and read from `folder` by all others."""
    known = made_of(cast(FunctionType, function.py_func), {})
    if known is None:
        return objects.emitted(function)
    key = key_of("machine code", known, function.declared, made_by())
    piece = read(folder, key)
    if piece is not None:
        return str(piece.about["symbol"]), piece.code
    symbol, code = objects.emitted(function)
    write(folder, key, Piece({"symbol": symbol}, code))
    return symbol, code
