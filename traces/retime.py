"""One trace's gradients at another's times: what `gradwire trace retime` does.

A CPU shows which gradients a model has and how large their values are, but not when a GPU has them ready: no scale
mends that, as layers that compute much and layers that hold much are slowed down differently. So sizes and magnitudes
of one trace, `a`, are put together with the times of another, `b`, of the same model (see `gradwire.traces.match`):

* a gradient is ready when that of b is which it is matched with (of several: the last of them);
* a layer runs forward from the first beginning to the last end of the layers of b whose gradients it is matched with;
* what has the same neighbours in both, and another size (a head for other classes), has the times of b as they are;
* a gradient that b does not have is ready at the same share of the time between its neighbours as in a: the gradients
  with a partner that become ready just before and just after it in a. Before all of them it is ready with the first,
  after all of them at the end of the backward pass;
* a layer without any partner runs, in no time, when the one before it has run (layer 0: at the beginning);
* ends of the backward pass, and the optimiser, are those of b.

The iterations are those of a: the k-th of a phase and rank of a has the times of the k-th of b, of the phase of that
name if b has it and of all otherwise, in turn, and of b's ranks in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.readable import chosen_text
from gradwire.traces.match import Match, Unit, match
from gradwire.traces.parts import Iteration
from gradwire.traces.trace import Trace, bundled_traces, load_trace

if TYPE_CHECKING:
    from gradwire.traces.formats.source import Progress

Times = NDArray[np.int64]

LEAST_SHARE = 0.75
"""Of the tensors (or layers) of a that have a partner of the same size: with fewer, b is another model (our choice)."""
MACHINE = (
    "capture_overhead", "clock", "compiled", "cpu", "cpu_share", "device", "exposed_communication_ps", "gpu", "threads",
    "timing", "timing_how", "versions",
)  # fmt: skip
"""What a manifest says of the machine that was recorded, and of its times."""
MOST_NAMES = 20  # of tensors in a message or a manifest's list


def retime(a: Trace, b: Trace, name: str | None = None, source: Json | None = None, command: str = "") -> Trace:
    """The gradients and magnitudes of `a` at the times of `b`.

    Parameters
    ----------
    name : of the new trace; that of a by default.
    source : what the manifest is to say of b's file; see `times_of`.
    command : what repeats it, for the manifest.

    Raises
    ------
    TraceError
        b is of another model, or its times are impossible for a.
    """
    if a.communications or a.graphs is not None:
        what = "has collectives besides those of gradients, whose times b does not say"
        raise TraceError(what, a.name, "a trace of gradients alone")
    found = match(a, b)
    if found.share < LEAST_SHARE:
        raise _unlike(a, b, found)
    manifest = {**_manifest(a, b, found, source or _said(b) | _how(b)), "name": name or a.name}
    if command:
        manifest["command"] = command
    try:
        return Trace(
            manifest, a.layers, a.tensors, _iterations(a, b, found), a._mean, a._max, a._rms, a.sampled
        )
    except TraceError as error:
        raise TraceError(error.what, f"{a.name} at the times of {b.name}: {error.where}", error.expected) from None


def times_of(
    given: str | Path, *, format: str = "auto", dtype: str = "float32", progress: Progress | None = None
) -> tuple[Trace, Json]:
    """(trace, what a manifest should say of it) of what times are taken from: a bundled trace, a directory of one, or a
    file of another tool. TraceError if it is none of these."""
    path = path_of(given, "times", "a trace, or a file of another tool", TraceError)
    if str(given) in bundled_traces() or path.is_dir():
        trace = load_trace(given)
        return trace, _said(trace) | _how(trace)
    from gradwire.traces.formats import import_trace

    if not path.exists():
        known = ", ".join(bundled_traces())
        raise TraceError("no such trace or file", str(path), f"a file, a trace directory, or a bundled trace: {known}")
    trace = import_trace(path, format=format, dtype=dtype, progress=progress)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    said = {key: value for key, value in _said(trace).items() if key != "digest"}  # it has drawn magnitudes in it
    return trace, {**said, **trace.manifest["source"], "sha256": digest}


def _said(trace: Trace) -> Json:
    """What the manifest of a trace says of its machine and times."""
    kept = {key: trace.manifest[key] for key in MACHINE if key in trace.manifest}
    return {"name": trace.name, "digest": trace.digest(), **kept}


def _how(trace: Trace) -> Json:
    """What a step of the recording was, and what repeats it."""
    return {key: trace.manifest[key] for key in ("command", "batch", "image_size", "sequence") if key in trace.manifest}


def _manifest(a: Trace, b: Trace, found: Match, source: Json) -> Json:
    ours = {key: value for key, value in a.manifest.items() if key not in (*MACHINE, "command")}
    machine: Json = {key: b.manifest[key] for key in ("device", "gpu", "cpu", "threads") if key in b.manifest}
    timing = str(b.manifest.get("timing", "measured"))
    how = str(b.manifest.get("timing_how", "as captured"))
    command = {"command": a.manifest["command"]} if "command" in a.manifest else {}
    return {
        **ours,
        **machine,
        "timing": timing,
        "timing_how": f"{how}; of another recording than the magnitudes, see retimed",
        "retimed": {
            "magnitudes_of": {**_said(a), **command},
            "times_of": source,
            "matched_by": found.by,
            "matched": len(found.pairs),
            "units": len(found.a),
            "same_place_other_size": [
                {"name": mine.name, "elements": mine.numel, "there": theirs.name, "there_elements": theirs.numel}
                for mine, theirs in found.resized
            ],
            "interpolated": [unit.name for unit in found.only_a],
            "unused": [unit.name for unit in found.only_b],
        },
    }


def _unlike(a: Trace, b: Trace, found: Match) -> TraceError:
    what = "layers" if found.by == "layers" else "tensors"
    wrong: Sequence[Unit] = [*(mine for mine, _ in found.resized), *found.only_a]
    named = ", ".join(f"{unit.name} ({unit.numel:,} elements)" for unit in wrong[:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return TraceError(
        f"is of another model: {len(found.pairs)} of {len(found.a)} {what} of {a.name} have a partner of the same size "
        f"in it, not {named}{more}",
        b.name,
        f"a recording of the same model, with at least {chosen_text(LEAST_SHARE)} of them",
    )


def _iterations(a: Trace, b: Trace, found: Match) -> list[Iteration]:
    partners = found.partners
    layers = _partner_layers(a, b, partners)
    count: dict[tuple[str, int], int] = {}
    result = []
    for mine in a.iterations:
        key = mine.phase, mine.rank
        place = count.get(key, 0)
        count[key] = place + 1
        theirs = _their_iteration(b, mine, place)
        start, end = _forward(theirs, layers)
        ready = _ready(mine, theirs, partners)
        layer_of = np.array([tensor.layer for tensor in a.tensors])
        lacking = np.array([number not in partners for number in range(len(a.tensors))])
        ready[lacking] = np.maximum(ready, end[layer_of])[lacking]  # what is made up does not contradict
        result.append(
            replace(
                mine,
                forward_start_ps=start,
                forward_end_ps=end,
                ready_ps=ready,
                backward_end_ps=theirs.backward_end_ps,
                optimizer_ps=theirs.optimizer_ps,
                end_ps=theirs.end_ps,
            )
        )
    return result


def _their_iteration(b: Trace, mine: Iteration, place: int) -> Iteration:
    """The iteration of b whose times one of a has, the `place`-th of its phase and rank."""
    rank = b.ranks[mine.rank % len(b.ranks)]
    same = [each for each in b.iterations if each.rank == rank]
    of_phase = [each for each in same if each.phase == mine.phase] or same
    return of_phase[place % len(of_phase)]


def _partner_layers(a: Trace, b: Trace, partners: dict[int, tuple[int, ...]]) -> list[list[int]]:
    """The layers of b that each layer of a is matched with: by their tensors; those that have none of their own, as a
    head with the embedding's weights, by name, or by order where both traces have as many."""
    found: list[set[int]] = [set() for _ in a.layers]
    for number, tensor in enumerate(a.tensors):
        found[tensor.layer] |= {b.tensors[other].layer for other in partners.get(number, ())}
    mine, theirs = _without_tensors(a), _without_tensors(b)
    for place, layer in enumerate(mine):
        named = [other for other in theirs if b.layers[other] == a.layers[layer]]
        found[layer] |= set(named or (theirs[place : place + 1] if len(mine) == len(theirs) else []))
    return [sorted(each) for each in found]


