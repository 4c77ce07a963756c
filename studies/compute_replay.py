"""`gradwire.paced` makes a user's model sleep as long as the trace's layers and gradients took, under `gradwire exec`.

    model = gradwire.paced(DistributedDataParallel(net))

Under `gradwire exec --clock virtual --trace NAME` the model sleeps in its forward pass until the trace's layer has
ended, and before each gradient is handed on until the trace's gradient was ready. So computing and sending overlap as
on the recorded machine, a GPU for instance. Elsewhere it does nothing. The time of an iteration after its backward pass
(the optimiser) is slept at `gradwire.mark`; without a paced model, the whole iteration is.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)

TIMETABLE_VARIABLE = "GRADWIRE_TIMES"
"""Environment variable with the path of a timetable, if any (`timetable` in `gradwire.emu.planning.user_programs`)."""
WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that DistributedDataParallel and torch.compile add to names."""


class IterationTimes(TypedDict):
    """An iteration of the timetable, in ns since its start: by layer, by tensor, and the end of the backward pass; then
    the optimiser's duration."""

    forward_end: list[int]
    ready: list[int]
    backward_end: int
    optimizer: int


def paced(model: Model) -> Model:
    """Make a model's computing take the times of the run's trace. Return the model itself.

    Its parameters are matched with the trace's tensors by name, or in order if all have as many elements. Computing
    without gradients, or in evaluation mode, takes no time.

    Raises ValueError if its parameters are not the trace's tensors.
    """
    if timetable := _timetable():
        timetable.pace(model)
    return model


def rest_ns() -> tuple[int, dict[str, int]] | None:
    """Sleep the rest of this iteration's compute time. Returns the whole iteration's compute time in ns, and the ends
    of its passes (`forward_ns`, `backward_ns`, since the last mark, if a model is paced); None without a timetable."""
    timetable = _timetable()
    return None if timetable is None else timetable.rest_ns()


class _Timetable:
    """The run's timetable and this process's position in it."""

    def __init__(self, path: str) -> None:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        self._tensors: list[tuple[str, int]] = [(name, elements) for name, elements in table["tensors"]]
        self._layers: list[str] = table["layers"]
        ranks: list[list[IterationTimes]] = table["iterations"]
        self._iterations = ranks[int(os.environ.get("RANK", "0")) % len(ranks)]
        self._number = -1
        self._now = self._iterations[0]
        self._has_model = False
        self._marked = -1
        self._began = 0
        self._behind: int | None = None
        """Of the backward pass: the start of the iteration if there had been no other waiting."""
        self._passes: dict[str, int] = {}
        self._slept = 0
        """Time in the iteration up to which it has slept."""
        self._earlier = 0
        """Sleep of earlier passes since the last mark: gradients may be accumulated over several passes."""

    # at marks

    def rest_ns(self) -> tuple[int, dict[str, int]] | None:
        """Implement the function of this name."""
        if self._marked < 0:  # the first iteration begins now
            self._marked = time.monotonic_ns()
            return None
        if not self._has_model:
            self._next()
        elif not self._passes:  # nothing has been computed since the last mark
            self._marked = time.monotonic_ns()
            return 0, {}
        total_ns = self._now["backward_end"] + self._now["optimizer"]
        time.sleep((total_ns - self._slept) / 1e9)
        total_ns += self._earlier
        passes, self._passes, self._earlier, self._slept = self._passes, {}, 0, 0
        self._marked = time.monotonic_ns()
        return total_ns, passes

    def _next(self) -> None:
        self._earlier += self._slept
        self._number += 1
        self._now = self._iterations[self._number % len(self._iterations)]
        self._slept, self._behind = 0, None

    # in a model

    def pace(self, model: torch.nn.Module) -> None:
        """Register hooks that sleep in a model."""
        import torch

        parameters = [
            (_bare(name), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        ]
        indices = self._tensor_indices([(name, parameter.numel()) for name, parameter in parameters])
        for index, (_, parameter) in zip(indices, parameters, strict=True):
            parameter.register_hook(self._ready(index))
        modules = {_bare(name): module for name, module in model.named_modules()}

        def begins(module: torch.nn.Module, inputs: object) -> None:
            if module.training and torch.is_grad_enabled():
                self._next()
                self._began = time.monotonic_ns()

        def ends(layer: int | None) -> Callable[[torch.nn.Module, object, object], None]:
            def slept(module: torch.nn.Module, inputs: object, output: object) -> None:
                if module.training and torch.is_grad_enabled() and self._number >= 0:
                    self._forward(layer)

            return slept

        model.register_forward_pre_hook(begins)
        for number, name in enumerate(self._layers):
            if name in modules and modules[name] is not model:
                modules[name].register_forward_hook(ends(number))
        model.register_forward_hook(ends(None))
        self._has_model = True

    def _forward(self, layer: int | None) -> None:
        ends = self._now["forward_end"]
        self._sleep_until(self._began, ends[layer] if layer is not None else max(ends))
        if layer is None:
            self._passes["forward_ns"] = time.monotonic_ns() - self._marked

    def _ready(self, index: int) -> Callable[[object], None]:
        def slept(gradient: object) -> None:
            if self._behind is None:  # first gradient; real computing takes no time, so the pass has just begun
                self._behind = time.monotonic_ns() - max(self._now["forward_end"])
            self._sleep_until(self._behind, self._now["ready"][index])
            self._passes["backward_ns"] = time.monotonic_ns() - self._marked

        return slept

    def _sleep_until(self, began: int, of_iteration: int) -> None:
        self._slept = max(self._slept, of_iteration)
        left = began + of_iteration - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)

    def _tensor_indices(self, parameters: Sequence[tuple[str, int]]) -> list[int]:
        """Return the trace's tensor index of each parameter."""
        known = {name: (index, elements) for index, (name, elements) in enumerate(self._tensors)}
        if all(name in known and known[name][1] == elements for name, elements in parameters):
            return [known[name][0] for name, _ in parameters]
        if [elements for _, elements in parameters] == [elements for _, elements in self._tensors]:
            return list(range(len(parameters)))
        raise ValueError(self._mismatch(parameters))

    def _mismatch(self, parameters: Sequence[tuple[str, int]]) -> str:
        if len(parameters) != len(self._tensors):
            what = f"the model learns {len(parameters)} parameters, and the trace has {len(self._tensors)} tensors"
        else:
            pairs = zip(parameters, self._tensors, strict=True)
            (name, elements), (tensor, recorded) = next(each for each in pairs if each[0][1] != each[1][1])
            what = f"the parameter {name} has {elements} elements where the trace's {tensor} has {recorded}"
        return f"gradwire.paced: {what}; expected a trace of this model (exec.trace)"


def _bare(name: str) -> str:
    """Return a parameter's or module's name without wrappers' prefixes."""
    while name.startswith(WRAPPERS):
        name = name.removeprefix(WRAPPERS[0]).removeprefix(WRAPPERS[1])
    return name


_loaded: list[_Timetable] = []


def _timetable() -> _Timetable | None:
    """Return the run's timetable, read at its first use; None if there is none."""
    path = os.environ.get(TIMETABLE_VARIABLE)
    if not path:
        return None
    if not _loaded:
        _loaded.append(_Timetable(path))
    return _loaded[0]
