"""`PowerSGD` encodes gradients as products of matrices of low rank (Vogels, Karimireddy and Jaggi, NeurIPS '19)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Flag
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, mask_missing
from gradwire.training.reducers.state import State, flat


class PowerSGD(Reducer):
    """One power iteration per step: the gradient matrix M, n rows by m columns, as P Q^T of rank r.

    Workers send P = M Q, and agree on its mean, whose columns are then made orthonormal; they send Q = M^T P, and agree
    on its mean (algorithm 1 of the paper). The next step starts from this Q. Both are linear in M, so it fits an
    all-reduce. A tensor is a matrix of its first dimension by the rest; vectors are sent as they are, and so are
    tensors that would not get smaller. A unit is a row of P or Q; a lost row is zero in the mean of that worker.
    """

    rounds: ClassVar[int] = 2
    places: ClassVar[Literal["fixed", "sent"]] = "fixed"
    adds_up: ClassVar[bool] = True
    unit: ClassVar[str] = "4 rank"

    kind: Literal["powersgd"] = "powersgd"
    rank: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Columns of P and Q, r."""
    warm_start: Flag = True
    """Start from the Q of the last step; without it from a random one."""

    def low_rank(self, info: TensorInfo) -> bool:
        """Return True if a tensor is sent as a product."""
        rows, columns = _sides(info)
        return len(info.shape) > 1 and (rows + columns) * self.rank < rows * columns

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        values = flat(tensor, info)
        if not self.low_rank(info):
            return Encoded((values,))
        matrix = values.view(_sides(info))
        start = state.values.get("q") if self.warm_start else None
        if start is None:
            shape = (matrix.shape[1], self.rank)
            start = torch.randn(shape, generator=state.shared(values.device), device=values.device)
        state.values["matrix"] = matrix
        return Encoded((matrix @ start,))

    def follow(self, mean: Tensor, info: TensorInfo, state: State) -> Encoded:
        if not self.low_rank(info):
            state.values["raw"] = mean
            return Encoded((mean[:0],))
        state.values["p"] = orthonormal(mean.view(-1, self.rank))
        return Encoded((state.values.pop("matrix").T @ state.values["p"],))

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        if not self.low_rank(info):
            return state.values.pop("raw")
        q, p = mean.view(-1, self.rank), state.values.pop("p")
        if bool(q.isfinite().all()):
            state.values["q"] = q
        else:  # every later step would be infinite or NaN
            state.values.pop("q", None)
        return (p @ q.T).reshape(-1)

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        (rows,) = encoded.fields
        return mask_missing(rows.reshape(-1), encoded, arrived, self.elements(encoded))

    def elements(self, encoded: Encoded) -> int:
        return encoded.fields[0][:1].numel() or 1

    def decoded(self, encoded: Encoded, info: TensorInfo) -> int:
        return encoded.fields[0].numel()


def orthonormal(matrix: Tensor) -> Tensor:
    """Return the columns of a matrix made orthonormal one after the other (Gram-Schmidt, twice for float32)."""
    columns: list[Tensor] = []
    for column in matrix.unbind(dim=1):
        for _ in range(2):
            for other in columns:
                column = column - (column @ other) * other
        columns.append(column / column.norm().clamp(min=1e-12))
    return torch.stack(columns, dim=1)


def _sides(info: TensorInfo) -> tuple[int, int]:
    rows = info.shape[0] if info.shape else 1
    return rows, info.numel // max(rows, 1)
