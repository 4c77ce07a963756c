"""Cases of trainings that several tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.training.network import Pushed
    from gradwire.training.ring import RingLayout


def pushed_round(layout: RingLayout, step: int = 0) -> Pushed:
    """What the workers of a ring send in a step: ones, of tensors of the layout's sizes."""
    import torch

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.encoded import Encoded
    from gradwire.training.network import Pushed

    infos = [TensorInfo(f"t{n}", (numel,), numel, "float32", n) for n, numel in enumerate(layout.numels)]
    encoded = [[Encoded((torch.ones(info.numel),)) for info in infos] for _ in range(layout.workers)]
    return Pushed(step, 0, layout.payload, infos, encoded, layout)
