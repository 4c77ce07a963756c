"""`WeightNowcaster` (WNN) predicts single parameters from their last five values, by one network for each type.

Source: Jang et al., "Learning to Boost Training by Periodic Nowcasting Near Future Weights", ICML 2023, with the code
and poster of github.com/jjh6297/WNN, marked [code] and [poster]. That repository has no licence, so nothing of it is
here: not its code, nor its trained weights, nor a converter for them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HISTORY = 5
"""Values that a prediction is made from [code]; it aims as many epochs ahead [poster]."""
LEAST_SPREAD = 1e-5
"""Added to the range of the values [code]."""
WIDTH, COMPRESSED, FEATURES = 64, 8, 32
"""Units of a stream's first layer, of its activation network, and of its second layer [code]."""
SLOPE = 0.3
"""Of the leaky ReLU: the default of the authors' library, Keras 2 [code]."""


class ActivationNetwork(nn.Module):
    """A learned activation: a + b exp(c x), where a, b and c are linear in a compressed x [code]."""

    def __init__(self) -> None:
        super().__init__()
        self.compress = nn.Linear(WIDTH, COMPRESSED)
        self.offset, self.factor, self.exponent = (nn.Linear(COMPRESSED, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        compressed = torch.relu(self.compress(x))
        return self.offset(compressed) + self.factor(compressed) * torch.exp(self.exponent(compressed) * x)


class ScalarPredictor(nn.Module):
    """Predicts a single parameter: five values and their four differences, (n, 5), to (n,) in (-1, 1).

    Values and differences have a stream each: a linear layer, an activation network, another linear layer and a leaky
    ReLU [code]. One linear layer joins the two [code]. See `nowcast` for the units. These are 9,425 parameters; the
    authors' slides speak of some 5,000.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values, self.differences = _stream(HISTORY), _stream(HISTORY - 1)
        self.out = nn.Linear(2 * FEATURES, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for linear in self._penalised():
            limit = math.sqrt(3 * 0.1 / linear.in_features)
            nn.init.uniform_(linear.weight, -limit, limit)

    def forward(self, values: Tensor) -> Tensor:
        streams = torch.cat([self.values(values), self.differences(values.diff(dim=1))], dim=1)
        return torch.tanh(self.out(streams)).squeeze(1)

    def penalty(self) -> Tensor:
        """Return the L1 penalty on the streams' linear layers, part of the loss [code]."""
        layers = self._penalised()
        weights, biases = (torch.cat([getattr(each, name).view(-1) for each in layers]) for name in ("weight", "bias"))
        return 1e-6 * weights.abs().sum() + 0.1 * biases.abs().sum()

    def _penalised(self) -> list[nn.Linear]:
        return [layer for stream in (self.values, self.differences) for layer in stream if isinstance(layer, nn.Linear)]


def _stream(inputs: int) -> nn.Sequential:
    first, second = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, FEATURES)
    return nn.Sequential(first, ActivationNetwork(), second, nn.LeakyReLU(SLOPE))


class WeightNowcaster(nn.Module):
    """A `ScalarPredictor` for each type of parameters, except those of normalisations [code]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.bias = ScalarPredictor(), ScalarPredictor(), ScalarPredictor()

    def of(self, kind: str) -> ScalarPredictor:
        """Return the predictor of a type."""
        return getattr(self, kind)


def normalise(history: Tensor) -> tuple[Tensor, Tensor]:
    """Return ((v - the first) / (2 range), range) of five values of n parameters: (5, n) to (n, 5) and (n,)."""
    spread = history.max(dim=0).values - history.min(dim=0).values + LEAST_SPREAD
    return ((history - history[0]) / (2 * spread)).T, spread


def nowcast(net: ScalarPredictor, history: Tensor) -> Tensor:
    """Return predicted values, (n,): the last one plus the net's output times twice the range [code]. For biases the
    authors' formula adds the last value before it is normalised; we take that for a slip."""
    values, spread = normalise(history)
    return history[-1] + 2 * spread * net(values)
