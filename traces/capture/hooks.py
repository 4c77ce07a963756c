"""Ways to be told when PyTorch does something, each of which returns the function that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from torch.amp import GradScaler as Scaler

_IN_PLACE = "_compiled_call_impl"  # what `module.compile()` makes `module()` run instead of its own call


def surround(
    module: nn.Module, before: Callable[..., None], after: Callable[..., None] | None, *, first: bool
) -> Callable[[], None]:
    """Call `before` and `after` around every call of `module`; `first`: ahead of its other hooks.

    Hooks of a module that was compiled in place would be compiled with it, or not be noticed at all once it
    is; there the call itself is wrapped.
    """
    compiled = getattr(module, _IN_PLACE, None)
    if compiled is not None:

        def called(*arguments: Any, **named: Any) -> Any:
            before()
            result = compiled(*arguments, **named)
            if after is not None:
                after()
            return result

        setattr(module, _IN_PLACE, called)

        def unwrap() -> None:
            setattr(module, _IN_PLACE, compiled)

        return unwrap
    handles = [module.register_forward_pre_hook(before, prepend=first)]
    if after is not None:
        handles.append(module.register_forward_hook(after))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def stepping(optimizers: object) -> list[torch.optim.Optimizer]:
    """The optimisers that do the work: `optimizers` is one or several, bare or wrapped (accelerate's prepared
    optimiser, LightningOptimizer). TraceError for what is none.
    """
    several = isinstance(optimizers, Iterable) and not isinstance(optimizers, torch.optim.Optimizer)
    found = [_innermost(one) for one in (list(optimizers) if several else [optimizers])]  # type: ignore[call-overload]
    if not found:
        raise TraceError("no optimiser", "capture", "the one that steps the model, or several")
    return found


def _innermost(one: Any) -> torch.optim.Optimizer:
    # Wrappers may be optimisers by inheritance without the hooks of one; what they wrap has them and is what steps.
    while isinstance(inner := getattr(one, "optimizer", None), torch.optim.Optimizer) and inner is not one:
        one = inner
    if not isinstance(one, torch.optim.Optimizer) or not hasattr(one, "_optimizer_step_pre_hooks"):
        raise TraceError(f"optimiser {type(one).__name__}", "capture", "a torch.optim.Optimizer")
    return one


def closure_of(arguments: tuple[object, ...], named: Json) -> Callable[[], object] | None:
    """The closure with which `optimizer.step` was called, if any; `arguments` begin with the optimiser."""
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    return closure if callable(closure) else None


def with_closure(
    arguments: tuple[object, ...], named: Json, closure: Callable[[], object]
) -> tuple[tuple[object, ...], Json]:
    """The same arguments with another closure."""
    if "closure" in named:
        return arguments, {**named, "closure": closure}
    return (arguments[0], closure, *arguments[2:]), named


_listeners: list[Callable[[Scaler], None]] = []  # who wants to know of scaled losses
_original_scale: Any = None  # GradScaler's own method while there are any


def note_scaling(told: Callable[[Scaler], None]) -> Callable[[], None]:
    """Call `told(scaler)` whenever an enabled GradScaler scales a loss.

    There is no hook for that, and a gradient does not say that it is scaled: a factor of 65536 would go
    unnoticed. So the method is replaced for as long as somebody listens.
    """
    global _original_scale
    if not _listeners:
        _original_scale = torch.amp.GradScaler.scale
        torch.amp.GradScaler.scale = _scale_and_tell
    _listeners.append(told)

    def stop() -> None:
        if told in _listeners:
            _listeners.remove(told)
            if not _listeners:
                torch.amp.GradScaler.scale = _original_scale

    return stop


def _scale_and_tell(scaler: Scaler, outputs: Any) -> Any:
    if scaler.is_enabled():
        for told in list(_listeners):
            told(scaler)
    return _original_scale(scaler, outputs)


def in_backward() -> bool:
    """Whether autograd is at work in this thread, as when activation checkpointing runs a module again."""
    return bool(torch._C._current_graph_task_id() != -1)
