"""`TraceRecorder` hooks a model and its optimizer, times layers and gradients, summarises gradients, and returns a
trace.

The training loop is not changed. An iteration begins when the model is called with gradients enabled; forward hooks
time every layer; a hook per parameter fires when its gradient has been accumulated; the optimizer's step hooks mark the
end of the backward pass and the optimizer's own time. With gradients accumulated over several micro-batches, an
iteration reaches from the start of the first one to the optimizer, and a gradient is ready when the last one has added
to it. An optimizer with a closure computes the gradients within its step (as with Lightning and LBFGS): there the
backward pass ends with the closure. Work after the optimizer is not part of the iteration; a step in which another
optimizer waits for its own gradients, or the closure runs several times, is not a single iteration and is refused.

In a single process the magnitudes are computed in the hook *before* the optimizer's step, from the complete gradients
and between two marks: that time does not count. Unscaling and clipping before the step count as backward pass, and the
magnitudes are those after it, as they would be sent. With several ranks they are computed when the gradient is ready,
while the clock pauses: a rank sends its own gradient, before averaging and clipping (see
`gradwire.traces.capture.parallel`). The factor of `torch.amp.GradScaler` is removed from them; a step that it skips
because a gradient overflowed is not recorded, and the next one replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.validation.argument_checks import wrong_type_error
from gradwire.traces.capture.assemble import CapturedIteration, NumberedModel, assemble, parameters_with_gradient
from gradwire.traces.capture.clocks import Timeline, clock_for
from gradwire.traces.capture.hooks import (
    closure_of,
    in_backward,
    innermost_optimizers,
    on_loss_scaling,
    with_closure,
    wrap_calls,
)
from gradwire.traces.capture.iteration import iteration_of
from gradwire.traces.capture.marks import StepMarks
from gradwire.traces.capture.parallel import FsdpUnits, ProcessGroup, ddp_buckets
from gradwire.traces.capture.plan import CapturePlan, hook_overhead
from gradwire.traces.capture.statistics import RawFolder, summarise
from gradwire.traces.parts import ELEMENT_BYTES
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace

UNKNOWN_LOSS = float("nan")


class TraceRecorder:
    """Recorder of the steps in `phases` (phase -> step numbers from 0); call `step(loss)` at the end of every step.

    Every `every`-th of them is sampled for magnitudes; `raw` stores their gradients as well. After the last one,
    `overhead_pairs` pairs of steps run with and without the timing hooks, unrecorded: their durations give the capture
    overhead. Then `done` is true and all hooks are removed. Hooks that time layers and gradients exist only in the
    steps that need them. TraceError for a model without trainable parameters, or phases without steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        phases: Mapping[str, Sequence[int]],
        overhead_pairs: int = 0,
        *,
        every: int = 1,
        raw: RawFolder | None = None,
    ) -> None:
        optimizers = innermost_optimizers(optimizer)
        self._model = model
        self.plan = CapturePlan(phases, every, overhead_pairs)
        self._every = every
        self._raw = raw
        self.world = ProcessGroup.find_group(model)
        self._anatomy = NumberedModel(model)
        self._units = FsdpUnits(model) if self.world.kind == "fsdp2" else None
        self._number_of = {id(p): number for number, (_, p) in enumerate(self._anatomy.parameters)}
        self._set_dtypes()
        self._clock = clock_for(self._anatomy.device)
        self._ran: list[int] = []  # numbers of modules in the order in which they first ran
        self._captured: list[CapturedIteration] = []
        self._sparse: set[int] = set()  # numbers of parameters with sparse gradients
        self._skipped: list[int] = []  # steps that a GradScaler skipped
        self._durations: list[tuple[bool, int | None]] = []  # of overhead steps: hooked, picoseconds
        self._permanent_hooks: list[Callable[[], None]] = []
        self._step_hooks: list[Callable[[], None]] = []
        self._marks = StepMarks(Timeline(self._clock))
        self.step_index = 0
        try:
            self._install_hooks(optimizers)
            self._prepare()
        except BaseException:
            self.close()
            raise

    @property
    def done(self) -> bool:
        """True once all captures and overhead steps are over; training may continue."""
        return self.plan.done(self.step_index)

    @property
    def captured(self) -> int:
        """Number of iterations recorded so far."""
        return len(self._captured)

    def step(self, loss: float | torch.Tensor | None = None) -> None:
        """End the step, after `optimizer.step()`; `loss` is the loss of its batch, NaN in the trace if not given.
        TraceError if a step to be recorded had no forward pass or optimizer step, or a gradient that is not finite, or
        if the loss is not a single number."""
        marks, phase = self._marks, self.plan.phase_of(self.step_index)
        hooked = self.plan.overhead_hooked(self.step_index)
        if phase is not None or hooked is not None:
            marks.refuse_incomplete(f"capture, step {self.step_index}")
            self._clock.settle()
            if hooked is not None:
                self._durations.append((hooked, None if marks.skipped else marks.duration()))
            elif marks.skipped:
                self._skip()
            else:
                self._store(marks, str(phase), _loss_of(loss))
        self.step_index += 1
        self._prepare()

    def trace(self, manifest: JsonView) -> Trace:
        """Return the recorded trace; `manifest` is completed by phases, clock and overhead. TraceError if nothing was
        recorded."""
        if not self._captured:
            if not self.step_index:
                reason = "cap.step() was never called, so no step was recorded"
                raise TraceError(reason, "capture", "cap.step(loss) at the end of every training step")
            reason = f"no step was captured: cap.step() was called {self.step_index} times"
            raise TraceError(reason, "capture", f"training beyond step {self.plan.first}, counted from 0")
        details = {**manifest, **self._measurements()}
        return assemble(self._anatomy, self._ran, self._captured, details, self._groups(), self.world.rank)

    def raw_files(self) -> tuple[dict[int, int], dict[int, int], dict[int, torch.Size]]:
        """Return (iteration of each sampled step, tensor of each parameter, shape of each parameter) of the trace."""
        steps = {
            iteration.step: index for index, iteration in enumerate(self._captured) if iteration.figures is not None
        }
        tensors = {number: tensor for tensor, number in enumerate(parameters_with_gradient(self._captured))}
        return (steps, tensors, {number: tuple(self._anatomy.parameters[number][1].shape) for number in tensors})

    def close(self) -> None:
        """Remove every hook. A second call does nothing."""
        for remove in self._step_hooks + self._permanent_hooks:
            remove()
        self._permanent_hooks, self._step_hooks = [], []

    def _install_hooks(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Install the hooks that every step has."""
        for number in self._anatomy.entry_modules():
            entrance = self._anatomy.modules[number]
            self._permanent_hooks.append(wrap_calls(entrance, self._begins(number), None, first=self._units is None))
        for optimizer in optimizers:
            self._permanent_hooks.append(optimizer.register_step_pre_hook(self._before_optimizer).remove)
            self._permanent_hooks.append(optimizer.register_step_post_hook(self._after_optimizer).remove)
        self._permanent_hooks.append(on_loss_scaling(self._on_scaling))

    # Hooks of a step --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for remove in self._step_hooks:
            remove()
        self._step_hooks = []
        self._clock.release()
        self._marks = StepMarks(Timeline(self._clock))
        if self.done:
            self.close()
        if self.plan.phase_of(self.step_index) is None and not self.plan.overhead_hooked(self.step_index):
            return
        for number in self._anatomy.timed():
            module = self._anatomy.modules[number]
            # Ahead of the module's other hooks, whose time is the layer's; but the iteration begins first,
            # and FSDP's hooks wait for the network.
            ahead = number != 0 and self._units is None
            self._step_hooks.append(
                wrap_calls(module, self._layer_starts(number), self._layer_ends(number), first=ahead)
            )
        for number, (_, parameter) in enumerate(self._anatomy.parameters):
            if self._units is None or self._units.unit_of(parameter) is None:
                hook = self._gradient_ready(number, _gradient_of)
                self._step_hooks.append(parameter.register_post_accumulate_grad_hook(hook).remove)
        if self._units is not None:
            # The lambda reads `_marks` late: each step has its own timeline.
            self._step_hooks.append(self._units.patch(lambda: self._marks.timeline.pause(), self._whole_gradient_ready))

    def _set_dtypes(self) -> None:
        """Store the type in which gradients of FSDP's units travel. TraceError for parameters that others shard, and
        for types that a trace cannot hold."""
        for number, (name, parameter) in enumerate(self._anatomy.parameters):
            unit = self._units.unit_of(parameter) if self._units is not None else None
            if unit is not None and not unit.splits_layers(parameter):
                self._anatomy.dtypes[number] = unit.reduce_dtype or parameter.dtype
            elif hasattr(parameter, "to_local"):
                raise TraceError(f"parameter {name} is sharded", "capture", "whole parameters, or FSDP2's units")
            kind = str(self._anatomy.dtypes.get(number, parameter.dtype)).removeprefix("torch.")
            if kind not in ELEMENT_BYTES:
                raise TraceError(f"parameter {name} is {kind}", "capture", ", ".join(ELEMENT_BYTES))

    # Hooks ------------------------------------------------------------------------------------------------

    def _counts(self) -> bool:
        """Return True if a module's call is part of a forward pass to record. Excluded are validation and the second
        forward pass that activation checkpointing makes in the backward pass. Its first one may run without gradients,
        but within a model that has them."""
        counts = (torch.is_grad_enabled() or self._marks.inside) and not in_backward()
        if counts and self._marks.stepped:
            self._marks.late = True
            return False
        return counts

    def _begins(self, number: int) -> Callable[..., None]:
        def begins(*_: object) -> None:
            if not self._counts():
                return
            self._marks.calls += number == 0
            if self._marks.begin is None:
                self._marks.cpu_begin = time.process_time()
                self._marks.begin = self._marks.timeline.mark()

        return begins

    def _layer_starts(self, number: int) -> Callable[..., None]:
        def starts(*_: object) -> None:
            if self._counts():
                self._marks.inside = self._marks.inside or number == 0
                if number not in self._marks.forward_start:
                    self._marks.forward_start[number] = self._marks.timeline.mark()

        return starts

    def _layer_ends(self, number: int) -> Callable[..., None]:
        def ends(*_: object) -> None:
            if self._counts():
                self._marks.inside = self._marks.inside and number != 0
                self._marks.forward_end[number] = self._marks.timeline.mark()

        return ends

    def _gradient_ready(
        self, number: int, gradient: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if self._marks.stepped:
                self._marks.late = True
                return
            self._marks.ready[number] = self._marks.timeline.mark()
            if self.world.local and self.plan.samples(self.step_index):
                with self._marks.timeline.pause():
                    self._summarise(number, gradient(parameter))

        return ready

    def _whole_gradient_ready(
        self, sharded: nn.Parameter, gradient: Callable[[torch.Tensor], torch.Tensor]
    ) -> Callable[[torch.Tensor], None]:
        return self._gradient_ready(self._number_of[id(sharded)], gradient)

    def _on_scaling(self, scaler: Any) -> None:
        self._marks.scaled = True
        if self.world.local and self.plan.samples(self.step_index):
            with self._marks.timeline.pause():
                self._marks.scale = scaler.get_scale()

    def _before_optimizer(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[object, ...], keywords: Json
    ) -> tuple[tuple[object, ...], Json] | None:
        """Complete the gradients when the optimizer is called, or when its closure returns."""
        original = closure_of(arguments, keywords)
        if original is None:
            self._gradients_complete(optimizer)
            return None

        def closure() -> object:
            loss = original()
            self._gradients_complete(optimizer)
            return loss

        return with_closure(arguments, keywords, closure)

    def _gradients_complete(self, optimizer: torch.optim.Optimizer) -> None:
        marks = self._marks
        if marks.stepped:
            if marks.late:  # its own passes, which belong to another iteration
                marks.passes[id(optimizer)] += 1
            marks.late = False
            return
        marks.passes[id(optimizer)] += 1
        marks.backward_end = marks.timeline.mark()
        marks.cpu_end = time.process_time()
        # A fused optimizer unscales and skips by itself; for others GradScaler has done so before.
        marks.overflow = getattr(optimizer, "found_inf", None)
        if self.plan.samples(self.step_index) and not self.world.local:
            scale = getattr(optimizer, "grad_scale", None)
            marks.scale = 1.0 if scale is None else scale.clone()
            for number, (_, parameter) in enumerate(self._anatomy.parameters):
                if parameter.grad is not None:
                    self._summarise(number, parameter.grad)
        marks.optimizer_start = marks.timeline.mark()

    def _after_optimizer(self, *_: object) -> None:
        self._marks.optimizer_end = self._marks.timeline.mark()

    def _summarise(self, number: int, gradient: torch.Tensor) -> None:
        if gradient.is_sparse:
            self._sparse.add(number)
        self._marks.figures[number] = summarise(gradient)
        if self._raw is not None:
            self._raw.store(self.step_index, number, gradient, float(self._marks.scale))

    # Figures ----------------------------------------------------------------------------------------------

    def _skip(self) -> None:
        self._skipped.append(self.step_index)
        self.plan.postpone(self.step_index)
        if self._raw is not None:
            self._raw.drop(self.step_index)

    def _store(self, marks: StepMarks, phase: str, loss: float) -> None:
        step = self.step_index
        iteration = iteration_of(
            marks, self._anatomy, phase, step, loss, local=self.world.local, sampled=self.plan.samples(step)
        )
        known = set(self._ran)
        self._ran += [number for number in iteration.forward_start if number not in known]
        self._captured.append(iteration)

    def _groups(self) -> list[tuple[Json, list[int]]]:
        """Return (description, parameter numbers) of tensors that travel together, as far as the wrapper reports it."""
        if self._units is not None:
            units = [self._units.unit_of(parameter) for _, parameter in self._anatomy.parameters]
            return [
                (member.described(), [number for number, unit in enumerate(units) if unit is member])
                for member in self._units.all
            ]
        return [
            ({"kind": "ddp_bucket"}, [self._number_of[id(p)] for p in bucket if id(p) in self._number_of])
            for bucket in ddp_buckets(self._model)
        ]

    def _measurements(self) -> Json:
        phases: dict[str, list[int]] = {}
        for captured in self._captured:
            phases.setdefault(captured.phase, []).append(captured.step)
        magnitudes: Json = {"source": "measured", "every": self._every}
        if self.world.local:
            magnitudes["of"] = "the worker's own gradient, before averaging"
        details: Json = {
            "phase_steps": phases,
            "clock": type(self._clock).__name__,
            "chunk_elements": CHUNK_ELEMENTS,
            "timing": "measured",
            "magnitudes": magnitudes,
            "capture_overhead": hook_overhead(self._durations),
            "cpu_share": [round(captured.cpu_share, 3) for captured in self._captured],
            **self.world.described(),
        }
        if any(captured.model_calls > 1 for captured in self._captured):
            details["model_calls"] = [captured.model_calls for captured in self._captured]
        if self.world.local:
            details["exposed_communication_ps"] = [captured.exposed for captured in self._captured]
        if self._sparse:
            names = [self._anatomy.parameters[number][0] for number in sorted(self._sparse)]
            details["sparse_gradients"] = {"parameters": names, "counted": "dense, with their zeros"}
        if self._skipped:
            details["skipped_steps"] = self._skipped
        return details


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None  # just accumulated
    return parameter.grad


def _loss_of(loss: Any) -> float:
    """Return a loss as a number; NaN for None."""
    if loss is None:
        return UNKNOWN_LOSS
    try:
        return float(loss.detach().item() if isinstance(loss, torch.Tensor) else loss)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
        raise wrong_type_error(loss, "step(loss)", "the loss of the step as a single number", TraceError) from None
