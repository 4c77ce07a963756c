"""Parses conditions on a sweep point's coordinates, such as `load >= 0.5 and transport in [ndp, dlcp]`, into
predicates.

They compare an axis with a value and are joined by `and`, `or`, `not` and brackets; nothing is evaluated as code.
Values with a unit are compared by size ("buffer > 512KiB"), others as they are. An axis that does not apply at a point
equals nothing, and is neither smaller nor larger than anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.sweep.quantity import Scalar, number_of

Coordinates = Mapping[str, Scalar | None]
Test = Callable[[Coordinates], bool]

TOKEN = re.compile(r"""\s*(?:("[^"]*"|'[^']*')|(==|!=|<=|>=|<|>)|([()\[\],])|([^\s()\[\],<>=!"']+))""")
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SYNTAX = 'axis, one of == != < <= > >= in, and a value, joined by and, or, not: "load >= 0.5 and transport != ndp"'
MOST_NESTING = 50
"""Maximum nesting of brackets and `not`."""


def parse_condition(text: str, axes: Sequence[str], where: str) -> Test:
    """Parse a condition into a test of coordinates.

    axes : permitted names. `where` : location for messages.

    Raises `ScenarioError` if it is not a condition, or names an unknown axis. The test itself raises it if two values
    have no order.
    """
    parser = _Parser(_tokens(text, where), text, axes, where)
    test = parser.parse_any(0)
    if parser.current_position is not None:
        raise parser.wrong(f"has {parser.current_position!r} where it should end")
    return test


def _tokens(text: str, where: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ScenarioError(f"is not a condition: {text!r}", where, SYNTAX)
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    """Recursive-descent parser; each method consumes the tokens it reads."""

    def __init__(self, tokens: list[str], text: str, axes: Sequence[str], where: str) -> None:
        self.tokens, self.text, self.axes, self.where = tokens, text, axes, where
        self.position = 0

    @property
    def current_position(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def wrong(self, what: str, expected: str = SYNTAX) -> ScenarioError:
        return ScenarioError(f"{self.text!r} {what}", self.where, expected)

    def take(self, expected: str = "") -> str:
        token = self.current_position
        if token is None:
            raise self.wrong("ends too early")
        if expected and token != expected:
            raise self.wrong(f"has {token!r} instead of {expected!r}")
        self.position += 1
        return token

    def parse_any(self, depth: int) -> Test:
        parts = [self.parse_all(depth)]
        while self.current_position == "or":
            self.take()
            parts.append(self.parse_all(depth))
        return parts[0] if len(parts) == 1 else lambda at: any(part(at) for part in parts)

    def parse_all(self, depth: int) -> Test:
        parts = [self.parse_one(depth)]
        while self.current_position == "and":
            self.take()
            parts.append(self.parse_one(depth))
        return parts[0] if len(parts) == 1 else lambda at: all(part(at) for part in parts)

    def parse_one(self, depth: int) -> Test:
        if depth > MOST_NESTING:
            raise self.wrong("is nested too deeply")
        if self.current_position == "not":
            self.take()
            inner = self.parse_one(depth + 1)
            return lambda at: not inner(at)
        if self.current_position == "(":
            self.take()
            inner = self.parse_any(depth + 1)
            self.take(")")
            return inner
        return self.comparison()

    def comparison(self) -> Test:
        axis = self.take().strip("\"'")
        if axis not in self.axes:
            known = ", ".join(self.axes) or "none: there are no axes before it"
            raise self.wrong(f"names {axis!r}, which is not an axis", known)
        order = self.take()
        if order == "in":
            accepted = self.listed()
            return lambda at: any(self.compare("==", at[axis], value) for value in accepted)
        if order not in OPERATORS:
            raise self.wrong(f"has {order!r} after {axis!r}")
        value = self.value()
        return lambda at: self.compare(order, at[axis], value)

    def listed(self) -> list[Scalar]:
        self.take("[")
        values = [self.value()]
        while self.current_position == ",":
            self.take()
            values.append(self.value())
        self.take("]")
        return values

    def value(self) -> Scalar:
        token = self.take()
        if token[0] in "\"'":
            return token[1:-1]
        if token in ("true", "false"):
            return token == "true"
        if token in OPERATORS or token in "()[],":
            raise self.wrong(f"has {token!r} instead of a value")
        for kind in (int, float) if token[-1].isdigit() or token[-1] == "." else ():
            try:
                return kind(token)
            except ValueError:
                continue
        return token

    def compare(self, order: str, one: Scalar | None, two: Scalar) -> bool:
        if one is None:
            return order == "!="
        first, second = number_of(one), number_of(two)
        if first is not None and second is not None and first.quantity == second.quantity:
            return OPERATORS[order](first.value, second.value)
        if order in ("==", "!="):
            return OPERATORS[order](one, two) if type(one) is type(two) else order == "!="
        raise self.wrong(f"compares {one!r} with {two!r}, which have no order", "== or !=, or two numbers of one kind")
