"""Parses and formats times, sizes, rates and fractions, texts with units outside and exact integers inside.

Inside gradwire a time is an integer number of picoseconds, a size an integer number of bytes and a rate an integer
number of bits per second; people write "1us", "4KiB", "100Gbps". Conversion is exact: a value that is not a whole
number of the internal unit is rejected instead of rounded, and so is a bare number, since `rate = 100` is ambiguous.

Why picoseconds: one byte at 100 Gbps takes 80 ps and at 400 Gbps 20 ps, so the usual rates need no rounding, and 64
bits still hold 106 days. `MAX_INNER` (2^62) allows adding two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import core_schema

from gradwire.scenarios.inner_units import Bps, Bytes, Ns, Ps, PsPerByte

__all__ = [
    "Bps", "Bytes", "Fraction", "MissingUnitError", "Ns", "PositiveTime", "Ps", "PsPerByte", "Quantity", "Rate", "Size",
    "Time",
    "UnitError", "format_rate", "format_size", "format_time", "parse_decimal", "parse_fraction", "parse_rate",
    "parse_size", "parse_time", "parse_wall", "parse_whole",
]  # fmt: skip

MAX_INNER = 2**62

PS = Ps(1)
NS = Ps(1_000)
US = Ps(1_000_000)
MS = Ps(1_000_000_000)
S = Ps(1_000_000_000_000)

TIME_UNITS: Mapping[str, int] = {"ps": PS, "ns": NS, "us": US, "ms": MS, "s": S}
WALL_UNITS: Mapping[str, int] = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
SIZE_UNITS: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
RATE_UNITS: Mapping[str, int] = {"bps": 1, "kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}

# Other spellings of the same unit, accepted on input and never written.
ALIASES: Mapping[str, str] = {"µs": "us", "μs": "us", "sec": "s", "KB": "kB", "Kbps": "kbps"}

NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(\S*)\s*")

PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class UnitError(ValueError):
    """Invalid time, size, rate or fraction: `what` states the problem, `expected` a valid value."""

    def __init__(self, what: str, expected: str) -> None:
        self.what, self.expected = what, expected
        super().__init__(f"{what}; expected {expected}")


class MissingUnitError(UnitError):
    """A number without a unit, or with a unit of another quantity."""


def parse_time(value: object) -> Ps:
    """Return the picoseconds of a time such as "2.5ms". Raises `UnitError`."""
    return Ps(_parse(value, "time", TIME_UNITS, "picoseconds", "2us"))


def parse_wall(value: object) -> float:
    """Return the seconds of a wall-clock time such as "30s", "5m" or "1h". Raises `UnitError`. Simulated times do not
    accept "m": there it would look like milliseconds."""
    milliseconds = _parse(value, "wall-clock time", WALL_UNITS, "milliseconds", "5m")
    if milliseconds <= 0:
        raise UnitError("is not positive", 'a positive wall-clock time, such as "5m"')
    return milliseconds / 1000


def parse_size(value: object) -> Bytes:
    """Return the bytes of a size such as "4KiB" (1024-based) or "4kB" (1000-based). Raises `UnitError`."""
    return Bytes(_parse(value, "size", SIZE_UNITS, "bytes", "4KiB"))


def parse_rate(value: object) -> Bps:
    """Return the bits per second of a rate such as "100Gbps". Raises `UnitError`."""
    return Bps(_parse(value, "rate", RATE_UNITS, "bits per second", "100Gbps"))


def format_time(picoseconds: int) -> str:
    """Return the shortest exact spelling of a time; `parse_time` reads it back to the same integer."""
    return _format(picoseconds, TIME_UNITS)


def format_rounded_time(picoseconds: int) -> str:
    """Return a time rounded to three digits."""
    unit = 10 ** max(len(str(abs(picoseconds))) - 3, 0)
    return format_time((picoseconds + unit // 2) // unit * unit)


def format_size(size: int) -> str:
    """Return the shortest exact spelling of a size; `parse_size` reads it back to the same integer."""
    return _format(size, SIZE_UNITS)


def format_rate(bits_per_second: int) -> str:
    """Return the shortest exact spelling of a rate; `parse_rate` reads it back to the same integer."""
    return _format(bits_per_second, RATE_UNITS)


def _parse(value: object, quantity: str, units: Mapping[str, int], inner: str, example: str) -> int:
    accepted = f'a {quantity} with a unit ({", ".join(units)}), such as "{example}"'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise MissingUnitError("has no unit", accepted)
    if not isinstance(value, str):
        raise UnitError(f"is not a {quantity}", accepted)
    match = NUMBER.fullmatch(value)
    if not match:
        raise UnitError(f"is not a {quantity}", accepted)
    number, unit = Decimal(match[1]), ALIASES.get(match[2], match[2])
    if not unit:
        raise MissingUnitError("has no unit", accepted)
    if unit not in units:
        raise MissingUnitError(f'"{match[2]}" is not a unit of {quantity}', accepted)
    exact = number * units[unit]
    if abs(exact) > MAX_INNER:
        raise UnitError("is too large", f"at most {_format(MAX_INNER, units)}")
    if exact != int(exact):
        raise UnitError(f"is not a whole number of {inner}", f"a {quantity} in whole {inner}")
    return int(exact)


def _format(value: int, units: Mapping[str, int]) -> str:
    """Return the shortest exact spelling with a number of at least 1; on a tie, with the larger unit."""
    best = f"{value}{next(iter(units))}"
    for unit, scale in units.items():
        number = Decimal(value) / scale
        exact = number * scale == value  # False if the quotient was rounded to Decimal's 28 digits
        if exact and abs(number) >= 1:
            text = f"{number.normalize():f}{unit}"
            if len(text) <= len(best):
                best = text
    return best


def parse_whole(word: str) -> int | None:
    """Return the non-negative integer of a word of ASCII digits, or None; 20 or more digits are invalid."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else None


