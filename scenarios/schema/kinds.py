"""`ComponentByKind` is the pydantic type of a component chosen by name; it builds only the models that a file names.

A union needs all its members when the enclosing tables are built: a hundred classes and most of the time of reading a
scenario, which names five of them. So a kind is looked up by its file when it is named
(`gradwire.scenarios.loading.registry`). The union of all is built only for the JSON Schema, and for a table that names
none of them, to get pydantic's usual message.

Rejected: caching pydantic's compiled models in a file, which it cannot read back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from gradwire.scenarios.loading.registry import USER_CLASS, component, components
from gradwire.scenarios.schema.base import ScenarioTable


class ComponentByKind:
    """`Annotated` marker beside the base class of all kinds: one of a category's components, by its `kind`.

    `own` : the table for user-defined classes, whose kind is a class name, if they are allowed.
    """

    def __init__(self, table: str, own: type[ScenarioTable] | None = None) -> None:
        self.place, self.own = table, own
        self._ready: dict[str, SchemaValidator] = {}

    def models(self) -> list[type[ScenarioTable]]:
        """Return all models to choose from."""
        return list(self._by_tag().values())

    def _by_tag(self) -> dict[str, type[ScenarioTable]]:
        return {**components(self.place), **({self.own.union_tag: self.own} if self.own else {})}

    def _tag(self, value: Any) -> Any:
        """Return a table's tag; None if it has no kind."""
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return self.own.union_tag if self.own and isinstance(kind, str) and USER_CLASS.fullmatch(kind) else kind

    def _validate(self, value: Any) -> Any:
        tag = self._tag(value)
        if not isinstance(tag, str):
            return self._union.validate_python(value)
        if tag not in self._ready:
            model = self.own if self.own and tag == self.own.union_tag else component(self.place, tag)
            if model is None:
                return self._union.validate_python(value)
            self._ready[tag] = _alone(tag, model)
        return self._ready[tag].validate_python(value)

    @cached_property
    def _union(self) -> TypeAdapter[Any]:
        members: Any = tuple(Annotated[model, Tag(tag)] for tag, model in self._by_tag().items())
        by = Discriminator(self._tag)
        if not self.own:  # pydantic's JSON Schema shows a discriminating key, but not a function
            members, by = tuple(self.models()), Discriminator("kind")
        union: Any = Annotated[Union[members], by]  # noqa: UP007  # a variable number of members
        return TypeAdapter(union)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self._union.core_schema)


def _alone(tag: str, model: type[ScenarioTable]) -> SchemaValidator:
    """Return the validator of tables of one kind. Its errors have the tag in their path, as for a union's member."""
    model.model_rebuild()  # no-op if already built
    choices = {tag: model.__pydantic_core_schema__}
    return SchemaValidator(core_schema.tagged_union_schema(choices, lambda value: tag))


def examples(table: str) -> Callable[[dict[str, Any]], None]:
    """Return a JSON Schema hook that adds a category's kinds as examples of a string."""
    return lambda schema: schema.update(examples=list(components(table)))


NAME_ALONE = BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value)
"""Accepts the bare name of a component instead of its table, with everything at its default."""
