"""Judges the model on clusters, and on whole fabric classes, that its constants were not fitted to."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.studies.busbw.collectives import COLLECTIVES
from gradwire.studies.clusters.fit import Fitted, fit, predicted
from gradwire.studies.clusters.measurements import ONE_HOST, Sweep

LARGE_BYTES = 1 << 20
"""Sizes from here on are judged by bus bandwidth, smaller ones by time."""
SMALL_FACTOR = 1.5
OnProgress = Callable[[float, str], object]


@dataclass(frozen=True, eq=False)
class Judged:
    """A sweep beside its prediction by constants that were fitted without it.

    predicted_us : float64[rows]. algorithms : by row.
    """

    sweep: Sweep
    predicted_us: Floats
    algorithms: tuple[str, ...]

    @property
    def is_large(self) -> np.ndarray:
        """bool[rows]: True from 1 MiB on."""
        return np.asarray(self.sweep.size >= LARGE_BYTES)

    @property
    def predicted_busbw(self) -> Floats:
        """Bus bandwidth in GB/s, float64[rows]."""
        factor = COLLECTIVES[self.sweep.collective].factor(self.sweep.ranks)
        return np.asarray(self.sweep.size / self.predicted_us / 1000 * factor)

    @property
    def busbw_errors(self) -> Floats:
        """|predicted / measured - 1| of the bus bandwidth of large sizes."""
        return np.abs(self.sweep.time_us / self.predicted_us - 1)[self.is_large]

    @property
    def time_factors(self) -> Floats:
        """Factor between predicted and measured time of small sizes, at least 1."""
        ratio = (self.predicted_us / self.sweep.time_us)[~self.is_large]
        return np.maximum(ratio, 1 / ratio)


@dataclass(frozen=True)
class Errors:
    """Errors over some rows; NaN without rows.

    large, small : numbers of rows. median, p95 : of the busbw error of large ones. within : share of small ones within
        the factor. factor : its median.
    """

    large: int
    small: int
    median: float
    p95: float
    within: float
    factor: float


def errors_of(judged: Sequence[Judged]) -> Errors:
    """Return the errors over all rows of sweeps."""
    large = np.concatenate([np.zeros(0), *(each.busbw_errors for each in judged)])
    small = np.concatenate([np.zeros(0), *(each.time_factors for each in judged)])
    return Errors(
        len(large),
        len(small),
        float(np.median(large)) if len(large) else float("nan"),
        float(np.quantile(large, 0.95)) if len(large) else float("nan"),
        float(np.mean(small <= SMALL_FACTOR)) if len(small) else float("nan"),
        float(np.median(small)) if len(small) else float("nan"),
    )


@cache
def _remarks() -> dict[str, list[dict[str, str]]]:
    text = (resources.files("gradwire.studies.clusters") / "remarks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def remark_on(cluster: str, kind: str = "known") -> str:
    """Return the reason why a cluster is "omitted", or what is "known" of it; empty if there is none."""
    found = (entry["reason"] for entry in _remarks()[kind] if cluster.startswith(entry["cluster"]))
    return next(found, "")


def modelled(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Return the sweeps of clusters that the model covers."""
    return [sweep for sweep in sweeps if not remark_on(sweep.cluster, "omitted")]


def judge(sweeps: Sequence[Sweep], fitted: Fitted) -> list[Judged]:
    """Return sweeps beside their predictions."""
    judged = []
    for sweep in sweeps:
        times, names = predicted(sweep, fitted.constants(sweep.fabric_class, sweep.accelerator))
        judged.append(Judged(sweep, times, tuple(names)))
    return judged


def leave_out(
    sweeps: Sequence[Sweep], whole: Fitted, key: Callable[[Sweep], str], on_progress: OnProgress | None = None
) -> Iterator[Judged]:
    """Leave out one group of sweeps on several hosts after the other, and judge it by constants fitted to the others.

    whole : constants fitted to all sweeps, at which the search begins for classes and accelerators that the group does
        not belong to. key : name of a sweep's group.
    """
    groups = list(dict.fromkeys(key(sweep) for sweep in sweeps if sweep.fabric_class != ONE_HOST))
    for number, group in enumerate(groups):
        if on_progress:
            on_progress(number / len(groups), f"without {group}")
        left = [sweep for sweep in sweeps if sweep.fabric_class != ONE_HOST and key(sweep) == group]
        others = [sweep for sweep in sweeps if key(sweep) != group]
        classes, accelerators = ({getattr(each, name) for each in left} for name in ("fabric_class", "accelerator"))
        start = Fitted(
            {name: constants for name, constants in whole.fabrics.items() if name not in classes},
            {name: constants for name, constants in whole.accelerators.items() if name not in accelerators},
        )
        yield from judge(left, fit(others, start))
