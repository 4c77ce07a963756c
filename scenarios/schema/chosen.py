"""What is chosen by name, as a type of pydantic: a table of one of many kinds, of which only those are made ready that
a file names.

A union needs all its members when the tables around it are made: a hundred classes, and most of the time that reading a
scenario takes, of which it names five. So a kind is looked up when it is named, by its file
(`gradwire.scenarios.components`). The union of all is made where all have to be known: for the JSON Schema, and for a
table that names none of them, so that pydantic says of it what it says of any union.

Not chosen: keeping what pydantic makes of the models in a file, which it has no way to read back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, Union

from pydantic import (
    BeforeValidator,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from gradwire.scenarios.components import USER_CLASS, component, components
from gradwire.scenarios.schema.base import Table


class Chosen:
    """In an `Annotated`, beside what all kinds are derived from: one of the components of a place, by its `kind`.

    `own` : the table of something of the user's own, whose kind is the name of a class, where there may be any.
    """

    def __init__(self, place: str, own: type[Table] | None = None) -> None:
        self.place, self.own = place, own
        self._ready: dict[str, SchemaValidator] = {}

    def models(self) -> list[type[Table]]:
        """All that there are to choose from."""
        return list(self._by_tag().values())

    def _by_tag(self) -> dict[str, type[Table]]:
        return {**components(self.place), **({self.own.union_tag: self.own} if self.own else {})}

    def _tag(self, value: Any) -> Any:
        """What a table says that it is; None where it says nothing."""
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return (
            self.own.union_tag if self.own and isinstance(kind, str) and USER_CLASS.fullmatch(kind) else kind
        )

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
        if not self.own:  # a key that decides, and no function, is in pydantic's JSON Schema
            members, by = tuple(self.models()), Discriminator("kind")
        union: Any = Annotated[Union[members], by]  # noqa: UP007  # of as many as there are
        return TypeAdapter(union)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self._union.core_schema)


def _alone(tag: str, model: type[Table]) -> SchemaValidator:
    """What checks tables of one kind. Mistakes have the tag in their path, as those of a member of a union."""
    model.model_rebuild()  # which does nothing if it is ready
    choices = {tag: model.__pydantic_core_schema__}
    return SchemaValidator(core_schema.tagged_union_schema(choices, lambda value: tag))


def examples(place: str) -> Callable[[dict[str, Any]], None]:
    """For a field's JSON Schema: the kinds of a place as examples of a text."""
    return lambda schema: schema.update(examples=list(components(place)))


NAME_ALONE = BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value)
"""Where the bare name of a component stands for its table, with everything at its default."""
