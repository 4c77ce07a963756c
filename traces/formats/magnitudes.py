"""Draws gradient magnitudes for imported files without any, from a model fitted to a trace of real training.

Other formats have sizes and times but no gradient values. Magnitude tagging needs values, so importers draw chunk
magnitudes from a model, and the manifest states it (`"magnitudes": {"source": "model", ...}`) with every parameter. The
model is our choice:

* within a tensor, the mean |g| of a chunk of 256 elements is log-normal: ln mean ~ N(mu, sigma), both per layer;
* mu of a tensor follows from its depth (0 = first layer, 1 = last) and its size, mu = intercept + depth_slope * depth +
  size_slope * ln(elements) + N(0, mu_residual);
* sigma grows with the size up to that of large tensors: sigma = clip(sigma_intercept + sigma_slope * ln(elements), 0,
  sigma_largest);
* the largest |g| of a chunk, given its mean: ln(max / mean) ~ N(peak_mean, peak_sigma), clipped to [0, ln 256], since a
  maximum is at least the mean and at most the sum.

All are least squares over the tensors of a measured trace, equally weighted, from the nonzero chunks of its sampled
iterations. Chunks are drawn independently: the model has neither similarity of neighbouring chunks nor persistence of
large chunks over iterations. It has no root of the mean square, so an imported trace has no `chunk_rms`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.errors import TraceError
from gradwire.traces.trace import CHUNK_ELEMENTS, Trace

FITTED_TO = "resnet50"  # bundled trace that importers fit to by default
SPREAD_CHUNKS = 8  # minimum for the spread within a tensor; our choice


@dataclass(frozen=True)
class MagnitudeModel:
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
        """Return the manifest entry for magnitudes drawn from this model."""
        parameters = {key: round(value, 6) for key, value in asdict(self).items() if key != "fitted_to"}
        return {"source": "model", "model": "lognormal", "fitted_to": self.fitted_to, "parameters": parameters}

    def draw(
        self, numel: Ints, depth: Floats, iterations: int, seed: int, given: Sequence[float | None] | None = None
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield (mean |g|, max |g|) of one tensor after the other, each float64 [iterations, chunks of the tensor].
        `numel` and `depth` are per tensor. `given` fixes the mean |g| of a tensor if known; the model then only spreads
        it over the chunks. The same arguments give the same magnitudes; a tensor's do not depend on later tensors."""
        streams = np.random.SeedSequence(seed).spawn(len(numel))
        for index, (elements, relative_depth) in enumerate(zip(numel, depth, strict=True)):
            draw = np.random.default_rng(streams[index])
            shape = (iterations, -(-int(elements) // CHUNK_ELEMENTS))
            size = math.log(elements)
            mu = self.intercept + self.depth_slope * relative_depth + self.size_slope * size
            mu += self.mu_residual * draw.standard_normal()
            sigma = min(max(self.sigma_intercept + self.sigma_slope * size, 0.0), self.sigma_largest)
            known = given[index] if given is not None else None
            if known is not None and known > 0:
                mu = math.log(known) - sigma**2 / 2  # so that the expectation is the known mean
            # Drawn in float32: a tensor may have millions of chunks, stored as float16.
            mean = np.exp(mu + sigma * draw.standard_normal(shape, dtype=np.float32), dtype=np.float64)
            peak = self.peak_mean + self.peak_sigma * draw.standard_normal(shape, dtype=np.float32)
            yield mean, mean * np.exp(np.clip(peak, 0.0, math.log(CHUNK_ELEMENTS)))


def fit_model(trace: Trace) -> MagnitudeModel:
    """Return the model's parameters, fitted to the measured `trace` as in the module docstring. TraceError if its
    magnitudes come from a model themselves, or if it has fewer than eight tensors with gradients above zero, too few to
    fit a line with three parameters."""
    if trace.manifest.get("magnitudes", {}).get("source", "measured") != "measured":
        raise TraceError("its magnitudes are not measured", trace.name, "a captured trace")
    depth = max(len(trace.layers) - 1, 1)
    rows, spreads, peaks = [], [], []
    for number, tensor in enumerate(trace.tensors):
        pairs = [trace.magnitudes(i, number) for i in trace.sampled]
        mean = np.concatenate([m for m, _ in pairs])
        top = np.concatenate([t for _, t in pairs])
        nonzero = (mean > 0) & (top > 0)
        if not nonzero.any():
            continue
        logs, size = np.log(mean[nonzero]), math.log(tensor.numel)
        rows.append((float(logs.mean()), tensor.layer / depth, size))
        ratio = np.log(top[nonzero] / mean[nonzero])
        peaks.append((float(ratio.mean()), float(ratio.std())))
        if tensor.chunks >= SPREAD_CHUNKS:
            within = [float(np.log(m[m > 0]).std()) for m, _ in pairs if (m > 0).any()]
            spreads.append((float(np.mean(within)), size))
    if len(rows) < 8 or len(spreads) < 3:
        raise TraceError(f"{len(rows)} tensors with gradients", trace.name, "eight or more")
    mu, depth_of, size_of = np.array(rows).T
    columns = np.stack([np.ones_like(mu), depth_of, size_of], axis=1)
    solution, *_ = np.linalg.lstsq(columns, mu, rcond=None)
    sigma, log_size = np.array(spreads).T
    slope, intercept = np.polyfit(log_size, sigma, 1)
    peak = np.array(peaks)
    return MagnitudeModel(
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