def _without_tensors(trace: Trace) -> list[int]:
    return sorted(set(range(len(trace.layers))) - {tensor.layer for tensor in trace.tensors})


def _forward(theirs: Iteration, layers: Sequence[Sequence[int]]) -> tuple[Times, Times]:
    """(start, end) of the forward pass of each layer of a."""
    start, end = (np.zeros(len(layers), dtype=np.int64) for _ in range(2))
    for layer, those in enumerate(layers):
        if those:
            start[layer] = theirs.forward_start_ps[those].min()
            end[layer] = theirs.forward_end_ps[those].max()
        elif layer:
            start[layer] = end[layer] = end[layer - 1]
    return start, end


def _ready(mine: Iteration, theirs: Iteration, partners: dict[int, tuple[int, ...]]) -> Times:
    """When each gradient of a is ready."""
    count = len(mine.ready_ps)
    ready = np.zeros(count, dtype=np.int64)
    known = np.array(sorted(partners), dtype=np.int64)
    for number in known.tolist():
        ready[number] = theirs.ready_ps[list(partners[number])].max()
    order = known[np.argsort(mine.ready_ps[known], kind="stable")]
    then = mine.ready_ps[order]
    for number in sorted(set(range(count)) - set(partners)):
        moment = int(mine.ready_ps[number])
        after = int(np.searchsorted(then, moment, side="right"))
        if after == 0:
            ready[number] = int(ready[order].min())
        elif after == len(order):
            ready[number] = theirs.backward_end_ps
        else:
            ready[number] = _between(
                moment, int(then[after - 1]), int(then[after]), int(ready[order[after - 1]]), int(ready[order[after]])
            )
    return ready


