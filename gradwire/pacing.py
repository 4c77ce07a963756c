"""paced: a model's computing takes what a trace has recorded of it, layer by layer, where time stands still meanwhile.

    model = gradwire.paced(DistributedDataParallel(net))

Under `gradwire exec --clock virtual --trace NAME` the model sleeps in its forward pass until the trace's layer has
ended, and before each gradient is handed to whoever sends it until the trace's gradient was ready. So what is computed
and what is sent overlap as they do on the machine that was recorded, a GPU for instance. Elsewhere it does nothing.
What an iteration of the trace has after its backward pass (the optimiser) is slept at `gradwire.mark`; all of it is,
where no model is paced.
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

TIMES = "GRADWIRE_TIMES"
"""Names the timetable, where there is one (`gradwire.emu.programs.timetable`)."""
WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before the names of what they wrap."""


class Times(TypedDict):
    """An iteration of the timetable, in ns since it began: by layer, by tensor, and the backward pass's end; then the
    optimiser's own time."""

    forward_end: list[int]
    ready: list[int]
    backward_end: int
    optimizer: int


def paced(model: Model) -> Model:
    """Have a model's computing take what the run's trace says. Returns the model itself.

    Its parameters are the trace's tensors, by name, or else in order where all have as many elements. What is computed
    without gradients, or in evaluation mode, takes no time.

    Raises
    ------
    ValueError
        Its parameters are not the trace's tensors.
    """
    if timetable := _timetable():
        timetable.pace(model)
    return model


def rest_ns() -> tuple[int, dict[str, int]] | None:
    """Sleep what is left of this iteration's computing. Returns what the whole of it takes in ns, and when its passes
    were over (`forward_ns`, `backward_ns`, since the last mark, if a model is paced); None where no trace says it."""
    timetable = _timetable()
    return None if timetable is None else timetable.rest_ns()


class _Timetable:
    """The run's timetable and where in it this process is."""

    def __init__(self, path: str) -> None:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        self._tensors: list[tuple[str, int]] = [(name, elements) for name, elements in table["tensors"]]
        self._layers: list[str] = table["layers"]
        ranks: list[list[Times]] = table["iterations"]
        self._iterations = ranks[int(os.environ.get("RANK", "0")) % len(ranks)]
        self._number = -1
        self._now = self._iterations[0]
        self._paced = False
        self._marked = -1
        self._began = 0
        self._behind: int | None = None
        """Of the backward pass: when the iteration would have begun, had nothing but it been waited for."""
        self._passes: dict[str, int] = {}
        self._slept = 0
        """Until when in the iteration it has been slept"""
        self._earlier = 0
        """What passes before this one have slept since the last mark: gradients may be accumulated over several"""

    # at marks

    def rest_ns(self) -> tuple[int, dict[str, int]] | None:
        """As the function of this name."""
        if self._marked < 0:  # the first iteration begins now
            self._marked = time.monotonic_ns()
            return None
        if not self._paced:
            self._next()
        elif not self._passes:  # nothing has been computed since the last mark
            self._marked = time.monotonic_ns()
            return 0, {}
        whole = self._now["backward_end"] + self._now["optimizer"]
        time.sleep((whole - self._slept) / 1e9)
        whole += self._earlier
        passes, self._passes, self._earlier, self._slept = self._passes, {}, 0, 0
        self._marked = time.monotonic_ns()
        return whole, passes

    def _next(self) -> None:
        self._earlier += self._slept
        self._number += 1
        self._now = self._iterations[self._number % len(self._iterations)]
        self._slept, self._behind = 0, None

    # in a model

    def pace(self, model: torch.nn.Module) -> None:
        """Hang what sleeps into a model."""
        import torch

        parameters = [(_bare(name), each) for name, each in model.named_parameters() if each.requires_grad]
        places = self._places([(name, each.numel()) for name, each in parameters])
        for place, (_, parameter) in zip(places, parameters, strict=True):
            parameter.register_hook(self._ready(place))
        modules = {_bare(name): module for name, module in model.named_modules()}

        def begins(module: torch.nn.Module, given: object) -> None:
            if module.training and torch.is_grad_enabled():
                self._next()
                self._began = time.monotonic_ns()

        def ends(layer: int | None) -> Callable[[torch.nn.Module, object, object], None]:
            def slept(module: torch.nn.Module, given: object, made: object) -> None:
                if module.training and torch.is_grad_enabled() and self._number >= 0:
                    self._forward(layer)

            return slept

        model.register_forward_pre_hook(begins)
        for number, name in enumerate(self._layers):
            if name in modules and modules[name] is not model:
                modules[name].register_forward_hook(ends(number))
        model.register_forward_hook(ends(None))
        self._paced = True

    def _forward(self, layer: int | None) -> None:
        ends = self._now["forward_end"]
        self._until(self._began, ends[layer] if layer is not None else max(ends))
        if layer is None:
            self._passes["forward_ns"] = time.monotonic_ns() - self._marked

    def _ready(self, place: int) -> Callable[[object], None]:
        def slept(gradient: object) -> None:
            if self._behind is None:  # computing takes no time: the backward pass has just begun
                self._behind = time.monotonic_ns() - max(self._now["forward_end"])
            self._until(self._behind, self._now["ready"][place])
            self._passes["backward_ns"] = time.monotonic_ns() - self._marked

        return slept

    def _until(self, began: int, of_iteration: int) -> None:
        self._slept = max(self._slept, of_iteration)
        left = began + of_iteration - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)

    def _places(self, parameters: Sequence[tuple[str, int]]) -> list[int]:
        """Which tensor of the trace each parameter is."""
        known = {name: (place, elements) for place, (name, elements) in enumerate(self._tensors)}
        if all(name in known and known[name][1] == elements for name, elements in parameters):
            return [known[name][0] for name, _ in parameters]
        if [elements for _, elements in parameters] == [elements for _, elements in self._tensors]:
            return list(range(len(parameters)))
        raise ValueError(self._unlike(parameters))

    def _unlike(self, parameters: Sequence[tuple[str, int]]) -> str:
        if len(parameters) != len(self._tensors):
            what = f"the model learns {len(parameters)} parameters, and the trace has {len(self._tensors)} tensors"
        else:
            pairs = zip(parameters, self._tensors, strict=True)
            (name, elements), (tensor, recorded) = next(each for each in pairs if each[0][1] != each[1][1])
            what = f"the parameter {name} has {elements} elements where the trace's {tensor} has {recorded}"
        return f"gradwire.paced: {what}; expected a trace of this model (exec.trace)"


def _bare(name: str) -> str:
    """A parameter's or module's name without what wrappers put before it."""
    while name.startswith(WRAPPERS):
        name = name.removeprefix(WRAPPERS[0]).removeprefix(WRAPPERS[1])
    return name


_read: list[_Timetable] = []


def _timetable() -> _Timetable | None:
    """The run's timetable, read at its first use; None where there is none."""
    path = os.environ.get(TIMES)
    if not path:
        return None
    if not _read:
        _read.append(_Timetable(path))
    return _read[0]
