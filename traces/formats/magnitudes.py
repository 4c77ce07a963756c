"""Gradient magnitudes where a file has none: a stated model, fitted to a trace of real training.

Other formats know sizes and times but no gradient values. So that magnitude tagging has something to work on,
importers draw chunk magnitudes from a model, and the manifest says so (`"magnitudes": {"source": "model",
...}`) together with every parameter. The model is our choice:

* within a tensor, the mean |g| of a run of 256 elements is log-normal: ln mean ~ N(mu, sigma), both per layer;
* mu of a tensor follows from its depth (0 = first layer, 1 = last) and its size,
  mu = intercept + depth_slope * depth + size_slope * ln(elements) + N(0, mu_residual);
* sigma grows with the size up to what is seen within large tensors: sigma = clip(sigma_intercept +
  sigma_slope * ln(elements), 0, sigma_largest);
* the largest |g| of a run, given its mean: ln(max / mean) ~ N(peak_mean, peak_sigma), kept in [0, ln 256],
  since a maximum is at least the mean and at most the sum.

All are least squares over the tensors of a measured trace, each weighted alike, from the chunks above zero of
its sampled iterations. Runs are drawn independently: that neighbouring runs of a real gradient resemble each
other, and that large runs stay large, is not in the model. The root of the mean square is not modelled
either, so an imported trace has no `chunk_rms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.scenarios.errors import TraceError
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace

Floats = NDArray[np.float64]

FITTED_TO = "resnet50"  # the bundled trace that importers fit to unless told otherwise
SPREAD_CHUNKS = 8  # tensors with fewer runs say nothing about the spread within a tensor; our choice


@dataclass(frozen=True)
class Model:
    """Parameters of the module docstring's model; |g| in the units of the trace it was fitted to."""

    fitted_to: str
    intercept: float
    depth_slope: float
    size_slope: float
    mu_residual: float
    sigma_intercept: float
    sigma_slope: float
    sigma_largest: float
    peak_mean: float
    peak_sigma: float

    def as_dict(self) -> dict[str, Any]:
        """What a manifest says about magnitudes drawn from this model."""
        parameters = {key: round(value, 6) for key, value in asdict(self).items() if key != "fitted_to"}
        return {
            "source": "model",
            "model": "lognormal",
            "fitted_to": self.fitted_to,
            "parameters": parameters,
        }

    def draw(
        self,
        numel: NDArray[np.int64],
        depth: Floats,
        iterations: int,
        seed: int,
        given: Sequence[float | None] | None = None,
    ) -> Iterator[tuple[Floats, Floats]]:
        """(mean |g|, max |g|) of one tensor after the other, each float64 [iterations, chunks of the tensor].

        `numel` and `depth` are per tensor. `given` fixes the mean |g| of a tensor where it is known; the model
        then only spreads it over the runs. The same arguments give the same magnitudes; a tensor's do not
        depend on those behind it.
        """
        streams = np.random.SeedSequence(seed).spawn(len(numel))
        for index, (elements, place) in enumerate(zip(numel, depth, strict=True)):
            draw = np.random.default_rng(streams[index])
            shape = (iterations, -(-int(elements) // CHUNK_ELEMENTS))
            size = math.log(elements)
            mu = self.intercept + self.depth_slope * place + self.size_slope * size
            mu += self.mu_residual * draw.standard_normal()
            sigma = min(max(self.sigma_intercept + self.sigma_slope * size, 0.0), self.sigma_largest)
            known = given[index] if given is not None else None
            if known is not None and known > 0:
                mu = math.log(known) - sigma**2 / 2  # so that the expectation is the known mean
            # Drawn in float32: a tensor may have millions of runs, and float16 is what they become.
            mean = np.exp(mu + sigma * draw.standard_normal(shape, dtype=np.float32), dtype=np.float64)
            peak = self.peak_mean + self.peak_sigma * draw.standard_normal(shape, dtype=np.float32)
            yield mean, mean * np.exp(np.clip(peak, 0.0, math.log(CHUNK_ELEMENTS)))


def fit(trace: Trace) -> Model:
    """The model's parameters, fitted to the measured `trace` as the module docstring says.

    TraceError if its magnitudes come from a model themselves, or if it has fewer than eight tensors with
    gradients above zero, too few to fit a line with three parameters.
    """
    if trace.manifest.get("magnitudes", {}).get("source", "measured") != "measured":
        raise TraceError("its magnitudes are not measured", trace.name, "a captured trace to fit to")
    depth = max(len(trace.layers) - 1, 1)
    rows, spreads, peaks = [], [], []
    for number, tensor in enumerate(trace.tensors):
        pairs = [trace.magnitudes(i, number) for i in trace.sampled]
        mean = np.concatenate([m for m, _ in pairs])
        top = np.concatenate([t for _, t in pairs])
        above = (mean > 0) & (top > 0)
        if not above.any():
            continue
        logs, size = np.log(mean[above]), math.log(tensor.numel)
        rows.append((float(logs.mean()), tensor.layer / depth, size))
        ratio = np.log(top[above] / mean[above])
        peaks.append((float(ratio.mean()), float(ratio.std())))
        if tensor.chunks >= SPREAD_CHUNKS:
            within = [float(np.log(m[m > 0]).std()) for m, _ in pairs if (m > 0).any()]
            spreads.append((float(np.mean(within)), size))
    if len(rows) < 8 or len(spreads) < 3:
        raise TraceError(f"{len(rows)} tensors with gradients", trace.name, "eight or more to fit to")
    mu, place, size_of = np.array(rows).T
    columns = np.stack([np.ones_like(mu), place, size_of], axis=1)
    solution, *_ = np.linalg.lstsq(columns, mu, rcond=None)
    sigma, log_size = np.array(spreads).T
    slope, intercept = np.polyfit(log_size, sigma, 1)
    peak = np.array(peaks)
    return Model(
        fitted_to=trace.name,
        intercept=float(solution[0]),
        depth_slope=float(solution[1]),
        size_slope=float(solution[2]),
        mu_residual=float((mu - columns @ solution).std()),
        sigma_intercept=float(intercept),
        sigma_slope=float(slope),
        sigma_largest=float(sigma.max()),
        peak_mean=float(peak[:, 0].mean()),
        peak_sigma=float(peak[:, 1].mean()),
    )
