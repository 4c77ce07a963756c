"""Overlapped averaging on real tensors: plain training to rounding, owners' parts, bytes, checkpoints, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from dense_cases import shaped_trace  # noqa: E402
from sim_cases import scenario  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.scenarios.schema.scenario import Scenario  # noqa: E402
from gradwire.traces.models.resnet import CifarResNet  # noqa: E402
from gradwire.training.build import trainer_of  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.overlapped_averaging import OverlappedTrainer  # noqa: E402
from gradwire.training.precision import Precision  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from gradwire.workload.prerequisites import find_prerequisites, make_jobs  # noqa: E402
from tests.support.training_cases import close, parameters  # noqa: E402

DATA = images("synthetic", 8, limit=400)
RECIPE = Recipe(workers=3, batch=8, steps=8, rate=0.1, schedule="triangle", nesterov=True)


def dense() -> nn.Module:
    """A kernel, a norm, and two matrices with and without a bias; sizes that three owners do not divide."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.GroupNorm(1, 7), nn.Tanh(), nn.Flatten(), nn.Linear(252, 11, bias=False), nn.Tanh(),
        nn.Linear(11, 10),
    )  # fmt: skip


@pytest.mark.parametrize("what", ["activations", "gradients"])
@pytest.mark.parametrize("make", [dense, lambda: CifarResNet(1, 10)], ids=["dense", "resnet8"])
def test_overlapped_averaging_equals_plain_training_to_rounding(make, what: str) -> None:
    torch.manual_seed(2)
    net = make()
    plain = Trainer(copy.deepcopy(net), DATA, RECIPE)
    ours = OverlappedTrainer(net, DATA, RECIPE, dense=what)
    for _ in range(RECIPE.steps):
        expected, row = plain.step(), ours.step()
        assert row.loss == pytest.approx(expected.loss, rel=1e-4)
    assert close(ours.model, plain.model, 2e-5)
    assert not close(ours.model, make(), 1e-3)


def test_gradient_from_activations_equals_mean_of_worker_gradients() -> None:
    """After one step, A^T E over all samples, columns by owner, equals the mean of autograd's gradients."""
    ours = OverlappedTrainer(dense(), DATA, RECIPE)
    inputs, targets = ours.dealer.step(0)
    with ours.averaging.recording():
        _, each = ours.gradients(ours.loss, inputs, targets)
        ours.averaging.step(each, 0)
    for owned in ours.averaging.owned:
        mean = [sum(mine[place] for mine in each) / 3 for place in owned.group.tensors]
        found = torch.cat([part.grad for part in owned.parts])
        assert torch.allclose(found, owned.filled(mean), atol=1e-7)
        if owned.bias:
            assert torch.allclose(owned.bias[0].grad, mean[-1], atol=1e-7)


def test_sent_bytes_equal_simulated_exchange() -> None:
    net = dense()
    row = OverlappedTrainer(net, DATA, RECIPE).step()
    shapes = [[tuple(each.shape) for each in module.parameters()] for module in net if list(module.parameters())]
    exchange = {"kind": "overlapped", "batch": RECIPE.batch}
    case, trace = scenario({"workers": 3, "exchange": exchange}), shaped_trace(shapes)
    (job,) = make_jobs(case, find_prerequisites(case, trace))
    assert row.sent_bytes == job.exchange.bytes_per_iteration


def test_overlapped_run_resumes_from_checkpoint() -> None:
    whole, first = OverlappedTrainer(dense(), DATA, RECIPE), OverlappedTrainer(dense(), DATA, RECIPE)
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    later = OverlappedTrainer(dense(), DATA, RECIPE)
    later.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(3):
        later.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters(whole.model), parameters(later.model), strict=True))


def tiny(training: dict[str, object] | None = None, **exchange: object) -> Scenario:
    """A scenario that trains a small net by overlapped averaging."""
    job = {
        "name": "job",
        "trace": "resnet20",
        "workers": 4,
        "exchange": {"kind": "overlapped", "batch": 16, **exchange},
    }
    table = {
        "model": "resnet8",
        "data": "synthetic",
        "size": 16,
        "samples": 400,
        "batch": 16,
        "steps": 3,
        "network": "ideal",
    }
    topology = {"kind": "star", "hosts": 4}
    return build_scenario(
        {"name": "case", "topology": topology, "transport": "dctcp", "job": [job], "training": {**table, **(training or {})}}, "case"
    )  # fmt: skip


def test_scenario_with_overlapped_exchange_builds_overlapped_trainer() -> None:
    found = trainer_of(tiny(), DATA)
    assert isinstance(found, OverlappedTrainer) and found.step().sent_bytes > 0


@pytest.mark.parametrize(
    ("training", "exchange", "words"),
    [
        ({"network": "simulated"}, {}, "cannot be trained over"),
        ({"optimizer": {"clip": 1.0}}, {}, "norm of all gradients"),
        ({"reducer": {"kind": "topk", "ratio": 0.1}}, {}, "sends no reduced gradients"),
        ({"system": {"kind": "slimdp"}}, {}, "is not supported by slimdp"),
        ({}, {"batch": 8}, "training.batch"),
    ],
)
def test_settings_incompatible_with_overlapped_averaging_are_rejected(
    training: dict[str, object], exchange: dict[str, object], words: str
) -> None:
    with pytest.raises(ScenarioError, match=words):
        trainer_of(tiny(training, **exchange), DATA)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("scaled", [False, True], ids=["all at once", "in turn"])
def test_reused_layer_is_rejected_unless_gradients_are_averaged(scaled: bool, precision: Precision) -> None:
    """The error does not depend on how gradients are computed. A group norm with weights makes workers go one by
    one."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Linear(192, 10), nn.Linear(10, 10)
            self.norm = nn.GroupNorm(1, 10, affine=scaled)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(torch.tanh(self.again(self.norm(self.first(x.flatten(1))))))

    recipe = replace(RECIPE, precision=precision)
    with pytest.raises(ScenarioError, match="several times"):
        OverlappedTrainer(Twice(), DATA, recipe).step()
    OverlappedTrainer(Twice(), DATA, recipe, dense="gradients").step()
