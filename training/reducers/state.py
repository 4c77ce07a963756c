"""`State` holds the values that a reducer remembers of one worker's tensor, and seeds its random generators."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import Tensor, torch
from gradwire.traces.parts import TensorInfo


@dataclass
class State:
    """State of one worker's tensor between steps.

    seed, worker, tensor : determine its random draws, with the step.
    workers : their number.
    step : steps done.
    values : tensors by name, such as a residual.
    """

    seed: int
    worker: int
    tensor: int
    workers: int = 1
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    def generator(self, device: Any = "cpu") -> torch.Generator:
        """Return the random generator of this worker's tensor in this step."""
        return _generator(device, self.seed, self.step, self.tensor, self.worker + 1)

    def shared(self, device: Any = "cpu") -> torch.Generator:
        """Return the random generator of this tensor in this step that all workers and the server share."""
        return _generator(device, self.seed, self.step, self.tensor, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "values": cloned(self.values)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step, self.values = int(saved["step"]), cloned(saved["values"])


def _generator(device: Any, *numbers: int) -> torch.Generator:
    words = b"".join(int(number).to_bytes(8, "little", signed=True) for number in numbers)
    generator = torch.Generator(device=device)
    generator.manual_seed(zlib.crc32(words) << 32 | zlib.crc32(words, 1))
    return generator


def flat(tensor: Tensor, info: TensorInfo | None = None) -> Tensor:
    """Return a tensor as flat float32 values.

    info : of the expected tensor, if known.

    Raises ScenarioError if it has another number of elements, or complex ones, half of which would be lost.
    """
    where = f"gradient of {info.name}" if info is not None else "gradient"
    if info is not None and tensor.numel() != info.numel:
        raise ScenarioError(f"has {tensor.numel()} elements", where, f"{info.numel}")
    if tensor.is_complex():
        raise ScenarioError(f"has elements of {tensor.dtype}", where, "real ones, such as those of torch.view_as_real")
    return tensor.detach().reshape(-1).float()


def zero_nonfinite(remembered: Tensor) -> Tensor:
    """Return what is kept for the next step, with zero for values that are not finite, which would spread to all later
    steps."""
    return remembered.nan_to_num(0.0, 0.0, 0.0)


def map_tensors(change: Callable[[Tensor], Tensor], saved: Any) -> Any:
    """Return nested lists, tuples and dictionaries, such as those of a checkpoint, with all tensors changed."""
    if isinstance(saved, dict):
        return {key: map_tensors(change, value) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(map_tensors(change, item) for item in saved)
    return change(saved) if isinstance(saved, torch.Tensor) else saved


cloned: Callable[[Any], Any] = partial(map_tensors, lambda tensor: tensor.clone())
"""Return the same with copies of all tensors."""
