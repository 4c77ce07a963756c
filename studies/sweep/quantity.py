"""Converts axis values with a unit, such as "512KiB" or "10ms", to numbers, to be compared and plotted by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gradwire.scenarios.units import (
    UnitError,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)

Scalar = bool | int | float | str
"""Possible values of an axis; a table is represented by its label."""

PARSERS: Mapping[str, Callable[[object], int]] = {"time": parse_time, "size": parse_size, "rate": parse_rate}
FORMATS: Mapping[str, Callable[[int], str]] = {"time": format_time, "size": format_size, "rate": format_rate}


class Number(NamedTuple):
    """A value with its quantity: "time" (picoseconds), "size" (bytes), "rate" (bits per second), "" for plain
    numbers."""

    value: float
    quantity: str


def number_of(value: Any) -> Number | None:
    """Return a value as a number; None if it is not one, such as names and true."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return Number(value, "")
    for quantity, parse in PARSERS.items():
        try:
            return Number(parse(value), quantity)
        except UnitError:
            continue
    return None


def text_of(number: Number) -> Scalar:
    """Return the value as a scenario writes it; those with a unit are rounded to whole internal units."""
    return FORMATS[number.quantity](round(number.value)) if number.quantity else number.value


def numbers_of(values: Iterable[Any]) -> tuple[list[float], str] | None:
    """Return all values as numbers of one quantity; None if one is not a number, or of another quantity."""
    numbers = [number_of(value) for value in values]
    kinds = {number.quantity for number in numbers if number is not None}
    if None in numbers or len(kinds) != 1:
        return None
    return [number.value for number in numbers if number is not None], kinds.pop()
