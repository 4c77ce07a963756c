"""Yields the events of a Chrome trace JSON file one at a time, in bounded memory.

Profiles grow to gigabytes, while `json.load` needs about eight times the size of the text. Here the text passes through
a window of a few MiB in which the standard library's C scanner decodes one event after the other: as fast as
`json.load`, and without a dependency. Both forms of the format are read: an object whose "traceEvents" holds the array,
and the bare array, which by the format's rules may lack its closing bracket.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from json.decoder import JSONDecodeError
from typing import Any, NoReturn

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.source import Source

LARGEST_VALUE = 1 << 26  # characters; a longer event or header value counts as damage
_BLOCK = 1 << 22
_BLANK = re.compile(r"[\s\ufeff]*")
_NEXT = re.compile(r"[\s,]*")
_STRING_OR_WORD = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*(?:(?P<end>")|\\?\Z)'
    r"|(?<![\w.#])[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?|1\.#\w+)(?![\w.#])",
    re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
JSON_KINDS = {type(None): "null", str: "a string", dict: "an object", bool: "a boolean"}
LITERAL, NOT_FINITE = "invalid escapes in text, taken literally", "bare inf or nan"


class _Window:
    """Part of the file's text, and the position in it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text, self.at, self.ended = "", 0, False
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._read = 0  # bytes before the current block
        self._scan = json.JSONDecoder(strict=False).raw_decode  # profilers write raw control characters
        self.events = 0
        self._repaired_to = 0  # end of the repaired text
        self._is_open = False  # the text ends within a string

    def more(self) -> None:
        block = self.source.read(_BLOCK)
        self.ended = not block
        try:
            text = self._decode(block, final=self.ended)
        except UnicodeDecodeError as error:
            at = (
                self._read + len(block) - len(error.object) + error.start
            )  # object may begin with part of the previous block
            byte = error.object[error.start]
            what = f"byte {at + 1:,} (0x{byte:02x}) is not UTF-8"
            raise TraceError(what, self.source.where, "JSON, which is text in UTF-8") from None
        self._read += len(block)
        self._repaired_to = max(self._repaired_to - self.at, 0)
        self.text, self.at = self.text[self.at :] + text, 0

    def _repair(self) -> bool:
        """Repair the text from here on: Windows paths with single backslashes, and C's spellings of inf and nan. Return
        False if nothing was repaired. Text is repaired once, and only in files that are otherwise invalid JSON."""
        counts: Counter[str] = Counter()

        def repaired(match: re.Match[str]) -> str:
            word = match[0]
            if word[0] != '"':
                counts[NOT_FINITE] += 1
                sign = "-" if word[0] == "-" else ""
                return "NaN" if re.search("na|ind", word, re.IGNORECASE) else sign + "Infinity"
            return _ESCAPE.sub(literal, word)

        def literal(match: re.Match[str]) -> str:
            counts[LITERAL] += match[1] is None
            return match[0] if match[1] else "\\\\"

        begin = max(self.at, self._repaired_to)
        end, self._is_open = begin, False
        for match in _STRING_OR_WORD.finditer(self.text, begin):
            if match[0][0] == '"' and not match["end"]:
                self._is_open = True
                break
            end = match.end()
        if end == begin:
            return False
        text = _STRING_OR_WORD.sub(repaired, self.text[begin:end])
        self.text = self.text[:begin] + text + self.text[end:]
        self._repaired_to = begin + len(text)
        self.source.notes.update(+counts)
        return bool(+counts)

    def peek(self, between: re.Pattern[str] = _BLANK) -> str:
        """Return the next character that is not blank; "" at the end of the file."""
        while True:
            match = between.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def value(self) -> Any:
        """Return the JSON value that begins here."""
        while True:
            try:
                value, end = self._scan(self.text, self.at)
            except JSONDecodeError as error:
                # A scan that stopped well before the end of the window did not lack text.
                margin = 0 if self.ended else 16
                lacks = error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - margin
                if self.ended or not lacks:
                    if self._repair():
                        continue
                    if self._is_open and not self.ended:
                        self.more()
                        if len(self.text) - self.at <= LARGEST_VALUE:
                            continue
                    self.wrong("ends" if self.ended and lacks else error.msg)
            except RecursionError:
                self.wrong("nesting too deep")
            except ValueError:
                self.wrong("a number of thousands of digits")
            else:
                if end < len(self.text) or self.ended or isinstance(value, (dict, list, str)):
                    self.at = end
                    return value
            if len(self.text) - self.at > LARGEST_VALUE:
                self.wrong("a value of more than 64 MiB")
            self.more()

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            self.wrong(f"{self.text[self.at : self.at + 20]!r}" if self.peek() else "ends")
        self.at += 1

    def wrong(self, what: str) -> NoReturn:
        position = f"after event {self.events}" if self.events else "at its beginning"
        if what == "ends":
            raise TraceError(f"the file ends {position}", self.source.where, "a complete JSON file")
        raise TraceError(f"is not JSON {position} ({what})", self.source.where, "a Chrome trace JSON file")


def events(source: Source, header: dict[str, Any], skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield every event of the file, and add other values of its outer object to `header`. TraceError for a file that
    is not JSON, ends too early or has no events."""
    window = _Window(source)
    first = window.peek()
    if first == "[":
        yield from _array(window, skipped, may_end=True)
    elif first == "{":
        yield from _object(window, header, skipped)
    else:
        window.wrong(f"{first!r}" if first else "ends")
    if window.peek():
        skipped["text behind the JSON value"] += 1


def _object(window: _Window, header: dict[str, Any], skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    window.take("{")
    has_events = False
    while window.peek(_NEXT) != "}":
        if window.peek() != '"':
            window.wrong("a key was expected" if window.peek() else "ends")
        key = window.value()
        window.take(":")
        if key == "traceEvents" and window.peek() == "[":
            has_events = True
            yield from _array(window, skipped, may_end=False)
        else:
            window.peek()
            header[key] = window.value()
    window.at += 1
    if not has_events and "traceEvents" in header:
        kind = JSON_KINDS.get(type(header["traceEvents"]), "a number")
        raise TraceError(f"traceEvents is {kind}", window.source.where, "an array of events")
    if not has_events:
        keys = ", ".join(list(header)[:8]) or "nothing"
        raise TraceError(f"has no traceEvents, only {keys}", window.source.where, "a Chrome trace JSON file")


def _array(window: _Window, skipped: Counter[str], *, may_end: bool) -> Iterator[dict[str, Any]]:
    window.take("[")
    while (following := window.peek(_NEXT)) != "]":
        if not following:
            if not may_end or not window.events:
                window.wrong("ends")
            skipped["closing bracket that is missing"] += 1
            return
        event = window.value()
        window.events += 1
        if isinstance(event, dict):
            yield event
        else:
            skipped["array entries that are no events"] += 1
    window.at += 1
