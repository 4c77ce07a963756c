"""Fits the constants of fabric classes and of accelerators to measured sweeps.

The loss is the mean of |log(predicted / measured)| over rows, weighted so that all clusters with more than a few rows
count the same, as a cluster with many runs should not dominate. One constant after the other takes the better of a step
up and a step down (coordinate descent), which needs no derivatives and ends at the same values on every machine.
Constants of fabric classes and of accelerators are fitted in turns, twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.studies.busbw.machine import Constants, FluidWire
from gradwire.studies.busbw.time_model import TimeModel, choose
from gradwire.studies.clusters.measurements import Sweep

FABRIC_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "launch_us": (0.0, 60.0),
        "step_us": (0.0, 120.0),
        "flush_us": (0.0, 400.0),
        "efficiency": (0.02, 1.0),
        "host_gbytes": (0.1, 2000.0),
        "p2p_efficiency": (0.02, 1.0),
        "peer_us": (0.0, 60.0),
    }
)
"""Limits of the constants of a fabric class."""
ACCELERATOR_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"fill": (0.0, 1.5), "nvlink_efficiency": (0.3, 1.1), "nvls_efficiency": (0.3, 1.1)}
)
"""Limits of the constants of accelerators."""
PLATEAU_BYTES = 64 * 2**20
"""Efficiencies of a fabric are fitted to sizes from here on, everything else to all sizes (our choice)."""
FULL_WEIGHT_ROWS = 20
"""Rows from which on a cluster has full weight, whatever their number; fewer count in proportion (our choice)."""
STEPS = (0.4, 0.15, 0.05, 0.02)
"""Relative steps of the search, from coarse to fine."""
PLATEAU_CONSTANTS = ("efficiency", "host_gbytes", "p2p_efficiency")
HOST_BOUND = ("sockets", "host-path")
"""Classes in which a host's software or memory is the bottleneck: `host_gbytes` is fitted instead of efficiencies."""
HOST_START_GBYTES = 10.0
ROUNDS = 2
UNFITTED = ("AMD AAC10", "AWS p6-b200")
"""Clusters that are judged but not fitted: the first has a software fault by its source, the other was measured by
another program, whose times were computed back from rounded bandwidths."""


@dataclass(frozen=True)
class Fitted:
    """Constants by fabric class, and those of accelerators by name."""

    fabrics: Mapping[str, Constants]
    accelerators: Mapping[str, Constants]

    def constants(self, fabric_class: str, accelerator: str) -> Constants:
        """Return the constants of both; of an unknown class those of NCCL itself, of an unknown accelerator the medians
        of all others."""
        fabric = self.fabrics.get(fabric_class) or Constants()
        inside = self.accelerators.get(accelerator) or _median(self.accelerators.values())
        return replace(fabric, **{name: getattr(inside, name) for name in ACCELERATOR_RANGES})


def _median(values: Iterable[Constants]) -> Constants:
    """Return the median of every constant; the defaults without any."""
    rows = [each.as_dict() for each in values]
    return (
        Constants(**{name: float(np.median([row[name] for row in rows])) for name in rows[0]}) if rows else Constants()
    )


@lru_cache(maxsize=256)
def _wire(gbytes: float) -> FluidWire:
    return FluidWire(gbytes)


def predicted(sweep: Sweep, constants: Constants) -> tuple[Floats, list[str]]:
    """Return the predicted microseconds of every row on an ideal wire, and the algorithm and protocol."""
    algorithm = forced_algorithm(sweep)
    model = TimeModel(sweep.host, sweep.hosts, constants, _wire(sweep.host.nic_gbytes))
    estimates = model.estimates(sweep.collective, sweep.size)
    return choose([each for each in estimates if algorithm is None or each.algorithm == algorithm], sweep.host.tuner)


def forced_algorithm(sweep: Sweep) -> str | None:
    """Return the algorithm that the measurement forces, if it says so."""
    setting = sweep.setting.upper()
    if "=RING" in setting or setting.startswith("RING/"):
        return "ring" if sweep.collective == "all_reduce" else None
    return "tree" if setting.startswith("TREE/") else None


