"""`DGC` encodes gradients by deep gradient compression, sparse elements with momentum accumulated locally (Lin et al.,
ICLR '18)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.schema.base import Flag, Natural
from gradwire.traces.parts import TensorInfo
from gradwire.training.backward.flat_gradients import EncodedModels, FlatGradients
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer, scatter
from gradwire.training.reducers.fields import Ratio, share_count
from gradwire.training.reducers.state import State, flat, zero_nonfinite

LOWER, UPPER = 0.8, 1.3
"""Bounds on the number of elements beyond the threshold, relative to the wanted number [code]."""
TRIES = 10
"""Maximum number of threshold adaptations [code]."""
WARMUP = 0.25
"""Ratio of the first stage of the warm-up, and the factor from stage to stage [code]."""


class DGC(Reducer):
    """Sends the elements beyond a sampled threshold of what has accumulated locally with momentum.

    Each worker keeps u <- m u + g and v <- v + u, sends the elements of v beyond the threshold, and clears both there
    (momentum correction and factor masking, sections 3.1 and 3.3 of the paper), so the optimiser must have no momentum.
    The threshold is that of a sample, multiplied by 0.8 or 1.3 while it lets through too few or too many; beyond 1.3
    times as many, the largest are taken. Gradients may be clipped locally to `clip` / sqrt(workers) before they are
    added (section 3.2). Value and 32-bit index: 8 bytes per element.
    """

    remembers_error: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True

    kind: Literal["dgc"] = "dgc"
    ratio: Ratio = 0.001
    """Target share of the elements after the warm-up."""
    sample: Ratio = 0.01
    """Share of the elements from which the threshold is estimated."""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """m; with 0 what remains is error feedback."""
    masking: Flag = True
    """Clear the momentum of sent elements, too."""
    clip: Annotated[float, Field(ge=0, le=1e6, strict=True)] = 0.0
    """Norm to which a tensor's gradient of all workers would be clipped; 0: no clipping."""
    warmup: Natural = 0
    """Steps of each stage of the warm-up, whose ratios are 0.25, 0.0625, ... while they are above `ratio`."""

    def ratio_at(self, step: int) -> float:
        """Return the target ratio of a step, counted from 0."""
        stage = step // self.warmup if self.warmup else math.inf
        return max(self.ratio, WARMUP ** (stage + 1)) if stage < 64 else self.ratio

    def compress(self, tensor: Tensor, info: TensorInfo, state: State) -> Encoded:
        gradient = flat(tensor, info)
        if self.clip:
            gradient = gradient * min(1.0, self.clip / math.sqrt(state.workers) / max(float(gradient.norm()), 1e-30))
        momentum = state.values.get("momentum", torch.zeros_like(gradient)) * self.momentum + gradient
        total = state.values.get("total", torch.zeros_like(gradient)) + momentum
        indices = self._select(_sizes(total), self.ratio_at(state.step), state)
        values = total[indices]
        total[indices] = 0
        if self.masking:
            momentum[indices] = 0
        state.values.update(momentum=zero_nonfinite(momentum), total=zero_nonfinite(total))
        return Encoded((values, indices.to(torch.int32)))

    def _select(self, sizes: Tensor, ratio: float, state: State) -> Tensor:
        """Return the indices of about `ratio` of the elements, the largest."""
        numel = len(sizes)
        target = share_count(ratio, numel)
        if not target:
            return torch.empty(0, dtype=torch.long, device=sizes.device)
        count = self._sample_size(numel)
        sampled = sizes
        if count < numel:
            sampled = sizes[
                torch.randint(numel, (count,), generator=state.generator(sizes.device), device=sizes.device)
            ]
        threshold = float(sampled.topk(max(1, round(count * target / numel))).values[-1])
        for _ in range(TRIES):
            beyond = int((sizes >= threshold).sum())
            if beyond > UPPER * target:
                threshold *= UPPER
            elif beyond < LOWER * target:
                threshold *= LOWER
            else:
                break
        indices = (sizes >= threshold).nonzero().view(-1)
        if len(indices) > UPPER * target:
            indices = indices[sizes[indices].topk(target, sorted=False).indices]
        return indices if len(indices) else sizes.topk(target, sorted=False).indices

    def decode(self, encoded: Encoded, info: TensorInfo, arrived: Tensor | None = None) -> Tensor:
        values, indices = encoded.fields
        return scatter(values, indices, info.numel, arrived)

    @property
    def in_rows(self) -> bool:  # type: ignore[override]
        return not self.clip  # clipping needs the norm of each worker's tensor

    def whole(self, gradients: Tensor, rows: FlatGradients) -> EncodedModels:
        nothing = torch.zeros_like(gradients)
        momentum = rows.values.get("momentum", nothing) * self.momentum + gradients
        total = rows.values.get("total", nothing) + momentum
        chosen = self._select_all(_sizes(total), rows)
        sent = torch.where(chosen, total, 0.0)
        momentum = torch.where(chosen, 0.0, momentum) if self.masking else momentum
        rows.values.update(momentum=zero_nonfinite(momentum), total=zero_nonfinite(torch.where(chosen, 0.0, total)))
        return EncodedModels(sent, (2 * gradients.element_size() * chosen.sum(dim=1)).tolist())

    def _select_all(self, sizes: Tensor, rows: FlatGradients) -> Tensor:
        """Return a mask of the elements that `_select` chooses, (N, P)."""
        ratio = self.ratio_at(rows.step)
        targets = [share_count(ratio, info.numel) for info in rows.infos]
        parts = [self._initial_threshold(sizes, tensor, targets[tensor], rows) for tensor in range(len(targets))]
        threshold = torch.stack(parts, dim=1).double()
        target_tensor = torch.tensor(targets, device=sizes.device)
        for _ in range(TRIES):
            beyond = rows.counts(sizes >= rows.repeat_per_element(threshold.float()))
            few, many = beyond < LOWER * target_tensor, beyond > UPPER * target_tensor
            threshold = torch.where(many, threshold * UPPER, torch.where(few, threshold * LOWER, threshold))
        chosen = sizes >= rows.repeat_per_element(threshold.float())
        beyond = rows.counts(chosen)
        out_of_range = (beyond > UPPER * target_tensor) | (beyond == 0)
        if bool(out_of_range.any()):
            largest = torch.zeros_like(chosen)
            largest.view(-1)[rows.largest(sizes, targets)] = True
            chosen = torch.where(rows.repeat_per_element(out_of_range), largest, chosen)
        return chosen

    def _initial_threshold(self, sizes: Tensor, tensor: int, target: int, rows: FlatGradients) -> Tensor:
        """Return the initial threshold of a tensor for each worker, (N,)."""
        begin, end = rows.bounds[tensor]
        numel, samples = end - begin, sizes[:, begin:end]
        count = self._sample_size(numel)
        if count < numel:
            indices = [
                torch.randint(numel, (count,), generator=rows.generator(tensor, worker), device=rows.device)
                for worker in range(len(sizes))
            ]
            samples = samples.gather(1, torch.stack(indices))
        return samples.topk(max(1, round(count * target / numel))).values[:, -1]

    def _sample_size(self, numel: int) -> int:
        return max(min(numel, 1000), int(numel * self.sample))  # fewer do not estimate a tail


def _sizes(total: Tensor) -> Tensor:
    """Return magnitudes, with infinity for NaN, so that it is beyond any threshold, sent and seen."""
    return total.abs().nan_to_num(math.inf, math.inf)
