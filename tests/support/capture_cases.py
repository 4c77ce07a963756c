"""A clock that counts, a small network and a plain training loop for the tests of capture; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.traces.capture.session import capture
from gradwire.traces.trace import Trace, load_trace

torch.set_num_threads(1)  # the networks are tiny: on a busy machine, two threads wait for each other


class CountingClock:
    """Every mark is one picosecond after the one before; reading marks before `settle` is an error."""

    def __init__(self) -> None:
        self.now = 0
        self.settled = -1

    def mark(self) -> int:
        self.now += 1
        return self.now

    def settle(self) -> None:
        self.settled = self.now

    def since(self, origin: int, mark: int) -> int:
        assert mark <= self.settled
        return mark - origin

    def release(self) -> None:
        pass


def train(
    model: nn.Module,
    out: Path,
    make_input: Callable[[], Any],
    phases: dict[str, range],
    *,
    steps: int = 100,
    momentum: float = 0.9,
    on_gradients: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> Trace:
    """A plain loop with momentum SGD on the mean square of the output, recorded until the recorder is done."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=momentum)
    with capture(model, optimizer, out=out, phases=phases, **options) as recorder:
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = model(make_input()).square().mean()
            loss.backward()
            on_gradients(step)
            optimizer.step()
            recorder.step(loss)
            if recorder.done:
                break
    return load_trace(out)


class Tiny(nn.Module):
    """Convolutions whose sizes are no multiples of 256, and a parameter that the model owns itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 7, 3, padding=1)
        self.bn = nn.BatchNorm2d(7)
        self.conv2 = nn.Conv2d(7, 19, 3, padding=1)
        self.fc = nn.Linear(19, 10)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.bn(self.conv1(x)))
        return self.fc(torch.relu(self.conv2(y)).mean(dim=(2, 3)))


def images() -> Any:
    return torch.randn(4, 3, 8, 8)
