"""Writes the example `spirals` with a module of user-defined models and data, and loads it shortened."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

from gradwire.scenarios.loading.load import load_scenario

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spirals.toml"


SHORT = ["training.steps=6", "training.batch=8", 'training.network="ideal"']


NETS = """
import torch
from torch import nn
from gradwire.training.data import Images, Text

class Letters(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.size, self.inner, self.outer = size, nn.Embedding(classes, 8), nn.Linear(8, classes)
    def forward(self, tokens):
        return self.outer(self.inner(tokens))

def pictures(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)) if classes < 0 else nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, classes))

def words(*, size=16):
    tokens = torch.arange(1000) % 7
    return Text(tokens[:800], tokens[800:], 7, size)

def squares(samples):
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, 8, 8, generator=draws)
    return Images((x, torch.arange(samples) % 3), (x, torch.arange(samples) % 3), 3, augment=False)

def listed():
    return [1, 2, 3]

def unheld():
    x = torch.zeros(64, 2)
    return Images((x, x[:, 0].long()), (x[:0], x[:0, 0].long()), 2, augment=False)

def broken():
    raise OSError("disk on fire")

def frozen(classes):
    net = nn.Linear(2, classes)
    net.bias.requires_grad = False
    return net

def wide(classes):
    return nn.Linear(3, classes)

def narrow(classes):
    return nn.Linear(2, classes - 1)

def late(classes):
    class Late(nn.Linear):
        calls = 0
        def forward(self, x):
            Late.calls += self.training
            if Late.calls > 20:
                raise KeyError("twenty-one")
            return super().forward(x)
    return Late(2, classes)

def leaves(classes):
    raise SystemExit(0)

class Own(BaseException):
    pass

def odd(classes):
    raise Own("whatever")

shared = nn.Linear(2, 2)

def again(classes):
    return shared

def meta(classes):
    return nn.Linear(2, classes, device="meta")

class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()

def detached(classes):
    return Detached(2, classes)

def without_gradients(classes):
    torch.set_grad_enabled(False)
    return nn.Linear(2, classes)

class Few(nn.Linear):
    def forward(self, x):
        if not self.training and len(x) > 2:
            raise RuntimeError("too many at once")
        return super().forward(x)

def few(classes):
    return Few(2, classes)

async def later(classes):
    return nn.Linear(2, classes)

def wrong():
    return Images((torch.zeros(64, 2), torch.full((64,), 3)), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def arrays():
    import numpy as np
    return Images((np.zeros((64, 2)), np.zeros(64)), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def wide_test():
    return Images((torch.zeros(64, 2), torch.zeros(64).long()), (torch.zeros(4, 3), torch.zeros(4).long()), 2, augment=False)

def double():
    return Images((torch.zeros(64, 2).double(), torch.zeros(64).long()), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def sparse():
    x = torch.zeros(64, 2).to_sparse()
    return Images((x, torch.zeros(64).long()), (x, torch.zeros(64).long()), 2, augment=False)

class Moody(Images):
    def batch(self, indices, draws):
        if len(indices) > 2:
            raise KeyError("not now")
        return super().batch(indices, draws)

def moody():
    x = torch.zeros(64, 2)
    return Moody((x, x[:, 0].long()), (x, x[:, 0].long()), 2, augment=False)

number = 7
"""


def write_example(folder: Path) -> Path:
    """Write the example and the module `nets` into a folder; return the file of the scenario."""
    for each in (EXAMPLE, EXAMPLE.with_suffix(".py")):
        shutil.copy(each, folder)
    (folder / "nets.py").write_text(dedent(NETS))
    return folder / EXAMPLE.name


def scenario(file: Path, *more: str, policy: str = "whole") -> Any:
    """Return a policy of the scenario in a file, shortened to six steps on an ideal network."""
    return load_scenario(file, set=[*SHORT, *more], policy=policy)
