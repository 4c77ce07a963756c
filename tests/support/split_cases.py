"""Traces of models that are split over workers, and jobs that play them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sim_cases import US, scenario

from gradwire.sim.simulate import simulate
from gradwire.traces.formats import import_trace
from gradwire.traces.parts import Communication
from gradwire.traces.trace import Iteration, TensorInfo, Trace
from gradwire.workload.prerequisites import find_prerequisites, make_jobs

PAYLOAD = 1000
PACKET = (PAYLOAD + 58) * 80
A = 2 * US + 2 * US + PACKET
"""Of a message on a star: software latency, two cables, and the last packet once more."""
QUIET: dict[str, Any] = {
    "switch": {"queues": 1, "buffer": "100MB"},
    "transport": {"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
}


def split(base: Trace, calls: list[tuple[int, str, str, str, int]], parallel: dict[str, int], experts=()) -> Trace:
    """A trace of `make_trace` whose passes wait for calls, (layer, pass, kind, dimension, bytes): forward at the end of
    the layer's step, backward in the middle of it. `experts`: layers whose gradients are of experts."""
    named = [Communication(f"call{n}", layer, *rest) for n, (layer, *rest) in enumerate(calls)]
    captured = []
    for each in base.iterations:
        ready = {info.layer: int(each.ready_ps[n]) for n, info in enumerate(base.tensors)}
        begin = [*(ready[layer] for layer in range(1, len(base.layers))), int(each.forward_end_ps[-1])]
        asked = [
            int(each.forward_end_ps[call.layer])
            if call.turn == "forward"
            else (begin[call.layer] + ready[call.layer]) // 2
            for call in named
        ]
        captured.append(Iteration(**{**vars(each), "asked_ps": np.array(asked, dtype=np.int64)}))
    tensors = [
        TensorInfo(**{**vars(info), "group": "expert_data" if info.layer in experts else "data"})
        for info in base.tensors
    ]
    said = {**base.manifest, "split": parallel}
    return Trace(said, base.layers, tensors, captured, base._mean, base._max, communications=named)


def both_ways(layer: int, kind: str, dimension: str, nbytes: int) -> list[tuple[int, str, str, str, int]]:
    return [(layer, turn, kind, dimension, nbytes) for turn in ("forward", "backward")]


def run(
    trace: Trace, workers: int, *, exchange: Any = None, parallel: Any = None, network: Any = None, **fields: Any
) -> Any:
    exchange = {"kind": "ring", "bucket": "1GB"} if exchange is None else exchange
    job = {"workers": workers, "exchange": exchange, "parallel": parallel or {}, **fields}
    return simulate(scenario(job, hosts=workers, **(network or QUIET)), trace)


def made(
    trace: Trace,
    workers: int,
    *,
    exchange: Any = None,
    gpus: int = 1,
    parallel: Any = None,
    payload: str = "400B",
    **fields: Any,
) -> Any:
    """The only job of a scenario, resolved."""
    table = {"workers": workers, "exchange": exchange or {"kind": "ring"}, "parallel": parallel or {}, **fields}
    topology = (
        {"kind": "rail", "hosts": workers // gpus, "cards": gpus, "spines": 1}
        if gpus > 1
        else {"kind": "star", "hosts": workers}
    )
    case = scenario(table, topology=topology, host={"gpus": gpus}, transport={"kind": "dlcp", "payload": payload})
    (job,) = make_jobs(case, find_prerequisites(case, trace))
    return job


def steps(*packets: int) -> int:
    """So many messages, one after the other."""
    return sum(A + each * PACKET for each in packets)


# --- bytes -------------------------------------------------------------------------------------------------------------

MOE = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 2 ga: 1 all_gpus: 8 checkpoints: 0
4
embedding -1 1000 ALLREDUCE  40000 1000 NONE 0 1000 ALLREDUCE 80000 100
attention -1 2000 ALLGATHER  40000 2000 REDUCESCATTER 40000 2000 ALLREDUCE 160000 100
router    -1 500  ALLTOALL_EP 64000 500 ALLTOALL_EP 64000 10 NONE 0 100
experts   -1 4000 ALLTOALL_EP 64000 4000 ALLTOALL_EP 64000 4000 ALLREDUCE_DP_EP 320000 100
"""


def imported(text: str, tmp_path: Path) -> Trace:
    (tmp_path / "w.txt").write_text(text)
    return import_trace(tmp_path / "w.txt")
