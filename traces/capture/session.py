"""Record a trace from PyTorch training, around a training loop of one's own: two lines more than before.

    with gradwire.capture(model, optimizer, out="run1.trace") as cap:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            cap.step(loss)

The loop may go on after the last recorded step; `cap.done` says when there is nothing left to record. It stays
the same under `torchrun`: with DistributedDataParallel or FSDP2 every rank writes a trace of its own,
run1.trace.rank0 and so on, and `gradwire trace merge` makes one of them. Mixed precision, accumulated gradients
and torch.compile need nothing more either.

Nothing is written when the loop raises, and no hook outlives the block. Needs the extra `capture` (torch).
`gradwire.traces.builtin` does the same with a built-in model and a data set.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gradwire.scenarios.errors import MissingExtraError, TraceError
from gradwire.scenarios.given import instance_of, path_of, whole_number
from gradwire.scenarios.interrupt import deferred
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.output import FREE, is_taken

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "capture") from error

from gradwire.traces.capture.parallel import World, start_of
from gradwire.traces.capture.plan import PHASE
from gradwire.traces.capture.recorder import Recorder
from gradwire.traces.capture.statistics import RawFolder
from gradwire.traces.devices import device_name, processor_name
from gradwire.traces.storage import manifest_text, refuse_unwritable, write


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
) -> Iterator[Recorder]:
    """Record some steps of the loop inside; write the trace to the new directory `out` when it ends.

    Parameters
    ----------
    model, optimizer : as trained, wrapped or not; several optimisers as a list.
    out : with several ranks each writes to `out` with ".rank0" and so on appended.
    iterations, warmup : record `iterations` steps after the first `warmup`.
    every : compute magnitudes in every `every`-th recorded step only; times are recorded in all.
    phases : instead of `iterations` and `warmup`, the steps of several moments of training: name -> step
        numbers counted from 0.
    name : of the trace; the last part of `out` by default.
    overhead_pairs : after the last recorded step, so many pairs of steps measure what the hooks cost: one step
        with hooks and one without. A loop that ends before simply leaves fewer pairs.
    raw : keep the gradients of sampled steps themselves; see `gradwire.traces.storage` for where. They are large.
    manifest : adds what only the caller knows (data set, batch, seed).

    Ctrl-C keeps what was captured so far. TraceError if `out` exists, nothing was captured, or the model is
    wrapped in something that cannot be seen through, or an argument is of a type that cannot be used.
    """
    out = path_of(out, "capture(out)", FREE, TraceError)
    instance_of(model, nn.Module, "capture(model)", "a torch.nn.Module", TraceError)
    if name is not None:
        instance_of(name, str, "capture(name)", "the name of the trace as text", TraceError)
    if manifest is not None:
        manifest_text(instance_of(manifest, Mapping, "capture(manifest)", "keys and their values", TraceError))
    steps: Mapping[str, Sequence[int]]
    if phases is None:
        start = whole_number(warmup, "capture(warmup)", 0, TraceError)
        steps = {PHASE: range(start, start + whole_number(iterations, "capture(iterations)", 1, TraceError))}
    else:
        expected = 'moments of training and their steps, such as {"early": range(3, 6)}'
        steps = instance_of(phases, Mapping, "capture(phases)", expected, TraceError)
    world = World.around(model)
    if world.size > 1:
        out = out.with_name(f"{out.name}.rank{world.rank}")
    if is_taken(out):
        raise TraceError("exists already", str(out), FREE)
    refuse_unwritable(out)
    with contextlib.ExitStack() as stack:
        folder = _raw_folder(stack, out) if raw else None
        recorder = Recorder(model, optimizer, steps, overhead_pairs, every=every, raw=folder)
        stack.callback(recorder.close)
        try:
            yield recorder
        except KeyboardInterrupt:
            if recorder.captured:
                with deferred():
                    _save(recorder, model, out, name, manifest, folder)
            raise
        with deferred():
            _save(recorder, model, out, name, manifest, folder)


def _raw_folder(stack: contextlib.ExitStack, out: Path) -> RawFolder:
    """A place for raw gradients on the file system of `out`, removed with whatever is left in it."""
    place = tempfile.TemporaryDirectory(prefix=f".{out.name}-raw-", dir=out.parent)
    return RawFolder(Path(stack.enter_context(place)))


def _save(
    recorder: Recorder,
    model: nn.Module,
    out: Path,
    name: str | None,
    manifest: JsonView | None,
    folder: RawFolder | None,
) -> None:
    core = start_of(model)
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
    """What the times of a trace depend on: device, processor, threads, versions."""
    described: Json = {
        "device": device.type,
        "cpu": processor_name(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    if device.type == "cuda":
        described["gpu"] = device_name(device)
        described["versions"]["cuda"] = torch.version.cuda
    return described
