"""Computes separate gradients of N workers with one copy of the model's parameters, in one process.

`sequential_gradients` runs the model once per worker, forward and backward: obviously right, and the oracle.
`JointGradients` runs all workers' samples at once and separates only what it must: weight gradients for each worker's
slice of the batch, and normalisations over each slice. Everything else - the forward pass, the gradients of activations
- costs the same as in plain training. The alternative, per-sample gradients by `torch.func.vmap`, has little more than
half the speed.

A GPU needs much work at a time, and so does a model with few samples per worker. A processor has caches, which hold one
worker's activations but not all workers'. `FastestGradients` chooses. The layers are in
`gradwire.training.backward.sliced_layers`; a model with parameters in others (an LSTM) runs one worker after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.training.backward.flat_gradients import StackedGradients
from gradwire.training.backward.sliced_layers import FORWARDS
from gradwire.training.devices import random_states, restore_random_states
from gradwire.training.precision import Loss, exact

Buffers = dict[str, Tensor]
"""Buffers of a model by name, such as running statistics of a batch norm."""
Gradients = Sequence[list[Tensor]]
"""By worker, by parameter, in the order of `model.parameters()`."""
ComputeGradients = Callable[[Loss, tuple[Tensor, ...], Tensor], tuple[list[float], Gradients]]
"""(loss, inputs, targets) -> the loss and the gradients of each worker."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Normalisations over all samples of a worker."""
SEQUENTIAL_SAMPLES = 8
"""Samples per worker from which on a processor is no slower one worker after the other; measured with ResNets and a GPT
(`gradwire bench training`)."""
WARMUP_RUNS = 3
"""Runs of a step before recording, in which libraries initialise themselves [torch]."""


def buffers_of(model: nn.Module) -> Buffers:
    """Return a copy of a model's buffers."""
    return {name: value.clone() for name, value in model.named_buffers()}


def restore_buffers(model: nn.Module, buffers: Buffers) -> None:
    """Restore a model's buffers."""
    for name, value in model.named_buffers():
        value.copy_(buffers[name])


def merge_buffers(model: nn.Module, before: Buffers, after: Sequence[Buffers], workers: int) -> None:
    """Set a model's buffers to `before` plus an N-th of each worker's change. With all N workers it is the mean of
    their buffers, as in synchronous training; integer counters take the last worker's value. Values that are equal for
    all workers stay so to the bit."""
    for name, value in model.named_buffers():
        values = [buffers[name] for buffers in after]
        if not value.is_floating_point():
            value.copy_(values[-1])
        elif len(values) < workers:
            value.copy_(before[name] + sum(buffers - before[name] for buffers in values) / workers)
        elif all(torch.equal(buffers, values[0]) for buffers in values):
            value.copy_(values[0])
        else:
            value.copy_(torch.stack(values).mean(dim=0))


def sequential_gradients(
    model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor, workers: int
) -> tuple[list[float], Gradients]:
    """Return the loss and the gradients of each worker, computed one after the other. Each worker moves running
    statistics from their values before the step; afterwards they are the mean of the workers' (our choice; PyTorch's
    DDP keeps those of the first).

    inputs, targets : of all workers, N slices of equally many samples along the first dimension.
    """
    losses: list[float] = []
    gradients: list[list[Tensor]] = []
    parameters = list(model.parameters())
    before = buffers_of(model)
    after: list[Buffers] = []
    for batch in zip(*[tensor.chunk(workers) for tensor in (*inputs, targets)], strict=True):
        try:
            mean = loss(model, batch[:-1], batch[-1]).mean()
        except (ValueError, ScenarioError):
            check_norms(model, loss, batch[:-1], batch[-1])
            raise
        worker_gradients = torch.autograd.grad(mean, parameters, allow_unused=True)
        pairs = zip(worker_gradients, parameters, strict=True)
        gradients.append([torch.zeros_like(p) if gradient is None else gradient for gradient, p in pairs])
        losses.append(float(mean.detach()))
        if workers > 1:
            after.append(buffers_of(model))
            restore_buffers(model, before)
    if workers > 1:
        merge_buffers(model, before, after, workers)
    return losses, gradients


