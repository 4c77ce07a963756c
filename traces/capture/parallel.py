"""Finds layers, process group, buckets and whole gradients of models wrapped in DDP, FSDP2 or torch.compile, for the
recorder.

A rank of a data-parallel job sends its *own* gradient, which averaging overwrites before the optimizer sees it. So with
several ranks the recorder reads a gradient when it is accumulated, and excludes network time: an iteration's backward
pass ends with its last gradient, not with the last bucket's arrival, and the clock pauses while FSDP gathers parameters
or hands gradients over. (On a CPU the exchange still competes with the training for cores.)

FSDP2 keeps only a shard of each parameter; the whole gradient exists on a separate parameter object between the
backward computation and the reduce-scatter. It is reached through the internals of `torch.distributed.fsdp`, as of
PyTorch 2.13; there is no public interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json

TRANSPARENT = ("_orig_mod", "_checkpoint_wrapped_module")  # names of children that replace their parent
# Methods of a unit that communicate; every all-gather ends in wait_for_unshard.
FSDP_STEPS = ("unshard", "wait_for_unshard", "pre_forward", "pre_backward", "post_backward")


def entry_module(model: nn.Module) -> nn.Module:
    """Return the module whose call begins an iteration. It is `model` without DistributedDataParallel, whose broadcast
    of buffers would count. TraceError for unsupported wrappers."""
    for module in model.modules():
        if isinstance(module, DataParallel):
            raise TraceError("is wrapped in nn.DataParallel", "the model", "DistributedDataParallel, or no wrapper")
        if type(module).__name__ == "FullyShardedDataParallel":
            raise TraceError("uses FSDP1", "the model", "FSDP2: torch.distributed.fsdp.fully_shard")
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def is_compiled(module: nn.Module) -> bool:
    """Return True if calling `module` runs code of torch.compile, which does not call modules one by one."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def named_children(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield (full name, child) of `module`, called `name`, as if it were not wrapped."""
    for key, child in module.named_children():
        wraps = key in TRANSPARENT or (key == "module" and isinstance(module, DistributedDataParallel))
        yield (name if wraps else f"{name}.{key}".lstrip(".")), child


@dataclass
class ProcessGroup:
    """Rank and size of the group of workers that train together; `kind` is "single", "ddp" or "fsdp2"."""

    kind: str
    rank: int = 0
    size: int = 1
    backend: str | None = None

    @classmethod
    def find_group(cls, model: nn.Module) -> ProcessGroup:
        """Return the group that `model` is part of."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        sharded = any(_is_sharded(module) for module in model.modules())
        wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
        kind = "fsdp2" if sharded else "ddp" if wrapped else "single"
        if not distributed:
            return cls(kind)
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return cls(kind, rank, size, str(torch.distributed.get_backend()))

    @property
    def local(self) -> bool:
        """True if gradients are averaged before the optimizer and have to be read earlier."""
        return self.kind != "single"

    def described(self) -> Json:
        """Return the manifest's entries; none for a single process."""
        if self.kind == "single" and self.size == 1:
            return {}
        return {"parallel": {"kind": self.kind, "world_size": self.size, "backend": self.backend}, "rank": self.rank}


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "_get_fsdp_state") and hasattr(module, "unshard")


