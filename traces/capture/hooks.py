"""Functions hook PyTorch's module calls and loss scaling for the recorder, and unwrap optimizers and their closures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from torch.amp import GradScaler as Scaler

_IN_PLACE = "_compiled_call_impl"  # `module()` runs this after `module.compile()`


def wrap_calls(
    module: nn.Module, before: Callable[..., None], after: Callable[..., None] | None, *, first: bool
) -> Callable[[], None]:
    """Call `before` and `after` around every call of `module`, if `first` ahead of its other hooks. Hooks of a module
    compiled in place would be compiled with it, or never run once it is; there the call itself is wrapped."""
    compiled = getattr(module, _IN_PLACE, None)
    if compiled is not None:

        def call(*arguments: Any, **keywords: Any) -> Any:
            before()
            result = compiled(*arguments, **keywords)
            if after is not None:
                after()
            return result

        setattr(module, _IN_PLACE, call)

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


def innermost_optimizers(optimizers: object) -> list[torch.optim.Optimizer]:
    """Return the innermost optimizers: `optimizers` is one or several, bare or wrapped. Wrappers are e.g. accelerate's
    prepared optimizer and LightningOptimizer. TraceError for anything else."""
    is_many = isinstance(optimizers, Iterable) and not isinstance(optimizers, torch.optim.Optimizer)
    innermost = [_innermost(one) for one in (list(optimizers) if is_many else [optimizers])]  # type: ignore[call-overload]
    if not innermost:
        raise TraceError("no optimiser", "capture", "the optimizer that steps the model, or several")
    return innermost


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    # Wrappers may inherit from Optimizer without its hooks; the wrapped optimizer has them and makes the step.
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer) and inner is not optimizer:
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TraceError(f"optimiser {type(optimizer).__name__}", "capture", "a torch.optim.Optimizer")
    return optimizer


def closure_of(arguments: tuple[object, ...], named: Json) -> Callable[[], object] | None:
    """Return the closure passed to `optimizer.step`, if any; `arguments` begin with the optimizer."""
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    return closure if callable(closure) else None


def with_closure(
    arguments: tuple[object, ...], named: Json, closure: Callable[[], object]
) -> tuple[tuple[object, ...], Json]:
    """Return the same arguments with another closure."""
    if "closure" in named:
        return arguments, {**named, "closure": closure}
    return (arguments[0], closure, *arguments[2:]), named


_listeners: list[Callable[[Scaler], None]] = []  # callbacks for scaled losses
_original_scale: Any = None  # GradScaler's original method while there are listeners


def on_loss_scaling(callback: Callable[[Scaler], None]) -> Callable[[], None]:
    """Call `callback(scaler)` whenever an enabled GradScaler scales a loss. PyTorch has no hook for that, and a scaled
    gradient is not marked: a factor of 65536 would go unnoticed. So the method is replaced while there are
    callbacks."""
    global _original_scale
    if not _listeners:
        _original_scale = torch.amp.GradScaler.scale
        torch.amp.GradScaler.scale = _scale_and_notify
    _listeners.append(callback)

    def stop() -> None:
        if callback in _listeners:
            _listeners.remove(callback)
            if not _listeners:
                torch.amp.GradScaler.scale = _original_scale

    return stop


def _scale_and_notify(scaler: Scaler, outputs: Any) -> Any:
    if scaler.is_enabled():
        for callback in list(_listeners):
            callback(scaler)
    return _original_scale(scaler, outputs)


def in_backward() -> bool:
    """Return True if autograd is running in this thread, as when activation checkpointing recomputes a module."""
    return bool(torch._C._current_graph_task_id() != -1)
