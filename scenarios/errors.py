"""What every refusal looks like: what is wrong, where, and what would be right.

A `GradwireError` is addressed to the person who wrote the input, so it carries no traceback to the terminal:
the command line prints its message once and exits with `exit_code`. Anything else that escapes is a bug of
gradwire and keeps its traceback.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gradwire.scenarios.advice import install
from gradwire.scenarios.terminal_text import printable


class GradwireError(Exception):
    """Input that cannot be used, or a run that cannot go on.

    `what` says what is wrong, `where` names the file, field or host, `expected` what would have been right.
    The message reads "where: what; expected ...", without the parts that are empty.
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "", expected: str = "") -> None:
        if is_memory_shortage(sys.exception()):  # while it is handled, nothing else can be said of the input
            what, expected = NO_MEMORY
        self.what, self.where, self.expected = what, where, expected
        super().__init__(what, where, expected)  # all three, so that the error survives pickling

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        head, *more = str(self).splitlines()
        items = "".join(f"<li>{escape(each.strip())}</li>" for each in more)
        return f"<p><b>{type(self).__name__}</b>: {escape(head)}</p>" + (f"<ul>{items}</ul>" if items else "")

    def as_dict(self) -> dict[str, Any]:
        """The same for programs, JSON-safe."""
        parts = {"what": self.what, "where": self.where, "expected": self.expected}
        return {name: cut(text, LINE) for name, text in parts.items()}

    def __str__(self) -> str:
        message = f"{self.where}: {self.what}" if self.where else self.what
        return shown(f"{message}; expected {self.expected}" if self.expected else message)


NO_MEMORY = ("not enough memory", "a smaller input, or a machine or limit (ulimit -v) with more memory")
"""What is said of a shortage of memory, and what would be right."""
SHORTAGES = (
    "can't allocate memory",
    "can't start new thread",
    "cannot allocate memory",
    "failed to launch worker thread",
    "failed to map segment",
    "not enough memory",
    "out of memory",
    "std::bad_alloc",
)
"""Words by which the system and libraries say it in exceptions of other kinds."""
LINE = 600
"""Characters of a message's line that are shown: names and lines of damaged files have no limit of their own."""


def is_memory_shortage(error: BaseException | None) -> bool:
    """Return True if memory ran out, or a thread could not start for lack of it: the error itself or its cause."""
    while error is not None and not isinstance(error, GradwireError):
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        text = str(error).lower()
        if any(words in text for words in SHORTAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def no_memory(where: str = "") -> GradwireError:
    """Return what to raise, or print, for a shortage of memory."""
    what, expected = NO_MEMORY
    return GradwireError(what, where, expected)


def shown(text: str) -> str:
    """Return the text for a terminal: escapes for what it would obey, and long lines cut in the middle."""
    return printable("\n".join(cut(line, LINE) for line in text.split("\n")))


def cut(text: str, most: int) -> str:
    """Return at most `most` characters: the beginning, "...", and the end, where "expected" is."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def place(path: str, inner: str) -> str:
    """`inner` as seen from outside the table at `path`."""
    return path + inner if inner.startswith("[") or not path or not inner else f"{path}.{inner}"


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a scenario.

    `path` is where, in the file's own terms ("job[0].push_bound"); `value` is the offending value as
    written, or None where there is none (a missing field). `concerns` lists the other paths that a
    cross-field check has read: if one of those is itself wrong, this mistake may be a mere echo of it and is
    left out.
    """

    path: str
    what: str
    value: object = None
    expected: str = ""
    concerns: tuple[str, ...] = ()

    def under(self, outer: str) -> Mistake:
        """The same as seen from outside the table at `outer`, of which this has its path."""
        return replace(self, path=place(outer, self.path))

    def __str__(self) -> str:
        text = f"{self.path}: {self.what}"
        if self.value is not None:
            text += f" (got {shorten(self.value)})"
        return f"{text}; expected {self.expected}" if self.expected else text


class ScenarioError(GradwireError):
    """A scenario that cannot be run. `mistakes` holds every single one that was found, in file order."""

    def __init__(
        self, what: str, where: str = "", expected: str = "", mistakes: Sequence[Mistake] = ()
    ) -> None:
        super().__init__(what, where, expected)
        self.mistakes = tuple(mistakes)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.expected, self.mistakes))

    def of(self, called: str) -> ScenarioError:
        """The same, of the scenario `called` so; where nothing else says what the mistakes are in."""
        if self.where or not self.mistakes:
            return self
        return type(self)(self.what, called, self.expected, self.mistakes)

    def as_dict(self) -> dict[str, Any]:
        """The same for programs, with a list of `mistakes`: path, what, value (as text or null) and expected."""
        mistakes = [
            {
                "path": each.path, "what": each.what, "expected": each.expected,
                "value": None if each.value is None else shorten(each.value),
            }
            for each in self.mistakes
        ]  # fmt: skip
        return {**super().as_dict(), "mistakes": mistakes}

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(shown(f"  {mistake}") for mistake in self.mistakes)])


class Called(Protocol):
    """What has a name for people: a Scenario."""

    @property
    def called(self) -> str:
        """The name."""


S = TypeVar("S", bound=Called)
P = ParamSpec("P")
R = TypeVar("R")


def names_scenario(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A function of a scenario, and of whatever else: mistakes that it raises, and that name nothing that they are in,
    name the scenario."""

    @wraps(function)
    def named(scenario: S, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(scenario, *arguments, **keywords)
        except ScenarioError as error:
            raise error.of(scenario.called) from None

    return named


class TraceError(GradwireError):
    """A trace that is missing, damaged, or of a version this gradwire does not read."""


class ResultError(GradwireError):
    """A Result that cannot be written or read."""


class ScenarioNote(UserWarning):
    """Something that was done to a scenario without having been asked for; commands print it as a note."""


class StallError(GradwireError):
    """A simulation in which nothing can happen any more though messages are still under way."""

    exit_code = 1


class MissingExtraError(GradwireError):
    """An optional dependency that is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; install it with: {install(extra)}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.package, self.extra))


def shorten(value: object, limit: int = 80) -> str:
    """`value` as text for an error message: strings and booleans as in TOML, never a whole table."""
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
