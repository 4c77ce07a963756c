"""The timetable of a program: recorded compute times of a trace, for virtual time.

    {"tensors": [[name, elements], ...], "layers": [name, ...],
     "iterations": [[{"forward_end": [ns, ...], "ready": [ns, ...], "backward_end": ns, "optimizer": ns}, ...], ...]}

`iterations` has a list for each recorded rank; `forward_end` is by layer, `ready` by tensor, all since the iteration's
start. It is JSON, so that a rank needs only the standard library (`gradwire.studies.compute_replay`).
"""

from __future__ import annotations

import json

from gradwire.traces.trace import Trace


def timetable(trace: Trace, scale: float) -> str:
    """Return a trace's times, multiplied by `scale`, as JSON text."""

    def ns(ps: int) -> int:
        return round(int(ps) * scale / 1000)

    ranks = [
        [
            {
                "forward_end": [ns(time) for time in iteration.forward_end_ps],
                "ready": [ns(time) for time in iteration.ready_ps],
                "backward_end": ns(iteration.backward_end_ps),
                "optimizer": ns(iteration.optimizer_ps),
            }
            for iteration in trace.iterations
            if iteration.rank == rank
        ]
        for rank in trace.ranks
    ]
    tensors = [[tensor.name, tensor.numel] for tensor in trace.tensors]
    return json.dumps({"tensors": tensors, "layers": trace.layers, "iterations": ranks})
