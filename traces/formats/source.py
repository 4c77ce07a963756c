"""Reading foreign files: plain or gzipped, of any size, with one clear error for whatever is wrong with them."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.files import regular

Progress = Callable[[float, str], None]
"""Called now and then while reading: the share of the file that is done, and a few words."""

LONGEST_LINE = 1 << 20  # bytes; a longer one is no line of a text format
_BLOCK = 1 << 20
_END = re.compile(rb"\r\n|\n|\r")  # of a line: Unix, Windows, and Macs of long ago


class Source:
    """A file opened for reading; gzip is recognised by its first bytes, whatever the file is called.

    `read` raises TraceError where gzip says that the data are damaged or end too early. What cannot be opened,
    and a file without a byte in it, is refused by `opened`.
    """

    def __init__(self, path: Path, raw: IO[bytes], progress: Progress | None) -> None:
        self.path = path
        self.where = str(path)
        self._raw = raw
        self._size = max(path.stat().st_size, 1)
        self._progress = progress
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self._plain: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if zipped else raw

    def read(self, size: int = _BLOCK) -> bytes:
        """The next bytes, at most `size`; none at the end of the file."""
        try:
            data = self._plain.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"its gzip data are damaged or end too early ({error})", self.where) from error
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror or error})", self.where) from error
        if self._progress is not None:
            self._progress(min(self._raw.tell() / self._size, 1.0), "read")
        return data

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, text without its end) of each line. TraceError for what is no UTF-8, with line and byte."""
        rest, number = b"", 0
        while block := self.read():
            text = rest + block
            half = text.endswith(b"\r")  # perhaps of \r\n
            *whole, rest = _END.split(text[:-1] if half else text)
            rest += b"\r" * half
            for line in whole:
                number += 1
                yield number, self._text(line, number)
            if len(rest) > LONGEST_LINE:
                raise TraceError(f"line {number + 1} is longer than a MiB", self.where, "a text file")
        if rest:
            yield number + 1, self._text(rest.removesuffix(b"\r"), number + 1)

    def _text(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(f"{self.where}, line {number}", line, error) from None


def not_utf8(where: str, data: bytes, error: UnicodeDecodeError) -> TraceError:
    """What to raise for text that is no UTF-8: which byte it is, counted from 1, and how to make it some."""
    at = error.start + (len(data) - len(error.object))  # the mark of the encoding is not in what was decoded
    return TraceError(
        f"byte {at + 1} (0x{data[at]:02x}) is no UTF-8", where, "text in UTF-8, as `iconv -t UTF-8` makes it"
    )


def first_line(head: bytes) -> str:
    """The first line of a file that begins with `head`, which may end within a character; for telling formats."""
    return _END.split(head, maxsplit=1)[0].decode("utf-8", errors="replace").removeprefix("\ufeff")


@contextmanager
def opened(path: Path, progress: Progress | None = None) -> Iterator[Source]:
    """`path` as a Source. TraceError if it is missing, a directory, unreadable, empty or damaged gzip."""
    try:
        with regular(path).open("rb") as raw:
            source = Source(path, raw, progress)
            if not path.stat().st_size:
                raise TraceError("is empty", str(path), "a file with something in it")
            yield source
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path), "a file") from error


def head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file, unzipped, for telling its format. TraceError as `opened`, or if all is empty."""
    with opened(path) as source:
        begin = io.BytesIO()
        while begin.tell() < size and (block := source.read(size - begin.tell())):
            begin.write(block)
    if not begin.getvalue().strip():
        raise TraceError("is empty", str(path), "a file with something in it")
    return begin.getvalue()
