"""Escapes control characters in text that commands print to a terminal.

Names come from files that another user may have written, and a terminal obeys control sequences in them: ESC ]0; sets
the window title, U+202E reverses the order of letters. Python's streams are replaced by an `EscapingStream`. Rich
bypasses it, since its own colours must pass, so `console` escapes the text it receives.
"""

from __future__ import annotations

import io
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PRINTABLE_WHITESPACE = "\n\t"


def printable(text: str) -> str:
    """Return the text with control, format and bidirectional characters escaped; newlines, tabs and spaces of all
    widths stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # fast path for megabytes of JSON
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in PRINTABLE_WHITESPACE or unicodedata.category(character) == "Zs"


class EscapingStream(io.TextIOWrapper):
    """Text stream that escapes unprintable characters. Rich writes to `rich_proxied_file`, with its own colours."""

    rich_proxied_file: TextIO

    def __init__(self, buffer: Any, **options: Any) -> None:
        super().__init__(buffer, **options)
        self.rich_proxied_file = _Raw(self)  # type: ignore[assignment]

    def write(self, text: str) -> int:
        """Write the text, escaped; return its length before escaping."""
        super().write(printable(text))
        return len(text)


class _Raw:
    """The same stream without escaping, for text that is already escaped."""

    def __init__(self, stream: EscapingStream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream without escaping, for the output of a user's own program."""
    return getattr(stream, "rich_proxied_file", stream)


def console(**options: Any) -> Console:
    """Return a `rich.console.Console` that escapes every text before measuring and printing it; `options` are passed
    on."""
    from rich.console import Console

    class Escaping(Console):
        """Console that escapes plain strings, both printed and in table cells, where they become `Text`."""

        def render_str(self, text: str, **how: Any) -> Any:
            return super().render_str(printable(text), **how)

    return Escaping(**options)
