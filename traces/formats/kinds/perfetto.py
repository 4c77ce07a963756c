"""The format `perfetto` writes a trace's timeline as Chrome trace JSON for ui.perfetto.dev, and reads such files back.

Every worker is a process with the tracks forward, backward and optimizer, an arrow-less instant per gradient that
becomes ready, and a counter of the bytes that are ready. Iterations follow each other. The events' arguments hold the
exact picoseconds, shapes and dtypes, since the format's times are floating point microseconds; a file with those is
read back as the same timeline. The format cannot hold magnitudes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import Format, ReadOptions, WriteOptions
from gradwire.traces.formats.draft import MAX_TIME_PS, PS_PER_US, Draft, Gradient, Timing
from gradwire.traces.formats.profile.json_events import events
from gradwire.traces.formats.sink import write_files
from gradwire.traces.formats.source import open_source
from gradwire.traces.parts import ELEMENT_BYTES

if TYPE_CHECKING:
    from gradwire.traces.trace import Iteration, Trace

FORWARD, BACKWARD, GRADIENTS, OPTIMIZER = 1, 2, 3, 4  # thread ids: their order on the screen
_TRACKS = {FORWARD: "forward", BACKWARD: "backward", GRADIENTS: "gradients ready", OPTIMIZER: "optimizer"}
_MARK = "gradwire timeline"


class Perfetto(Format):
    """Timeline of a trace, for viewers; can be read back."""

    kind = "perfetto"
    title = "Chrome/Perfetto timeline of gradwire"

    @staticmethod
    def recognise(path: Path, head: bytes) -> bool:
        """Return True for JSON with gradwire's mark near the beginning."""
        return head.lstrip()[:1] == b"{" and f'"{_MARK}"'.encode() in head

    @staticmethod
    def read(path: Path, options: ReadOptions) -> Draft:
        """Return the draft of a timeline written by gradwire; TraceError if parts of an iteration are missing."""
        draft = Draft("perfetto", how="as in the trace that the timeline was written from")
        header: dict[str, Any] = {}
        parts_by_iteration: dict[int, dict[str, Any]] = {}
        with open_source(path, options.progress, options.notes) as source:
            for event in events(source, header, draft.skipped):
                _add_event(event, parts_by_iteration, draft)
        try:
            draft.layers = [str(name) for name in header["layers"]]
            draft.gradients = [_gradient(entry, len(draft.layers)) for entry in header["tensors"]]
            draft.iterations = [
                _timing(parts_by_iteration[index], len(draft.layers), len(draft.gradients))
                for index in sorted(parts_by_iteration)
            ]
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            what = f"a part of the timeline is missing or damaged ({error})"
            raise TraceError(what, str(path), "a file written by gradwire trace export") from error
        draft.understood["iterations"] = len(draft.iterations)
        return draft

    @staticmethod
    def write(trace: Trace, out: Path, options: WriteOptions) -> list[Path]:
        """Write the chosen iterations, one process per rank of the trace; iterations of a rank follow each other."""
        head = {
            "displayTimeUnit": "ms",
            "otherData": {"format": _MARK, "name": trace.name},
            "layers": trace.layers,
            "tensors": [
                {"name": t.name, "shape": list(t.shape), "numel": t.numel, "dtype": t.dtype, "layer": t.layer}
                for t in trace.tensors
            ],
        }
        clocks: dict[int, int] = {}
        lines = []
        for index in options.iterations:
            iteration = trace.iterations[index]
            begin = clocks.setdefault(iteration.rank, 0)
            lines += [json.dumps(event) for event in _events(trace, iteration, begin)]
            clocks[iteration.rank] = begin + iteration.end_ps
        for rank in clocks:
            lines += [json.dumps(event) for event in _names(trace, rank)]
        text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
        return write_files({out: text.encode()})


