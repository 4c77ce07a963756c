"""How much each message of a job may lose, by layer, iteration and direction: see `gradwire.scenarios.schema.bound`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.program import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import Allowance
from gradwire.scenarios.schema.bound import Bound
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace


def check_layers(table: Any, layers: int, of: str, where: str) -> None:
    """Whether lists of bounds are as long as there are layers. `of`: what has these, for messages.

    Raises
    ------
    ScenarioError
        One is not.
    """
    for name in ("push_bound", "pull_bound"):
        given = getattr(getattr(table, name), "layers", None)
        if given is not None and len(given) != layers:
            what = f"{len(given)} bounds for the {layers} layers of {of}"
            raise ScenarioError(what, f"{where}.{name}.layers", f"a list of {layers}")


class Bounds:
    """The bounds of one job's messages. Forth is to a server, or reduce-scatter; back is from it, or all-gather."""

    def __init__(
        self, table: Any, trace: Trace, captured: Callable[[int, int], int], number: int, where: str
    ) -> None:
        """`captured` : (worker, iteration) -> the iteration of the trace. `number`: of the table in the program.

        Raises
        ------
        ScenarioError
            A list of bounds that is not as long as the trace has layers.
        """
        self._table, self._trace, self._captured, self._number = table, trace, captured, number
        self._ways = (table.push_bound, table.pull_bound)
        layers = len(trace.layers)
        check_layers(table, layers, f"trace {trace.name}", where)
        self._by_layer = [[_of(bound, layer, layers) for layer in range(layers)] for bound in self._ways]
        self._norms: dict[int, float] = {}
        self.before: Sequence[float] | None = None
        """By worker, the norm of the gradients of the iteration before, where the trace does not hold it: a step of a
        training, of which each is a trace of its own."""

    @property
    def wants_norms(self) -> bool:
        """Whether a bound differs by how fast gradients change."""
        return any(isinstance(bound, Bound) and bound.critical is not None for bound in self._ways)

    def norms(self, iteration: int) -> list[float]:
        """By worker, the norm of an iteration's gradients."""
        return [self._norm(self._captured(worker, iteration)) for worker in range(self._table.workers)]

    def of(
        self, iteration: int, back: NDArray[np.bool_], worker: Ints, sets: Sequence[Sequence[int]], which: Ints
    ) -> Allowance:
        """What messages of an iteration may lose, float64[n] and int64[n]. `worker`: by whose gradients each goes, if
        it is not on its way back; `which`: of the `sets` of layers the one of which it carries something."""
        worker = np.where(back, 0, worker)
        lowest = np.array([[min(bounds[layer] for layer in each) for each in sets] for bounds in self._by_layer])
        share = lowest[back.astype(np.int64), which]
        for way, bound in enumerate(self._ways):
            if isinstance(bound, Bound) and bound.critical is not None:
                workers = range(self._table.workers)
                critical = np.array([self._critical(each, iteration, bound.change) for each in workers])
                mine = (back == bool(way)) & critical[worker]
                share[mine] = np.minimum(share[mine], bound.critical)
        if self._table.bound_per != "step":
            return Allowance(share, share, np.zeros(len(share), dtype=np.int64))
        most = np.where(share > 0, np.maximum(share, self._table.bound_most), 0.0)
        pool = np.where(share > 0, (iteration + 1) << 24 | self._number << 1 | back, 0)
        return Allowance(most, share, pool.astype(np.int64))

    def _critical(self, worker: int, iteration: int, change: float) -> bool:
        """Whether the norm of a worker's gradients has changed by so much of it since the iteration before."""
        if iteration == 0:
            return True  # nobody knows
        now = self._norm(self._captured(worker, iteration))
        before = self._norm(self._captured(worker, iteration - 1)) if self.before is None else self.before[worker]
        return abs(now - before) >= change * before

    def _norm(self, captured: int) -> float:
        """Of all gradients of a captured iteration: Euclidean, or the sum of magnitudes where squares are not known."""
        if captured not in self._norms:
            trace = self._trace
            squares = [trace.l2(captured, tensor) for tensor in range(len(trace.tensors))]
            if any(each is None for each in squares):
                self._norms[captured] = float(sum(_sum_of(trace, captured, each) for each in range(len(squares))))
            else:
                self._norms[captured] = float(sum(float(each @ each) for each in squares if each is not None)) ** 0.5
        return self._norms[captured]


def _of(bound: float | Bound, layer: int, layers: int) -> float:
    return bound.of(layer, layers) if isinstance(bound, Bound) else bound


def _sum_of(trace: Trace, captured: int, tensor: int) -> float:
    """The sum of |g| of a tensor."""
    mean, numel = trace.magnitudes(captured, tensor)[0], trace.tensors[tensor].numel
    elements = np.full(len(mean), CHUNK_ELEMENTS, dtype=np.float64)
    elements[-1] = numel - (len(mean) - 1) * CHUNK_ELEMENTS
    return float(mean @ elements)