def parse_decimal(word: str) -> Decimal | None:
    """Return the number in a word of ASCII characters, or None."""
    try:
        return Decimal(word) if PLAIN_NUMBER.fullmatch(word) else None
    except ArithmeticError:  # exponent out of range
        return None


def parse_fraction(value: object) -> float:
    """Return a plain number from 0 to 1. Raises `UnitError`."""
    expected = "a plain number between 0 and 1, such as 0.1"
    if isinstance(value, str) and value.strip().endswith("%"):
        raise UnitError("is a percentage", expected)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnitError("is not a number", expected)
    if not 0.0 <= value <= 1.0:  # also rejects nan
        raise UnitError("is out of range", expected)
    return float(value)


@dataclass(frozen=True)
class Quantity:
    """Pydantic annotation: text with a unit on input and in JSON, an integer inside."""

    name: str
    parse: Callable[[object], int]
    format: Callable[[int], str]
    example: str
    positive: bool = True
    least: int = 0

    def validate(self, value: object) -> int:
        inner = self.parse(value)
        if inner < 0 or (inner == 0 and self.positive):
            what = "is negative" if inner < 0 else "is zero"
            sign = "a positive" if self.positive else "zero or a positive"
            raise UnitError(what, f'{sign} {self.name}, such as "{self.example}"')
        if inner < self.least:
            raise UnitError(f"is below {self.format(self.least)}", f'a {self.name} such as "{self.example}"')
        return inner

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        text = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.no_info_plain_validator_function(self.validate, serialization=text)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "description": f"a {self.name} with its unit", "examples": [self.example]}


Time = Annotated[Ps, Quantity("time", parse_time, format_time, "2us", positive=False)]
"""Time in picoseconds, zero or above (a latency, a start)."""
PositiveTime = Annotated[Ps, Quantity("time", parse_time, format_time, "2us")]
"""Time in picoseconds above zero (a time-out, a duration)."""
Size = Annotated[Bytes, Quantity("size", parse_size, format_size, "4KiB")]
"""Size in bytes above zero."""
Rate = Annotated[Bps, Quantity("rate", parse_rate, format_rate, "100Gbps", least=1000)]
"""Rate in bits per second, at least 1 kbps: a packet of any size then takes less than two minutes."""
Fraction = Annotated[float, BeforeValidator(parse_fraction), Field(json_schema_extra={"minimum": 0, "maximum": 1})]
"""Plain number from 0 to 1, both included."""
