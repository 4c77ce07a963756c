"""What the fields of a table mean: the docstrings below them, read from the source when somebody asks.

pydantic can read them itself, with `use_attribute_docstrings`, but it does so for every model whenever the module is
imported, which takes longer than all else about the models. A run never asks.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import Any

from gradwire.scenarios.schema.base import Table


def description(model: type[Table], field: str) -> str | None:
    """What a field means: the docstring below it, in the class that declared it, else what its type says of itself.
    None if nobody has said it."""
    for owner in model.__mro__:
        if field in inspect.get_annotations(owner):
            found = _docstrings(owner.__module__).get((owner.__qualname__, field))
            return found if found is not None else model.model_fields[field].description
    return None


def describe(schema: dict[str, Any], root: type[Table]) -> dict[str, Any]:
    """Put the meaning of every field into the JSON Schema of `root`, in place, and return it."""
    tables = _tables(Table)
    models = {model.__name__: model for model in tables}
    # where two have the same name, pydantic puts their modules before it
    models |= {f"{model.__module__.replace('.', '__')}__{model.__name__}": model for model in tables}
    for name, part in [(root.__name__, schema), *schema.get("$defs", {}).items()]:
        model = models.get(name)
        for field, what in part.get("properties", {}).items():
            text = description(model, field) if model and field in model.model_fields else None
            if text is not None:
                what["description"] = text
    return schema


def _tables(model: type[Table]) -> list[type[Table]]:
    return [model, *(found for below in model.__subclasses__() for found in _tables(below))]


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """(qualified name of a class, field): the string that stands below it, for a whole module; nothing where there is
    no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    found: dict[tuple[str, str], str] = {}

    def visit(body: list[ast.stmt], path: str) -> None:
        for one, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(one, ast.ClassDef):
                visit(one.body, f"{path}{one.name}.")
            elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                visit(one.body, f"{path}{one.name}.<locals>.")
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                value = below.value if isinstance(below, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[path.removesuffix("."), one.target.id] = inspect.cleandoc(value.value)

    visit(tree.body, "")
    return found
