"""Gradients of every worker by itself: N workers with one copy of the parameters, in one process.

`of_each_in_turn` runs the model once per worker, forward and backward: obviously right, and the oracle. `Together` runs
all workers' samples through it at once and takes apart only what has to be: the gradient of a weight is worked out for
each worker's slice of the batch, and a normalisation over a batch is one over each slice. Everything else - the forward
pass, the gradients of activations - costs what it costs in plain training. Per-sample gradients by `torch.func.vmap`
were the alternative, at little more than half the speed.

A GPU wants much to do at a time, and so does a model of which each worker has few samples. A processor has caches:
what a worker's samples become on their way fits into them, what all workers' become does not. `Fastest` chooses.
What layers do to be taken apart is in `gradwire.training.layers`; a model with parameters of its own elsewhere (an
LSTM) goes in turn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.training.copies import Buffers, Copies, buffers_of, put_back, share_out
from gradwire.training.devices import draw_on, drawn
from gradwire.training.layers import FORWARDS
from gradwire.training.precision import Loss, exact
from gradwire.training.recorded import Recorded

Gradients = Sequence[list[Tensor]]
"""By worker, by parameter, in the order of `model.parameters()`."""


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Normalisations over all samples of a worker."""
ENOUGH = 8
"""Samples of a worker from which on a processor one worker after the other is no slower than all at once; ResNets and a
GPT were tried (`gradwire bench training`)."""


def of_each_in_turn(
    model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor, workers: int
) -> tuple[list[float], Gradients]:
    """The loss and the gradients of each worker, one after the other.

    Each moves running statistics from where they were before the step; afterwards they are the mean of the workers'
    (our choice; PyTorch's DDP keeps those of the first).

    inputs, targets : of all workers, N slices of equally many samples along the first dimension.
    """
    losses: list[float] = []
    gradients: list[list[Tensor]] = []
    parameters = list(model.parameters())
    before = buffers_of(model)
    after: list[Buffers] = []
    for mine in zip(*[each.chunk(workers) for each in (*inputs, targets)], strict=True):
        try:
            mean = loss(model, mine[:-1], mine[-1]).mean()
        except (ValueError, ScenarioError):
            check_norms(model, loss, mine[:-1], mine[-1])
            raise
        found = torch.autograd.grad(mean, parameters, allow_unused=True)
        gradients.append([_or_zero(each, p) for each, p in zip(found, parameters, strict=True)])
        losses.append(float(mean.detach()))
        if workers > 1:
            after.append(buffers_of(model))
            put_back(model, before)
    if workers > 1:
        share_out(model, before, after, workers)
    return losses, gradients


def of_one(
    copies: Copies, worker: int, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor
) -> tuple[float, list[Tensor]]:
    """(loss, gradients) of one worker's samples at its own parameters."""
    with copies.of(worker):
        losses, found = of_each_in_turn(copies.model, loss, inputs, targets, 1)
    return losses[0], found[0]


