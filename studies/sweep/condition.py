"""Parses conditions on a sweep point's coordinates, such as `load >= 0.5 and transport in [ndp, dlcp]`, into
predicates.

They compare an axis with a value and are joined by `and`, `or`, `not` and brackets. With their values quoted, Python's
parser reads them; nothing is evaluated as code.
Values with a unit are compared by size ("buffer > 512KiB"), others as they are. An axis that does not apply at a point
equals nothing, and is neither smaller nor larger than anything.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.sweep.quantity import Scalar, number_of

Coordinates = Mapping[str, Scalar | None]
Test = Callable[[Coordinates], bool]

TOKEN = re.compile(r"""(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^\s()\[\],<>=!"']+)|\s+""")
KEYWORDS = ("and", "or", "not", "in")
OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
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
    try:
        tree: ast.AST | None = ast.parse(TOKEN.sub(_literal, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        tree = None
    return _Condition(text, axes, where).test(tree)


def _literal(token: re.Match[str]) -> str:
    """Return a token for Python's parser: values in brackets, so that it does not join texts."""
    if token["quoted"]:
        return f"({token[0][1:-1]!r})"
    return token[0] if token[0] in KEYWORDS else f"({_value(token[0])!r})" if token["word"] else " "


def _value(word: str) -> Scalar:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float) if word[-1].isdigit() or word[-1] == "." else ():
        try:
            return kind(word)
        except ValueError:
            continue
    return word


@dataclass(frozen=True)
class _Condition:
    """A condition's text, the permitted axes, and its location."""

    text: str
    axes: Sequence[str]
    where: str

    def wrong(self, what: str, expected: str = SYNTAX) -> ScenarioError:
        return ScenarioError(f"{self.text!r} {what}", self.where, expected)

    def test(self, node: ast.AST | None, depth: int = 0) -> Test:
        if depth > MOST_NESTING:
            raise self.wrong("is nested too deeply")
        if isinstance(node, ast.BoolOp):
            parts = [self.test(each, depth + 1) for each in node.values]
            joined = any if isinstance(node.op, ast.Or) else all
            return lambda at: joined(part(at) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand, depth + 1)
            return lambda at: not inner(at)
        if not isinstance(node, ast.Compare) or len(node.ops) > 1:
            raise self.wrong("is not a condition")
        try:
            axis, value = str(ast.literal_eval(node.left)), ast.literal_eval(node.comparators[0])
        except ValueError:
            raise self.wrong("is not a condition") from None
        if axis not in self.axes:
            known = ", ".join(self.axes) or "none: there are no axes before it"
            raise self.wrong(f"names {axis!r}, which is not an axis", known)
        is_member, order = isinstance(node.ops[0], ast.In), type(node.ops[0])
        accepted = value if isinstance(value, list) and is_member else [value]
        if not all(isinstance(each, Scalar) for each in accepted) or not (order in OPERATORS or accepted is value):
            raise self.wrong("is not a condition")
        if is_member:
            return lambda at: any(self.compare(ast.Eq, at[axis], each) for each in accepted)
        return lambda at: self.compare(order, at[axis], value)

    def compare(self, order: type[ast.cmpop], one: Scalar | None, two: Scalar) -> bool:
        if one is None:
            return order is ast.NotEq
        first, second = number_of(one), number_of(two)
        if first is not None and second is not None and first.quantity == second.quantity:
            return OPERATORS[order](first.value, second.value)
        if order in (ast.Eq, ast.NotEq):
            return OPERATORS[order](one, two) if type(one) is type(two) else order is ast.NotEq
        raise self.wrong(f"compares {one!r} with {two!r}, which have no order", "== or !=, or two numbers of one kind")
