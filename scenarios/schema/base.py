"""Defines the base classes of tables in a scenario file, and the error of their validators (`Mistakes`)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradwire.scenarios.errors import Mistake

# Strict, because TOML has types: `workers = "4"`, `workers = 4.0` and `seed = true` are errors.
Flag = Annotated[bool, Field(strict=True)]
# Bounded, because counts must fit into the columns of a Result, and times into 64 bits.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]


class ScenarioTable(BaseModel):
    """Immutable table that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    union_tag: ClassVar[str] = ""
    """Pydantic's tag of this table in a union whose members have no literal `kind`."""

    must_be_below: ClassVar[tuple[str, ...]] = ()
    must_not_exceed: ClassVar[tuple[str, ...]] = ()
    """Two keys, of which the second one limits the first one; or none."""

    def conflicts(self) -> Iterator[Mistake]:
        """Yield the conflicts between keys of this table. Only the first one is reported: others may follow from it."""
        for keys, is_wrong, what, sign in (
            (self.must_be_below, operator.ge, "is not below", "<"),
            (self.must_not_exceed, operator.gt, "is above", "<="),
        ):
            if keys and is_wrong(*(getattr(self, key) for key in keys)):
                value = self.model_dump(mode="json")[keys[0]]
                yield Mistake(keys[0], f"{what} {keys[1]}", value, f" {sign} ".join(keys))

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        for mistake in self.conflicts():
            raise Mistakes([mistake])
        return self


class FileNamingTable(ScenarioTable):
    """Table that may name a file, by its key `file`."""

    @property
    def path(self) -> str | None:
        """File that is read for the table; None if there is none."""
        return getattr(self, "file", None)

    def at(self, file: str) -> Self:
        """Return the same table with another file."""
        return self.model_copy(update={"file": file}) if self.path else self


class Mistakes(ValueError):
    """One or more mistakes, each with its own path, raised inside a validator. Pydantic turns any ValueError of a
    validator into one entry of its own error; `gradwire.scenarios.loading.load` extracts the mistakes from it."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(map(str, mistakes)))


def single_mistake(path: str, what: str, value: object = None, expected: str = "") -> Mistakes:
    """Return a single mistake at `path`, relative to the table whose validator raises it ("" for the whole table)."""
    return Mistakes([Mistake(path, what, value, expected)])
