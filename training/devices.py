"""Makes torch deterministic on a device, times its work, and moves saved state to it.

On the CPU the same seeds give the same bits. On a GPU some of torch's algorithms add up in the order of the threads,
and others are chosen by timing: `deterministic` selects deterministic ones, and float32 instead of TF32 with its 10
bits. An operation without a deterministic algorithm runs all the same and is reported; refusing it would leave some
models without a GPU.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from torch import Tensor

from gradwire.traces.devices import device_name
from gradwire.training.reducers.state import map_tensors

CPU = torch.device("cpu")
WORKSPACE, REPEATS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
NOT_DETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
"""The warning of torch about such an operation."""


def model_device(model: torch.nn.Module) -> torch.device:
    """Return the device of a model's parameters; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), CPU)


@contextmanager
def deterministic(device: torch.device) -> Iterator[set[str]]:
    """Make torch compute deterministically on a GPU, as far as it can; do nothing on the CPU. Yields a set that
    collects the names of operations without a deterministic algorithm. All settings are restored afterwards, except for
    cuBLAS's variable, which is read once in a process."""
    not_deterministic: set[str] = set()
    if device.type == "cpu":
        yield not_deterministic
        return
    os.environ.setdefault(WORKSPACE, REPEATS)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    flags = [(cudnn, "benchmark"), (cudnn, "allow_tf32"), (matmul, "allow_tf32")]
    flags.append((torch.utils.deterministic, "fill_uninitialized_memory"))  # never read, and doubles the cost
    before = [getattr(owner, name) for owner, name in flags]
    enabled = torch.are_deterministic_algorithms_enabled()
    was_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{NOT_DETERMINISTIC.pattern}")
        warnings.showwarning = _warning_collector(not_deterministic, warnings.showwarning)
        try:
            for owner, name in flags:
                setattr(owner, name, False)
            torch.use_deterministic_algorithms(True, warn_only=True)
            yield not_deterministic
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=was_warn_only)
            for (owner, name), value in zip(flags, before, strict=True):
                setattr(owner, name, value)


def _warning_collector(not_deterministic: set[str], show: Any) -> Any:
    """Return a `warnings.showwarning` that collects names of operations and passes on everything else."""

    def note(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        match = NOT_DETERMINISTIC.search(str(message))
        if match is None:
            show(message, *args, **kwargs)
        else:
            not_deterministic.add(match[1])

    return note


def describe_device(device: torch.device, unlike: set[str], slower: Sequence[str]) -> dict[str, Any]:
    """Return the description of a device for a training summary. It holds the device, its name, whether deterministic
    algorithms were enabled, the operations without one, and what ran more slowly than it could."""
    return {
        "device": str(device),
        "name": device_name(device),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "not_deterministic": sorted(unlike),
        "slower": list(slower),
    }


class Stopwatch:
    """Measures time in nanoseconds: `began = watch()`, and later `watch() - began`. On the CPU it is the processor time
    of this thread. A GPU works asynchronously: with `waits` the wall clock counts, after waiting for the device;
    without, the processor time spent on launching its work, which costs no waiting."""

    def __init__(self, device: torch.device, waits: bool = False) -> None:
        self.waits = waits and device.type != "cpu"
        self.device = device

    def __call__(self) -> int:
        if not self.waits:
            return thread_time_ns()
        torch.cuda.synchronize(self.device)
        return perf_counter_ns()


def to_device(saved: Any, device: torch.device) -> Any:
    """Return nested lists, tuples and dictionaries with all tensors on a device, such as those of a checkpoint."""
    return map_tensors(lambda tensor: tensor.to(device), saved)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random generators: the CPU's, and that of a GPU in use."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if _draws(device) else {})


def restore_random_states(saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the states of torch's random generators."""
    if "cpu" in saved:
        torch.set_rng_state(saved["cpu"].cpu())
    if "cuda" in saved and _draws(device):
        torch.cuda.set_rng_state(saved["cuda"].cpu(), device)


def _draws(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_initialized()
