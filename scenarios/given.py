"""What callers of the Python API hand over: of a type that can be used, or refused in words, before any work.

The command line needs none of this: what is typed there is text. `where` says whose argument it is, as in
"load_trace(name)"; `error` is what the function promises to raise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from gradwire.scenarios.errors import GradwireError

T = TypeVar("T")
MOST_SHOWN = 60
"""Characters of a value in a message."""
MOST_ARRAYS = 5
"""Arrays of which a message says what they are."""


def instance_of(
    value: Any, kind: type[T] | tuple[type[T], ...], where: str, expected: str, error: type[GradwireError]
) -> T:
    """`value` itself, if it is of the type, or one of the types; else `error` is raised."""
    if isinstance(value, kind):
        return value
    raise unfit(value, where, expected, error)


def path_of(value: Any, where: str, expected: str, error: type[GradwireError]) -> Path:
    """A path from text or from anything like one. Raises `error` for what can be no name of a file."""
    try:
        text = os.fspath(value)
    except TypeError:
        raise unfit(value, where, expected, error) from None
    if not isinstance(text, str):
        raise unfit(value, where, expected, error)
    if not text or "\0" in text:
        raise error("is empty" if not text else "has a zero byte in it", where, expected)
    return Path(text)


def texts_of(value: Any, where: str, expected: str, error: type[GradwireError]) -> list[str]:
    """A list of texts; one alone counts as a list of it."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        raise unfit(value, where, expected, error)
    return [instance_of(each, str, where, expected, error) for each in value]


def whole_number(value: Any, where: str, least: int, error: type[GradwireError]) -> int:
    """A whole number of at least `least`, NumPy's among them. True and False are none."""
    expected = f"a whole number from {least}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise unfit(value, where, expected, error)
    try:
        number = int(value.__index__())
    except TypeError:  # an array of several
        raise unfit(value, where, expected, error) from None
    if number < least:
        raise error(f"is {number}", where, expected)
    return number


def positive_number(value: Any, where: str, expected: str, error: type[GradwireError]) -> float:
    """A number above zero, infinity among them. True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unfit(value, where, expected, error)
    if not value > 0:
        raise error(f"is {value}", where, expected)
    return float(value)


def number_within(value: Any, where: str, least: float, most: float, error: type[GradwireError]) -> float:
    """A number of `least` to `most`. True, False and nan are none."""
    expected = f"a number from {least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unfit(value, where, expected, error)
    if not least <= value <= most:
        raise error(f"is {value:g}", where, expected)
    return float(value)


def one_of(value: Any, where: str, words: Iterable[str], error: type[GradwireError]) -> str:
    """One of some words."""
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise unfit(value, where, f"one of {', '.join(known)}", error)
    return value


def unfit(value: Any, where: str, expected: str, error: type[GradwireError]) -> GradwireError:
    """What to raise for a value of a type that cannot be used."""
    if value is None:
        return error("is None", where, expected)
    of_type = "" if _is_array(value) else f", of type {type(value).__name__}"
    return error(f"is {_shown(value)}{of_type}", where, expected)


def _is_array(value: Any) -> bool:
    """Whether it is an array, or a tensor, of which type and shape say more than the first values."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _shown(value: Any) -> str:
    """The first line of its repr, of bounded length; of arrays what they are, alone or a few of them."""
    if _is_array(value):
        return f"{type(value).__name__} of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    if isinstance(value, tuple | list) and len(value) < MOST_ARRAYS and any(map(_is_array, value)):
        return f"({'; '.join(map(_shown, value))})"
    try:
        text = next(iter(repr(value).splitlines()), "")
    except Exception:  # whatever a stranger's __repr__ raises
        return "something"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
