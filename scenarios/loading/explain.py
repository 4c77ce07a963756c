"""Converts pydantic's validation errors of a scenario to readable messages with the key's path in the file.

Pydantic reports (location, type, input). The location mixes keys of the file with names of union members ("topology",
"leaf_spine", "leaves"); here it becomes the path in the file ("topology.leaves"), and each type becomes a problem and
an expectation. An unknown key is answered with the nearest known one.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gradwire.scenarios.errors import Mistake, join_path
from gradwire.scenarios.schema.base import Mistakes, ScenarioTable
from gradwire.scenarios.schema.field_docs import description
from gradwire.scenarios.schema.kinds import ComponentByKind
from gradwire.scenarios.units import UnitError

Location = tuple[str | int, ...]

MAX_EXPLAINED = 200
"""Maximum number of mistakes explained (our choice): finding the nearest key takes 0.2 ms each."""

# Tables that users expect but that have another name here.
RENAMED_TABLES: Mapping[str, str] = {
    "background": "background traffic is written as [[traffic]] tables",
    "faults": "faults are written as [[fault]] tables",
    "reducer": "gradient compression is training.reducer",
}
PLAIN_KINDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("is out of range", "a number above {gt}"),
    "greater_than_equal": ("is out of range", "a number at least {ge}"),
    "less_than": ("is out of range", "a number below {lt}"),
    "less_than_equal": ("is out of range", "a number at most {le}"),
    "literal_error": ("is unknown", "{expected}"),
    "string_pattern_mismatch": ("has invalid characters", "letters, digits and . _ + - only"),
    "too_short": ("is too short", "at least {min_length}"),
    "too_long": ("is too long", "at most {max_length}"),
    "string_too_short": ("is empty", "text"),
    "finite_number": ("is not a finite number", "a number"),
}
"""Problem and expectation of pydantic's error types, with the keys of their context."""
TYPE_WORDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text in quotes",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}


def explain_validation_error(
    error: ValidationError, tables: Mapping[str, Any], root: type[ScenarioTable]
) -> list[Mistake]:
    """Return the first `MAX_EXPLAINED` mistakes in `error`, in the models' order, and the number of others. The error
    came from validating `tables` as `root`."""
    mistakes: list[Mistake] = []
    reported = primary_entries(error)
    for entry in reported[:MAX_EXPLAINED]:
        mistakes.extend(_mistakes(entry, tables, root))
    if len(reported) > MAX_EXPLAINED:
        path = _text(file_location(reported[MAX_EXPLAINED], tables))
        mistakes.append(Mistake(path, f"the first of {len(reported) - MAX_EXPLAINED:,} more errors"))
    return mistakes


def primary_entries(error: ValidationError) -> list[ErrorDetails]:
    """Return pydantic's entries without consequential ones: a list counts as too short if some items are invalid."""
    return [
        entry
        for entry in error.errors(include_url=False)
        if entry["type"] != "too_short" or len(entry["input"]) < entry["ctx"]["min_length"]
    ]


def file_location(entry: ErrorDetails, tables: Any) -> Location:
    """Return an error's location in the file, without the names of union members."""
    location = entry["loc"]
    path: list[str | int] = []
    here = tables
    entered = False
    for position, step in enumerate(location):
        if entered and here.get("kind") == step:  # the kind comes before its keys, one of which may have its name
            entered = False
            continue
        inside = isinstance(here, Mapping) and step in here and not _is_member(here, location[position:])
        if inside or (isinstance(here, (list, tuple)) and isinstance(step, int) and step < len(here)):
            here = here[step]
            path.append(step)
            entered = isinstance(here, Mapping)
        elif entry["type"] == "missing" and position == len(location) - 1:
            path.append(step)
    return tuple(path)


def _is_member(here: Mapping[str, Any], steps: Location) -> bool:
    """Return True if the first step is a union member's name that is also a key of the table.

    The next step is then a key of the same table.
    """
    return len(steps) > 1 and not isinstance(here[str(steps[0])], (Mapping, list, tuple)) and steps[1] in here


def _text(location: Iterable[str | int]) -> str:
    path = ""
    for step in location:
        path = join_path(path, f"[{step}]" if isinstance(step, int) else step)
    return path


