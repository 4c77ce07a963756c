"""From recorded iterations to a trace: which modules are layers, which layer a parameter belongs to, float16.

Layers are the modules that own parameters directly, in the order in which they first ran; in most networks
these are the leaf modules with parameters. A parameter belongs to the first of its owners to run, so tied
weights are one tensor of the earliest layer that needs them. An owner that is never called itself (the
output projection inside torch's MultiheadAttention is such a one) hands its parameters to the closest
enclosing layer, failing that to the model as a whole, which then becomes a layer. Frozen parameters are not
tensors of the trace, but their layers are still timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from scenarios.errors import TraceError
from traces.trace import Iteration, TensorInfo, Trace, scale_exponents, to_halves


@dataclass(frozen=True)
class Captured:
    """One recorded iteration, by module and parameter number; picoseconds since its start.

    `magnitudes` holds (mean |g|, max |g|) float32 [chunks] per parameter.
    """

    phase: str
    step: int
    loss: float
    forward_start: dict[int, int]
    forward_end: dict[int, int]
    ready: dict[int, int]
    backward_end: int
    optimizer: int
    magnitudes: list[tuple[np.ndarray, np.ndarray]]
    cpu_share: float  # processor time per wall-clock time; below the number of threads, others ran too


class Anatomy:
    """The modules and trainable parameters of a model under fixed numbers; module 0 is the model itself."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.module_names = [name for name, _ in model.named_modules()]
        self.parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.owners = {
            number for number, module in enumerate(self.modules) if list(module.parameters(recurse=False))
        }
        if not self.parameters:
            raise TraceError("has no trainable parameter", type(model).__name__, "a model to train")

    def owners_of(self, number: int) -> list[int]:
        """Modules that hold parameter `number` directly; several if it is tied."""
        parameter = self.parameters[number][1]
        return [
            o for o in self.owners if any(p is parameter for p in self.modules[o].parameters(recurse=False))
        ]

    def assign_layers(self, kept: Sequence[int], ran: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        """(layer of each parameter in `kept`, modules that are layers in forward order), given the order of
        running.
        """
        place = {number: index for index, number in enumerate(ran)}
        candidates = [number for number in ran if number in self.owners]
        home: dict[int, int] = {}
        for number in kept:
            owners = self.owners_of(number)
            called = [owner for owner in owners if owner in place]
            if called:
                home[number] = min(called, key=place.__getitem__)
            else:
                around = [c for c in candidates if any(self._encloses(c, owner) for owner in owners)]
                home[number] = max(around, key=lambda c: len(self.module_names[c]), default=0)
        layers = set(candidates) | set(home.values())
        order = [number for number in ran if number in layers]
        index = {number: layer for layer, number in enumerate(order)}
        return {number: index[module] for number, module in home.items()}, order

    def _encloses(self, outer: int, inner: int) -> bool:
        name = self.module_names[outer]
        return name == "" or self.module_names[inner].startswith(name + ".")


def assemble(
    anatomy: Anatomy, ran: Sequence[int], captured: Sequence[Captured], manifest: Mapping[str, Any]
) -> Trace:
    """The trace of `captured`; `ran` is the order in which modules first ran. TraceError if there is no
    gradient.

    Parameters whose gradient never came are left out and named in the manifest under `without_gradient`.
    """
    seen: set[int] = set().union(*(one.ready for one in captured))
    kept = sorted(seen)
    if not kept:
        raise TraceError(
            "no gradient was computed in the captured steps", "capture", "loss.backward() in each"
        )
    layer_of, order = anatomy.assign_layers(kept, ran)
    largest = [max(float(one.magnitudes[number][1].max()) for one in captured) for number in kept]
    exponents = scale_exponents(np.array(largest, dtype=np.float64)).tolist()
    missing = [name for number, (name, _) in enumerate(anatomy.parameters) if number not in seen]
    return Trace(
        {**manifest, "without_gradient": missing},
        [anatomy.module_names[number] or "model" for number in order],
        [_tensor(anatomy, n, layer_of[n], e) for n, e in zip(kept, exponents, strict=True)],
        [_iteration(index, one, order, kept) for index, one in enumerate(captured)],
        _halves(captured, kept, exponents, 0),
        _halves(captured, kept, exponents, 1),
    )


def _tensor(anatomy: Anatomy, number: int, layer: int, exponent: int) -> TensorInfo:
    name, parameter = anatomy.parameters[number]
    dtype = str(parameter.dtype).removeprefix("torch.")
    return TensorInfo(name, tuple(parameter.shape), parameter.numel(), dtype, layer, exponent)


def _halves(captured: Sequence[Captured], kept: list[int], exponents: list[int], which: int) -> np.ndarray:
    scaled = [
        [
            to_halves(one.magnitudes[number][which], exponent)
            for number, exponent in zip(kept, exponents, strict=True)
        ]
        for one in captured
    ]
    return np.stack([np.concatenate(rows) for rows in scaled])


def _iteration(index: int, one: Captured, order: list[int], kept: list[int]) -> Iteration:
    starts: list[int] = []
    ends: list[int] = []
    for number in order:
        # A layer that did not run this time takes no time, at the place where it would have run.
        starts.append(one.forward_start.get(number, ends[-1] if ends else 0))
        ends.append(one.forward_end.get(number, starts[-1]))
    return Iteration(
        index=index,
        phase=one.phase,
        step=one.step,
        loss=one.loss,
        forward_start_ps=np.array(starts, dtype=np.int64),
        forward_end_ps=np.array(ends, dtype=np.int64),
        ready_ps=np.array([one.ready.get(number, one.backward_end) for number in kept], dtype=np.int64),
        backward_end_ps=one.backward_end,
        optimizer_ps=one.optimizer,
        end_ps=one.backward_end + one.optimizer,
    )
