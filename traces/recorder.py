"""The recorder: hooks on a model and its optimiser that time layers and gradients and summarise gradients.

How an iteration is seen without changing the training loop: it begins when the model is called with
gradients enabled; forward hooks time every layer; a hook per parameter fires when its gradient has been
accumulated; the optimiser's step hooks mark the end of the backward pass and the optimiser's own time.

The magnitudes are computed in the hook *before* the optimiser's step, from the complete gradients and
between two marks: that time is in no figure of the trace. Clipping of gradients before the step counts as
backward pass, and the magnitudes are those after it, as they would be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from scenarios.errors import TraceError
from traces.assemble import Anatomy, Captured, assemble
from traces.clocks import clock_for
from traces.trace import CHUNK_ELEMENTS, Trace

PS_PER_SECOND = 1e12


def summarise(gradient: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(mean |g|, max |g|) float32 [ceil(numel / 256)] over runs of 256 elements in row-major order."""
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    flat = gradient.detach().abs().to(torch.float32).reshape(-1)
    chunks = -(-flat.numel() // CHUNK_ELEMENTS)
    padded = torch.zeros(chunks * CHUNK_ELEMENTS, dtype=torch.float32, device=flat.device)
    padded[: flat.numel()] = flat
    rows = padded.view(chunks, CHUNK_ELEMENTS)
    sizes = torch.full((chunks,), float(CHUNK_ELEMENTS), device=flat.device)
    sizes[-1] = flat.numel() - (chunks - 1) * CHUNK_ELEMENTS
    return (rows.sum(1) / sizes).cpu().numpy(), rows.amax(1).cpu().numpy()


@dataclass
class _Marks:
    """The raw marks of the step under way, by module and parameter number."""

    begin: Any = None
    forward_start: dict[int, Any] = field(default_factory=dict)
    forward_end: dict[int, Any] = field(default_factory=dict)
    ready: dict[int, Any] = field(default_factory=dict)
    backward_end: Any = None
    optimizer_start: Any = None
    optimizer_end: Any = None
    cpu_begin: float = 0.0
    cpu_end: float = 0.0
    magnitudes: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)