def _between(moment: int, low: int, high: int, first: int, last: int) -> int:
    """What lies between `first` and `last` as `moment` between `low` and `high`; in whole numbers, rounded down."""
    return first + (last - first) * (moment - low) // (high - low)


def told(manifest: JsonView) -> list[str]:
    """What there is to know about a retimed trace, in lines for people; none for another."""
    said = manifest.get("retimed")
    if not isinstance(said, dict):
        return []
    times, sizes = said.get("times_of", {}), said.get("magnitudes_of", {})
    where = times.get("file", times.get("name"))
    machine = times.get("gpu") or times.get("cpu") or times.get("device")
    what = "layers" if said.get("matched_by") == "layers" else "tensors"
    by = {"name": "by name", "order": "by order and size", "readiness": "by order of readiness and size"}
    lines = [
        f"sizes and magnitudes of {sizes.get('name')}; times of {where}" + (f" ({machine})" if machine else ""),
        f"  {said.get('matched')} of {said.get('units')} {what} matched "
        f"{by.get(str(said.get('matched_by')), 'by order and size')}",
    ]
    for each in said.get("same_place_other_size", [])[:MOST_NAMES]:
        lines.append(
            f"  same place, other size: {each['name']} ({each['elements']:,} elements) "
            f"has the times of {each['there']} ({each['there_elements']:,})"
        )
    for title, key in (("interpolated between its neighbours", "interpolated"), ("not in it, unused", "unused")):
        names = list(said.get(key, []))
        lines += [f"  {title}: {each}" for each in names[:MOST_NAMES]]
        if len(names) > MOST_NAMES:
            lines.append(f"  {title}: {len(names) - MOST_NAMES} more, see manifest.json")
    return lines
