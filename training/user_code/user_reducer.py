"""User-defined reducers: classes that a scenario names as "module:Class".

Such a class works wherever a built-in one does. It is called through `RequestedReducer`, so that an error in it is
reported in one line with its file; its return values are checked where they are used
(`gradwire.training.exchange.exchange`).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.user_classes import load_user_class, validate_user_table
from gradwire.scenarios.loading.user_code_errors import asked, class_file
from gradwire.scenarios.schema.job.training import UserReducer
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.feedback import ReducerWrapper

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
    from gradwire.training.reducers.state import State

WHERE = "training.reducer"
CONTRACT = "a class derived from gradwire.training.reducers.base.Reducer (docs/training.md)"


def load_user_reducer(table: UserReducer, folder: Path | None) -> Reducer:
    """Return the reducer behind "module:Class", with the parameters of its table; `folder` holds the module. Raises
    ScenarioError if it cannot be loaded, is not a reducer, lacks a method, or its parameters are wrong."""
    where = f"{WHERE}.kind"
    owner = load_user_class(table.kind, folder, where)
    if not (inspect.isclass(owner) and issubclass(owner, Reducer)):
        raise ScenarioError(f"{table.kind!r} is not a reducer", where, CONTRACT)
    required = ["compress", "decode"] + (["follow"] if owner.rounds > 1 else [])
    if missing := [name for name in required if getattr(owner, name) is getattr(Reducer, name)]:
        raise ScenarioError(f"{class_file(owner)}: {owner.__name__} has no {', '.join(missing)}", where, CONTRACT)
    return RequestedReducer(reducer=cast(Reducer, validate_user_table(owner, table, WHERE)))  # type: ignore[type-var]


class RequestedReducer(ReducerWrapper):
    """A user-defined reducer whose errors are reported with file and line."""

    @property
    def has_momentum(self) -> bool:  # type: ignore[override]
        return self.reducer.has_momentum

    @property
    def momentum(self) -> float:
        """The momentum of the class, if it has one."""
        return float(getattr(self.reducer, "momentum", 0.0))

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        with asked(self.reducer, "compress", WHERE, _location(info, state)):
            return self.reducer.compress(tensor, info, state)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        with asked(self.reducer, "decode", WHERE, _location(info)):
            return self.reducer.decode(encoded, info, arrived)

    def covered(self, encoded: Encoded, info: TensorInfo, arrived: Tensor) -> Tensor:
        with asked(self.reducer, "covered", WHERE, _location(info)):
            return self.reducer.covered(encoded, info, arrived)

    def magnitudes(self, encoded: Encoded, info: TensorInfo) -> Tensor:
        with asked(self.reducer, "magnitudes", WHERE, _location(info)):
            return self.reducer.magnitudes(encoded, info)

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        with asked(self.reducer, "follow", WHERE, _location(info, state)):
            return self.reducer.follow(mean, info, state)

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        with asked(self.reducer, "restore", WHERE, _location(info, state)):
            return self.reducer.restore(mean, info, state)

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        with asked(self.reducer, "whole", WHERE):
            return self.reducer.whole(gradients, rows)

    def settle(self, sent: Tensor, info: TensorInfo, state: State) -> None:
        with asked(self.reducer, "settle", WHERE, _location(info, state)):
            self.reducer.settle(sent, info, state)


def _location(info: TensorInfo, state: State | None = None) -> str:
    """Return the tensor, and the step if known, for a message."""
    return f"at {info.name}" if state is None else f"in step {state.step} at {info.name}"
