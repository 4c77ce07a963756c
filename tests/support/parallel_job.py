"""Run by torchrun in test_trace_parallel.py: small jobs of two ranks, recorded, with the gradients that a plain copy
of the model has on the same data, taken before anything was averaged.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from capture_cases import CountingClock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.traces.capture.recorder
from gradwire.scenarios.errors import TraceError

STEPS, WIDTH = 9, 64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10))
    model[0][0].bias.requires_grad_(False)
    return model


def data(rank: int, step: int, micro: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + micro)
    return torch.randn(4, WIDTH, generator=generator)


def own_gradients(plain: nn.Module, values: list[torch.Tensor], batches: list[torch.Tensor]) -> list[np.ndarray]:
    """What this rank alone would compute from the parameters `values`."""
    with torch.no_grad():
        for parameter, value in zip(plain.parameters(), values, strict=True):
            parameter.copy_(value)
    plain.zero_grad(set_to_none=True)
    for batch in batches:
        plain(batch).square().mean().backward()
    return [p.grad.numpy().copy() for p in plain.parameters() if p.requires_grad]


def whole(parameter: Any) -> torch.Tensor:
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()


def job(out: Path, kind: str, micro: int = 1, overflow: int | None = None, **options: Any) -> None:
    """Train and record; `overflow` is a step whose loss is infinite, with a GradScaler to notice it."""
    rank = dist.get_rank()
    core = network()
    plain = copy.deepcopy(core)
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in list(core)[:3]:
            fully_shard(block, mesh=mesh)
        model = fully_shard(core, mesh=mesh)
    else:
        model = DistributedDataParallel(core, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=overflow is not None)
    expected = {}
    with gradwire.capture(model, optimizer, out=out / kind, warmup=2, iterations=3, overhead_pairs=1, **options) as cap:
        for step in range(STEPS):
            batches = [data(rank, step, number) for number in range(micro)]
            expected[f"step{step}"] = own_gradients(plain, [whole(p) for p in core.parameters()], batches)
            optimizer.zero_grad()
            for number, batch in enumerate(batches):
                hold = number < micro - 1 and kind == "ddp"
                with model.no_sync() if hold else contextlib.nullcontext():
                    loss = model(batch).square().mean()
                    scaler.scale(loss * float("inf") if step == overflow else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            cap.step(loss)
    flat = {f"{step}/{n}": value for step, values in expected.items() for n, value in enumerate(values)}
    np.savez(out / f"{kind}.rank{rank}.npz", **flat)


@contextlib.contextmanager
def slow_network() -> Iterator[None]:
    """A clock that counts marks, and a million more whenever FSDP waits for parameters or hands gradients over."""
    clock = CountingClock()
    steps = {name: getattr(FSDPParamGroup, name) for name in ("wait_for_unshard", "post_backward")}
    clock_for = gradwire.traces.capture.recorder.clock_for

    def slow(original: Any) -> Any:
        def step(*arguments: Any) -> Any:
            clock.now += 10**6
            return original(*arguments)

        return step

    gradwire.traces.capture.recorder.clock_for = lambda device: clock
    for name, original in steps.items():
        setattr(FSDPParamGroup, name, slow(original))
    try:
        yield
    finally:
        gradwire.traces.capture.recorder.clock_for = clock_for
        for name, original in steps.items():
            setattr(FSDPParamGroup, name, original)


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job(out / "plain", "ddp")
    job(out / "mixed", "ddp", micro=2, overflow=3, raw=True)
    job(out / "plain", "fsdp2", every=2)
    with slow_network():
        job(out / "slow", "fsdp2")
    refused(out / "refused")
    if dist.get_rank() == 1:  # a rank that fails writes nothing, and the other one's trace is its own affair
        with contextlib.suppress(RuntimeError):
            failing(out / "failing")
    else:
        failing(out / "failing")
    dist.destroy_process_group()


def refused(out: Path) -> None:
    """Tensor parallelism, with FSDP2 around it and without."""
    for sharded in (False, True):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        if sharded:
            fully_shard(model, mesh=mesh["data"])
        try:
            with gradwire.capture(model, torch.optim.SGD(model.parameters(), 0.1), out=out):
                raise AssertionError("tensor parallelism was not noticed")
        except TraceError as error:
            assert "parameter 0.weight is sharded" in str(error), error


def failing(out: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradwire.capture(model, optimizer, out=out, warmup=0, iterations=1) as cap:
        model(data(0, 0)).mean().backward()
        optimizer.step()
        cap.step()
        if dist.get_rank() == 1:
            raise RuntimeError("out of memory")


if __name__ == "__main__":
    signal.alarm(240)  # whatever becomes of the test that started this: a process that waits for its peer must not stay
    main()
