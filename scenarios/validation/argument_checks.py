"""Checks the types and ranges of the Python API's arguments before any work.

The command line does not need them: its arguments are text. `where` names the argument, as in "load_trace(name)";
`error` is the exception that the function documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from gradwire.scenarios.errors import GradwireError

T = TypeVar("T")
MOST_SHOWN = 60
"""Maximum characters of a value in a message."""
MOST_ARRAYS = 5
"""Maximum arrays that a message describes."""


def require_instance(
    value: Any, kind: type[T] | tuple[type[T], ...], where: str, expected: str, error: type[GradwireError]
) -> T:
    """Return `value` if it is of the type, or of one of the types; else raise `error`."""
    if isinstance(value, kind):
        return value
    raise wrong_type_error(value, where, expected, error)


def require_path(value: Any, where: str, expected: str, error: type[GradwireError]) -> Path:
    """Return a path from a string or path-like object. Raises `error` if it cannot be a file name."""
    try:
        text = os.fspath(value)
    except TypeError:
        raise wrong_type_error(value, where, expected, error) from None
    if not isinstance(text, str):
        raise wrong_type_error(value, where, expected, error)
    if not text or "\0" in text:
        raise error("is empty" if not text else "has a zero byte in it", where, expected)
    return Path(text)


def require_strings(value: Any, where: str, expected: str, error: type[GradwireError]) -> list[str]:
    """Return a list of strings; a single string becomes a list of one."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        raise wrong_type_error(value, where, expected, error)
    return [require_instance(each, str, where, expected, error) for each in value]


def require_integer(value: Any, where: str, least: int, error: type[GradwireError]) -> int:
    """Return an integer of at least `least`, NumPy's included. Booleans are rejected."""
    expected = f"a whole number from {least}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type_error(value, where, expected, error)
    try:
        number = int(value.__index__())
    except TypeError:  # an array of several
        raise wrong_type_error(value, where, expected, error) from None
    if number < least:
        raise error(f"is {number}", where, expected)
    return number


def require_positive(value: Any, where: str, expected: str, error: type[GradwireError]) -> float:
    """Return a number above zero, infinity included. Booleans are rejected."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type_error(value, where, expected, error)
    if not value > 0:
        raise error(f"is {value}", where, expected)
    return float(value)


def require_in_range(value: Any, where: str, least: float, most: float, error: type[GradwireError]) -> float:
    """Return a number from `least` to `most`. Booleans and nan are rejected."""
    expected = f"a number from {least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type_error(value, where, expected, error)
    if not least <= value <= most:
        raise error(f"is {value:g}", where, expected)
    return float(value)


def require_one_of(value: Any, where: str, words: Iterable[str], error: type[GradwireError]) -> str:
    """Return `value` if it is one of `words`; else raise `error`."""
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise wrong_type_error(value, where, f"one of {', '.join(known)}", error)
    return value


def wrong_type_error(value: Any, where: str, expected: str, error: type[GradwireError]) -> GradwireError:
    """Return the error for a value of an unusable type."""
    if value is None:
        return error("is None", where, expected)
    of_type = "" if _is_array(value) else f", of type {type(value).__name__}"
    return error(f"is {_shown(value)}{of_type}", where, expected)


def _is_array(value: Any) -> bool:
    """Return True for an array or tensor, better described by type and shape than by its values."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _shown(value: Any) -> str:
    """Return the first line of a value's repr, of bounded length; type and shape of arrays."""
    if _is_array(value):
        return f"{type(value).__name__} of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    if isinstance(value, tuple | list) and len(value) < MOST_ARRAYS and any(map(_is_array, value)):
        return f"({'; '.join(map(_shown, value))})"
    try:
        text = next(iter(repr(value).splitlines()), "")
    except Exception:  # a user's __repr__ may raise anything
        return "something"
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."
