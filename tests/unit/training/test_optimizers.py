"""What updates parameters: SGD and AdamW as torch has them, whoever makes the update and whatever is lost."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.data import Dealer, images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.training_cases import parameters, plain, resnet, same  # noqa: E402

DATA = images("synthetic", 8, limit=400)
ADAM = {"optimizer": "adamw", "rate": 0.003, "betas": (0.8, 0.95), "epsilon": 1e-6, "weight_decay": 0.02}
SHORT = [
    "training.steps=4",
    "training.samples=200",
    "training.size=8",
    "training.batch=4",
    "job.workers=2",
    'training.network="ideal"',
    "job.pull_bound=0",
]


def recipe(workers: int = 1, steps: int = 6, **more) -> Recipe:
    return Recipe(workers=workers, batch=16, steps=steps, schedule="constant", **{**ADAM, **more})


@pytest.mark.parametrize("make", [Trainer, Asynchronous])
def test_one_lossless_worker_equals_torch_adamw(make) -> None:
    """Parameters are bit-identical, also for an asynchronous server with one worker."""
    ours, net, dealer = make(resnet(), DATA, recipe()), resnet(), Dealer(DATA, 1, 16, 0)
    optimizer = torch.optim.AdamW(net.parameters(), 0.003, (0.8, 0.95), 1e-6, weight_decay=0.02)
    for number in range(6):
        ours.step()
        inputs, targets = dealer.step(number)
        optimizer.zero_grad()
        cross_entropy(net(*inputs), targets).backward()
        optimizer.step()
    assert same(ours.model, net)


def test_adamw_update_matches_published_algorithm() -> None:
    """NumPy computes three steps of algorithm 2 of Loshchilov and Hutter. The gradient is the mean of two workers
    with packet loss."""
    net = plain()
    ours = Trainer(net, DATA, recipe(2, 3), network=Random(0.4, seed=3))
    kept = []
    exchange = ours.exchange.step
    ours.exchange.step = lambda *args: kept.append(exchange(*args)) or kept[-1]
    values = [each.double().numpy().copy() for each in parameters(net)]
    first, second = ([np.zeros_like(each) for each in values] for _ in range(2))
    for step in range(1, 4):
        ours.step()
        assert any(share for row in ours.lost for share in row)
        for at, mean in enumerate(kept[-1][0]):
            gradient = mean.double().numpy()
            first[at] = 0.8 * first[at] + 0.2 * gradient
            second[at] = 0.95 * second[at] + 0.05 * gradient**2
            move = first[at] / (1 - 0.8**step) / (np.sqrt(second[at] / (1 - 0.95**step)) + 1e-6)
            values[at] -= 0.003 * (move + 0.02 * values[at])
    for mine, theirs in zip(parameters(net), values, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("collective", ["parameter_server", "ring"])
def test_adamw_run_resumes_from_checkpoint(collective: str) -> None:
    """The checkpoint holds both means and the step count, in a lossy ring those of each worker."""
    whole, half = (
        Trainer(plain(), DATA, recipe(4, collective=collective), network=Random(0.2, way="both")) for _ in range(2)
    )
    for _ in range(3):
        whole.step(), half.step()
    later = Trainer(plain(), DATA, recipe(4, collective=collective), network=Random(0.2, way="both"))
    later.load_state_dict(half.state_dict())
    for _ in range(3):
        assert whole.step() == later.step()
    assert same(whole.model, later.model)


def test_scenario_passes_adamw_parameters_to_training() -> None:
    made = load_scenario(
        "train-tiny",
        set=[*SHORT, 'training.optimizer={kind="adamw", rate=0.003, betas=[0.8, 0.95], epsilon=1e-6}'],
        policy="dctcp",
    )
    other = load_scenario("train-tiny", set=[*SHORT, 'training.optimizer={kind="adamw", rate=0.003}'], policy="dctcp")
    first, second = train(made), train(other)
    assert first.steps[0]["loss"] == second.steps[0]["loss"] and first.steps[2]["loss"] != second.steps[2]["loss"]


@pytest.mark.parametrize(("keys", "words"), [
    (['training.optimizer={kind="adamw", momentum=0.5}'], "optimizer.momentum: is not a key of adamw"),
    (['training.optimizer={kind="adamw", nesterov=true}'], "optimizer.nesterov: is not a key of adamw"),
    (["training.optimizer={betas=[0.9, 0.99]}"], "optimizer.betas: is not a key of sgd"),
    (["training.optimizer={epsilon=1e-7}"], "optimizer.epsilon: is not a key of sgd"),
    (['training.optimizer={kind="adamw", betas=[0.9]}'], "optimizer.betas: is too short"),
    (['training.optimizer={kind="adamw"}', 'training.reducer={kind="dgc"}'], "reducer.momentum: duplicates the optimiser's momentum"),
    (['training.optimizer={kind="adamw"}', 'training.reducer={kind="topk"}', "training.momentum_correction=0.9"], "momentum_correction: duplicates"),
    *((['training.optimizer={kind="adamw"}', f'training.system={{kind="{kind}", momentum="implied"}}'],
       f"optimizer.kind: conflicts with {kind}, whose momentum.*another training.system.momentum")
      for kind in ("mp2", "slimdp", "mipd", "partial_averaging")),
])  # fmt: skip
def test_conflicting_optimizer_keys_are_rejected(keys: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        load_scenario("train-tiny", set=[*SHORT, *keys], policy="dctcp")


@pytest.mark.parametrize(
    "system", ['"mp2", momentum="averaged"', '"slimdp"', '"mipd"', '"partial_averaging", momentum="local"']
)
def test_systems_with_local_models_train_with_adamw(system: str) -> None:
    more = [
        'training.optimizer={kind="adamw", rate=0.003}',
        f"training.system={{kind={system}}}",
        'training.network="ideal"',
    ]
    made = train(load_scenario("train-tiny", set=[*SHORT, *more], policy="dctcp"))
    assert made.steps[-1]["loss"] < made.steps[0]["loss"] * 1.5


def test_recipe_rejects_invalid_optimizer_values() -> None:
    for more, words in (
        ({"optimizer": "lion"}, "Recipe.optimizer"),
        ({"betas": (0.9, 2.0)}, "Recipe.betas"),
        ({"epsilon": -1.0}, "Recipe.epsilon"),
    ):
        with pytest.raises(ScenarioError, match=words):
            recipe(**more)
