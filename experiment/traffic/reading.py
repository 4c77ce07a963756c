"""Text files of traffic: lines of words, and a list of everything that is wrong with them, by line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.files import regular

SHOWN = 8
"""Mistakes of one file that are listed one by one (our choice)."""


class Reader:
    """One file. `wrong` notes a mistake, `finish` raises if there were any."""

    def __init__(self, path: Path, where: str) -> None:
        """Raises ScenarioError if the file cannot be read; `where` is the key of the scenario that names it."""
        self.path, self.where = path, where
        self.mistakes: list[Mistake] = []
        try:
            self._text = regular(path).read_text(encoding="utf-8-sig")  # a mark of the encoding may come first
        except FileNotFoundError:
            raise ScenarioError(f"no such file: {path}", where) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is no text in UTF-8"
            raise ScenarioError(f"cannot be read: {path} ({reason})", where) from None

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """(line number from 1, words) of every line that has any; `#` begins a comment."""
        for number, line in enumerate(self._text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                yield number, words

    def wrong(self, line: int | None, what: str, value: object = None, expected: str = "") -> None:
        """Note a mistake in a line, or in the file as a whole."""
        place = f"{self.path.name}, line {line}" if line else self.path.name
        self.mistakes.append(Mistake(place, what, value, expected))

    def finish(self, thing: str) -> None:
        """Raise ScenarioError if the file is no `thing`."""
        if self.mistakes:
            more = len(self.mistakes) - SHOWN
            shown = self.mistakes[:SHOWN]
            if more > 0:
                shown.append(Mistake(self.path.name, f"{more} more mistakes"))
            raise ScenarioError(f"{self.path} is not {thing}:", self.where, mistakes=shown)
