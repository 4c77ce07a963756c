"""`JobLossBounds` computes the loss allowed to a job's messages, by layer, iteration and direction.

See `gradwire.scenarios.schema.job.loss_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import LossAllowance
from gradwire.scenarios.schema.job.loss_bound import Bound
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace
from gradwire.workload.program import Ints


def check_layers(table: Any, layers: int, of: str, where: str) -> None:
    """Raise ScenarioError if a list of bounds does not have one entry per layer. `of`: owner of the layers, for
    messages."""
    for name in ("push_bound", "pull_bound"):
        bounds = getattr(getattr(table, name), "layers", None)
        if bounds is not None and len(bounds) != layers:
            what = f"{len(bounds)} bounds for the {layers} layers of {of}"
            raise ScenarioError(what, f"{where}.{name}.layers", f"a list of {layers}")


class JobLossBounds:
    """Loss bounds of one job's messages: pushes and reduce-scatters (forth), pulls and all-gathers (back)."""

    def __init__(self, table: Any, trace: Trace, captured: Callable[[int, int], int], number: int, where: str) -> None:
        """`captured` : (worker, iteration) -> the iteration of the trace. `number`: of the table in the program.

        Raises ScenarioError if a list of bounds does not have one entry per layer of the trace.
        """
        self._table, self._trace, self._captured, self._number = table, trace, captured, number
        self._ways = (table.push_bound, table.pull_bound)
        layers = len(trace.layers)
        check_layers(table, layers, f"trace {trace.name}", where)
        self._by_layer = [
            [bound.of(layer, layers) if isinstance(bound, Bound) else bound for layer in range(layers)]
            for bound in self._ways
        ]
        self._norms: dict[int, float] = {}
        self.before: Sequence[float] | None = None
        """By worker, the norm of the previous iteration's gradients, if the trace does not contain it: in a training
        run every iteration is a separate trace."""

    @property
    def wants_norms(self) -> bool:
        """True if a bound depends on the change of gradients."""
        return any(isinstance(bound, Bound) and bound.critical is not None for bound in self._ways)

    def norms(self, iteration: int) -> list[float]:
        """Return the norm of an iteration's gradients, by worker."""
        return [self._norm(self._captured(worker, iteration)) for worker in range(self._table.workers)]

    def of(
        self, iteration: int, back: Flags, worker: Ints, sets: Sequence[Sequence[int]], which: Ints
    ) -> LossAllowance:
        """Return the allowed loss of an iteration's messages.

        worker : whose gradients determine the bound, except on the way back.
        which : index into `sets`, the sets of layers that messages contain.
        """
        worker = np.where(back, 0, worker)
        lowest = np.array([[min(bounds[layer] for layer in layers) for layers in sets] for bounds in self._by_layer])
        share = lowest[back.astype(np.int64), which]
        for way, bound in enumerate(self._ways):
            if isinstance(bound, Bound) and bound.critical is not None:
                workers = range(self._table.workers)
                critical = np.array([self._is_critical(index, iteration, bound.change) for index in workers])
                affected = (back == bool(way)) & critical[worker]
                share[affected] = np.minimum(share[affected], bound.critical)
        if self._table.bound_per != "step":
            return LossAllowance(share, share, np.zeros(len(share), dtype=np.int64))
        most = np.where(share > 0, np.maximum(share, self._table.bound_most), 0.0)
        pool = np.where(share > 0, (iteration + 1) << 24 | self._number << 1 | back, 0)
        return LossAllowance(most, share, pool.astype(np.int64))

    def _is_critical(self, worker: int, iteration: int, change: float) -> bool:
        """Return True if the norm of a worker's gradients has changed by at least this share since the last
        iteration."""
        if iteration == 0:
            return True  # there is no previous norm
        now = self._norm(self._captured(worker, iteration))
        before = self._norm(self._captured(worker, iteration - 1)) if self.before is None else self.before[worker]
        return abs(now - before) >= change * before

    def _norm(self, captured: int) -> float:
        """Return the norm of all gradients of a captured iteration: Euclidean, or the sum of magnitudes without
        squares."""
        if captured not in self._norms:
            trace = self._trace
            squares = [trace.l2(captured, tensor) for tensor in range(len(trace.tensors))]
            if any(square is None for square in squares):
                self._norms[captured] = float(sum(_sum_of(trace, captured, tensor) for tensor in range(len(squares))))
            else:
                self._norms[captured] = float(sum(float(norm @ norm) for norm in squares if norm is not None)) ** 0.5
        return self._norms[captured]


def _sum_of(trace: Trace, captured: int, tensor: int) -> float:
    """Return the sum of |g| of a tensor."""
    mean, numel = trace.magnitudes(captured, tensor)[0], trace.tensors[tensor].numel
    elements = np.full(len(mean), CHUNK_ELEMENTS, dtype=np.float64)
    elements[-1] = numel - (len(mean) - 1) * CHUNK_ELEMENTS
    return float(mean @ elements)