def ddp_buckets(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each bucket of DistributedDataParallel, in order of reduction. None if `model` has no
    such wrapper or its buckets are not final (they are from the second iteration on, and never with
    `find_unused_parameters`)."""
    ddp = next((m for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
    if ddp is None:
        return []
    indices = str(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
    ignored: set[str] = getattr(ddp, "parameters_to_ignore", set())
    known = [p for name, p in ddp.module.named_parameters() if p.requires_grad and name not in ignored]
    buckets = [[int(index) for index in part.split()] for part in indices.split(",") if part.strip()]
    if sorted(index for bucket in buckets for index in bucket) != list(range(len(known))):
        return []
    return [[known[index] for index in bucket] for bucket in buckets]


@dataclass
class FsdpUnit:
    """One parameter group of FSDP2, gathered and reduce-scattered together."""

    group: Any
    name: str
    gathered: int = 0  # all-gathers in this step
    scattered: int = 0  # reduce-scatters in this step
    hooked: set[int] = field(default_factory=set)  # ids of parameters hooked in this step

    @property
    def shards(self) -> list[Any]:
        """FSDP's record of each parameter."""
        return list(self.group.fsdp_params)

    def described(self) -> Json:
        """Return sizes and counts of its collectives in one iteration, for the manifest."""
        policy = self.group.mp_policy
        gather = sum(_bytes(shard.sharded_param, policy.param_dtype) for shard in self.shards)
        trainable = [shard for shard in self.shards if shard.sharded_param.requires_grad]
        scatter = sum(_bytes(shard.sharded_param, self.reduce_dtype) for shard in trainable)
        return {
            "kind": "fsdp_unit",
            "name": self.name or "model",
            "shards": getattr(self.group.mesh_info, "shard_mesh_size", 1),
            "all_gather": {"bytes": gather, "per_iteration": self.gathered},
            "reduce_scatter": {"bytes": scatter, "per_iteration": self.scattered},
        }

    def splits_layers(self, parameter: nn.Parameter) -> bool:
        """Return True if the parameter is also a shard of tensor parallelism, so that no worker has all of it."""
        return any(s.sharded_param is parameter and getattr(s, "is_dtensor", False) for s in self.shards)

    @property
    def reduces(self) -> bool:
        """True if the end of the backward pass, now, starts a reduce-scatter."""
        wholes = [(getattr(shard, "_unsharded_param", None), shard) for shard in self.shards]
        waiting = any(
            whole is not None and (whole.grad is not None or shard.unsharded_accumulated_grad is not None)
            for whole, shard in wholes
        )
        return waiting and bool(self.group.reduce_grads)

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        """Type in which gradients travel; None for that of the parameter."""
        return self.group.mp_policy.reduce_dtype or self.group.mp_policy.param_dtype


def _bytes(parameter: nn.Parameter, dtype: torch.dtype | None) -> int:
    return parameter.numel() * (dtype or parameter.dtype).itemsize


class FsdpUnits:
    """FSDP2 units of a model, patched to expose whole gradients. TraceError if the FSDP2 of this PyTorch has another
    structure."""

    def __init__(self, model: nn.Module) -> None:
        self.all: list[FsdpUnit] = []
        try:
            for name, module in model.named_modules():
                if _is_sharded(module):
                    groups = module._get_fsdp_state()._fsdp_param_groups
                    known = [unit.group for unit in self.all]
                    self.all += [FsdpUnit(group, name) for group in groups if all(old is not group for old in known)]
            for unit in self.all:
                _ = ([(shard.sharded_param, shard._module_info) for shard in unit.shards], unit.group.is_unsharded)
                _ = [getattr(unit.group, step) for step in FSDP_STEPS]
        except AttributeError as error:
            change = f"FSDP2 of PyTorch {torch.__version__} has changed ({error})"
            raise TraceError(change, "capture", "FSDP2 as in PyTorch 2.13") from error

    def unit_of(self, parameter: nn.Parameter) -> FsdpUnit | None:
        """Return the unit of a (sharded) parameter; None for one that FSDP does not manage."""
        for unit in self.all:
            if any(shard.sharded_param is parameter for shard in unit.shards):
                return unit
        return None

    def patch(
        self,
        pause: Callable[[], contextlib.AbstractContextManager[None]],
        hook: Callable[[nn.Parameter, Callable[[torch.Tensor], torch.Tensor]], Callable[[torch.Tensor], None]],
    ) -> Callable[[], None]:
        """Pause the clock while units communicate, and hook the whole parameters; return the function that undoes it.
        `hook(sharded parameter, gradient)` returns the function to call with the whole parameter when its gradient is
        complete; `gradient(parameter)` is that gradient, including earlier micro-batches."""
        handles: list[Any] = []

        def watch(unit: FsdpUnit, step: str) -> None:
            original = getattr(unit.group, step)

            def patched(*arguments: Any, **keywords: Any) -> Any:
                closed = not unit.group.is_unsharded
                with pause():
                    if step == "post_backward":
                        unit.scattered += unit.reduces
                    result = original(*arguments, **keywords)
                    if step == "wait_for_unshard":
                        unit.gathered += closed and unit.group.is_unsharded
                        self._hook_whole(unit, hook, handles)
                return result

            setattr(unit.group, step, patched)

        for unit in self.all:
            unit.gathered = unit.scattered = 0
            unit.hooked = set()
            for step in FSDP_STEPS:
                watch(unit, step)

        def undo() -> None:
            for unit in self.all:
                for step in FSDP_STEPS:
                    unit.group.__dict__.pop(step, None)
            for handle in handles:
                handle.remove()

        return undo

    @staticmethod
    def _hook_whole(unit: FsdpUnit, hook: Callable[..., Callable[[torch.Tensor], None]], handles: list[Any]) -> None:
        for shard in unit.shards:
            whole = shard.unsharded_param
            has_gradient = shard.sharded_param.requires_grad and shard.sharded_param.numel() > 0
            if not has_gradient or id(whole) in unit.hooked:
                continue
            unit.hooked.add(id(whole))

            def gradient(parameter: torch.Tensor, shard: Any = shard) -> torch.Tensor:
                grad, earlier = parameter.grad, shard.unsharded_accumulated_grad
                return grad if earlier is None else earlier + grad  # type: ignore[operator,return-value]

            handles.append(whole.register_post_accumulate_grad_hook(hook(shard.sharded_param, gradient)))