def check_norms(model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
    """Raise ScenarioError if a batch norm has a single value per channel to normalise in one worker's computation; it
    would always become zero."""
    names = {module: name for name, module in model.named_modules() if isinstance(module, NORMS)}
    seen: list[tuple[str, Tensor]] = []
    hooks = [module.register_forward_pre_hook(lambda m, batch: seen.append((names[m], batch[0]))) for module in names]
    try:
        with suppress(ValueError, ScenarioError):
            loss(model, inputs, targets)
    finally:
        for hook in hooks:
            hook.remove()
    for name, batch in seen:
        if batch.numel() == batch.shape[1]:
            what = f"gives the batch norm {name} one value per channel, {tuple(batch.shape)}: nothing to normalise over"
            expected = "at least two samples per worker, or larger pictures (training.size)"
            raise ScenarioError(what, "training.batch", expected)


class JointGradients:
    """The gradients of N workers by one forward and one backward pass. Keep the object: it inspects the model once."""

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model, self.workers = model, workers
        self.modules = {module for module in model.modules() if type(module) in FORWARDS}
        supported = {id(p) for module in self.modules for p in module.parameters(recurse=False)}
        self.missing = [name for name, p in model.named_parameters() if id(p) not in supported]
        """Parameters of unsupported layers."""

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """Return the loss and the gradients of each worker; arguments as in `sequential_gradients`."""
        losses, stacked = self.stacked(loss, inputs, targets)
        return losses.tolist(), [[by_worker[worker] for by_worker in stacked] for worker in range(self.workers)]

    def stacked(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the losses, (N,), and all workers' gradients of each parameter, (N, ...), without waiting for the
        device."""
        parameters = list(self.model.parameters())
        gradients: dict[int, Tensor] = {}
        with self._with_sliced_layers(gradients):
            losses = loss(self.model, inputs, targets).reshape(self.workers, -1).mean(dim=1)
            losses.sum().backward()
        for parameter in parameters:
            parameter.grad = None
        return losses.detach(), [
            gradients[id(p)] if id(p) in gradients else p.new_zeros(self.workers, *p.shape) for p in parameters
        ]

    @contextmanager
    def _with_sliced_layers(self, gradients: dict[int, Tensor]) -> Iterator[None]:
        """Replace the model's forward functions by ones that put parameter gradients into `gradients`, (N, ...)
        each."""

        def keep(parameter: Tensor, gradient: Tensor) -> None:
            earlier, gradient = gradients.get(id(parameter)), gradient.to(parameter.dtype)
            gradients[id(parameter)] = gradient if earlier is None else earlier + gradient

        for module in self.modules:
            forward = partial(FORWARDS[type(module)], module, workers=self.workers, keep=keep)
            module.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in self.modules:
                del module.forward  # uncovers the class's own


class RecordedGraph:
    """The gradients of N workers by one forward and one backward pass, recorded as a CUDA graph and replayed.

    Separating eight workers' gradients takes some thousand small operations. A GPU computes each in microseconds, and
    waits ten times as long for Python to launch the next. A graph launches them all at once; the operations are the
    same, so the bits are the same. Python code in between runs only during recording: this suits built-in models and
    losses, of which that is known to be harmless.

    model : its parameters must stay at their addresses. stacked : the function to record, `JointGradients.stacked`.
    """

    def __init__(self, model: nn.Module, stacked: Callable[..., tuple[Tensor, list[Tensor]]]) -> None:
        self.model, self.stacked = model, stacked
        self.graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._losses = self._matrix = torch.empty(0)

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """Return the loss and the gradients of each worker; arguments as in `sequential_gradients`, with the same
        shapes and loss each time. Raises RuntimeError if recording failed: something waits for the GPU, such as a value
        that Python reads."""
        tensors = (*inputs, targets)
        if self.graph is None:
            self._record(loss, tensors)
        assert self.graph is not None
        for recorded_input, tensor in zip(self._inputs, tensors, strict=True):
            recorded_input.copy_(tensor)
        self.graph.replay()
        shapes = [tensor.shape for tensor in self.model.parameters()]
        return self._losses.tolist(), StackedGradients(self._matrix.clone(), shapes)

    def _record(self, loss: Loss, tensors: tuple[Tensor, ...]) -> None:
        model, device = self.model, tensors[0].device
        before = buffers_of(model)
        self._inputs = tuple(tensor.clone() for tensor in tensors)
        side_stream = torch.cuda.Stream(device)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(side_stream):
                for _ in range(WARMUP_RUNS):
                    self._compute(loss)
            torch.cuda.current_stream(device).wait_stream(side_stream)
            with torch.cuda.graph(graph):
                self._losses, self._matrix = self._compute(loss)
        finally:
            torch.cuda.synchronize(device)
            restore_buffers(model, before)
        self.graph = graph

    def _compute(self, loss: Loss) -> tuple[Tensor, Tensor]:
        losses, stacked = self.stacked(loss, self._inputs[:-1], self._inputs[-1])
        return losses, torch.cat([gradients.reshape(len(losses), -1) for gradients in stacked], dim=1)


class FastestGradients:
    """The gradients of N workers, an `ComputeGradients`, by the fastest method available.

    On a processor with `SEQUENTIAL_SAMPLES` samples per worker that is one worker after the other; else all at once, if
    possible and equivalent. The first step decides by computing both ways in float32, and in float64 if they differ:
    rounding alone changes much of the gradients of a net whose rectifiers are near zero. They differ if a layer's input
    is not a run of samples (positions, to an embedding), and if something is drawn (dropout): then it is always one
    worker after the other.

    recorded : on a GPU, record the first step and replay it; for models and losses in which Python decides nothing.
    """

    def __init__(self, model: nn.Module, workers: int, recorded: bool = False) -> None:
        self.model, self.workers = model, workers
        self.on_gpu = next((parameter.device.type == "cuda" for parameter in model.parameters()), False)
        self._together = JointGradients(model, workers)
        self._replay = RecordedGraph(model, self._together.stacked) if recorded and self.on_gpu else None
        self._equivalent: bool | None = None
        self.slower: list[str] = []
        """Parts that run more slowly than a GPU could, with reasons; each is also a warning."""
        if workers == 1:
            self._equivalent = False

    @property
    def method_text(self) -> str:
        """The method, in words."""
        if self._equivalent is not True:
            return "one worker after the other"
        return "all workers at once" + (", replayed" if self._replay is not None else "")

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """Return the loss and the gradients of each worker; arguments as in `sequential_gradients`."""
        model, workers = self.model, self.workers
        if self._equivalent is None and self._together.missing:
            self._use_sequential(f"{self._together.missing[0]} belongs to an unsupported layer")
        if self._equivalent is False or (not self.on_gpu and len(targets) >= SEQUENTIAL_SAMPLES * workers):
            return sequential_gradients(model, loss, inputs, targets, workers)
        if self._equivalent:
            if self._replay is not None:
                try:
                    return self._replay(loss, inputs, targets)
                except RuntimeError as error:  # recording failed
                    self._replay = None
                    self._note_slower(f"steps cannot be replayed: {_first_line(error)}", "twice")
            return self._together(loss, inputs, targets)
        before, exactly, device = buffers_of(model), exact(loss), targets.device
        from_here = random_states(device)
        expected = sequential_gradients(model, exactly, inputs, targets, workers)
        after, from_there = buffers_of(model), random_states(device)
        restore_buffers(model, before)
        answer = None
        try:
            answer = self._together(exactly, inputs, targets)
            self._equivalent = _agree(answer[1], expected[1])
            if not self._equivalent:
                self._equivalent = _agree_in_float64(model, exactly, inputs, targets, workers)
            if not self._equivalent:
                self._use_sequential("computed all at once they differ")
        except (RuntimeError, TypeError, ScenarioError) as error:
            # Shapes that cannot be separated; a model without a float64 copy.
            self._use_sequential(_first_line(error))
        if self.on_gpu:
            torch.cuda.empty_cache()  # both ways together take several times the memory of one
        if exactly is not loss:
            restore_buffers(model, before)
            restore_random_states(from_here, device)
            return self(loss, inputs, targets)
        restore_random_states(from_there, device)  # as if only one way had been computed
        if self._equivalent and answer is not None:
            return answer
        restore_buffers(model, after)
        return expected

    def _use_sequential(self, why: str) -> None:
        self._equivalent = False
        self._note_slower(f"gradients are computed one worker after the other: {why}", "ten times")

    def _note_slower(self, what: str, times: str) -> None:
        """Report a slower method; on a processor there is nothing to report."""
        if self.on_gpu:
            self.slower.append(what)
            warnings.warn(f"{what}; a GPU takes {times} as long for it", stacklevel=4)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _agree_in_float64(model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor, workers: int) -> bool:
    """Return True if both ways give the same gradients in float64, on a copy of the model and without changing random
    state."""
    twin = deepcopy(model).double()
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in (*inputs, targets)]
    devices = {tensor.device.index for tensor in wide if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices) if torch.cuda.is_initialized() else ()):
        in_turn = sequential_gradients(twin, loss, tuple(wide[:-1]), wide[-1], workers)
        together = JointGradients(twin, workers)(loss, tuple(wide[:-1]), wide[-1])
    return _agree(together[1], in_turn[1])


def _agree(one: Gradients, other: Gradients) -> bool:
    """Return True if gradients are equal to rounding: to a thousandth of the norm of each worker's."""
    for first, second in zip(one, other, strict=True):
        error = sum(float((a - b).square().sum()) for a, b in zip(first, second, strict=True))
        if error > 1e-6 * sum(float(b.square().sum()) for b in second):
            return False
    return True