def log_errors(sweep: Sweep, constants: Constants) -> Floats:
    """Return log(predicted / measured) of every row."""
    return np.log(predicted(sweep, constants)[0] / sweep.time_us)


def fit(sweeps: Sequence[Sweep], start: Fitted | None = None) -> Fitted:
    """Return the constants of all fabric classes and accelerators that the sweeps have.

    start : constants to begin with; those of classes and accelerators without sweeps are left out.
    """
    used = [sweep for sweep in sweeps if not sweep.cluster.startswith(UNFITTED)]
    by_class = _grouped(used, lambda sweep: sweep.fabric_class)
    by_accelerator = _grouped(used, lambda sweep: sweep.accelerator)
    start = start or Fitted({}, {})
    fabrics = {name: start.fabrics.get(name) or _start_of(name) for name in by_class}
    accelerators = {name: start.accelerators.get(name, Constants()) for name in by_accelerator}
    for _ in range(ROUNDS):
        for name, members in by_class.items():
            fitted = Fitted(fabrics, accelerators)
            bases = [fitted.constants(name, sweep.accelerator) for sweep in members]
            fabrics[name] = _descend(members, bases, fabrics[name], fitted_names(name))
        for name, members in by_accelerator.items():
            fitted = Fitted(fabrics, accelerators)
            bases = [fitted.constants(sweep.fabric_class, name) for sweep in members]
            accelerators[name] = _descend(members, bases, accelerators[name], ACCELERATOR_RANGES)
    return Fitted(fabrics, accelerators)


def fitted_names(fabric_class: str) -> dict[str, tuple[float, float]]:
    """Return the constants that are fitted for a class, with their limits."""
    other = ("efficiency", "p2p_efficiency") if fabric_class in HOST_BOUND else ("host_gbytes",)
    return {name: limits for name, limits in FABRIC_RANGES.items() if name not in other}


def _start_of(fabric_class: str) -> Constants:
    """Return the constants at which the search of a class begins."""
    return Constants(host_gbytes=HOST_START_GBYTES) if fabric_class in HOST_BOUND else Constants()


def _grouped(sweeps: Sequence[Sweep], key: object) -> dict[str, list[Sweep]]:
    groups: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        groups.setdefault(key(sweep), []).append(sweep)  # type: ignore[operator]
    return groups


def _descend(
    sweeps: Sequence[Sweep], bases: Sequence[Constants], start: Constants, ranges: Mapping[str, tuple[float, float]]
) -> Constants:
    """Return `start` with the values within `ranges` that have the smallest loss, each sweep having its other
    constants from `bases`."""
    rows: Counter[str] = Counter()
    for sweep in sweeps:
        rows[sweep.cluster] += len(sweep.size)
    weights = [min(1.0, rows[sweep.cluster] / FULL_WEIGHT_ROWS) / rows[sweep.cluster] for sweep in sweeps]

    def losses(values: Mapping[str, float]) -> tuple[float, float]:
        """Return the loss over all sizes, and over those of the plateau."""
        whole, plateau = 0.0, 0.0
        for sweep, base, weight in zip(sweeps, bases, weights, strict=True):
            errors = np.abs(log_errors(sweep, replace(base, **values)))
            whole += float(errors.sum()) * weight
            plateau += float(errors[sweep.size >= PLATEAU_BYTES].sum()) * weight
        return whole / sum(weights), plateau / sum(weights)

    best = {name: getattr(start, name) for name in ranges}
    smallest = losses(best)
    for step in STEPS:
        for _ in range(8):
            is_better = False
            for name, (low, high) in ranges.items():
                which = int(name in PLATEAU_CONSTANTS)
                shift = step * max(abs(best[name]), 0.05 * min(high, 20.0))
                for value in (best[name] - shift, best[name] + shift):
                    candidate = {**best, name: round(min(max(value, low), high), 4)}
                    found = losses(candidate)
                    if found[which] < smallest[which] - 1e-4:
                        best, smallest, is_better = candidate, found, True
            if not is_better:
                break
    return replace(start, **best)