def _names(trace: Trace, rank: int) -> Iterator[dict[str, Any]]:
    base = {"ph": "M", "pid": rank}
    yield {**base, "name": "process_name", "args": {"name": f"{trace.name} rank {rank}"}}
    for track, name in _TRACKS.items():
        yield {**base, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {**base, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _events(trace: Trace, iteration: Iteration, begin: int) -> Iterator[dict[str, Any]]:
    def at(moment: int) -> float:
        return (begin + int(moment)) / PS_PER_US

    def span(track: int, name: str, start: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
        duration = (int(end) - int(start)) / PS_PER_US
        position = {"ph": "X", "pid": iteration.rank, "tid": track, "ts": at(start), "dur": duration}
        return {**position, "name": name, "cat": "gradwire", "args": args}

    shared = {"iteration": iteration.index}
    for layer, name in enumerate(trace.layers):
        start, end = int(iteration.forward_start_ps[layer]), int(iteration.forward_end_ps[layer])
        args = {**shared, "layer": layer, "start_ps": start, "end_ps": end}
        yield span(FORWARD, name, start, end, args)
    latest, total = int(iteration.forward_end_ps.max()), 0
    order = sorted(range(len(trace.tensors)), key=lambda t: (int(iteration.ready_ps[t]), -t))
    for number in order:
        tensor, ready = trace.tensors[number], int(iteration.ready_ps[number])
        total += tensor.bytes
        if ready > latest:  # ran since the previous gradient became ready
            yield span(BACKWARD, trace.layers[tensor.layer], latest, ready, shared)
            latest = ready
        position = {"pid": iteration.rank, "ts": at(ready), "cat": "gradwire"}
        args = {**shared, "tensor": number, "bytes": tensor.bytes, "ready_ps": ready}
        yield {**position, "ph": "i", "s": "t", "tid": GRADIENTS, "name": tensor.name, "args": args}
        yield {**position, "ph": "C", "name": "ready bytes", "args": {"bytes": total}}
    end = iteration.backward_end_ps
    closing: dict[str, Any] = {
        **shared,
        "step": iteration.step,
        "phase": iteration.phase,
        "backward_end_ps": int(end),
        "optimizer_ps": int(iteration.optimizer_ps),
    }
    yield span(OPTIMIZER, "optimizer", end, iteration.end_ps, closing)


def _gradient(entry: dict[str, Any], layers: int) -> Gradient:
    shape = tuple(int(n) for n in entry["shape"])
    gradient = Gradient(str(entry["name"]), int(entry["numel"]), entry["dtype"], int(entry["layer"]), shape)
    if gradient.dtype not in ELEMENT_BYTES or not 0 <= gradient.layer < layers or gradient.numel < 1:
        raise ValueError(f"tensor {gradient.name}")
    return gradient


def _add_event(event: dict[str, Any], parts_by_iteration: dict[int, dict[str, Any]], draft: Draft) -> None:
    args = event.get("args")
    if event.get("ph") in ("M", "C"):
        draft.understood["names and counters"] += 1
    elif not (isinstance(args, dict) and "iteration" in args) or not all(
        isinstance(args.get(name, 0), int) for name in ("iteration", "layer", "tensor")
    ):
        draft.skipped[f"events of {event.get('cat')} that are not gradwire's"] += 1
    else:
        parts = parts_by_iteration.setdefault(
            args["iteration"], {"layers": {}, "ready": {}, "rank": event.get("pid", 0)}
        )
        if "layer" in args:
            parts["layers"][args["layer"]] = (args.get("start_ps"), args.get("end_ps"))
            draft.understood["forward spans"] += 1
        elif "tensor" in args:
            parts["ready"][args["tensor"]] = args.get("ready_ps")
            draft.understood["gradients"] += 1
        elif "optimizer_ps" in args:
            parts["end"] = args
        else:
            draft.understood["backward spans"] += 1


def _timing(parts: dict[str, Any], layers: int, gradients: int) -> Timing:
    def moment(value: object) -> int:
        if not isinstance(value, int) or not 0 <= value < MAX_TIME_PS:
            raise ValueError(f"time {value!r}")
        return value

    end = parts["end"]
    return Timing(
        [moment(parts["layers"][n][0]) for n in range(layers)],
        [moment(parts["layers"][n][1]) for n in range(layers)],
        [moment(parts["ready"][n]) for n in range(gradients)],
        moment(end["backward_end_ps"]),
        moment(end["optimizer_ps"]),
        int(end["step"]),
        int(parts["rank"]),
        phase=str(end["phase"]),
    )
