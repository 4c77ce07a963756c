"""What a reducer remembers of one worker's tensor, and the random numbers that belong to it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import ScenarioError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from gradwire.traces.trace import TensorInfo


@dataclass
class State:
    """What is remembered of one worker's tensor between steps.

    seed, worker, tensor : what its random draws hang on, besides the step.
    workers : how many there are.
    step : how many steps are behind it.
    values : tensors by name, such as a residual.
    """

    seed: int
    worker: int
    tensor: int
    workers: int = 1
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    def own(self, device: Any = "cpu") -> Generator:
        """Random numbers of this worker's tensor in this step, and of nobody else."""
        return _generator(device, self.seed, self.step, self.tensor, self.worker + 1)

    def shared(self, device: Any = "cpu") -> Generator:
        """Random numbers of this tensor in this step that all workers and the server draw alike."""
        return _generator(device, self.seed, self.step, self.tensor, 0)

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"step": self.step, "values": {name: value.clone() for name, value in self.values.items()}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.step = int(saved["step"])
        self.values = {name: value.clone() for name, value in saved["values"].items()}


def _generator(device: Any, *numbers: int) -> Generator:
    import torch

    words = b"".join(int(each).to_bytes(8, "little", signed=True) for each in numbers)
    generator = torch.Generator(device=device)
    generator.manual_seed(zlib.crc32(words) << 32 | zlib.crc32(words, 1))
    return generator


def flat(tensor: Tensor, info: TensorInfo | None = None) -> Tensor:
    """A tensor as one run of float32 values.

    info : what it should be, if it should be something.

    Raises
    ------
    ScenarioError
        It has other than as many elements, or complex ones, half of which would be lost.
    """
    where = f"gradient of {info.name}" if info is not None else "gradient"
    if info is not None and tensor.numel() != info.numel:
        raise ScenarioError(f"has {tensor.numel()} elements", where, f"{info.numel}")
    if tensor.is_complex():
        raise ScenarioError(f"has elements of {tensor.dtype}", where, "real ones, such as torch.view_as_real has")
    return tensor.detach().reshape(-1).float()


def finite(remembered: Tensor) -> Tensor:
    """What is remembered for the next step, with zero for what is no finite number, which would be in all that come."""
    return remembered.nan_to_num(0.0, 0.0, 0.0)