def check_norms(model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
    """Look for a batch norm that has nothing to normalise over in what one worker computes.

    Raises
    ------
    ScenarioError
        One has a single value per channel, which would become zero, whatever it is.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, NORMS)}
    seen: list[tuple[str, Tensor]] = []
    hooks = [each.register_forward_pre_hook(lambda m, given: seen.append((names[m], given[0]))) for each in names]
    try:
        with suppress(ValueError, ScenarioError):
            loss(model, inputs, targets)
    finally:
        for hook in hooks:
            hook.remove()
    for name, given in seen:
        if given.numel() == given.shape[1]:
            raise ScenarioError(
                f"gives the batch norm {name} one value per channel, {tuple(given.shape)}, and none to compare it with",
                "training.batch", "two samples of a worker or more, or larger pictures (training.size)",
            )  # fmt: skip


class Together:
    """The gradients of N workers by one forward and one backward pass. Keep it: it finds out once what is where."""

    def __init__(self, model: nn.Module, workers: int) -> None:
        self.model, self.workers = model, workers
        self.modules = {module for module in model.modules() if type(module) in FORWARDS}
        ours = {id(p) for module in self.modules for p in module.parameters(recurse=False)}
        self.missing = [name for name, p in model.named_parameters() if id(p) not in ours]

    @property
    def possible(self) -> bool:
        """Whether all parameters are of layers that can be taken apart."""
        return not self.missing

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """The loss and the gradients of each worker; arguments as in `of_each_in_turn`."""
        losses, stacked = self.stacked(loss, inputs, targets)
        return losses.tolist(), [[each[worker] for each in stacked] for worker in range(self.workers)]

    def stacked(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The losses, (N,), and of each parameter all workers' gradients, (N, ...); nothing waits for the device."""
        parameters = list(self.model.parameters())
        found: dict[int, Tensor] = {}
        with self._taken_apart(found):
            each = loss(self.model, inputs, targets).reshape(self.workers, -1).mean(dim=1)
            each.sum().backward()
        for parameter in parameters:
            parameter.grad = None
        whole = [found.get(id(p)) for p in parameters]
        return each.detach(), [
            p.new_zeros(self.workers, *p.shape) if all_ is None else all_
            for all_, p in zip(whole, parameters, strict=True)
        ]

    @contextmanager
    def _taken_apart(self, found: dict[int, Tensor]) -> Iterator[None]:
        """The model with other forward functions, which put gradients of parameters into `found`, (N, ...) each."""

        def keep(parameter: Tensor, gradient: Tensor) -> None:
            before, gradient = found.get(id(parameter)), gradient.to(parameter.dtype)
            found[id(parameter)] = gradient if before is None else before + gradient

        for module in self.modules:
            forward = FORWARDS[type(module)]
            module.forward = _bound(forward, module, self.workers, keep)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in self.modules:
                del module.forward  # the class's own is there again


def _bound(forward: Any, module: nn.Module, workers: int, keep: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: forward(module, x, workers, keep)


def _or_zero(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


Answers = Callable[[Loss, tuple[Tensor, ...], Tensor], tuple[list[float], Gradients]]
"""(loss, inputs, targets) to the loss and the gradients of each worker."""


class Fastest:
    """The gradients of N workers, an `Answers`, in the faster of the ways there are: in turn on a processor, if each
    worker has `ENOUGH` samples; else all at once if that is possible and does what each in turn does.

    Which it does is found out at the first step, by doing it both ways in float32, and where they differ in float64 as
    well: rounding alone makes much of the gradients of a net whose rectifiers are near zero. They differ where a
    layer's input is no run of samples (positions, to an embedding), and where something is drawn (dropout): then it
    goes in turn, always.

    recorded : on a GPU, replay what was done the first time; for models and losses in which Python decides nothing.
    """

    def __init__(self, model: nn.Module, workers: int, recorded: bool = False) -> None:
        self.model, self.workers = model, workers
        self.on_gpu = next((each.device.type == "cuda" for each in model.parameters()), False)
        self._together = Together(model, workers)
        self._replay = Recorded(model, self._together.stacked) if recorded and self.on_gpu else None
        self._alike: bool | None = None
        self.slower: list[str] = []
        """What is done in a slower way than a GPU could, and why; each is warned of as well."""
        if workers == 1:
            self._alike = False

    @property
    def way(self) -> str:
        """How it is done, in words."""
        if self._alike is not True:
            return "one worker after the other"
        return "all workers at once" + (", replayed" if self._replay is not None else "")

    def __call__(self, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor) -> tuple[list[float], Gradients]:
        """The loss and the gradients of each worker; arguments as in `of_each_in_turn`."""
        model, workers = self.model, self.workers
        if self._alike is None and not self._together.possible:
            self._in_turn(f"{self._together.missing[0]} is of no layer that can be taken apart")
        if self._alike is False or (not self.on_gpu and len(targets) >= ENOUGH * workers):
            return of_each_in_turn(model, loss, inputs, targets, workers)
        if self._alike:
            if self._replay is not None:
                try:
                    return self._replay(loss, inputs, targets)
                except RuntimeError as error:  # it cannot be recorded
                    self._replay = None
                    self._slower(f"steps cannot be replayed: {_first_line(error)}", "twice")
            return self._together(loss, inputs, targets)
        before, exactly, device = buffers_of(model), exact(loss), targets.device
        from_here = drawn(device)
        expected = of_each_in_turn(model, exactly, inputs, targets, workers)
        after, from_there = buffers_of(model), drawn(device)
        put_back(model, before)
        answer = None
        try:
            answer = self._together(exactly, inputs, targets)
            self._alike = _agree(answer[1], expected[1])
            if not self._alike:
                self._alike = _alike_in_float64(model, exactly, inputs, targets, workers)
            if not self._alike:
                self._in_turn("all at once they are others")
        except (RuntimeError, TypeError, ScenarioError) as error:
            # Shapes that do not come apart; a model that has no copy in float64.
            self._in_turn(_first_line(error))
        if self.on_gpu:
            torch.cuda.empty_cache()  # of both ways, which takes several times what one of them does
        if exactly is not loss:
            put_back(model, before)
            draw_on(from_here, device)
            return self(loss, inputs, targets)
        draw_on(from_there, device)  # as where it is known how it is done
        if self._alike and answer is not None:
            return answer
        put_back(model, after)
        return expected

    def _in_turn(self, why: str) -> None:
        self._alike = False
        self._slower(f"gradients are computed one worker after the other: {why}", "ten times")

    def _slower(self, what: str, times: str) -> None:
        """Note what stands against a faster way; on a processor there is none that counts."""
        if self.on_gpu:
            self.slower.append(what)
            warnings.warn(f"{what}; a GPU takes {times} as long for it", stacklevel=4)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _alike_in_float64(
    model: nn.Module, loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor, workers: int
) -> bool:  # fmt: skip
    """Whether both ways give the same gradients in float64; a copy of the model is asked, and nothing is drawn."""
    twin = deepcopy(model).double()
    wide = [each.double() if each.is_floating_point() else each for each in (*inputs, targets)]
    drawn_on = {each.device.index for each in wide if each.is_cuda}
    with torch.random.fork_rng(devices=sorted(drawn_on) if torch.cuda.is_initialized() else ()):
        one = of_each_in_turn(twin, loss, tuple(wide[:-1]), wide[-1], workers)
        other = Together(twin, workers)(loss, tuple(wide[:-1]), wide[-1])
    return _agree(other[1], one[1])


def _agree(one: Gradients, other: Gradients) -> bool:
    """Whether gradients are the same to rounding: to a thousandth of the norm of each worker's."""
    for mine, theirs in zip(one, other, strict=True):
        error = sum(float((a - b).square().sum()) for a, b in zip(mine, theirs, strict=True))
        if error > 1e-6 * sum(float(b.square().sum()) for b in theirs):
            return False
    return True
