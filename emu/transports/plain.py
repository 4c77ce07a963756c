"""Specialises the functions of a transport to plain Python: what sockets run is what the simulator compiles.

A transport is a handful of `@njit` functions over an array of integers (`gradwire.components.transports.base`).
Agents run the same source uncompiled, on a list, since a list is read faster than an array, and an agent needs no
Numba. As they are written they would cost 1.2 us more per packet than rules written for Python: most of that is
looking up and adding up the places of words, and calling `bit` and its likes. So each function is read from its file
once per process and rewritten, never by hand:

* the bases of the records are known (every flow has a list of its own), and so are the constants of modules:
  `M[f + S_TIMER]` becomes `M[43]`;
* words that messages share (`M[f + S_PAIR]`, `M[r + R_PAIR]`, `M[r + R_HOST]` say where they are) are in lists of their
  own, and a record has such a list itself where the simulator's has the place of the first: with `q = M[f + S_PAIR]`,
  `M[q + Q_RATE]` becomes `q[8]`. Nothing else can be done with `q` but handing it on to another function;
* functions that are one expression, or that return nothing, are put in where they are called;
* every other function that is called is specialised in the same way.

What is left says the same as its source, on the same lines, so that a traceback points there.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from gradwire.components import layout as at
from gradwire.components.compiled import Compiled, Rule
from gradwire.emu.switches.base import TestbedError

FOLDED: Mapping[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
NOTHING_ADDED = (ast.Add, ast.Sub, ast.BitOr, ast.LShift, ast.RShift)
"""operations that a zero on the right does not change"""
SHARED: Mapping[str, int] = {"S_PAIR": at.S_PAIR, "R_PAIR": at.R_PAIR, "R_HOST": at.R_HOST}
"""words of a record that say where those are that messages share"""


Tree = TypeVar("Tree", bound=ast.AST)


class Plain:
    """Functions rewritten for records at known places; those that they call are rewritten once."""

    def __init__(self) -> None:
        self._names: dict[str, object] = {}
        self._count = 0
        self._made: dict[tuple[object, ...], str] = {}

    def function(self, compiled: Compiled, **known: int) -> Rule:
        """A compiled function as plain Python without the arguments in `known`, which have these values.

        Raises
        ------
        TestbedError
            Its source is not to be had, or it does with shared words what cannot be done here.
        """
        made = self._names[self.made(compiled.py_func, known)]
        assert callable(made)
        return made

    def made(
        self, source: Rule, known: Mapping[str, int], shared: frozenset[str] = frozenset()
    ) -> str:
        """The name of the rewritten function. `shared`: parameters that are lists of shared words."""
        key = source, tuple(sorted(known.items())), shared
        if key in self._made:
            return self._made[key]
        tree = definition(source)
        name = self._made[key] = f"{tree.name}_{len(self._made)}"  # before going down: it may call itself
        tree.name = name
        tree.decorator_list = []
        tree.args.args = [each for each in tree.args.args if each.arg not in known]
        env: dict[str, ast.expr] = {parameter: ast.Constant(value) for parameter, value in known.items()}
        tree.body = _Rewriter(self, source, env, shared).statements(tree.body)
        module = ast.fix_missing_locations(ast.Module([tree], []))
        exec(compile(module, inspect.getfile(source), "exec"), self._names)
        return name

    def fresh(self, name: str) -> str:
        """A name that no function has."""
        self._count += 1
        return f"{name}_in_{self._count}"

    def bound(self, value: object) -> str:
        """A name for something that is neither a number nor a function of a transport."""
        name = f"value_{id(value)}"
        self._names[name] = value
        return name


_trees: dict[Rule, ast.FunctionDef] = {}


def definition(source: Rule) -> ast.FunctionDef:
    """The syntax tree of a function without its docstring, where its file has it; a copy."""
    if source not in _trees:
        try:
            lines, first = inspect.getsourcelines(source)
        except OSError as error:
            raise TestbedError(
                f"the source of {source.__qualname__} cannot be read: {error}", "transport", "a function in a file"
            ) from error
        tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1).body[0]
        assert isinstance(tree, ast.FunctionDef)
        if ast.get_docstring(tree) is not None:
            tree.body = tree.body[1:] or [ast.copy_location(ast.Pass(), tree.body[0])]
        _trees[source] = tree
    return copy.deepcopy(_trees[source])


def expression(tree: ast.FunctionDef) -> ast.expr | None:
    """What a function returns as one expression: "if a: return b" and then "return c" is "b if a else c"."""
    last = tree.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    found = last.value
    for each in reversed(tree.body[:-1]):
        if not isinstance(each, ast.If) or each.orelse or len(each.body) != 1:
            return None
        answer = each.body[0]
        if not isinstance(answer, ast.Return) or answer.value is None:
            return None
        found = ast.copy_location(ast.IfExp(each.test, answer.value, found), each)
    return found


def written(tree: ast.AST) -> set[str]:
    """Names that a function gives a value to."""
    return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function; `env` are its parameters that are expressions of the caller's, or numbers, `shared` those
    that are lists of shared words."""

    def __init__(
        self, plain: Plain, source: Rule, env: Mapping[str, ast.expr], shared: frozenset[str]
    ) -> None:
        self.plain, self.source, self.env = plain, source, env
        self.names = source.__globals__
        self.local = set(source.__code__.co_varnames)
        self.shared = set(shared)
        for each in ast.walk(definition(source)):
            if isinstance(each, ast.Assign) and self._shares(each.value):
                self.shared |= {name.id for name in each.targets if isinstance(name, ast.Name)}

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, rewritten."""
        found: list[ast.stmt] = []
        for each in body:
            put = self.visit(each)
            found += put if isinstance(put, list) else [put]
        return found

    def _value(self, node: ast.expr) -> Any:
        """What a name, or a name of a module, means outside the function; None if it means nothing there."""
        if isinstance(node, ast.Name) and node.id not in self.local:
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(module := self._value(node.value), ModuleType):
            return getattr(module, node.attr, None)
        return None

    def _outside(self, node: ast.expr) -> ast.expr | None:
        value = self._value(node)
        if value is None:
            return None
        if type(value) in (int, bool):
            return ast.copy_location(ast.Constant(int(value)), node)
        return ast.copy_location(ast.Name(self.plain.bound(value), ast.Load()), node)

    def _shares(self, node: ast.expr) -> bool:
        """Whether it says where shared words are: M[record + S_PAIR] and its likes, or a variable that has been given
        that."""
        if isinstance(node, ast.Name):
            return node.id in self.shared
        return isinstance(node, ast.Subscript) and any(map(self._says_where, _terms(node.slice)))

    def _says_where(self, node: ast.expr) -> bool:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return name in SHARED and self._value(node) == SHARED[name]

    def _list(self, node: ast.expr) -> ast.expr:
        """The list of shared words, where it is known to be one."""
        found = self._known(node) if isinstance(node, ast.Name) else self.generic_visit(node)
        assert isinstance(found, ast.expr)
        return found

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        terms = _terms(node.slice)
        for term in terms:
            if self._shares(term):
                rest = [each for each in terms if each is not term] or [ast.Constant(0)]
                place = functools.reduce(lambda left, right: ast.BinOp(left, ast.Add(), right), rest)
                return ast.copy_location(ast.Subscript(self._list(term), self.visit(place), node.ctx), node)
        if self._shares(node):
            raise self._refused(node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not self._shares(node.value):
            return self.generic_visit(node)
        node.value = self._list(node.value)
        node.targets = [self.visit(each) for each in node.targets]
        return node

    def _refused(self, node: ast.expr) -> TestbedError:
        return TestbedError(
            f"{self.source.__qualname__} does more with the words that messages share than read and write them",
            f"{inspect.getfile(self.source)}:{node.lineno}",
            "q = M[f + S_PAIR] (R_PAIR, R_HOST), then M[q + word], or q handed on to a function",
        )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.shared:
            raise self._refused(node)
        return self._known(node)

    def _known(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load):
            if node.id in self.env:
                return ast.copy_location(copy.deepcopy(self.env[node.id]), node)
            return self._outside(node) or node
        renamed = self.env.get(node.id)  # a variable of a function that has been put in
        return ast.copy_location(ast.Name(renamed.id, ast.Store()), node) if isinstance(renamed, ast.Name) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._outside(node) or self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        left, right = _number(node.left), _number(node.right)
        if right is None:
            if isinstance(node.op, ast.Mult) and left in (0, 1):
                return node.right if left else node.left
            return node.right if left == 0 and isinstance(node.op, (ast.Add, ast.BitOr)) else node
        if left is not None and type(node.op) in FOLDED:
            return ast.copy_location(ast.Constant(FOLDED[type(node.op)](left, right)), node)
        return node.left if right == 0 and isinstance(node.op, NOTHING_ADDED) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        value = _number(node.operand)
        if value is None or type(node.op) not in FOLDED:
            return node
        return ast.copy_location(ast.Constant(FOLDED[type(node.op)](value)), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        """A call whose result nobody wants: the statements of the function, if it returns nothing."""
        source = self._called(node.value) if isinstance(node.value, ast.Call) else None
        if source is None:
            return self.generic_visit(node)
        tree = definition(source)
        if any(isinstance(each, ast.Return) for each in ast.walk(tree)):
            return self.generic_visit(node)
        assert isinstance(node.value, ast.Call)
        (arguments, shared), changed = self._arguments(node.value, tree), written(tree)
        env: dict[str, ast.expr] = {}
        statements: list[ast.stmt] = []
        for name in sorted({*arguments, *changed}):
            value = arguments.get(name)
            if value is not None and name not in changed and isinstance(value, (ast.Name, ast.Constant)):
                env[name] = value
                continue
            own = self.plain.fresh(name)
            env[name] = ast.Name(own, ast.Load())
            if value is not None:
                statements.append(ast.Assign([ast.Name(own, ast.Store())], value))
        statements += _Rewriter(self.plain, source, env, shared).statements(tree.body)
        return [ast.copy_location(_at(each, node), node) for each in statements]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        source = self._called(node)
        if source is None:
            if not (isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)):
                node.func = self.visit(node.func)
            node.args = [self.visit(each) for each in node.args]
            return node
        tree = definition(source)
        arguments, shared = self._arguments(node, tree)
        whole = expression(tree)
        if whole is not None and _simple(arguments, whole):
            put: ast.expr = _Rewriter(self.plain, source, arguments, shared).visit(whole)
            return _at(put, node)
        changed = written(tree)
        known = {
            name: number
            for name, value in arguments.items()
            if name not in changed and (number := _number(value)) is not None
        }
        name = self.plain.made(source, known, shared)
        rest = [value for each, value in arguments.items() if each not in known]
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), rest, []), node)

    def _called(self, node: ast.Call) -> Rule | None:
        """The source of the compiled function that is called, if it is one."""
        found: Rule | None = getattr(self._value(node.func), "py_func", None)
        return found

    def _arguments(
        self, node: ast.Call, tree: ast.FunctionDef
    ) -> tuple[dict[str, ast.expr], frozenset[str]]:
        """What a function is given, by parameter, and which of it are lists of shared words."""
        names = [each.arg for each in tree.args.args]
        given = dict(zip(names, node.args, strict=False)) | {each.arg or "": each.value for each in node.keywords}
        missing = dict(zip(reversed(names), reversed(tree.args.defaults), strict=False))
        values = {name: given[name] if name in given else missing[name] for name in names}
        shared = frozenset(name for name, value in values.items() if self._shares(value))
        return {
            name: self._list(value) if name in shared else self.visit(value) for name, value in values.items()
        }, shared


def _terms(node: ast.expr) -> list[ast.expr]:
    """What is added up to a place."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def _number(node: ast.AST) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _simple(arguments: Mapping[str, ast.expr], body: ast.AST) -> bool:
    """Whether arguments may stand where the parameters stood: names and numbers anywhere, what has to be worked out if
    it is worked out once."""
    used = [each.id for each in ast.walk(body) if isinstance(each, ast.Name)]
    return all(
        isinstance(value, (ast.Name, ast.Constant)) or used.count(name) == 1 for name, value in arguments.items()
    )


def _at(tree: Tree, node: ast.AST) -> Tree:
    """What is put in belongs to the line of the call."""
    for each in ast.walk(tree):
        if hasattr(each, "lineno"):
            ast.copy_location(each, node)
    return tree
