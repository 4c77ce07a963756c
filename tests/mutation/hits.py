"""Statements that report that they have run: sources with a mark before each statement, and the marks themselves.

Marks cost a tenth of what Python's tracing does, which calls a function for every call of any other.
"""

from __future__ import annotations

import ast

HITS = bytearray(1 << 16)
"""1 at the number of each statement that has run since `take`. In sources it is called `_hits`."""
IMPORT = "from tests.mutation.hits import HITS as _hits"


def take() -> list[int]:
    """Return the numbers of the statements that have run, and begin anew."""
    numbers = [number for number, is_hit in enumerate(HITS) if is_hit]
    HITS[:] = bytes(len(HITS))
    return numbers


def marked(source: str, first: int) -> tuple[str, list[int]]:
    """Return the source with a mark before each statement of a function, and the line of each statement, from number
    `first` on."""
    tree = ast.parse(source)
    lines: list[int] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            _mark_statements(function, first, lines)
    if not lines:
        return source, []
    head = 1 if _is_docstring(tree.body[0]) else 0
    while isinstance(each := tree.body[head], ast.ImportFrom) and each.module == "__future__":
        head += 1
    tree.body.insert(head, ast.parse(IMPORT).body[0])
    return ast.unparse(ast.fix_missing_locations(tree)), lines


def _mark_statements(node: ast.AST, first: int, lines: list[int]) -> None:
    """Mark what is in the bodies of a statement, nested ones included; not in functions inside it."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        body = getattr(node, field, [])
        if not isinstance(body, list):
            continue
        marks = []
        for statement in body:
            if isinstance(statement, ast.stmt) and not _is_docstring(statement):
                mark = ast.parse(f"_hits[{first + len(lines)}] = 1").body[0]
                lines.append(statement.lineno)
                marks.append(mark)
            marks.append(statement)
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                _mark_statements(statement, first, lines)
        body[:] = marks


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
