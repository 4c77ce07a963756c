"""The base of every table in a scenario file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from gradwire.scenarios.errors import Mistake

# Strict, because TOML has types: `workers = "4"`, `workers = 4.0` and `seed = true` are mistakes.
Flag = Annotated[bool, Field(strict=True)]
# Bounded, because what is counted has to fit into the columns of a Result, and times into 64 bits.
MOST = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Natural = Annotated[int, Field(ge=0, le=MOST, strict=True)]


class Table(BaseModel):
    """A table that cannot be changed after loading and accepts no key it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    union_tag: ClassVar[str] = ""
    """What pydantic calls this table in a union whose members have no literal `kind` of their own."""


class Mistakes(ValueError):
    """What a check found wrong, to be raised inside a validator: one or many, each with its own path.

    Pydantic turns any ValueError of a validator into one entry of its own error; `gradwire.scenarios.load` takes the
    mistakes out of it again.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(map(str, mistakes)))


def refuse(path: str, what: str, value: object = None, expected: str = "") -> Mistakes:
    """A single mistake at `path`, relative to the table whose validator raises it ("" for all of it)."""
    return Mistakes([Mistake(path, what, value, expected)])
