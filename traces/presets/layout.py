"""`Layout` states how a model is divided over GPUs, and checks that it fits."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.errors import TraceError
from gradwire.traces.presets.model_specs import ModelSpec


@dataclass(frozen=True)
class Layout:
    """Division of a model and its batch over GPUs.

    gpus : all of them; None if the number of copies is left open.
    tensor, pipeline, expert, context : ranks that share the matrices of a layer, the layers, the experts, and a sample.
    micro_batch : samples of a micro-batch; micro_batches : of an iteration of one copy.
    length : units of a sample. layers : repeated layers that are kept, of all stages together.
    recompute : the backward pass repeats the forward pass. sequence_parallel : tensor ranks divide all activations.
    """

    gpus: int | None = None
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    context: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    length: int = 1
    layers: int = 0
    recompute: bool = False
    sequence_parallel: bool = True

    @property
    def model_ranks(self) -> int:
        """GPUs of one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def copies(self) -> int:
        """Copies of the model; 1 if the number of GPUs is open."""
        return self.gpus // self.model_ranks if self.gpus else 1

    def check(self, spec: ModelSpec) -> None:
        """Raise TraceError if the division does not fit the model."""
        sizes = {
            "--tp": self.tensor,
            "--pp": self.pipeline,
            "--ep": self.expert,
            "--cp": self.context,
            "--micro-batch": self.micro_batch,
            "--micro-batches": self.micro_batches,
            "--length": self.length,
        }
        for option, size in sizes.items():
            if size < 1:
                raise TraceError(f"is {size}", option, "1 or more")
        if spec.repeats and not 1 <= self.layers <= spec.repeats:
            raise TraceError(f"keeps {self.layers} layers of {spec.name}", "--layers", f"1 to {spec.repeats}")
        if not spec.repeats and self.layers:
            raise TraceError(f"{spec.name} has no repeated layers", "--layers", "to leave it out")
        if self.pipeline > 1 and (not spec.repeats or self.layers % self.pipeline):
            what = f"{self.layers} layers do not divide into {self.pipeline} stages"
            raise TraceError(what, "--pp", "a number of stages that divides the layers")
        experts = [block for block in spec.blocks(1) if block.expert]
        if self.expert > 1 and not experts:
            raise TraceError(f"{spec.name} has no experts", "--ep", "1, or mixtral-8x7b")
        if self.tensor > 1 and not any(block.collective[0] == "tensor" for block in spec.blocks(1)):
            raise TraceError(f"the layers of {spec.name} cannot be divided", "--tp", "1")
        if self.context > 1 and not spec.keys_values:
            raise TraceError(f"{spec.name} has no attention that spans a sample's parts", "--cp", "1")
        if self.length % self.context:
            what = f"{self.length} {spec.unit}s do not divide into {self.context} parts"
            raise TraceError(what, "--cp", "a number of ranks that divides --length")
        if self.gpus is not None and self.gpus % (self.model_ranks * self.expert):
            what = f"{self.gpus} GPUs are no multiple of {self.model_ranks * self.expert}"
            raise TraceError(what, "--gpus", "a multiple of tensor x pipeline x context x expert ranks")
