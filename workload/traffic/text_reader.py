"""`TextReader` reads a file of traffic as lines of words, and collects all mistakes by line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.files import require_regular_file

MAX_LISTED = 8
"""Maximum number of listed mistakes of one file (our choice)."""


class TextReader:
    """One file. `wrong` records a mistake, `finish` raises if there are any."""

    def __init__(self, path: Path, where: str) -> None:
        """Read the file, or raise ScenarioError; `where` is the key of the scenario that names it."""
        self.path, self.where = path, where
        self.mistakes: list[Mistake] = []
        try:
            self._text = require_regular_file(path).read_text(encoding="utf-8-sig")  # a byte order mark may come first
        except FileNotFoundError:
            raise ScenarioError(f"no such file: {path}", where) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise ScenarioError(f"cannot be read: {path} ({reason})", where) from None

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number from 1, words) of every non-empty line; `#` begins a comment."""
        for number, line in enumerate(self._text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                yield number, words

    def wrong(self, line: int | None, what: str, value: object = None, expected: str = "") -> None:
        """Record a mistake in a line, or in the file as a whole."""
        path = f"{self.path.name}, line {line}" if line else self.path.name
        self.mistakes.append(Mistake(path, what, value, expected))

    def finish(self, item: str) -> None:
        """Raise ScenarioError if there are mistakes; `item` is the expected kind of file."""
        if self.mistakes:
            more = len(self.mistakes) - MAX_LISTED
            listed = self.mistakes[:MAX_LISTED]
            if more > 0:
                listed.append(Mistake(self.path.name, f"{more} more mistakes"))
            raise ScenarioError(f"{self.path} is not {item}:", self.where, mistakes=listed)