class Recorder:
    """Records the steps named in `phases` (phase -> step numbers from 0); call `step(loss)` at the end of
    every step.

    After the last of them `overhead_pairs` pairs of steps run with and without the timing hooks and nothing
    is recorded: their durations give the capture overhead. `done` turns true after those. Hooks that time
    layers and gradients exist only in the steps that need them. TraceError for a model without trainable
    parameters, or phases without steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        phases: Mapping[str, Sequence[int]],
        overhead_pairs: int = 0,
    ) -> None:
        self._anatomy = Anatomy(model)
        self._phase_of = {step: phase for phase, steps in phases.items() for step in steps}
        if not self._phase_of or len(self._phase_of) != sum(len(steps) for steps in phases.values()):
            raise TraceError(f"phases {dict(phases)}", "capture", "at least one step, each in one phase only")
        self._last = max(self._phase_of)
        self._overhead_pairs = overhead_pairs
        self._clock = clock_for(self._anatomy.parameters[0][1].device)
        self._ran: list[int] = []  # numbers of modules in the order in which they first ran
        self._captured: list[Captured] = []
        self._durations: dict[bool, list[int]] = {False: [], True: []}  # of overhead steps, by whether hooked
        self._light: list[Any] = [
            model.register_forward_pre_hook(self._on_begin, prepend=True),
            optimizer.register_step_pre_hook(self._before_optimizer),
            optimizer.register_step_post_hook(self._after_optimizer),
        ]
        self._heavy: list[Any] = []
        self._marks = _Marks()
        self.step_index = 0
        self._prepare()

    @property
    def done(self) -> bool:
        """All captures and overhead steps are over; training may go on or stop."""
        return self.step_index > self._last + 2 * self._overhead_pairs

    @property
    def captured(self) -> int:
        """Iterations recorded so far."""
        return len(self._captured)

    def step(self, loss: float | torch.Tensor) -> None:
        """End the step, after `optimizer.step()`; `loss` is the loss of its batch."""
        marks, captures, hooked = self._marks, self.step_index in self._phase_of, self._overhead_hooked()
        if captures or hooked is not None:
            if marks.begin is None or marks.optimizer_end is None:
                raise TraceError(
                    "no forward pass or no optimizer.step()",
                    f"capture, step {self.step_index}",
                    "both in every captured step, with gradients enabled",
                )
            self._clock.settle()
            if captures:
                self._keep(marks, float(loss.detach()) if isinstance(loss, torch.Tensor) else loss)
            else:
                self._durations[bool(hooked)].append(self._duration(marks))
        self.step_index += 1
        self._prepare()

    def trace(self, manifest: Mapping[str, Any]) -> Trace:
        """What was recorded, with `manifest` completed by phases, clock and overhead. TraceError if there is
        nothing.
        """
        if not self._captured:
            raise TraceError("no step was captured", "capture", f"training beyond step {min(self._phase_of)}")
        return assemble(self._anatomy, self._ran, self._captured, {**manifest, **self._measured()})

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._light + self._heavy:
            handle.remove()
        self._light, self._heavy = [], []

    # Which hooks a step has -------------------------------------------------------------------------------

    def _overhead_hooked(self) -> bool | None:
        """Whether the step of the overhead measurement has hooks; None outside of it."""
        position = self.step_index - self._last - 1
        if not 0 <= position < 2 * self._overhead_pairs:
            return None
        return position % 4 in (1, 2)  # plain, hooked, hooked, plain: a steady drift cancels

    def _prepare(self) -> None:
        for handle in self._heavy:
            handle.remove()
        self._heavy = []
        self._marks = _Marks()
        if self.step_index not in self._phase_of and not self._overhead_hooked():
            return
        for number in sorted({0, *self._anatomy.owners}):
            module = self._anatomy.modules[number]
            # Ahead of the module's other hooks, as their time is the layer's; but the iteration begins first.
            hook = self._layer_starts(number)
            self._heavy.append(module.register_forward_pre_hook(hook, prepend=number != 0))
            self._heavy.append(module.register_forward_hook(self._layer_ends(number)))
        for number, (_, parameter) in enumerate(self._anatomy.parameters):
            self._heavy.append(parameter.register_post_accumulate_grad_hook(self._gradient_ready(number)))

    # Hooks ------------------------------------------------------------------------------------------------

    def _on_begin(self, *_: Any) -> None:
        if self._marks.begin is None and torch.is_grad_enabled():
            self._marks.cpu_begin = time.process_time()
            self._marks.begin = self._clock.mark()

    def _layer_starts(self, number: int) -> Callable[..., None]:
        def starts(*_: Any) -> None:
            if torch.is_grad_enabled() and number not in self._marks.forward_start:
                self._marks.forward_start[number] = self._clock.mark()

        return starts

    def _layer_ends(self, number: int) -> Callable[..., None]:
        def ends(*_: Any) -> None:
            if torch.is_grad_enabled():
                self._marks.forward_end[number] = self._clock.mark()

        return ends

    def _gradient_ready(self, number: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            self._marks.ready[number] = self._clock.mark()

        return ready

    def _before_optimizer(self, *_: Any) -> None:
        marks = self._marks
        marks.backward_end = self._clock.mark()
        marks.cpu_end = time.process_time()
        if self.step_index in self._phase_of:
            marks.magnitudes = [self._summary(name, p) for name, p in self._anatomy.parameters]
        marks.optimizer_start = self._clock.mark()

    def _after_optimizer(self, *_: Any) -> None:
        self._marks.optimizer_end = self._clock.mark()

    def _summary(self, name: str, parameter: nn.Parameter) -> tuple[np.ndarray, np.ndarray]:
        if parameter.grad is None:
            zeros = np.zeros(-(-parameter.numel() // CHUNK_ELEMENTS), dtype=np.float32)
            return zeros, zeros
        mean, largest = summarise(parameter.grad)
        if not np.isfinite(largest).all():
            raise TraceError(
                f"gradient of {name} is not finite", f"capture, step {self.step_index}", "finite ones"
            )
        return mean, largest

    # Figures ----------------------------------------------------------------------------------------------

    def _duration(self, marks: _Marks) -> int:
        """Forward, backward and optimiser, without what the recorder does in between."""
        since = self._clock.since
        return since(marks.begin, marks.backward_end) + since(marks.optimizer_start, marks.optimizer_end)

    def _keep(self, marks: _Marks, loss: float) -> None:
        def elapsed(times: dict[int, Any]) -> dict[int, int]:
            return {number: self._clock.since(marks.begin, mark) for number, mark in times.items()}

        backward_end = self._clock.since(marks.begin, marks.backward_end)
        self._ran += [number for number in marks.forward_start if number not in self._ran]
        self._captured.append(
            Captured(
                phase=self._phase_of[self.step_index],
                step=self.step_index,
                loss=loss,
                forward_start=elapsed(marks.forward_start),
                forward_end=elapsed(marks.forward_end),
                ready={number: min(ready, backward_end) for number, ready in elapsed(marks.ready).items()},
                backward_end=backward_end,
                optimizer=self._clock.since(marks.optimizer_start, marks.optimizer_end),
                magnitudes=marks.magnitudes,
                cpu_share=(marks.cpu_end - marks.cpu_begin) * PS_PER_SECOND / max(backward_end, 1),
            )
        )

    def _measured(self) -> dict[str, Any]:
        phases: dict[str, list[int]] = {}
        for captured in self._captured:
            phases.setdefault(captured.phase, []).append(captured.step)
        return {
            "phase_steps": phases,
            "clock": type(self._clock).__name__,
            "chunk_elements": CHUNK_ELEMENTS,
            "capture_overhead": _overhead(self._durations[False], self._durations[True]),
            "cpu_share": [round(captured.cpu_share, 3) for captured in self._captured],
        }


def _overhead(plain_ps: list[int], hooked_ps: list[int]) -> dict[str, Any]:
    """Cost of the timing hooks from neighbouring steps; `fraction` is the median over pairs of hooked /
    plain - 1.
    """
    pairs = min(len(plain_ps), len(hooked_ps))
    if not pairs:
        return {"pairs": 0}
    plain = np.array(plain_ps[:pairs]) / PS_PER_SECOND
    hooked = np.array(hooked_ps[:pairs]) / PS_PER_SECOND
    ratios = hooked / plain - 1
    return {
        "pairs": pairs,
        "fraction": float(np.median(ratios)),
        "fraction_quartiles": [float(quartile) for quartile in np.quantile(ratios, [0.25, 0.75])],
        "plain_s": plain.tolist(),
        "hooked_s": hooked.tolist(),
    }
