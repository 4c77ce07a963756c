"""Loads and tokenises plain text for capturing the training of language models.

A text is one file, or a folder whose `*.txt` files are read in alphabetical order. It is tokenised in one of three
ways:

    byte   256 tokens, whatever the encoding
    char   the characters that occur (UTF-8), most frequent first
    word   words, punctuation marks and line ends, most frequent first; those beyond the model's vocabulary
           become one token, number 0

gradwire does not have the published vocabularies of GPT-2 and BERT. With "word" the tokens are as unevenly frequent as
theirs, which shapes the gradient of an embedding. This module does not need torch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from gradwire.scenarios.errors import TraceError

Tokens = Literal["byte", "char", "word"]
_EXPECTED = "a text file, or a folder with *.txt files"
_WORD = re.compile(r"\w+|[^\w\s]|\n")


@dataclass(frozen=True)
class TextDataset:
    """Text as token numbers int32 [length], all below `distinct`; the rest goes into a trace's manifest. `unknown` is
    the share of the text outside of the vocabulary."""

    name: str
    tokens: str
    ids: np.ndarray
    distinct: int
    unknown: float = 0.0

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, size: int, length: int, seed: int) -> Iterator[np.ndarray]:
        """Yield endless int64 [size, length]: spans of the text from seeded random positions. TraceError if it is
        shorter."""
        if size < 1:
            raise TraceError(f"batch {size}", self.name, "at least 1")
        if len(self.ids) < length:
            raise TraceError(f"{len(self.ids)} tokens", self.name, f"at least {length}, the length of one sample")
        generator = np.random.default_rng(seed)
        while True:
            starts = generator.integers(0, len(self.ids) - length + 1, size)
            yield self.ids[starts[:, None] + np.arange(length)].astype(np.int64)


def load_text(source: str | Path, tokens: str, vocabulary: int) -> TextDataset:
    """Load the text in `source` as at most `vocabulary` different tokens; TraceError names the expected files."""
    source = Path(source)
    if tokens not in get_args(Tokens):
        raise TraceError(f"tokens {tokens!r}", "capture", " or ".join(get_args(Tokens)))
    data = _read(source)
    name = source.resolve().stem
    if tokens == "byte":
        if vocabulary < 256:
            raise TraceError(f"vocabulary of {vocabulary}", "capture", "at least 256 for bytes")
        return TextDataset(name, tokens, np.frombuffer(data, np.uint8).astype(np.int32), 256)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"is not UTF-8 (byte {error.start})", str(source), "UTF-8 text, or bytes as tokens") from None
    return _numbered(name, tokens, list(text) if tokens == "char" else _WORD.findall(text), vocabulary)


def text_files(source: str | Path) -> list[Path]:
    """Return the files of a text, unread; TraceError names the expected files."""
    root = Path(source)
    if os.path.isdir(source):  # unlike Path.is_dir, no error for too long names
        files = sorted(path for path in root.rglob("*.txt") if path.is_file())
    elif os.path.isfile(source):
        files = [root]
    else:
        raise TraceError("no such text", str(source), _EXPECTED)
    if not files:
        raise TraceError("holds no text", str(source), _EXPECTED)
    return files


def synthetic_text(vocabulary: int, seed: int, length: int = 1_000_000) -> TextDataset:
    """Return random tokens, all equally likely, for measuring times without data: the gradients are meaningless."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, length, dtype=np.int32)
    return TextDataset("synthetic", "synthetic", ids, vocabulary)


def _read(source: Path) -> bytes:
    try:
        data = b"\n".join(file.read_bytes() for file in text_files(source))
    except OSError as error:
        raise TraceError(f"cannot be read ({error})", str(source), _EXPECTED) from error
    if not data:
        raise TraceError("holds no text", str(source), _EXPECTED)
    return data


def _numbered(name: str, tokens: str, pieces: list[str], vocabulary: int) -> TextDataset:
    """Return `pieces` numbered by frequency from 1 on (ties alphabetically), and 0 beyond the vocabulary."""
    if not pieces:
        raise TraceError("holds no words", name, "text")
    counts = Counter(pieces)
    order = sorted(counts, key=lambda piece: (-counts[piece], piece))[: vocabulary - 1]
    number = {piece: rank for rank, piece in enumerate(order, start=1)}
    ids = np.fromiter((number.get(piece, 0) for piece in pieces), np.int32, len(pieces))
    return TextDataset(name, tokens, ids, len(order) + 1, float((ids == 0).mean()))