def _mistakes(entry: ErrorDetails, tables: Mapping[str, Any], root: type[ScenarioTable]) -> Iterator[Mistake]:
    location, kind, value = entry["loc"], entry["type"], entry["input"]
    context = entry.get("ctx", {})
    path = _text(file_location(entry, tables))
    cause = context.get("error")
    if isinstance(cause, Mistakes):
        for mistake in cause.mistakes:
            yield mistake.under(path)
    elif isinstance(cause, UnitError):
        yield Mistake(path, cause.what, value, cause.expected)
    elif kind == "extra_forbidden":
        key = str(location[-1])
        if key in RENAMED_TABLES:
            yield Mistake(path, f"unknown key; {RENAMED_TABLES[key]}")
        else:
            known = [name for model in _models_at(location[:-1], root) for name in model.model_fields]
            yield Mistake(path, "unknown key", None, _nearest(key, known))
    elif kind == "missing":
        yield Mistake(path, "is missing", None, _field_summary(location, root))
    elif kind == "union_tag_not_found":
        yield Mistake(join_path(path, "kind"), "is missing", None, _names(context, location, root))
    elif kind == "union_tag_invalid":
        tag = str(context.get("tag"))
        names = _names(context, location, root)
        key = join_path(path, "kind") if isinstance(value, Mapping) and "kind" in value else path
        near = difflib.get_close_matches(tag, names.replace(",", "").split(), n=1)
        near = [name for name in near if name != "none"]  # "expected none" would be misread
        yield Mistake(key, "is unknown", tag, f"{near[0]} (of {names})" if near else names)
    else:
        what, expected = _plain(kind, entry["msg"], context)
        yield Mistake(path, what, value, expected)


def _plain(kind: str, message: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """Return the problem and the expectation for error types that need only their context."""
    if kind in PLAIN_KINDS:
        what, expected = PLAIN_KINDS[kind]
        return what, expected.format(**context)
    if kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "is_instance_of"):
        return "is of the wrong type", TYPE_WORDS.get(kind.split("_")[0], message)
    return message[:1].lower() + message[1:], ""


def _names(context: Mapping[str, Any], location: Location, root: type[ScenarioTable]) -> str:
    """Return the valid kinds of a union."""
    tags = [name.strip("' ") for name in str(context.get("expected_tags", "")).split(",") if name.strip()]
    if not tags:
        tags = [kind for model in _models_at(location, root) for kind in _kinds(model)]
    return ", ".join('"my_module:MyClass"' if tag == "user" else tag for tag in tags)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f'"{near[0]}"'
    return f"only {known[0]}" if len(known) == 1 else "one of " + ", ".join(known)


def _field_summary(location: Location, root: type[ScenarioTable]) -> str:
    for model in _models_at(location[:-1], root):
        name = str(location[-1])
        text = description(model, name) if name in model.model_fields else None
        if text:
            first = re.split(r"\.(?= [A-Z])|;", " ".join(text.split()))[0].rstrip(".")
            return first if first[1:2].isupper() else first[:1].lower() + first[1:]
    return "a value"


def _models_at(location: Location, root: type[ScenarioTable]) -> list[type[ScenarioTable]]:
    """Return the models valid at `location`; one, unless it ends before a union."""
    models: list[type[ScenarioTable]] = [root]
    for step in location:
        if isinstance(step, int):
            continue
        members = [model for model in models if step in _kinds(model) or step == model.union_tag]
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        of_several = len(models) > 1 and members
        models = (
            members
            if of_several or not fields
            else [model for field in fields for model in _models_in(field.annotation, field.metadata)]
        )
    return models


def _kinds(model: type[ScenarioTable]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field is not None else ()


def _models_in(annotation: Any, metadata: Sequence[Any] = ()) -> list[type[ScenarioTable]]:
    for each in metadata:
        if isinstance(each, ComponentByKind):
            return each.models()
    if isinstance(annotation, type) and issubclass(annotation, ScenarioTable):
        return [annotation]
    inner = getattr(annotation, "__metadata__", ())  # of Annotated
    parts = typing.get_args(annotation)
    return [model for part in (parts[:1] if inner else parts) for model in _models_in(part, inner)]
