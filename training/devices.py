"""Devices of a training: repeatable algorithms, a clock that waits for the device, and moving what is remembered.

On the CPU the same seeds give the same bits, and nothing has to be asked for. On a GPU torch chooses among algorithms
of which some add up in whatever order threads come, or try out which is fastest: `repeatable` has it take those that
repeat, and float32 as it is instead of TF32's 10 bits. An operation for which there is none runs all the same, and is
named: the alternative, to refuse what cannot be repeated, would leave some models without a GPU.
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

CPU = torch.device("cpu")
WORKSPACE, REPEATS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Variable of the environment, and value of it, with which cuBLAS repeats itself [torch]."""
WITHOUT = re.compile(r"(\S+) does not have a deterministic implementation")
"""What torch warns of."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[set[str]]:
    """In here torch computes alike each time on a GPU, as far as it can; as ever on the CPU.

    Yields a set that fills with the operations that have no algorithm which repeats. What was set before is set
    afterwards, but for cuBLAS's variable, which is read once in a process.
    """
    unlike: set[str] = set()
    if device.type == "cpu":
        yield unlike
        return
    os.environ.setdefault(WORKSPACE, REPEATS)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    flags = [(cudnn, "benchmark"), (cudnn, "allow_tf32"), (matmul, "allow_tf32")]
    flags.append(
        (torch.utils.deterministic, "fill_uninitialized_memory")
    )  # it is never read, and costs as much again
    before = [getattr(owner, name) for owner, name in flags]
    asked = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{WITHOUT.pattern}")
        warnings.showwarning = _noting(unlike, warnings.showwarning)
        try:
            for owner, name in flags:
                setattr(owner, name, False)
            torch.use_deterministic_algorithms(True, warn_only=True)
            yield unlike
        finally:
            torch.use_deterministic_algorithms(asked, warn_only=only_warned)
            for (owner, name), value in zip(flags, before, strict=True):
                setattr(owner, name, value)


def _noting(unlike: set[str], show: Any) -> Any:
    """`warnings.showwarning` that keeps the names of operations, and shows everything else as ever."""

    def note(message: Warning | str, *more: Any, **named: Any) -> None:
        found = WITHOUT.search(str(message))
        if found is None:
            show(message, *more, **named)
        else:
            unlike.add(found[1])

    return note


def described(device: torch.device, unlike: set[str], slower: Sequence[str]) -> dict[str, Any]:
    """A device for a training's summary: which one, its name, whether torch was told to take algorithms that repeat,
    which operations had none, and what was done in a slower way than it could."""
    return {
        "device": str(device), "name": device_name(device),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(), "not_deterministic": sorted(unlike),
        "slower": list(slower),
    }  # fmt: skip


class Stopwatch:
    """How long work takes, in nanoseconds: `began = watch()`, and later `watch() - began`.

    Of the CPU, the processor time of this thread. A GPU is handed its work and goes on with it while the processor does
    something else: with `waits` it is waited for before every look, and what counts is the wall clock; without, what
    the processor spent on handing it over, which costs no waiting.
    """

    def __init__(self, device: torch.device, waits: bool = False) -> None:
        self.waits = waits and device.type != "cpu"
        self.device = device

    def __call__(self) -> int:
        if not self.waits:
            return thread_time_ns()
        torch.cuda.synchronize(self.device)
        return perf_counter_ns()


def moved(saved: Any, device: torch.device) -> Any:
    """Lists, tuples and dictionaries with all their tensors on a device, as of a checkpoint made on another one."""
    if isinstance(saved, Tensor):
        return saved.to(device)
    if isinstance(saved, dict):
        return {key: moved(value, device) for key, value in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(moved(each, device) for each in saved)
    return saved


def drawn(device: torch.device) -> dict[str, Tensor]:
    """Where torch's random numbers are: the processor's, and those of a GPU that is computed on."""
    found = {"cpu": torch.get_rng_state()}
    return found | ({"cuda": torch.cuda.get_rng_state(device)} if _draws(device) else {})


def draw_on(saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Let torch's random numbers go on from where they were."""
    if "cpu" in saved:
        torch.set_rng_state(saved["cpu"].cpu())
    if "cuda" in saved and _draws(device):
        torch.cuda.set_rng_state(saved["cuda"].cpu(), device)


def _draws(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_initialized()
