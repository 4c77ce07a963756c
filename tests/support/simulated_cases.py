"""Builds traces, scenarios and trainers for tests of training over the simulator. Needs torch."""

from __future__ import annotations

import torch

from gradwire.scenarios.loading.load import build_scenario
from gradwire.traces.models.resnet import CifarResNet
from gradwire.traces.trace import TensorInfo
from gradwire.training.data import images
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.networks.builtin_networks import Pushed
from gradwire.training.trainer import Recipe, Trainer
from tests.support.sim_cases import make_trace as made

RING = {"exchange": {"kind": "ring"}, "servers": 0, "push_bound": 0.3, "pull_bound": 0.3, "pull_important": False,
        "tagging": {"magnitude": True, "important_fraction": 0.1}}  # fmt: skip
LOSSY = {"rate": "10Gbps", "latency": "1us", "loss": 0.05}


def made_trace(tensors: int = 2, elements: int | list[int] = 100, name: str = "step"):
    """One iteration; every tensor a layer."""
    sizes = elements if isinstance(elements, list) else [elements] * tensors
    found = made([[size] for size in sizes], forward=10**7, backward=10**7)
    found.manifest["name"] = name
    return found


def scenario(transport: str = "dlcp", workers: int = 4, **more):
    job = {
        "name": "job", "trace": "step", "iterations": 1, "workers": workers, "servers": 1, "push_bound": 0.2,
        "exchange": {"kind": "parameter_server", "partition": "64KiB"}, "tagging": {"magnitude": True, "layer_priority": True},
    }  # fmt: skip
    job |= more.pop("job", {})
    content = {
        "name": "small", "transport": transport, "topology": {"kind": "star", "hosts": workers + 1},
        "link": {"rate": "10Gbps", "latency": "1us"}, "job": [job],
        "switch": {"queues": 8, "buffer": "64KiB", "ecn_threshold": "16KiB", "selective_drop": True}, **more,
    }  # fmt: skip
    return build_scenario(content)


def trainer(network, reducer=None, steps: int = 4) -> Trainer:
    torch.manual_seed(1)
    recipe = Recipe(workers=4, batch=4, steps=steps)
    return Trainer(CifarResNet(1, 10), images("synthetic", 8, limit=200), recipe, reducer, network)


def pushed(values: torch.Tensor, workers: int = 4, step: int = 0) -> Pushed:
    """One tensor, the same of every worker."""
    info = TensorInfo("t", (len(values),), len(values), "float32", 0)
    return Pushed(step, 0, 4096, [info], [[Encoded((values,))] for _ in range(workers)])
