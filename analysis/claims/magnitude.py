"""Lost magnitude: whether what messages were delivered without was small, as selective drop by magnitude wants it.

    magnitude = |g| summed over the lost elements / the same, had every element the mean |g| of its tensor

1 is loss at random within each tensor; it says nothing of how much is lost, nor of which tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.result import Result
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace, load_trace

ELEMENT = 4
"""Bytes of a float32."""


def lost_magnitude(result: Result) -> float | None:
    """Of the pushes of a Result's only job; None if nothing of them was lost, or its tensors are not known."""
    jobs = result.tables.get("job", [])
    if len(jobs) != 1 or not result.missing.num_rows or jobs[0]["exchange"]["kind"] != "parameter_server":
        return None
    job, trace = jobs[0], load_trace(jobs[0]["trace"])
    iterations = trace.phases[job["phase"]] if job.get("phase") else [each.index for each in trace.iterations]
    partition = _bytes(job["exchange"].get("partition", 4 * 2**20))
    messages = result.messages
    number = numpy_of(messages["message"])
    wanted = numpy_of(result.missing["message"])
    row = np.searchsorted(number, wanted)
    kind = numpy_of(messages["kind"])[row]
    tensor, iteration, part = (numpy_of(messages[name])[row] for name in ("tensor", "iteration", "part"))
    first = (part * partition + numpy_of(result.missing["offset"])) / ELEMENT
    beyond = first + numpy_of(result.missing["bytes"]) / ELEMENT
    lost = expected = 0.0
    pushes = (kind == "push") & (tensor >= 0)
    keys = iteration.astype(np.int64) * len(trace.tensors) + tensor
    for key in np.unique(keys[pushes]).tolist():
        those = pushes & (keys == key)
        which, index = divmod(key, len(trace.tensors))
        places, sums = _running(trace, iterations[which % len(iterations)], index)
        lost += float((np.interp(beyond[those], places, sums) - np.interp(first[those], places, sums)).sum())
        expected += float((beyond[those] - first[those]).sum()) * sums[-1] / places[-1]
    return float(lost / expected) if expected else None


def _running(trace: Trace, iteration: int, tensor: int) -> tuple[Floats, Floats]:
    """(elements, sum of |g| up to there) at the edges of a tensor's chunks."""
    mean, _ = trace.magnitudes(iteration, tensor)
    places = np.append(np.arange(len(mean)) * CHUNK_ELEMENTS, trace.tensors[tensor].numel).astype(np.float64)
    return places, np.append(0.0, np.cumsum(mean * np.diff(places)))


def _bytes(size: Any) -> int:
    from gradwire.scenarios.units import parse_size

    return parse_size(size) if isinstance(size, str) else int(size)
