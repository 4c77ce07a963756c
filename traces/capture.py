"""Record a trace from PyTorch training, around a training loop of one's own: two lines more than before.

    with capture(model, optimizer, out="my_trace", phases={"late": range(500, 506)}) as recorder:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            recorder.step(loss)
            if recorder.done:
                break

Nothing is written when the loop raises. Needs the extra `capture` (torch). `traces.builtin` does the same
with a built-in model and a data set.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.errors import MissingExtraError, TraceError

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "capture") from error

from traces.recorder import Recorder


@contextlib.contextmanager
def capture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    out: str | Path,
    phases: Mapping[str, Sequence[int]],
    name: str | None = None,
    overhead_pairs: int = 0,
    manifest: Mapping[str, Any] | None = None,
) -> Iterator[Recorder]:
    """Record the steps in `phases` of the loop inside; write the trace to the new directory `out` at its end.

    `phases` maps the name of a moment of training to step numbers counted from 0; `name` defaults to the last
    part of `out`; `manifest` adds what only the caller knows (data set, batch, seed). With `overhead_pairs`
    the loop has to go on for twice as many steps after the last captured one (`Recorder.done` says when),
    which measure what the hooks cost. Ctrl-C keeps what was captured so far. TraceError if `out` exists or
    nothing was captured.
    """
    out = Path(out)
    if out.exists():
        raise TraceError("exists already", str(out), "a new directory; remove the old one or choose another")
    recorder = Recorder(model, optimizer, phases, overhead_pairs)
    try:
        try:
            yield recorder
        except KeyboardInterrupt:
            if recorder.captured:
                _save(recorder, model, out, name, manifest)
            raise
        _save(recorder, model, out, name, manifest)
    finally:
        recorder.close()


def _save(
    recorder: Recorder, model: nn.Module, out: Path, name: str | None, manifest: Mapping[str, Any] | None
) -> None:
    parameter = next(model.parameters())
    known = {
        "name": name or out.name,
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        **describe_machine(parameter.device),
    }
    recorder.trace({**known, **(manifest or {})}).save(out)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """What the times of a trace depend on: device, processor, threads, versions."""
    described: dict[str, Any] = {
        "device": device.type,
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    if device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
        described["versions"]["cuda"] = torch.version.cuda
    return described


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
