"""From recorded iterations to a trace: which modules are layers, which layer a parameter belongs to, float16.

Layers are the modules that own parameters directly, in the order in which they first ran; in most networks
these are the leaf modules with parameters. A parameter belongs to the first of its owners to run, so tied
weights are one tensor of the earliest layer that needs them. An owner that is never called itself (the
output projection inside torch's MultiheadAttention is such a one) hands its parameters to the closest
enclosing layer, failing that to the model as a whole, which then becomes a layer. Frozen parameters are not
tensors of the trace, but their layers are still timed.

Inside a module that torch.compile has compiled no layer is called on its own. Its layers count as run one after
the other, as declared, and share the time of its forward evenly [ours]; the manifest names such modules.

Names are those of the model without its wrappers: neither DDP's "module." nor "_orig_mod." of torch.compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.traces.capture.parallel import is_compiled, named_children, start_of
from gradwire.traces.trace import Iteration, TensorInfo, Trace, scale_exponents, to_halves


@dataclass(frozen=True)
class Captured:
    """One recorded iteration, by module and parameter number; picoseconds since its start.

    `figures` holds mean |g|, max |g| and rms, [3, chunks], per parameter; None if the iteration is not sampled.
    """

    phase: str
    step: int
    loss: float
    forward_start: dict[int, int]
    forward_end: dict[int, int]
    ready: dict[int, int]
    backward_end: int
    optimizer: int
    figures: list[np.ndarray] | None
    cpu_share: float  # processor time per wall-clock time; below the number of threads, others ran too
    model_calls: int = 1  # several where gradients are accumulated over micro-batches
    exposed: int | None = None  # time between the last gradient and the optimiser; None in a single process


@dataclass
class Anatomy:
    """The modules and trainable parameters of a model under fixed numbers; module 0 is the one whose call
    begins an iteration.

    `inside` says for a module in which compiled module it lies; `dtypes` for a parameter in which type its
    gradient travels, where that is not the parameter's. TraceError if there is nothing to train, or what
    there is cannot be seen (see `gradwire.traces.capture.parallel`).
    """

    model: nn.Module
    modules: list[nn.Module] = field(init=False)
    module_names: list[str] = field(init=False)
    parameters: list[tuple[str, nn.Parameter]] = field(init=False)
    empty: list[str] = field(init=False)
    """Names of trainable parameters without elements: they have nothing to send."""
    inside: dict[int, int] = field(init=False, default_factory=dict)
    dtypes: dict[int, torch.dtype] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.modules, self.module_names = [], []
        self._number: dict[int, int] = {}
        self._walk(start_of(self.model), "", None)
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
        places = {parameter.device for _, parameter in self.parameters}
        if len(places) > 1:
            raise TraceError(
                f"parameters on {len(places)} devices", "capture", "a model on one device per process"
            )

    def _walk(self, module: nn.Module, name: str, compiled: int | None) -> None:
        """Number `module` and what is in it, each once and parents first: the order of `named_modules`."""
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
        """Where the parameters are."""
        return self.parameters[0][1].device

    def timed(self) -> list[int]:
        """Modules whose calls have to be timed: owners of parameters, and compiled modules around some."""
        around = {self.inside.get(owner, owner) for owner in self.owners}
        return sorted({0, *around})

    def entrances(self) -> list[int]:
        """Modules with one of which an iteration begins: the model or, if a loop calls its parts one by one,
        what it directly consists of.
        """
        found, containers = [0], [] if is_compiled(self.modules[0]) else [self.modules[0]]
        while containers:
            for child in containers.pop().children():
                if type(child).forward is nn.Module.forward:  # as of a ModuleList: it is never called
                    containers.append(child)
                else:
                    found.append(self._number[id(child)])
        return sorted(set(found))

    def owners_of(self, number: int) -> list[int]:
        """Modules that hold parameter `number` directly; several if it is tied."""
        return self._owners_of[id(self.parameters[number][1])]

    def spread(self, times: dict[int, int], ends: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Forward times with those of layers inside compiled modules added, in order of running."""
        all_starts: dict[int, int] = {}
        all_ends: dict[int, int] = {}
        for number, start in times.items():
            end = all_ends[number] = ends.get(number, start)
            all_starts[number] = start
            hidden = [owner for owner in sorted(self.owners) if self.inside.get(owner) == number]
            for place, owner in enumerate(hidden):
                all_starts[owner] = start + (end - start) * place // len(hidden)
                all_ends[owner] = start + (end - start) * (place + 1) // len(hidden)
        return all_starts, all_ends

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
        # A layer inside a compiled module counts only if it has something to say: it may never have run.
        layers = {c for c in candidates if c not in self.inside} | set(home.values())
        order = [number for number in ran if number in layers]
        index = {number: layer for layer, number in enumerate(order)}
        return {number: index[module] for number, module in home.items()}, order

    def _encloses(self, outer: int, inner: int) -> bool:
        name = self.module_names[outer]
        return name == "" or self.module_names[inner].startswith(name + ".")


