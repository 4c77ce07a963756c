"""A step's gradients recorded once and replayed, on a GPU: `gradwire.training.gradients.Together` as a CUDA graph.

Taking apart eight workers' gradients is some thousand small operations. A GPU works each of them out in microseconds,
and waits ten times as long for Python to hand it the next. As a graph they are handed over in one piece; they are the
same operations, so the bits are the same. What Python does in between happens once, when it is recorded: for models
and losses of gradwire's own, of which that is known, and not for others'.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradwire.training.copies import buffers_of, put_back
from gradwire.training.rows import Stacked

WARM = 3
"""Times that a step is made before it is recorded, in which libraries set themselves up [torch]."""


class Recorded:
    """The gradients of N workers by one forward and one backward pass, replayed from the second time on.

    model : whose parameters have to stay where they are.
    stacked : what is recorded, `gradwire.training.gradients.Together.stacked`.
    """

    def __init__(self, model: nn.Module, stacked: Callable[..., tuple[Tensor, list[Tensor]]]) -> None:
        self.model, self.stacked = model, stacked
        self.graph: torch.cuda.CUDAGraph | None = None
        self._given: tuple[Tensor, ...] = ()
        self._losses = self._matrix = torch.empty(0)

    def __call__(
        self, loss: object, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> tuple[list[float], Stacked]:
        """The loss and the gradients of each worker; arguments as in `of_each_in_turn`, of the same shapes and with the
        same loss each time.

        Raises
        ------
        RuntimeError
            It cannot be recorded: something waits for the GPU, such as a value that Python wants to see.
        """
        given = (*inputs, targets)
        if self.graph is None:
            self._record(loss, given)
        assert self.graph is not None
        for mine, each in zip(self._given, given, strict=True):
            mine.copy_(each)
        self.graph.replay()
        shapes = [each.shape for each in self.model.parameters()]
        return self._losses.tolist(), Stacked(self._matrix.clone(), shapes)

    def _record(self, loss: object, given: tuple[Tensor, ...]) -> None:
        model, device = self.model, given[0].device
        before = buffers_of(model)
        self._given = tuple(each.clone() for each in given)
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(aside):
                for _ in range(WARM):
                    self._compute(loss)
            torch.cuda.current_stream(device).wait_stream(aside)
            with torch.cuda.graph(graph):
                self._losses, self._matrix = self._compute(loss)
        finally:
            torch.cuda.synchronize(device)
            put_back(model, before)
        self.graph = graph

    def _compute(self, loss: object) -> tuple[Tensor, Tensor]:
        losses, stacked = self.stacked(loss, self._given[:-1], self._given[-1])
        return losses, torch.cat([each.reshape(len(losses), -1) for each in stacked], dim=1)
