"""Reads descriptions of a table's fields from the docstrings below them in the source, on demand.

pydantic can read them itself with `use_attribute_docstrings`, but does so for every model at import, which takes longer
than everything else about the models. A run never needs them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import Any

from gradwire.scenarios.schema.base import ScenarioTable


def description(model: type[ScenarioTable], field: str) -> str | None:
    """Return the docstring below a field in the class that declared it, else its type's description, or None."""
    for owner in model.__mro__:
        if field in inspect.get_annotations(owner):
            text = _docstrings(owner.__module__).get((owner.__qualname__, field))
            return text if text is not None else model.model_fields[field].description
    return None


def describe(schema: dict[str, Any], root: type[ScenarioTable]) -> dict[str, Any]:
    """Add the description of every field to the JSON Schema of `root`, in place, and return it."""
    tables = _tables(ScenarioTable)
    models = {model.__name__: model for model in tables}
    # pydantic prefixes equal names with their modules
    models |= {f"{model.__module__.replace('.', '__')}__{model.__name__}": model for model in tables}
    for name, part in [(root.__name__, schema), *schema.get("$defs", {}).items()]:
        model = models.get(name)
        for field, what in part.get("properties", {}).items():
            text = description(model, field) if model and field in model.model_fields else None
            if text is not None:
                what["description"] = text
    return schema


def _tables(model: type[ScenarioTable]) -> list[type[ScenarioTable]]:
    return [model, *(table for below in model.__subclasses__() for table in _tables(below))]


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of a module's fields by (qualified class name, field); empty without source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    docstrings: dict[tuple[str, str], str] = {}

    def visit(body: list[ast.stmt], path: str) -> None:
        for one, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(one, ast.ClassDef):
                visit(one.body, f"{path}{one.name}.")
            elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                visit(one.body, f"{path}{one.name}.<locals>.")
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                value = below.value if isinstance(below, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    docstrings[path.removesuffix("."), one.target.id] = inspect.cleandoc(value.value)

    visit(tree.body, "")
    return docstrings
