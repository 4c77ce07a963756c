"""What the hooks of the recorder leave behind in one step, and the figures that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.traces.capture.clocks import Mark, Timeline
from gradwire.traces.capture.statistics import no_figures
from gradwire.traces.trace import CHUNK_ELEMENTS


@dataclass
class Marks:
    """The raw marks of the step under way, by module and parameter number."""

    timeline: Timeline
    begin: Mark | None = None
    calls: int = 0  # of the model
    inside: bool = False  # the model is at work on a forward pass that counts
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
    scale: float | torch.Tensor = 1.0  # what it multiplied the recorded gradients by
    overflow: torch.Tensor | None = None  # above 0 if a fused optimiser is about to skip the step
    passes: Counter[int] = field(default_factory=Counter)  # how often an optimiser, by id, took gradients of its own
    late: bool = False  # the model was at work after an optimiser had taken the gradients

    @property
    def stepped(self) -> bool:
        """Whether an optimiser has taken the gradients: the forward and backward passes are over."""
        return self.backward_end is not None

    def refuse_incomplete(self, where: str) -> None:
        """TraceError unless the step was one forward pass, one backward pass and then the optimisers."""
        if self.begin is None or (self.optimizer_end is None and not self.scaled):
            expected = "both in every captured step, with gradients enabled"
            raise TraceError("no forward pass or no optimizer.step()", where, expected)
        if self.optimizer_end is not None and not self.stepped:
            expected = "an optimiser that calls its closure, or gradients before optimizer.step()"
            raise TraceError("the optimiser was given a closure and never called it", where, expected)
        if len(self.passes) > 1:
            raise TraceError(
                "optimisers step at different times, each after a backward pass of its own (as in a GAN)",
                where,
                "a capture for each network with its own optimiser, one `with` within the other",
            )
        if (times := max(self.passes.values(), default=1)) > 1:
            raise TraceError(
                f"the optimiser took gradients {times} times, each time of another backward pass",
                where,
                "cap.step() after each optimizer.step(), and a closure that is called once: LBFGS has max_iter=1",
            )

    @property
    def skipped(self) -> bool:
        """Whether a GradScaler skipped the step, for gradients that are not finite; only after the clock has
        settled.
        """
        return self.optimizer_end is None or (self.overflow is not None and float(self.overflow) > 0)

    def duration(self) -> int:
        """Forward, backward and optimiser with all that happens meanwhile, but without what the recorder does
        in between; picoseconds.
        """
        assert self.begin is not None and self.backward_end is not None
        assert self.optimizer_start is not None and self.optimizer_end is not None
        whole = self.timeline.whole
        return whole(self.begin, self.backward_end) + whole(self.optimizer_start, self.optimizer_end)

    def statistics(self, parameters: Sequence[tuple[str, nn.Parameter]], step: int) -> list[np.ndarray]:
        """Mean |g|, max |g| and rms of every parameter, [3, chunks], brought over from the device at once.

        TraceError if one is not finite.
        """
        found = sorted(self.figures)
        sizes = [-(-parameter.numel() // CHUNK_ELEMENTS) for _, parameter in parameters]
        result = [no_figures(parameter.numel()).numpy() for _, parameter in parameters]
        if not found:
            return result
        together = torch.cat([self.figures[number].double() for number in found], dim=1)
        host = (together / self.scale).cpu().numpy()
        ends = np.cumsum([sizes[number] for number in found])
        for number, values in zip(found, np.split(host, ends[:-1], axis=1), strict=True):
            if not np.isfinite(values).all():
                name = parameters[number][0]
                raise TraceError(f"gradient of {name} is not finite", f"capture, step {step}", "finite ones")
            result[number] = values
        return result