def kept_parameters(captured: Sequence[Captured]) -> list[int]:
    """Numbers of the parameters that had a gradient in some captured iteration: the tensors of the trace.

    TraceError if there is none.
    """
    kept = sorted(set[int]().union(*(one.ready for one in captured)))
    if not kept:
        raise TraceError(
            "no gradient was computed in the captured steps", "capture", "loss.backward() in each"
        )
    return kept


def assemble(
    anatomy: Anatomy,
    ran: Sequence[int],
    captured: Sequence[Captured],
    manifest: JsonView,
    groups: Sequence[tuple[Json, Sequence[int]]] = (),
    rank: int = 0,
) -> Trace:
    """The trace of `captured`; `ran` is the order in which modules first ran, `groups` holds what travels
    together as (what is said of it, parameter numbers). TraceError if there is no gradient.

    Parameters whose gradient never came are left out and named in the manifest under `without_gradient`.
    """
    kept = kept_parameters(captured)
    layer_of, order = anatomy.assign_layers(kept, ran)
    sampled = [index for index, one in enumerate(captured) if one.figures is not None]
    figures = [[one.figures[number] for number in kept] for one in captured if one.figures is not None]
    largest = [
        max((float(row[place][1].max()) for row in figures), default=0.0) for place in range(len(kept))
    ]
    exponents = scale_exponents(np.array(largest, dtype=np.float64)).tolist()
    tensor_of = {number: tensor for tensor, number in enumerate(kept)}
    said: Json = {
        "without_gradient": [
            *(name for number, (name, _) in enumerate(anatomy.parameters) if number not in tensor_of),
            *anatomy.empty,
        ]
    }
    if groups:
        said["groups"] = [
            {**about, "tensors": [tensor_of[number] for number in members if number in tensor_of]}
            for about, members in groups
        ]
    compiled = sorted({anatomy.inside[layer] for layer in order if layer in anatomy.inside})
    if compiled:
        said["compiled"] = {
            "modules": [anatomy.module_names[number] or "model" for number in compiled],
            "forward_of_layers": "even shares of the compiled module's time",
        }
    return Trace(
        {**manifest, **said},
        [anatomy.module_names[number] or "model" for number in order],
        [_tensor(anatomy, n, layer_of[n], e) for n, e in zip(kept, exponents, strict=True)],
        [_iteration(index, one, order, kept, rank) for index, one in enumerate(captured)],
        _halves(figures, exponents, 0),
        _halves(figures, exponents, 1),
        _halves(figures, exponents, 2),
        sampled,
    )


def _tensor(anatomy: Anatomy, number: int, layer: int, exponent: int) -> TensorInfo:
    name, parameter = anatomy.parameters[number]
    dtype = str(anatomy.dtypes.get(number, parameter.dtype)).removeprefix("torch.")
    return TensorInfo(name, tuple(parameter.shape), parameter.numel(), dtype, layer, exponent)


def _halves(figures: list[list[np.ndarray]], exponents: list[int], which: int) -> np.ndarray:
    rows = [
        [to_halves(values[which], exponent) for values, exponent in zip(row, exponents, strict=True)]
        for row in figures
    ]
    return np.stack([np.concatenate(row) for row in rows])


def _iteration(index: int, one: Captured, order: list[int], kept: list[int], rank: int) -> Iteration:
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
        rank=rank,
    )
