"""Values of axes as numbers: what has a unit in a scenario, such as "512KiB" or "10ms", is compared and drawn by
size."""

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
"""What an axis may have as a value; a table has a label instead."""

PARSERS: Mapping[str, Callable[[object], int]] = {"time": parse_time, "size": parse_size, "rate": parse_rate}
FORMATS: Mapping[str, Callable[[int], str]] = {"time": format_time, "size": format_size, "rate": format_rate}


class Number(NamedTuple):
    """A value with its quantity: "time" (picoseconds), "size" (bytes), "rate" (bits per second), "" for plain ones."""

    value: float
    quantity: str


def number_of(value: Any) -> Number | None:
    """A value as a number; None for what is none, such as names and true."""
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
    """The value as a scenario has it; those with a unit are rounded to what is whole inside."""
    return FORMATS[number.quantity](round(number.value)) if number.quantity else number.value


def numbers_of(values: Iterable[Any]) -> tuple[list[float], str] | None:
    """All values as numbers of one quantity; None if one is no number, or of another quantity."""
    found = [number_of(value) for value in values]
    kinds = {each.quantity for each in found if each is not None}
    if None in found or len(kinds) != 1:
        return None
    return [each.value for each in found if each is not None], kinds.pop()
