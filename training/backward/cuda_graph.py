"""Gradients of a step recorded as a CUDA graph and replayed: `worker_gradients.Together` on a GPU.

Separating eight workers' gradients takes some thousand small operations. A GPU computes each in microseconds, and waits
ten times as long for Python to launch the next. A graph launches them all at once; the operations are the same, so the
bits are the same. Python code in between runs only during recording: this suits built-in models and losses, of which
that is known to be harmless.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradwire.training.backward.flat_gradients import StackedGradients
from gradwire.training.worker_copies import buffers_of, restore_buffers

WARMUP_RUNS = 3
"""Runs of a step before recording, in which libraries initialise themselves [torch]."""


class RecordedGraph:
    """The gradients of N workers by one forward and one backward pass, replayed from the second call on.

    model : its parameters must stay at their addresses.
    stacked : the function to record, `gradwire.training.backward.worker_gradients.JointGradients.stacked`.
    """

    def __init__(self, model: nn.Module, stacked: Callable[..., tuple[Tensor, list[Tensor]]]) -> None:
        self.model, self.stacked = model, stacked
        self.graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._losses = self._matrix = torch.empty(0)

    def __call__(
        self, loss: object, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> tuple[list[float], StackedGradients]:
        """Return the loss and the gradients of each worker; arguments as in `of_each_in_turn`, with the same shapes and
        loss each time. Raises RuntimeError if recording failed: something waits for the GPU, such as a value that
        Python reads."""
        tensors = (*inputs, targets)
        if self.graph is None:
            self._record(loss, tensors)
        assert self.graph is not None
        for recorded_input, tensor in zip(self._inputs, tensors, strict=True):
            recorded_input.copy_(tensor)
        self.graph.replay()
        shapes = [tensor.shape for tensor in self.model.parameters()]
        return self._losses.tolist(), StackedGradients(self._matrix.clone(), shapes)

    def _record(self, loss: object, tensors: tuple[Tensor, ...]) -> None:
        model, device = self.model, tensors[0].device
        before = buffers_of(model)
        self._inputs = tuple(tensor.clone() for tensor in tensors)
        side_stream = torch.cuda.Stream(device)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(side_stream):
                for _ in range(WARMUP_RUNS):
                    self._compute(loss)
            torch.cuda.current_stream(device).wait_stream(side_stream)
            with torch.cuda.graph(graph):
                self._losses, self._matrix = self._compute(loss)
        finally:
            torch.cuda.synchronize(device)
            restore_buffers(model, before)
        self.graph = graph

    def _compute(self, loss: object) -> tuple[Tensor, Tensor]:
        losses, stacked = self.stacked(loss, self._inputs[:-1], self._inputs[-1])
        return losses, torch.cat([gradients.reshape(len(losses), -1) for gradients in stacked], dim=1)
