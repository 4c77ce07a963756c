"""One captured iteration: its times since it began and its figures, from what the hooks have marked in its step."""

from __future__ import annotations

from collections.abc import Mapping

from gradwire.scenarios.errors import TraceError
from gradwire.traces.capture.assemble import Anatomy, Captured
from gradwire.traces.capture.clocks import Mark
from gradwire.traces.capture.marks import Marks
from gradwire.traces.capture.plan import PS_PER_SECOND


def iteration_of(
    marks: Marks, anatomy: Anatomy, phase: str, step: int, loss: float, *, local: bool, sampled: bool
) -> Captured:
    """The iteration of a complete step, once the clock has settled.

    Parameters
    ----------
    step : its number, of all steps.
    local : gradients are looked at when they are ready, as the rank's own: the backward pass ends with the last one.
    sampled : it has figures.

    Raises
    ------
    TraceError
        Times that no training step has, or a gradient that is not finite.
    """
    begin, since = marks.begin, marks.timeline.since
    assert begin is not None and marks.backward_end is not None
    assert marks.optimizer_start is not None and marks.optimizer_end is not None

    def elapsed(times: Mapping[int, Mark]) -> dict[int, int]:
        return {number: since(begin, mark) for number, mark in times.items()}

    stop = since(begin, marks.backward_end)
    ready = elapsed(marks.ready)
    backward_end = max(ready.values(), default=stop) if local else stop
    starts, ends = anatomy.spread(elapsed(marks.forward_start), elapsed(marks.forward_end))
    _refuse_disorder(anatomy, f"capture, step {step}", starts, ends, ready, backward_end)
    return Captured(
        phase=phase,
        step=step,
        loss=loss,
        forward_start=starts,
        forward_end=ends,
        ready={number: min(moment, backward_end) for number, moment in ready.items()},
        backward_end=backward_end,
        optimizer=since(marks.optimizer_start, marks.optimizer_end),
        figures=marks.statistics(anatomy.parameters, step) if sampled else None,
        cpu_share=(marks.cpu_end - marks.cpu_begin) * PS_PER_SECOND / max(stop, 1),
        model_calls=marks.calls,
        exposed=stop - backward_end if local else None,
    )


def _refuse_disorder(
    anatomy: Anatomy, where: str, starts: Mapping[int, int], ends: Mapping[int, int], ready: Mapping[int, int],
    backward_end: int,
) -> None:  # fmt: skip
    """TraceError, now rather than when the trace is written, for times that no training step has."""
    for number, end in ends.items():
        if end > backward_end:
            name = anatomy.module_names[number] or "the model"
            raise TraceError(f"{name} ran forward after the backward pass", where, "forward, then backward")
    for number, moment in ready.items():
        ran = [owner for owner in anatomy.owners_of(number) if owner in starts]
        if ran and moment < ends[min(ran, key=starts.__getitem__)]:
            name = anatomy.parameters[number][0]
            what = f"the gradient of {name} was ready before its layer had run"
            raise TraceError(what, where, "a forward pass, and the backward pass through all of it")
