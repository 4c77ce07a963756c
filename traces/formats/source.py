"""`Source` reads other tools' files, plain or gzipped, of any size, with one clear error per defect."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.loading.files import require_regular_file

Progress = Callable[[float, str], None]
"""Callback while reading: (fraction of the file, message)."""

MAX_LINE_BYTES = 1 << 20  # bytes; longer lines are not text
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
_END = re.compile(rb"\r\n|\n|\r")  # line ends of Unix, Windows and classic Mac OS


class Source:
    """File opened for reading; gzip is recognised by its first bytes, whatever the file is called. UTF-16 and UTF-32
    with a byte-order mark are read as UTF-8. `notes` counts repaired or ignored parts. `read` raises TraceError for
    damaged or truncated gzip data; other bytes behind them are ignored, as by gzip(1). `open_source` refuses files that
    cannot be opened or are empty."""

    def __init__(
        self, path: Path, raw: io.BufferedReader, progress: Progress | None, notes: Counter[str] | None = None
    ) -> None:
        self.path = path
        self.where = str(path)
        self.notes: Counter[str] = Counter() if notes is None else notes
        self._raw = raw
        self._size = max(path.stat().st_size, 1)
        self._progress = progress
        zipped = raw.read(2) == _GZIP
        raw.seek(0)
        self._plain = gzip.GzipFile(fileobj=raw) if zipped else raw
        self._begin: bytes | None = None  # read to detect the encoding, not yet returned
        self._decoder: codecs.IncrementalDecoder | None = None

    def read(self, size: int = _BLOCK) -> bytes:
        """Return the next bytes, at most `size` unless they are transcoded; none at the end of the file."""
        if self._begin is None:
            self._begin = b""
            while len(self._begin) < 4 and (more := self._bytes(4 - len(self._begin))):
                self._begin += more
            if encoding := _wide_encoding(self._begin):
                self._decoder = codecs.getincrementaldecoder(encoding)()
                self.notes[f"text in {encoding.upper()}, read as UTF-8"] += 1
        if self._begin and self._decoder is None:
            data, self._begin = self._begin[:size], self._begin[size:]
            return data
        if self._decoder is None:
            return self._bytes(size)
        while True:
            data = self._begin or self._bytes(size)
            self._begin = b""
            try:
                text = self._decoder.decode(data, final=not data)
                encoded = text.encode()
            except UnicodeError as error:
                raise TraceError(f"is damaged text ({error})", self.where, "UTF-8") from None
            if encoded or not data:
                return encoded

    def _bytes(self, size: int) -> bytes:
        try:
            data = self._plain.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if not str(error).startswith("Not a gzipped file"):  # the file begins as one
                raise TraceError(f"its gzip data are damaged or end too early ({error})", self.where) from error
            self.notes["bytes behind the gzip data, ignored"] = 1
            return b""
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror or error})", self.where) from error
        if self._progress is not None:
            self._progress(min(self._raw.tell() / self._size, 1.0), "read")
        return data

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number from 1, text without line end) of each line; TraceError for invalid UTF-8, with line
        and byte."""
        rest, number = b"", 0
        while block := self.read():
            text = rest + block
            is_split = text.endswith(b"\r")  # perhaps the first half of \r\n
            *whole, rest = _END.split(text[:-1] if is_split else text)
            rest += b"\r" * is_split
            for line in whole:
                number += 1
                yield number, self._text(line, number)
            if len(rest) > MAX_LINE_BYTES:
                raise TraceError(f"line {number + 1} is longer than a MiB", self.where, "a text file")
        if rest:
            yield number + 1, self._text(rest.removesuffix(b"\r"), number + 1)

    def _text(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(f"{self.where}, line {number}", line, error) from None


def _wide_encoding(begin: bytes) -> str:
    """Return the encoding named by a byte-order mark before an ASCII character, else ""."""
    if begin[:4] == b"\xff\xfe\0\0" or begin[:4] == b"\0\0\xfe\xff":
        return "utf-32"
    is_little = begin[:2] == b"\xff\xfe" and begin[3:4] == b"\0"
    is_big = begin[:3] == b"\xfe\xff\0"
    return "utf-16" if is_little or is_big else ""


def not_utf8(where: str, data: bytes, error: UnicodeDecodeError) -> TraceError:
    """Return the error for invalid UTF-8, with the byte, counted from 1, and a conversion command."""
    at = error.start + (len(data) - len(error.object))  # the byte-order mark was not decoded
    what = f"byte {at + 1} (0x{data[at]:02x}) is not UTF-8"
    return TraceError(what, where, "text in UTF-8, as made by `iconv -t UTF-8`")


def first_line(head: bytes) -> str:
    """Return the first line of a file that begins with `head`, which may end within a character."""
    return _END.split(head, maxsplit=1)[0].decode("utf-8", errors="replace").removeprefix("\ufeff")


@contextmanager
def open_source(path: Path, progress: Progress | None = None, notes: Counter[str] | None = None) -> Iterator[Source]:
    """Yield `path` as a Source that counts in `notes`; TraceError if it is missing, unreadable or empty."""
    try:
        with require_regular_file(path).open("rb") as raw:
            source = Source(path, raw, progress, notes)
            if not path.stat().st_size:
                raise TraceError("is empty", str(path), "a file with content")
            yield source
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path), "a file") from error


def head(path: Path, size: int = 4096) -> bytes:
    """Return the first bytes of a file, unzipped; TraceError as `open_source`, or if it holds only blanks."""
    with open_source(path) as source:
        begin = io.BytesIO()
        while begin.tell() < size and (block := source.read(size - begin.tell())):
            begin.write(block)
    if not begin.getvalue().strip():
        raise TraceError("is empty", str(path), "a file with content")
    return begin.getvalue()
