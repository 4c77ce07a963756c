"""Defines gradwire's exceptions, whose messages state a location, a reason and the expected input.

A `GradwireError` addresses the person who wrote the input: the command line prints its message without a traceback and
exits with `exit_code`. Any other exception that escapes is a bug of gradwire and keeps its traceback.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from gradwire.scenarios.advice import install
from gradwire.scenarios.terminal_text import printable


class GradwireError(Exception):
    """Input that cannot be used, or a run that cannot continue. `what` states the problem, `where` names the file,
    field or host, `expected` states valid input. The message reads "where: what; expected ...", without the empty
    parts."""

    exit_code = 2

    def __init__(self, what: str, where: str = "", expected: str = "") -> None:
        if is_memory_shortage(sys.exception()):  # the shortage, not the input, is the cause
            what, expected = NO_MEMORY
        self.what, self.where, self.expected = what, where, expected
        super().__init__(what, where, expected)  # all three, so that the error survives pickling

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        head, *more = str(self).splitlines()
        items = "".join(f"<li>{escape(each.strip())}</li>" for each in more)
        return f"<p><b>{type(self).__name__}</b>: {escape(head)}</p>" + (f"<ul>{items}</ul>" if items else "")

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict of the message's parts."""
        parts = {"what": self.what, "where": self.where, "expected": self.expected}
        return {name: truncate_middle(text, MAX_LINE_LENGTH) for name, text in parts.items()}

    def __str__(self) -> str:
        message = f"{self.where}: {self.what}" if self.where else self.what
        return for_terminal(f"{message}; expected {self.expected}" if self.expected else message)


NO_MEMORY = ("not enough memory", "a smaller input, or a machine or limit (ulimit -v) with more memory")
"""Problem and expectation of the message for a memory shortage."""
MEMORY_SHORTAGE_PHRASES = (
    "can't allocate memory",
    "can't start new thread",
    "cannot allocate memory",
    "failed to launch worker thread",
    "failed to map segment",
    "not enough memory",
    "out of memory",
    "std::bad_alloc",
)
"""Lower-case phrases by which the system and libraries report a memory shortage in other exceptions."""
MAX_LINE_LENGTH = 600
"""Maximum characters of a message's line: names and lines of damaged files have no limit of their own."""


def is_memory_shortage(error: BaseException | None) -> bool:
    """Return True if the error or its cause is a memory shortage, or a thread could not start for lack of memory."""
    while error is not None and not isinstance(error, GradwireError):
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        text = str(error).lower()
        if any(words in text for words in MEMORY_SHORTAGE_PHRASES):
            return True
        error = error.__cause__ or error.__context__
    return False


def memory_shortage_error(where: str = "") -> GradwireError:
    """Return the error to raise or print for a memory shortage."""
    what, expected = NO_MEMORY
    return GradwireError(what, where, expected)


def for_terminal(text: str) -> str:
    """Return the text for a terminal: control characters escaped, long lines cut in the middle."""
    return printable("\n".join(truncate_middle(line, MAX_LINE_LENGTH) for line in text.split("\n")))


def truncate_middle(text: str, most: int) -> str:
    """Return at most `most` characters: the beginning, "...", and the end, where "expected" is."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def join_path(path: str, inner: str) -> str:
    """Return the path of `inner`, a path within the table at `path`."""
    return path + inner if inner.startswith("[") or not path or not inner else f"{path}.{inner}"


@dataclass(frozen=True)
class Mistake:
    """One error in a scenario. `path` is the location in the file's terms ("job[0].push_bound"); `value` is the
    offending value as written, or None for a missing field. `concerns` lists the other paths that a cross-field check
    has read: if one of them is wrong itself, this mistake may be a mere consequence and is left out."""

    path: str
    what: str
    value: object = None
    expected: str = ""
    concerns: tuple[str, ...] = ()

    def under(self, outer: str) -> Mistake:
        """Return the same mistake with its path inside the table at `outer`."""
        return replace(self, path=join_path(outer, self.path))

    def __str__(self) -> str:
        text = f"{self.path}: {self.what}"
        if self.value is not None:
            text += f" (got {shorten(self.value)})"
        return f"{text}; expected {self.expected}" if self.expected else text


class ScenarioError(GradwireError):
    """A scenario that cannot be run; `mistakes` lists every error in file order."""

    def __init__(self, what: str, where: str = "", expected: str = "", mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(what, where, expected)
        self.mistakes = tuple(mistakes)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.expected, self.mistakes))

    def of(self, called: str) -> ScenarioError:
        """Return the error with the scenario `called` as its location, unless it has one or no mistakes."""
        if self.where or not self.mistakes:
            return self
        return type(self)(self.what, called, self.expected, self.mistakes)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict, with a list of `mistakes`: path, what, value (as text or null) and expected."""
        mistakes = [
            {
                "path": each.path,
                "what": each.what,
                "expected": each.expected,
                "value": None if each.value is None else shorten(each.value),
            }
            for each in self.mistakes
        ]
        return {**super().as_dict(), "mistakes": mistakes}

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(for_terminal(f"  {mistake}") for mistake in self.mistakes)])


P = ParamSpec("P")
R = TypeVar("R")


def with_scenario_location(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a function of a scenario: its ScenarioErrors without a location name the scenario."""

    @wraps(function)
    def named(scenario: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(scenario, *arguments, **keywords)
        except ScenarioError as error:
            raise error.of(scenario.display_name) from None

    return named


class TraceError(GradwireError):
    """A trace that is missing, damaged, or of an unsupported version."""


class ResultError(GradwireError):
    """A Result that cannot be written or read."""


class ScenarioNote(UserWarning):
    """Warning about an automatic change to a scenario; commands print it as a note."""


class StallError(GradwireError):
    """A simulation with undelivered messages but no pending events."""

    exit_code = 1


class MissingExtraError(GradwireError):
    """An optional dependency that is not installed; the message names the extra that provides it."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; install it with: {install(extra)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.package, self.extra))


def import_extra(package: str, extra: str) -> Any:
    """Import an optional dependency and return it. Raises `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(package, extra) from error


def shorten(value: object, limit: int = 80) -> str:
    """Return `value` as short text for an error message: strings and booleans as in TOML, containers truncated."""
    if isinstance(value, list | tuple):
        value = value[:limit]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), limit))
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
