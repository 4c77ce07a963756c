"""Reducers of the user's own: classes that a scenario names as "module:Class".

Such a class is one like gradwire's, and works wherever these do. In the loop it is asked through `Asked`, so that what
stops it is one line with its file; what it answers is looked at where it is used (`gradwire.training.exchange`).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gradwire.scenarios.asked import asked, file_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.training import UserReducer
from gradwire.scenarios.user_classes import table_for, user_class
from gradwire.training.encoded import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import Around

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.reducers.state import State
    from gradwire.training.rows import Rows, Whole

PLACE = "training.reducer"
CONTRACT = "a class derived from gradwire.training.reducers.base.Reducer (docs/training.md)"


def own_reducer(table: UserReducer, folder: Path | None) -> Reducer:
    """The reducer behind "module:Class", with the parameters that its table has; `folder` has the module.

    Raises
    ------
    ScenarioError
        It cannot be loaded, is no reducer, lacks a function, or its parameters are wrong; says where and why.
    """
    where = f"{PLACE}.kind"
    owner = user_class(table.kind, folder, where)
    if not (inspect.isclass(owner) and issubclass(owner, Reducer)):
        raise ScenarioError(f"{table.kind!r} is no reducer", where, CONTRACT)
    wanted = ["compress", "decode"] + (["follow"] if owner.rounds > 1 else [])
    if lacking := [name for name in wanted if getattr(owner, name) is getattr(Reducer, name)]:
        raise ScenarioError(f"{file_of(owner)}: {owner.__name__} has no {', '.join(lacking)}", where, CONTRACT)
    return Asked(reducer=cast(Reducer, table_for(owner, table, PLACE)))  # type: ignore[type-var]


class Asked(Around):
    """A reducer of the user's own: what stops it is told with its file and line."""

    @property
    def has_momentum(self) -> bool:  # type: ignore[override]
        return self.reducer.has_momentum

    @property
    def momentum(self) -> float:
        """That of the class, if it says that it has one."""
        return float(getattr(self.reducer, "momentum", 0.0))

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        with asked(self.reducer, "compress", PLACE, _at(info, state)):
            return self.reducer.compress(tensor, info, state)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        with asked(self.reducer, "decode", PLACE, _at(info)):
            return self.reducer.decode(encoded, info, arrived)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        with asked(self.reducer, "covered", PLACE, _at(info)):
            return self.reducer.covered(encoded, info, arrived)

    def magnitudes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        with asked(self.reducer, "magnitudes", PLACE, _at(info)):
            return self.reducer.magnitudes(encoded, info)

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        with asked(self.reducer, "follow", PLACE, _at(info, state)):
            return self.reducer.follow(mean, info, state)

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        with asked(self.reducer, "restore", PLACE, _at(info, state)):
            return self.reducer.restore(mean, info, state)

    def whole(self, gradients: Tensor, rows: Rows) -> Whole:
        with asked(self.reducer, "whole", PLACE):
            return self.reducer.whole(gradients, rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        with asked(self.reducer, "settle", PLACE, _at(info, state)):
            self.reducer.settle(sent, info, state)


def _at(info: TensorInfo, state: State | None = None) -> str:
    """Of which tensor it is asked, and when, where that is known."""
    return f"at {info.name}" if state is None else f"in step {state.step} at {info.name}"
