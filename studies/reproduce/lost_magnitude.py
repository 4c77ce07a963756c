"""Computes the mean magnitude of a run's lost gradient elements, relative to loss at random.

    magnitude = |g| summed over the lost elements / the same, had every element the mean |g| of its tensor

1 is loss at random within each tensor; the value is independent of how much is lost, and of which tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import Floats
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace, load_trace

ELEMENT = 4
"""Bytes of a float32."""


def lost_magnitude(result: Result) -> float | None:
    """Return it for the pushes of a Result's only job; None if none was lost, or its tensors are unknown."""
    jobs = result.tables.get("job", [])
    if len(jobs) != 1 or not result.missing.num_rows or jobs[0]["exchange"]["kind"] != "parameter_server":
        return None
    job, trace = jobs[0], load_trace(jobs[0]["trace"])
    iterations = trace.phases[job["phase"]] if job.get("phase") else [item.index for item in trace.iterations]
    partition = _bytes(job["exchange"].get("partition", 4 * 2**20))
    messages = result.messages
    number = to_numpy(messages["message"])
    message = to_numpy(result.missing["message"])
    row = np.searchsorted(number, message)
    kind = to_numpy(messages["kind"])[row]
    tensor, iteration, part = (to_numpy(messages[name])[row] for name in ("tensor", "iteration", "part"))
    first = (part * partition + to_numpy(result.missing["offset"])) / ELEMENT
    beyond = first + to_numpy(result.missing["bytes"]) / ELEMENT
    lost = expected = 0.0
    pushes = (kind == "push") & (tensor >= 0)
    keys = iteration.astype(np.int64) * len(trace.tensors) + tensor
    for key in np.unique(keys[pushes]).tolist():
        selected = pushes & (keys == key)
        number_in_job, index = divmod(key, len(trace.tensors))
        positions, sums = _running(trace, iterations[number_in_job % len(iterations)], index)
        lost += float(
            (np.interp(beyond[selected], positions, sums) - np.interp(first[selected], positions, sums)).sum()
        )
        expected += float((beyond[selected] - first[selected]).sum()) * sums[-1] / positions[-1]
    return float(lost / expected) if expected else None


def _running(trace: Trace, iteration: int, tensor: int) -> tuple[Floats, Floats]:
    """Return (element positions, sum of |g| up to there) at the edges of a tensor's chunks."""
    mean, _ = trace.magnitudes(iteration, tensor)
    positions = np.append(np.arange(len(mean)) * CHUNK_ELEMENTS, trace.tensors[tensor].numel).astype(np.float64)
    return positions, np.append(0.0, np.cumsum(mean * np.diff(positions)))


def _bytes(size: Any) -> int:
    from gradwire.scenarios.units import parse_size

    return parse_size(size) if isinstance(size, str) else int(size)
