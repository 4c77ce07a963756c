"""Small scenarios and traces for tests of `sim`, with round numbers that closed forms can be worked out
from."""

from __future__ import annotations

from typing import Any

import numpy as np
from ideal_fabric import IdealFabric

from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace

US = 10**6
MS = 10**9


def make_trace(
    layer_elements: list[list[int]],
    *,
    iterations: int = 1,
    forward: int = MS,
    backward: int = MS,
    optimizer: int = 0,
    skew: int = 0,
    phases: tuple[str, ...] = ("early",),
) -> Trace:
    """A model whose layer l has tensors of `layer_elements[l]` float32 elements.

    Every layer takes `forward` and `backward`; gradients of a layer are ready when its backward step ends.
    Captured iteration i is longer by i * `skew` in its first layer.
    """
    layers = len(layer_elements)
    tensors = [
        TensorInfo(f"l{layer}.t{number}", (numel,), numel, "float32", layer)
        for layer, numels in enumerate(layer_elements)
        for number, numel in enumerate(numels)
    ]
    captured = []
    for index in range(iterations):
        ends = np.cumsum(np.full(layers, forward, dtype=np.int64)) + index * skew
        starts = np.concatenate([[0], ends[:-1]])
        done = ends[-1] + backward * (layers - np.arange(layers))
        ready = np.array([done[tensor.layer] for tensor in tensors], dtype=np.int64)
        end = int(done.max())
        phase = phases[index * len(phases) // iterations]
        captured.append(Iteration(index, phase, index, 1.0, starts, ends, ready, end, optimizer, end + optimizer))
    chunks = sum(-(-tensor.numel // CHUNK_ELEMENTS) for tensor in tensors)
    draws = np.random.default_rng(7).random((iterations, chunks)).astype(np.float16)
    return Trace({"name": "case"}, [f"layer{n}" for n in range(layers)], tensors, captured, draws, draws)


def scenario(*jobs: dict[str, Any], hosts: int = 8, **fields: Any) -> Scenario:
    """A star of `hosts` hosts at 100 Gbps with the jobs given as tables."""
    return Scenario.model_validate(
        {
            "name": "case",
            "topology": {"kind": "star", "hosts": hosts},
            "job": [{"name": f"job{n}", "trace": "case", "iterations": 1, **job} for n, job in enumerate(jobs)],
            **fields,
        }
    )


def ps_job(workers: int, servers: int = 1, *, exchange: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A [[job]] table with parameter servers."""
    return {
        "workers": workers,
        "servers": servers,
        "exchange": {"kind": "parameter_server", **(exchange or {})},
        **fields,
    }


def ring_job(workers: int, *, bucket: str = "25MiB", **fields: Any) -> dict[str, Any]:
    """A [[job]] table with a ring."""
    return {"workers": workers, "exchange": {"kind": "ring", "bucket": bucket}, **fields}


class Ideal:
    """A maker of ideal fabrics for `simulate(..., fabric=...)` that keeps the one it made."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.made: IdealFabric

    def __call__(self, scenario: Scenario, network: Any, routing: Any, threads: int) -> IdealFabric:
        self.made = IdealFabric(lookahead=scenario.host.software_latency, **self.options)
        return self.made


def rows(table: Any) -> list[dict[str, Any]]:
    """A pyarrow table as a list of rows."""
    return table.to_pylist()
