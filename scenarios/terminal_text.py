"""Text for terminals: what a terminal would obey instead of showing is escaped, wherever a command prints.

Names come from files that another user may have made, and a terminal obeys what they hold: ESC ]0; sets the title of
its window, U+202E turns the order of letters around. Two things print. Python's streams are replaced by an
`EscapingStream`. Rich writes past it, since its own colours must pass, so `console` escapes the text that it is given.
"""

from __future__ import annotations

import io
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = "\n\t"


def printable(text: str) -> str:
    """Return the text with control, format and bidirectional characters as escapes. Line ends, tabs and spaces of all
    widths stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # fast, for JSON of megabytes
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in SHOWN or unicodedata.category(character) == "Zs"


class EscapingStream(io.TextIOWrapper):
    """A text stream that writes what is `printable`. Rich writes to `rich_proxied_file`, with its own colours."""

    rich_proxied_file: TextIO

    def __init__(self, buffer: Any, **options: Any) -> None:
        super().__init__(buffer, **options)
        self.rich_proxied_file = _Raw(self)  # type: ignore[assignment]

    def write(self, text: str) -> int:
        """Write the text, escaped; return how many characters it had."""
        super().write(printable(text))
        return len(text)


class _Raw:
    """The same stream, as it is for those who have escaped what they write."""

    def __init__(self, stream: EscapingStream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream as it is without escapes, for the output of a user's own program."""
    return getattr(stream, "rich_proxied_file", stream)


def console(**options: Any) -> Console:
    """Return a `rich.console.Console` that escapes every text before it measures and shows it; `options` are its."""
    from rich.console import Console

    class Escaping(Console):
        """Plain strings become `Text` here, whether they are printed or stand in a cell."""

        def render_str(self, text: str, **how: Any) -> Any:
            return super().render_str(printable(text), **how)

    return Escaping(**options)
