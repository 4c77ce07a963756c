"""`StepMarks` holds the marks that the recorder's hooks leave in one step, and checks that the step is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.traces.capture.clocks import Mark, Timeline
from gradwire.traces.trace import CHUNK_ELEMENTS


@dataclass
class StepMarks:
    """Raw marks of the current step, by module and parameter number."""

    timeline: Timeline
    begin: Mark | None = None
    calls: int = 0  # of the model
    inside: bool = False  # within a recorded forward pass of the model
    forward_start: dict[int, Mark] = field(default_factory=dict)
    forward_end: dict[int, Mark] = field(default_factory=dict)
    ready: dict[int, Mark] = field(default_factory=dict)
    backward_end: Mark | None = None
    optimizer_start: Mark | None = None
    optimizer_end: Mark | None = None
    cpu_begin: float = 0.0
    cpu_end: float = 0.0
    figures: dict[int, torch.Tensor] = field(default_factory=dict)
    scaled: bool = False  # a GradScaler took part
    scale: float | torch.Tensor = 1.0  # its factor on the recorded gradients
    overflow: torch.Tensor | None = None  # above 0 if a fused optimizer is about to skip the step
    passes: Counter[int] = field(default_factory=Counter)  # backward passes taken by each optimizer, by id
    late: bool = False  # the model ran after an optimizer had taken the gradients

    @property
    def stepped(self) -> bool:
        """True if an optimizer has taken the gradients: the forward and backward passes are over."""
        return self.backward_end is not None

    def refuse_incomplete(self, where: str) -> None:
        """Raise TraceError unless the step was one forward pass, one backward pass and then the optimizers."""
        if self.begin is None or (self.optimizer_end is None and not self.scaled):
            expected = "both in every captured step, with gradients enabled"
            raise TraceError("no forward pass or no optimizer.step()", where, expected)
        if self.optimizer_end is not None and not self.stepped:
            expected = "an optimiser that calls its closure, or gradients before optimizer.step()"
            raise TraceError("the optimiser never called its closure", where, expected)
        if len(self.passes) > 1:
            what = "optimisers step at different times, each after its own backward pass (as in a GAN)"
            raise TraceError(what, where, "one capture per network and optimiser, in nested `with` blocks")
        if (times := max(self.passes.values(), default=1)) > 1:
            what = f"the optimiser took gradients {times} times, each time from another backward pass"
            expected = "cap.step() after each optimizer.step(), and a closure that is called once: LBFGS has max_iter=1"
            raise TraceError(what, where, expected)

    @property
    def skipped(self) -> bool:
        """True if a GradScaler skipped the step for gradients that are not finite; only after the clock has settled."""
        return self.optimizer_end is None or (self.overflow is not None and float(self.overflow) > 0)

    def duration(self) -> int:
        """Return the picoseconds of the forward pass, the backward pass and the optimizer. Everything in between
        counts, except the recorder's own work."""
        assert self.begin is not None and self.backward_end is not None
        assert self.optimizer_start is not None and self.optimizer_end is not None
        whole = self.timeline.with_pauses
        return whole(self.begin, self.backward_end) + whole(self.optimizer_start, self.optimizer_end)

    def statistics(self, parameters: Sequence[tuple[str, nn.Parameter]], step: int) -> list[np.ndarray]:
        """Return mean |g|, max |g| and rms of every parameter, [3, chunks], copied from the device at once. TraceError
        if one is not finite."""
        numbers = sorted(self.figures)
        sizes = [-(-parameter.numel() // CHUNK_ELEMENTS) for _, parameter in parameters]
        result = [np.zeros((3, size), dtype=np.float32) for size in sizes]  # without a gradient
        if not numbers:
            return result
        together = torch.cat([self.figures[number].double() for number in numbers], dim=1)
        host = (together / self.scale).cpu().numpy()
        ends = np.cumsum([sizes[number] for number in numbers])
        for number, values in zip(numbers, np.split(host, ends[:-1], axis=1), strict=True):
            if not np.isfinite(values).all():
                name = parameters[number][0]
                raise TraceError(f"gradient of {name} is not finite", f"capture, step {step}", "finite values")
            result[number] = values
        return result
