"""`assemble` builds a trace's layers, tensors and magnitudes from recorded iterations; `NumberedModel` numbers modules
and parameters.

Layers are the modules that own parameters directly, in the order in which they first ran; in most networks these are
the leaf modules with parameters. A parameter belongs to the first of its owners to run, so tied weights are one tensor
of the earliest layer that needs them. An owner that is never called itself (such as the output projection inside
torch's MultiheadAttention) passes its parameters to the closest enclosing layer, else to the whole model, which then
becomes a layer. Frozen parameters are not tensors of the trace, but their layers are still timed.

Modules inside one compiled by torch.compile are not called separately. Its layers count as run one after the other, as
declared, and share its forward time evenly [ours]; the manifest names such modules.

Names are those of the unwrapped model, without DDP's "module." and torch.compile's "_orig_mod.".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.traces.capture.parallel import entry_module, is_compiled, named_children
from gradwire.traces.trace import Iteration, TensorInfo, Trace, scale_exponents, to_float16


@dataclass(frozen=True)
class CapturedIteration:
    """One recorded iteration, by module and parameter number; picoseconds since its start. `figures` holds mean |g|,
    max |g| and rms, [3, chunks], per parameter; None if the iteration is not sampled."""

    phase: str
    step: int
    loss: float
    forward_start: dict[int, int]
    forward_end: dict[int, int]
    ready: dict[int, int]
    backward_end: int
    optimizer: int
    figures: list[np.ndarray] | None
    cpu_share: float  # processor time per wall-clock time; below the number of threads, other processes ran too
    model_calls: int = 1  # several where gradients are accumulated over micro-batches
    exposed: int | None = None  # time between the last gradient and the optimizer; None in a single process


@dataclass
class NumberedModel:
    """Numbered modules and trainable parameters of a model; module 0 is the one whose call begins an iteration.

    `inside` maps a module to the compiled module around it; `dtypes` maps a parameter to the type in which its gradient
    travels, if that differs from its own. TraceError if there is nothing to train, or the model cannot be observed (see
    `gradwire.traces.capture.parallel`).
    """

    model: nn.Module
    modules: list[nn.Module] = field(init=False)
    module_names: list[str] = field(init=False)
    parameters: list[tuple[str, nn.Parameter]] = field(init=False)
    empty: list[str] = field(init=False)
    """Names of trainable parameters without elements, which send nothing."""
    inside: dict[int, int] = field(init=False, default_factory=dict)
    dtypes: dict[int, torch.dtype] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.modules, self.module_names = [], []
        self._number: dict[int, int] = {}
        self._walk(entry_module(self.model), "", None)
        self._owners_of: dict[int, list[int]] = {}  # by id of the parameter
        self.parameters = []
        self.empty = []
        self.owners: set[int] = set()
        for number, module in enumerate(self.modules):
            for name, parameter in module.named_parameters(recurse=False):
                self.owners.add(number)
                if id(parameter) not in self._owners_of and parameter.requires_grad:
                    full_name = f"{self.module_names[number]}.{name}".lstrip(".")
                    if parameter.numel():
                        self.parameters.append((full_name, parameter))
                    else:
                        self.empty.append(full_name)
                self._owners_of.setdefault(id(parameter), []).append(number)
        if not self.parameters:
            raise TraceError("has no trainable parameter", type(self.model).__name__, "a model to train")
        devices = {parameter.device for _, parameter in self.parameters}
        if len(devices) > 1:
            raise TraceError(f"parameters on {len(devices)} devices", "capture", "a model on one device per process")

    def _walk(self, module: nn.Module, name: str, compiled: int | None) -> None:
        """Number `module` and its descendants once each, parents first: the order of `named_modules`."""
        if id(module) in self._number:
            return
        number = self._number[id(module)] = len(self.modules)
        self.modules.append(module)
        self.module_names.append(name)
        if compiled is not None:
            self.inside[number] = compiled
        elif is_compiled(module):
            compiled = number
        for child_name, child in named_children(module, name):
            self._walk(child, child_name, compiled)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.parameters[0][1].device

    def timed(self) -> list[int]:
        """Return the modules whose calls are timed: owners of parameters, and compiled modules around owners."""
        around = {self.inside.get(owner, owner) for owner in self.owners}
        return sorted({0, *around})

    def entry_modules(self) -> list[int]:
        """Return the modules whose call may begin an iteration. They are the model and its direct parts, as a loop may
        call these one by one."""
        entrances, containers = [0], [] if is_compiled(self.modules[0]) else [self.modules[0]]
        while containers:
            for child in containers.pop().children():
                if type(child).forward is nn.Module.forward:  # containers such as ModuleList are never called
                    containers.append(child)
                else:
                    entrances.append(self._number[id(child)])
        return sorted(set(entrances))

    def owners_of(self, number: int) -> list[int]:
        """Return the modules that hold parameter `number` directly; several if it is tied."""
        return self._owners_of[id(self.parameters[number][1])]

    def with_inner_layers(self, times: dict[int, int], ends: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return forward times including the layers inside compiled modules, in execution order."""
        all_starts: dict[int, int] = {}
        all_ends: dict[int, int] = {}
        for number, start in times.items():
            end = all_ends[number] = ends.get(number, start)
            all_starts[number] = start
            hidden = [owner for owner in sorted(self.owners) if self.inside.get(owner) == number]
            for position, owner in enumerate(hidden):
                all_starts[owner] = start + (end - start) * position // len(hidden)
                all_ends[owner] = start + (end - start) * (position + 1) // len(hidden)
        return all_starts, all_ends

    def assign_layers(self, kept: Sequence[int], execution_order: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        """Return (layer of each parameter in `kept`, modules that are layers in forward order), given execution order
        `execution_order`."""
        position = {number: index for index, number in enumerate(execution_order)}
        candidates = [number for number in execution_order if number in self.owners]
        layer_module: dict[int, int] = {}
        for number in kept:
            owners = self.owners_of(number)
            called = [owner for owner in owners if owner in position]
            if called:
                layer_module[number] = min(called, key=position.__getitem__)
            else:
                around = [c for c in candidates if any(self._encloses(c, owner) for owner in owners)]
                layer_module[number] = max(around, key=lambda c: len(self.module_names[c]), default=0)
        # A layer inside a compiled module counts only if it has a gradient: it may never have run.
        layers = {c for c in candidates if c not in self.inside} | set(layer_module.values())
        order = [number for number in execution_order if number in layers]
        index = {number: layer for layer, number in enumerate(order)}
        return {number: index[module] for number, module in layer_module.items()}, order

    def _encloses(self, outer: int, inner: int) -> bool:
        name = self.module_names[outer]
        return name == "" or self.module_names[inner].startswith(name + ".")


def parameters_with_gradient(captured: Sequence[CapturedIteration]) -> list[int]:
    """Return the numbers of the parameters that had a gradient in some captured iteration: the tensors of the trace.
    TraceError if there are none."""
    numbers = sorted(set[int]().union(*(iteration.ready for iteration in captured)))
    if not numbers:
        raise TraceError("no gradient was computed in the captured steps", "capture", "loss.backward() in each")
    return numbers


def assemble(
    model: NumberedModel,
    execution_order: Sequence[int],
    captured: Sequence[CapturedIteration],
    manifest: JsonView,
    groups: Sequence[tuple[Json, Sequence[int]]] = (),
    rank: int = 0,
) -> Trace:
    """Return the trace of `captured`; TraceError if there is no gradient. `execution_order` is the order in which
    modules first ran; `groups` holds (manifest entry, parameter numbers) of tensors that travel together. Parameters
    without any gradient are left out and named in the manifest under `without_gradient`."""
    numbers = parameters_with_gradient(captured)
    layer_of, order = model.assign_layers(numbers, execution_order)
    sampled = [index for index, iteration in enumerate(captured) if iteration.figures is not None]
    figures = [
        [iteration.figures[number] for number in numbers] for iteration in captured if iteration.figures is not None
    ]
    largest = [max((float(row[column][1].max()) for row in figures), default=0.0) for column in range(len(numbers))]
    exponents = scale_exponents(np.array(largest, dtype=np.float64)).tolist()
    tensor_of = {number: tensor for tensor, number in enumerate(numbers)}
    details: Json = {
        "without_gradient": [
            *(name for number, (name, _) in enumerate(model.parameters) if number not in tensor_of),
            *model.empty,
        ]
    }
    if groups:
        details["groups"] = [
            {**description, "tensors": [tensor_of[number] for number in members if number in tensor_of]}
            for description, members in groups
        ]
    compiled = sorted({model.inside[layer] for layer in order if layer in model.inside})
    if compiled:
        details["compiled"] = {
            "modules": [model.module_names[number] or "model" for number in compiled],
            "forward_of_layers": "even shares of the compiled module's time",
        }
    return Trace(
        {**manifest, **details},
        [model.module_names[number] or "model" for number in order],
        [_tensor(model, n, layer_of[n], e) for n, e in zip(numbers, exponents, strict=True)],
        [_iteration(index, iteration, order, numbers, rank) for index, iteration in enumerate(captured)],
        _halves(figures, exponents, 0),
        _halves(figures, exponents, 1),
        _halves(figures, exponents, 2),
        sampled,
    )


def _tensor(model: NumberedModel, number: int, layer: int, exponent: int) -> TensorInfo:
    name, parameter = model.parameters[number]
    dtype = str(model.dtypes.get(number, parameter.dtype)).removeprefix("torch.")
    return TensorInfo(name, tuple(parameter.shape), parameter.numel(), dtype, layer, exponent)


def _halves(figures: list[list[np.ndarray]], exponents: list[int], which: int) -> np.ndarray:
    rows = [
        [to_float16(values[which], exponent) for values, exponent in zip(row, exponents, strict=True)]
        for row in figures
    ]
    return np.stack([np.concatenate(row) for row in rows])


def _iteration(index: int, captured: CapturedIteration, order: list[int], numbers: list[int], rank: int) -> Iteration:
    starts: list[int] = []
    ends: list[int] = []
    for number in order:
        # A layer that did not run takes no time, at its usual position.
        starts.append(captured.forward_start.get(number, ends[-1] if ends else 0))
        ends.append(captured.forward_end.get(number, starts[-1]))
    return Iteration(
        index=index,
        phase=captured.phase,
        step=captured.step,
        loss=captured.loss,
        forward_start_ps=np.array(starts, dtype=np.int64),
        forward_end_ps=np.array(ends, dtype=np.int64),
        ready_ps=np.array([captured.ready.get(number, captured.backward_end) for number in numbers], dtype=np.int64),
        backward_end_ps=captured.backward_end,
        optimizer_ps=captured.optimizer,
        end_ps=captured.backward_end + captured.optimizer,
        rank=rank,
    )
