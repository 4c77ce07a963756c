"""From pydantic's errors to sentences for the person who wrote the scenario.

Pydantic reports (location, type, input). The location mixes keys of the file with names of union members
("topology", "leaf_spine", "leaves"); here it becomes the path in the file ("topology.leaves"), and each type
becomes what is wrong and what was expected. A key that does not exist is answered with the nearest that does.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gradwire.scenarios.errors import Mistake, place
from gradwire.scenarios.schema.base import Mistakes, Table
from gradwire.scenarios.schema.chosen import Chosen
from gradwire.scenarios.schema.described import description
from gradwire.scenarios.units import UnitError

Location = tuple[str | int, ...]

MOST = 200
"""Mistakes that are explained one by one (our choice): to look for the nearest key takes 0.2 ms each."""

# Tables that people look for and that this version does not have, or has under another name.
NOT_YET: Mapping[str, str] = {
    "background": "background traffic is written as [[traffic]] tables",
    "faults": "what goes wrong is written as [[fault]] tables",
    "reducer": "what is sent instead of gradients is training.reducer",
}


def explain(error: ValidationError, tables: Mapping[str, Any], root: type[Table]) -> list[Mistake]:
    """Return the first `MOST` mistakes in `error`, in the models' order, and the number of others.

    It came from validating `tables` as `root`.
    """
    found: list[Mistake] = []
    several = entries(error)
    for entry in several[:MOST]:
        found.extend(_mistakes(entry, tables, root))
    if len(several) > MOST:
        path = _text(file_location(several[MOST], tables))
        found.append(Mistake(path, f"the first of {len(several) - MOST:,} more mistakes"))
    return found


def entries(error: ValidationError) -> list[ErrorDetails]:
    """Pydantic's entries without echoes: it takes a list for too short if some of its items are mistakes."""
    return [
        entry
        for entry in error.errors(include_url=False)
        if entry["type"] != "too_short" or len(entry["input"]) < entry["ctx"]["min_length"]
    ]


def file_location(entry: ErrorDetails, tables: Any) -> Location:
    """Where an error is in the file: its location without the union members that no file contains."""
    location = entry["loc"]
    kept: list[str | int] = []
    here = tables
    entered = False
    for position, step in enumerate(location):
        if entered and here.get("kind") == step:  # a kind first, and then its keys, of which one may have its name
            entered = False
            continue
        inside = isinstance(here, Mapping) and step in here and not _is_member(here, location[position:])
        if inside or (isinstance(here, (list, tuple)) and isinstance(step, int) and step < len(here)):
            here = here[step]
            kept.append(step)
            entered = isinstance(here, Mapping)
        elif entry["type"] == "missing" and position == len(location) - 1:
            kept.append(step)
    return tuple(kept)


def _is_member(here: Mapping[str, Any], steps: Location) -> bool:
    """Whether the first of the steps from a table is the name of a member of a union that has a key of its name: what
    follows is a key of the same table then."""
    return len(steps) > 1 and not isinstance(here[str(steps[0])], (Mapping, list, tuple)) and steps[1] in here


def _text(location: Iterable[str | int]) -> str:
    path = ""
    for step in location:
        path = place(path, f"[{step}]" if isinstance(step, int) else step)
    return path


def _mistakes(entry: ErrorDetails, tables: Mapping[str, Any], root: type[Table]) -> Iterator[Mistake]:
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
        if key in NOT_YET:
            yield Mistake(path, f"unknown key; {NOT_YET[key]}")
        else:
            yield Mistake(path, "unknown key", None, _nearest(key, _fields_at(location[:-1], root)))
    elif kind == "missing":
        yield Mistake(path, "is missing", None, _wanted(location, root))
    elif kind == "union_tag_not_found":
        yield Mistake(place(path, "kind"), "is missing", None, _names(context, location, root))
    elif kind == "union_tag_invalid":
        tag = str(context.get("tag"))
        names = _names(context, location, root)
        key = place(path, "kind") if isinstance(value, Mapping) and "kind" in value else path
        near = difflib.get_close_matches(tag, names.replace(",", "").split(), n=1)
        near = [each for each in near if each != "none"]  # a reducer, which would read as nothing being expected
        yield Mistake(key, "is unknown", tag, f"{near[0]} (of {names})" if near else names)
    else:
        what, expected = _plain(kind, entry["msg"], context)
        yield Mistake(path, what, value, expected)


def _plain(kind: str, message: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong and what was expected, for the types that need nothing but their context."""
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        name, limit = next(iter(context.items()))
        words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
        return "is out of range", f"a number {words[name]} {limit}"
    if kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "is_instance_of"):
        wanted = kind.split("_")[0]
        words = {
            "int": "a whole number", "float": "a number", "bool": "true or false",
            "string": "a text in quotes",
            "tuple": "a list", "list": "a list", "dict": "a table", "model": "a table",
        }  # fmt: skip
        return "is of the wrong type", words.get(wanted, message)
    if kind == "literal_error":
        return "is unknown", str(context["expected"])
    if kind == "string_pattern_mismatch":
        return "has characters that make no name", "letters, digits and . _ + - only"
    if kind == "too_short":
        return "is too short", f"at least {context['min_length']}"
    if kind == "too_long":
        return "is too long", f"at most {context['max_length']}"
    if kind == "string_too_short":
        return "is empty", "a text"
    if kind == "finite_number":
        return "is no finite number", "a number"
    return message[:1].lower() + message[1:], ""


def _names(context: Mapping[str, Any], location: Location, root: type[Table]) -> str:
    """The kinds that may stand at a union."""
    tags = [name.strip("' ") for name in str(context.get("expected_tags", "")).split(",") if name.strip()]
    if not tags:
        tags = [kind for model in _models_at(location, root) for kind in _kinds(model)]
    return ", ".join('"my_module:MyClass"' if tag == "user" else tag for tag in tags)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f'"{near[0]}"'
    return f"no key but {known[0]}" if len(known) == 1 else "one of " + ", ".join(known)


def _wanted(location: Location, root: type[Table]) -> str:
    for model in _models_at(location[:-1], root):
        name = str(location[-1])
        text = description(model, name) if name in model.model_fields else None
        if text:
            return " ".join(text.split()).split(". ")[0].rstrip(".")
    return "a value"


def _fields_at(location: Location, root: type[Table]) -> list[str]:
    return [name for model in _models_at(location, root) for name in model.model_fields]


def _models_at(location: Location, root: type[Table]) -> list[type[Table]]:
    """The models that can stand at `location`; one, unless it ends before a union."""
    models: list[type[Table]] = [root]
    for step in location:
        if isinstance(step, int):
            continue
        members = [model for model in models if step in _kinds(model) or step == model.union_tag]
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        of_several = len(models) > 1 and members
        models = members if of_several or not fields else [
            found for field in fields for found in _models_in(field.annotation, field.metadata)
        ]  # fmt: skip
    return models


def _kinds(model: type[Table]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field is not None else ()


def _models_in(annotation: Any, metadata: Sequence[Any] = ()) -> list[type[Table]]:
    for each in metadata:
        if isinstance(each, Chosen):
            return each.models()
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return [annotation]
    inner = getattr(annotation, "__metadata__", ())  # of Annotated
    parts = typing.get_args(annotation)
    return [found for part in (parts[:1] if inner else parts) for found in _models_in(part, inner)]
