"""`iteration_of` computes the times and gradient figures of a captured iteration from the marks of its step."""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.scenarios.errors import TraceError
from gradwire.traces.capture.assemble import CapturedIteration, NumberedModel
from gradwire.traces.capture.clocks import Mark
from gradwire.traces.capture.marks import StepMarks
from gradwire.traces.capture.plan import PS_PER_SECOND


def iteration_of(
    marks: StepMarks, model: NumberedModel, phase: str, step: int, loss: float, *, local: bool, sampled: bool
) -> CapturedIteration:
    """Return the iteration of a complete step, once the clock has settled. `step` is its number among all steps. With
    `local`, gradients were read when ready, as the rank's own: the backward pass ends with the last one. It has figures
    if `sampled`. TraceError for times that no training step has, or a gradient that is not finite."""
    begin, since = marks.begin, marks.timeline.since
    assert begin is not None and marks.backward_end is not None
    assert marks.optimizer_start is not None and marks.optimizer_end is not None

    def elapsed(times: Mapping[int, Mark]) -> dict[int, int]:
        return {number: since(begin, mark) for number, mark in times.items()}

    stop = since(begin, marks.backward_end)
    ready = elapsed(marks.ready)
    backward_end = max(ready.values(), default=stop) if local else stop
    starts, ends = model.with_inner_layers(elapsed(marks.forward_start), elapsed(marks.forward_end))
    _refuse_disorder(model, f"capture, step {step}", starts, ends, ready, backward_end)
    return CapturedIteration(
        phase=phase,
        step=step,
        loss=loss,
        forward_start=starts,
        forward_end=ends,
        ready={number: min(moment, backward_end) for number, moment in ready.items()},
        backward_end=backward_end,
        optimizer=since(marks.optimizer_start, marks.optimizer_end),
        figures=marks.statistics(model.parameters, step) if sampled else None,
        cpu_share=(marks.cpu_end - marks.cpu_begin) * PS_PER_SECOND / max(stop, 1),
        model_calls=marks.calls,
        exposed=stop - backward_end if local else None,
    )


def _refuse_disorder(
    model: NumberedModel,
    where: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    ready: Mapping[int, int],
    backward_end: int,
) -> None:
    """Raise TraceError, before the trace is written, for times that no training step has."""
    for number, end in ends.items():
        if end > backward_end:
            name = model.module_names[number] or "the model"
            raise TraceError(f"{name} ran forward after the backward pass", where, "forward, then backward")
    for number, moment in ready.items():
        owners = [owner for owner in model.owners_of(number) if owner in starts]
        if owners and moment < ends[min(owners, key=starts.__getitem__)]:
            name = model.parameters[number][0]
            what = f"the gradient of {name} was ready before its layer had run"
            raise TraceError(what, where, "a forward pass, and the backward pass through all of it")
