"""`ModelUsage` scales a run of a part of a model back to the whole, and computes MFU and throughput.

Traces of `gradwire trace model` hold operations and units of an iteration, and sums of the whole model. Computing
grows in proportion: the passes, and apart from them the update, which FSDP divides by the ranks. Waiting has a part
that every layer repeats and a part that an iteration has once, such as the first gather. So the waiting of the whole
model is between that of the part and the same times the ratio of the layers. The estimate is the middle, and the
stated error reaches to both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import count_text, share_text, three_digits, time_text


@dataclass(frozen=True)
class ModelUsage:
    """A job's model.

    entry : the manifest's entry. micro_batches : passes of an iteration, beside those in it. scale : the job's
    `compute_scale`.
    """

    entry: dict[str, Any]
    micro_batches: int
    scale: float = 1.0

    @property
    def is_part(self) -> bool:
        """True if the trace lacks some of the repeated layers."""
        return bool(self.entry["layers"]["kept"] < self.entry["layers"]["of"])

    def whole_ps(self, iteration_ps: float, waiting_ps: float) -> tuple[float, float]:
        """Return the least and the largest iteration time of the whole model."""
        layers, whole = self.entry["layers"], self.entry["whole"]
        computing = iteration_ps - waiting_ps
        passes = min(1e12 * self.entry["seconds"]["passes"] * self.micro_batches * self.scale, computing)
        computing = passes * whole["passes"] + (computing - passes) * whole["update"]
        ratio = layers["of"] / layers["kept"] if self.is_part else 1.0
        return computing + waiting_ps, computing + waiting_ps * ratio

    def mfu(self, iteration_ps: float, whole: bool = False) -> float:
        """Return the model FLOPs utilisation of an iteration, of the whole model if requested."""
        flops = self.entry["flops"] * self.micro_batches * (self.entry["whole"]["flops"] if whole else 1.0)
        return float(flops / (iteration_ps / 1e12) / self.entry["peak_flops"])

    def units_per_s(self, iteration_ps: float) -> float:
        """Return tokens, pictures or samples of one GPU per second."""
        return float(self.entry["units"] * self.micro_batches / (iteration_ps / 1e12))

    def text(self, iteration_ps: float, waiting_ps: float) -> str:
        """Return the sentence of the verdict."""
        title, unit = self.entry["title"], self.entry["unit"]
        if not self.is_part:
            rate = count_text(self.units_per_s(iteration_ps))
            return f"It reaches an MFU of {share_text(self.mfu(iteration_ps))}, {rate} {unit}s/s per GPU."
        low, high = self.whole_ps(iteration_ps, waiting_ps)
        middle, layers = (low + high) / 2, self.entry["layers"]
        error = three_digits(100 * (high - low) / (high + low))
        rate = count_text(self.units_per_s(middle))
        return (
            f"Scaled from {layers['kept']} to all {layers['of']} layers of {title}, an iteration takes "
            f"{time_text(middle)} \u00b1 {error} %: an MFU of {share_text(self.mfu(middle, whole=True))}, "
            f"{rate} {unit}s/s per GPU."
        )

    def as_dict(self, iteration_ps: float, waiting_ps: float) -> Json:
        """Return plain values for JSON."""
        low, high = self.whole_ps(iteration_ps, waiting_ps)
        return {
            **self.entry,
            "mfu": self.mfu(iteration_ps),
            "units_per_s": self.units_per_s(iteration_ps),
            "whole_iteration_ps": [low, high],
            "whole_mfu": self.mfu((low + high) / 2, whole=True),
        }


def usages_of(context: ResultContext) -> dict[str, ModelUsage]:
    """Return the models of a run's jobs, by name; jobs whose trace has none are left out."""
    usages = {}
    for job, trace in zip(context.jobs, context.traces, strict=True):
        if isinstance(entry := trace.manifest.get("preset"), dict) and "seconds" in entry:
            usages[job.table.name] = ModelUsage(entry, job.table.accumulate, job.table.compute_scale)
    return usages
