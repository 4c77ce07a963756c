"""The timetable of a program: how long its computing takes under virtual time, as a trace has recorded it.

    {"tensors": [[name, elements], ...], "layers": [name, ...],
     "iterations": [[{"forward_end": [ns, ...], "ready": [ns, ...], "backward_end": ns, "optimizer": ns}, ...], ...]}

`iterations` has a list for each recorded rank; `forward_end` is by layer, `ready` by tensor, all since the iteration's
start. It is text, so that a rank reads it with nothing but the standard library (`gradwire.pacing`).
"""

from __future__ import annotations

import json

from gradwire.traces.trace import Trace


def timetable(trace: Trace, scale: float) -> str:
    """A trace's times, `scale` times as long, as text."""

    def ns(ps: int) -> int:
        return round(int(ps) * scale / 1000)

    ranks = [
        [
            {
                "forward_end": [ns(each) for each in iteration.forward_end_ps],
                "ready": [ns(each) for each in iteration.ready_ps],
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
