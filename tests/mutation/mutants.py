"""Mutants: one changed comparison, operator, constant or branch, or one deleted statement."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

FOLDERS = ("protocols", "sim/engine/core")
KINDS = ("comparison", "arithmetic", "constant", "branch", "deletion")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a file.

    path : the file, relative to the root of the tree.
    first, last : lines of the statement, or of the condition, that is changed.
    begin, end : the bytes that are replaced.
    """

    path: str
    first: int
    last: int
    kind: str
    begin: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """Return the source of the file with this change."""
        if source[self.begin : self.end].decode() != self.before:
            raise ValueError(f"{self.path}:{self.first} is not what the mutant was made of")
        return source[: self.begin] + self.after.encode() + source[self.end :]


def sources_of(root: Path) -> list[Path]:
    """Return the files that mutants are made of."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants of the files below `FOLDERS`, the same for the same tree and seed, of each kind as many."""
    by_kind: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sources_of(root):
        for mutant in mutants_of(str(path.relative_to(root)), path.read_bytes()):
            by_kind[mutant.kind].append(mutant)
    rng = Random(seed)
    for mutants in by_kind.values():
        rng.shuffle(mutants)
    return [by_kind[KINDS[number % len(KINDS)]].pop() for number in range(count)]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of the functions of a file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants: dict[Mutant, None] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for first, last, old, new, kind in _changes(function):
                assert old.end_lineno is not None and old.end_col_offset is not None
                begin = starts[old.lineno - 1] + old.col_offset
                end = starts[old.end_lineno - 1] + old.end_col_offset
                before, after = source[begin:end].decode(), ast.unparse(new)
                if isinstance(old, ast.expr) and not isinstance(new, (ast.Constant, ast.Name)):
                    after = f"({after})"
                mutants[Mutant(path, first, last, kind, begin, end, before, after)] = None
    return list(mutants)


Change = tuple[int, int, ast.stmt | ast.expr, ast.AST, str]
"""The first and last line of the statement or condition around a node, the node, what takes its place, and the kind."""


def _changes(function: ast.FunctionDef) -> Iterator[Change]:
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt):
                yield from _changes_of_statement(node)


def _changes_of_statement(statement: ast.stmt) -> Iterator[Change]:
    """Yield the changes of one statement, without those of the statements inside it."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Raise, ast.Import, ast.ImportFrom)):
        return
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if _is_deletable(statement):
        yield first, last, statement, ast.Pass(), "deletion"
    if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATORS:
        changed = copy.deepcopy(statement)
        changed.op = OPERATORS[type(statement.op)]()
        yield first, last, statement, changed, "arithmetic"
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for expression in value if isinstance(value, list) else [value]:
            if isinstance(expression, ast.expr):
                end = expression.end_lineno or last
                if name == "test":
                    yield first, end, expression, ast.UnaryOp(ast.Not(), expression), "branch"
                for node, new, kind in _changes_of_expression(expression):
                    yield first, end, node, new, kind


def _is_deletable(statement: ast.stmt) -> bool:
    """Return True if the function is still one without this statement. A local name must be assigned."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    return isinstance(statement, (ast.AugAssign, ast.Return, ast.Continue, ast.Break))


def _changes_of_expression(expression: ast.expr) -> Iterator[tuple[ast.expr, ast.AST, str]]:
    if isinstance(expression, ast.JoinedStr):
        return  # the text of a message
    new: ast.AST
    match expression:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            new = ast.Compare(expression.left, [COMPARISONS[type(operator)]()], expression.comparators)
            yield expression, new, "comparison"
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS and not (
            _is_text(left) or _is_text(right)
        ):
            yield expression, ast.BinOp(left, OPERATORS[type(operator)](), right), "arithmetic"
        case ast.Call(ast.Name(name)) if name in OPPOSITES:
            yield expression.func, ast.Name(OPPOSITES[name]), "arithmetic"
        case ast.Constant(bool(value)):
            yield expression, ast.Constant(not value), "constant"
        case ast.Constant(int(value)):
            yield expression, ast.Constant(value + 1), "constant"
        case ast.BoolOp(operator, values):
            yield expression, ast.BoolOp(ast.And() if isinstance(operator, ast.Or) else ast.Or(), values), "branch"
        case ast.IfExp(test):
            yield test, ast.UnaryOp(ast.Not(), test), "branch"
    for inner in ast.iter_child_nodes(expression):
        for node in [inner] if isinstance(inner, ast.expr) else ast.walk(inner):
            if isinstance(node, ast.expr):
                yield from _changes_of_expression(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
