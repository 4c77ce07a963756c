"""`capture` records a trace around a user's PyTorch training loop, with two more lines.

    with gradwire.capture(model, optimizer, out="run1.trace") as cap:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            cap.step(loss)

The loop may continue after the last recorded step; `cap.done` is true when nothing is left to record. The code is the
same under `torchrun`: with DistributedDataParallel or FSDP2 every rank writes its own trace, run1.trace.rank0 and so
on, and `gradwire trace merge` combines them. Mixed precision, accumulated gradients and torch.compile need no extra
code.

Nothing is written if the loop raises, and no hook outlives the block. Needs the extra `capture` (torch).
`gradwire.traces.capture.builtin_models` does the same with a built-in model and a data set.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gradwire.result_store.folders.output_folder import NEW_FOLDER, is_taken
from gradwire.scenarios.errors import MissingExtraError, TraceError
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer, require_path

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "capture") from error

from gradwire.traces.capture.parallel import ProcessGroup, entry_module
from gradwire.traces.capture.plan import PHASE
from gradwire.traces.capture.recorder import TraceRecorder
from gradwire.traces.capture.statistics import RawFolder
from gradwire.traces.devices import device_name, processor_name
from gradwire.traces.storage.writer import manifest_text, refuse_unwritable, write


@contextlib.contextmanager
def capture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    out: str | Path,
    iterations: int = 10,
    warmup: int = 3,
    every: int = 1,
    phases: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
    overhead_pairs: int = 5,
    raw: bool = False,
    manifest: JsonView | None = None,
) -> Iterator[TraceRecorder]:
    """Record some steps of the loop inside; write the trace to the new directory `out` at the end.

    Parameters
    ----------
    model, optimizer : as trained, wrapped or not; several optimizers as a list.
    out : with several ranks each writes to `out` with ".rank0" and so on appended.
    iterations, warmup : record `iterations` steps after the first `warmup`.
    every : compute magnitudes in every `every`-th recorded step only; times are recorded in all.
    phases : instead of `iterations` and `warmup`, the steps of several phases of training: name -> step numbers from 0.
    name : of the trace; the last part of `out` by default.
    overhead_pairs : pairs of steps after the last recorded one, with and without hooks, that measure the overhead of
        the hooks. A loop that ends earlier leaves fewer pairs.
    raw : also store the gradients of sampled steps (location: `gradwire.traces.storage.writer`). They are large.
    manifest : adds facts that only the caller knows (data set, batch, seed).

    Ctrl-C keeps the steps captured so far. TraceError if `out` exists, nothing was captured, the model has an
    unsupported wrapper, or an argument has a wrong type.
    """
    out = require_path(out, "capture(out)", NEW_FOLDER, TraceError)
    require_instance(model, nn.Module, "capture(model)", "a torch.nn.Module", TraceError)
    if name is not None:
        require_instance(name, str, "capture(name)", "the name of the trace as text", TraceError)
    if manifest is not None:
        manifest_text(require_instance(manifest, Mapping, "capture(manifest)", "keys and their values", TraceError))
    steps: Mapping[str, Sequence[int]]
    if phases is None:
        start = require_integer(warmup, "capture(warmup)", 0, TraceError)
        steps = {PHASE: range(start, start + require_integer(iterations, "capture(iterations)", 1, TraceError))}
    else:
        expected = 'phases of training and their steps, such as {"early": range(3, 6)}'
        steps = require_instance(phases, Mapping, "capture(phases)", expected, TraceError)
    world = ProcessGroup.find_group(model)
    if world.size > 1:
        out = out.with_name(f"{out.name}.rank{world.rank}")
    if is_taken(out):
        raise TraceError("exists already", str(out), NEW_FOLDER)
    refuse_unwritable(out)
    with contextlib.ExitStack() as stack:
        folder = None
        if raw:  # on the file system of `out`
            temporary = tempfile.TemporaryDirectory(prefix=f".{out.name}-raw-", dir=out.parent)
            folder = RawFolder(Path(stack.enter_context(temporary)))
        recorder = TraceRecorder(model, optimizer, steps, overhead_pairs, every=every, raw=folder)
        stack.callback(recorder.close)
        try:
            yield recorder
        except KeyboardInterrupt:
            if recorder.captured:
                with defer_interrupt():
                    _save(recorder, model, out, name, manifest, folder)
            raise
        with defer_interrupt():
            _save(recorder, model, out, name, manifest, folder)


def _save(
    recorder: TraceRecorder,
    model: nn.Module,
    out: Path,
    name: str | None,
    manifest: JsonView | None,
    folder: RawFolder | None,
) -> None:
    core = entry_module(model)
    core = getattr(core, "_orig_mod", core)
    parameter = next(model.parameters())
    known = {
        "name": name or out.name,
        "model": type(core).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        **describe_machine(parameter.device),
    }
    trace = recorder.trace({**known, **(manifest or {})})
    write(trace, out, raw=folder.arrange(*recorder.raw_files()) if folder is not None else None)


def describe_machine(device: torch.device) -> Json:
    """Return the facts that the times of a trace depend on: device, processor, threads, versions."""
    machine: Json = {
        "device": device.type,
        "cpu": processor_name(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    if device.type == "cuda":
        machine["gpu"] = device_name(device)
        machine["versions"]["cuda"] = torch.version.cuda
    return machine
