"""Small files of other tools' formats, with answers worked out by hand, for the tests of `gradwire.traces.formats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "data" / "formats"
SHARED = ROOT.parent / "shared" / "data"

PIPEDREAM = """\
node3 -- Linear(in_features=4, out_features=2, bias=True) -- forward_compute_time=0.500, backward_compute_time=1.500, activation_size=[16.0; 8.0], parameter_size=40.000 -- stage_id=1
node1 -- Input -- forward_compute_time=1.000, backward_compute_time=0.000, activation_size=100.000, parameter_size=0.000 -- stage_id=0
node2 -- Conv2d(3, 4, kernel_size=(3, 3)) -- forward_compute_time=2.000, backward_compute_time=4.250, activation_size=64.000, parameter_size=448.000 -- stage_id=0
\tnode1 -- node2
\tnode2 -- node3
"""

SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 8 ga: 1 all_gpus: 16 checkpoints: 0 checkpoint_initiates: 0
3
embedding -1 100  ALLREDUCE 512   10 NONE 0   20 ALLREDUCE 4096 7
experts\t-1\t200\tALLTOALL_EP\t512\t30\tALLTOALL_EP\t512\t40\tREDUCESCATTER_DP_EP\t1000\t3
gather    -1   0  NONE      0      1 NONE 0    2 ALLGATHER 2048 0
"""

CSV = """\
name,layer,shape,dtype,forward_us,backward_us,colour
conv.weight,conv,4x3x3x3,float32,10,30,red
fc.weight,fc,2x4,bfloat16,5,20,
fc.bias,fc,2,bfloat16,,4,
"""


def kineto_events() -> list[dict[str, Any]]:
    """One GPU iteration (step 7) in microseconds: two kernels forward, three backward, two all-reduces.

    CPU: forward launches at 110 and 120, autograd from 130, backward launches at 135, 140 and 160, all-reduces
    called at 145 and 170, optimiser 200 to 220. GPU: forward runs 1000-1100 and 1100-1300, backward 1300-1400,
    1400-1600 and 1600-1900, optimiser 2500-2540. The all-reduces run 1601-2000 and 2000-2400.
    So: bucket 1 (called first, after the kernel that ends at 1600) is ready at 600 us, bucket 0 at 900 us, the
    forward pass ends at 300 us, the optimiser takes 40 us.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        _span("user_annotation", "ProfilerStep#7", 100, 200),
        _span("user_annotation", "Optimizer.step#SGD.step", 200, 20),
        _span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 130, 4),
    ]
    kernels = [(110, 1000, 1100), (120, 1100, 1300), (135, 1300, 1400), (140, 1400, 1600), (160, 1600, 1900)]
    for number, (called, start, end) in enumerate([*kernels, (210, 2500, 2540)]):
        launch = _span("cuda_runtime", "cudaLaunchKernel", called, 1, correlation=number)
        events += [launch, _span("kernel", "gemm", start, end - start, 7, correlation=number)]
    for number, (called, start, end, size) in enumerate([(145, 1601, 2000, 300), (170, 2000, 2400, 1000)]):
        told = {"Collective name": "allreduce", "In msg nelems": size, "dtype": "Float", "Group size": 2}
        events.append(_span("cuda_runtime", "cudaLaunchKernelExC", called, 1, correlation=50 + number))
        events.append(
            _span("kernel", "ncclDevKernel_AllReduce_Sum_f32", start, end - start, 40, correlation=50 + number, **told)
        )
    return events


def _span(category: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kineto(events: list[dict[str, Any]], **header: Any) -> str:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events})
