"""A model and data of one's own: points on two spirals, and a perceptron that tells which one a point is on."""

import numpy as np
import torch
from torch import nn

from gradwire.training.data import Images


class Perceptron(nn.Module):
    """Called with the number of classes, which the data say."""

    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, points):
        return self.layers(points)


def points(samples=4000):
    """Points of the plane, a fifth of them held out; `training.samples` is how many, if a scenario says."""
    draws = np.random.default_rng(1)
    spiral, turns = draws.integers(0, 2, samples), draws.uniform(0.2, 1.2, samples)
    angle = np.pi * (2 * turns + spiral)
    at = turns[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) + draws.normal(scale=0.03, size=(samples, 2))
    x, y = torch.from_numpy(at).float(), torch.from_numpy(spiral)
    held = samples // 5
    return Images((x[held:], y[held:]), (x[:held], y[:held]), classes=2, augment=False)
