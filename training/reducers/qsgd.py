"""`QSGD` encodes buckets of gradient elements, quantised at random to a few levels (Alistarh et al., NeurIPS '17)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Flag
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, group_units, mask_missing
from gradwire.training.reducers.state import State, flat


class QSGD(Reducer):
    """Each bucket of elements as its Euclidean norm and one signed level per element, rounded at random, unbiased.

    An element x of a bucket with norm n becomes the level s |x| / n, rounded up with the probability of its fraction,
    with the sign of x; it is decoded as n/s times that. The expectation is x, the variance of a bucket of d elements at
    most min(d/s^2, sqrt(d)/s) n^2 (lemma 3.1 of the paper). A unit is a bucket: 4 bytes and one per element. The paper
    codes levels with fewer bits (Elias); public implementations use a byte, and so do we.
    """

    places: ClassVar[Literal["fixed", "sent"]] = "fixed"
    unit: ClassVar[str] = "bucket + 4"

    kind: Literal["qsgd"] = "qsgd"
    levels: Annotated[int, Field(ge=1, le=127, strict=True)] = 127
    """Levels s between 0 and the norm; 127 is the limit of a signed byte."""
    bucket: Annotated[int, Field(ge=1, le=1 << 16, strict=True)] = 128
    """Elements with one norm; a shorter tensor is one bucket."""
    both_ways: Flag = False
    """Quantise the mean that comes back, too, by draws of the server (our choice; the paper's peers exchange gradients
    directly)."""

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        return self._coded(flat(tensor, info), state.generator(tensor.device))

    def _coded(self, values: Tensor, generator: torch.Generator) -> Encoded:
        rows = group_units(values, min(self.bucket, max(len(values), 1)))
        norms = rows.norm(dim=1, keepdim=True)
        scaled = rows.abs() * (self.levels / norms.clamp(min=torch.finfo(torch.float32).tiny))
        draws = torch.rand(rows.shape, generator=generator, device=rows.device)
        levels = (scaled + draws).floor().clamp(max=self.levels)  # a single element is its own norm
        return Encoded((norms, (levels * rows.sign()).to(torch.int8)))

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        norms, levels = encoded.fields
        values = (levels.float() * (norms / self.levels)).view(-1)[: info.numel]
        return mask_missing(values, encoded, arrived, levels.shape[1])

    def restore(self, mean: Tensor, info: TensorInfo, state: State) -> Tensor:
        if not self.both_ways:
            return mean
        return self.decode(self._coded(mean.reshape(-1), state.shared(mean.device)), info).view(mean.shape)

    def answered(self, encoded: Encoded, info: TensorInfo) -> int | None:
        return encoded.units * encoded.unit_bytes if self.both_ways else None

    def elements(self, encoded: Encoded) -> int:
        return encoded.fields[1].shape[1]
