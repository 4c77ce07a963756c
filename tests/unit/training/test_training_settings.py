"""Training tables of scenarios set the trainer and its network; invalid values are rejected with one error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import GradwireError, ScenarioError, TraceError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import parse_target, train  # noqa: E402
from gradwire.training.build import data_of, reducer_of, trainer_of  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.tiny_training import SHORT, tiny  # noqa: E402


def test_scenario_tables_set_recipe_reducer_and_network() -> None:
    scenario = tiny(
        "training.optimizer.momentum=0.0", 'training.reducer={kind="qsgd", levels=7}', "training.error_feedback=true",
        "training.momentum_correction=0.8", "training.encode_time=1.5", 'training.network={loss=0.25, burst=2.0}', "training.feed_back=true", 'job.fill="stale"',
    )  # fmt: skip
    trainer = trainer_of(scenario, data_of(scenario.training))
    recipe = trainer.recipe
    assert (recipe.workers, recipe.batch, recipe.steps, recipe.payload) == (2, 4, 6, 4096)
    assert (recipe.fill, recipe.feed_back, recipe.momentum, recipe.encode_time) == ("stale", True, 0.0, 1.5)
    reducer = trainer.exchange.reducer
    assert reducer.momentum == 0.8 and reducer.reducer.reducer.levels == 7
    assert (trainer.network.loss, trainer.network.burst) == (0.25, 2.0)
    assert reducer_of(tiny().training).kind == "none"


def test_epochs_are_converted_to_steps() -> None:
    """200 samples by 2 x 4 are 25 steps an epoch."""
    scenario = load_scenario("train-tiny", set=[*SHORT[1:], "training.epochs=1.5"])
    assert trainer_of(scenario, data_of(scenario.training)).recipe.steps == 38


@pytest.mark.parametrize(("settings", "words"), [
    (['training.model="resnet9"'], "training.model.*did you mean"),
    (['training.model="bert-base"'], "learns masked"),
    (['training.data="nowhere"'], "no such data folder"),
    (["training.batch=500"], "at least"),
    (['training.error_feedback=true', 'training.reducer={kind="dgc"}'], "keeps what it does not send"),
    (['job.fill="rescaled"', 'training.reducer={kind="topk"}'], "needs to know which elements"),
    (["job.pull_bound=0.1", 'training.system={kind="slimdp"}'], "would lose what servers send back"),
    (["training.resync=5", 'training.system={kind="slimdp"}'], "training.resync: is not supported by slimdp"),
    (['training.encode_time="measured"', 'training.system={kind="slimdp"}'], "training.encode_time: is not supported by slimdp"),
    (['training.compute="trace"'], "other tensors"),
    (["training.optimizer.nesterov=true", "training.optimizer.momentum=0.0"], r"training\.optimizer\.nesterov: needs momentum \(got true\)"),
])  # fmt: skip
def test_untrainable_settings_are_rejected(settings: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises((ScenarioError, TraceError), match=f"(?s){words}"):
        train(tiny(*settings), tmp_path / "new")


@pytest.mark.parametrize(("setting", "words"), [
    ("training.momentum_correction=0.5", "duplicates the optimiser's momentum"),
    ("training.feed_back=true", "needs error feedback"),
    ("training.network={loss=0.9, burst=2.0}", "leaves no gap between bursts"),
    ('training.reducer={kind="topk", ratio=0.0}', "ratio"),
    ('training.reducer={kind="zip"}', "zip"),
    ("training.speed=3", "unknown key"),
])  # fmt: skip
def test_invalid_training_keys_are_rejected(setting: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        tiny(setting)


def test_scenario_without_training_table_is_rejected() -> None:
    with pytest.raises(ScenarioError, match="has no training table"):
        train(load_scenario("incast"))


def test_target_accuracy_is_parsed() -> None:
    assert parse_target("accuracy=0.9") == 0.9 and parse_target(None) is None
    for wrong in ("0.9", "accuracy=2", "loss=1", "accuracy=much"):
        with pytest.raises(ScenarioError, match=r"such as accuracy=0\.9"):
            parse_target(wrong)


RING = ['job.exchange={kind="ring"}', "job.servers=0"]


def test_scenario_sets_ring_recipe() -> None:
    """The recipe has the ring's buckets, its fill rules, and the resync interval."""
    scenario = tiny(
        'job.exchange={kind="ring", bucket="64KiB"}', "job.servers=0", 'job.fill="rescaled"', 'job.pull_fill="zero"',
        "training.resync=7", 'training.network={loss=0.1, way="both", worker=1}',
    )  # fmt: skip
    trainer = trainer_of(scenario, data_of(scenario.training))
    recipe = trainer.recipe
    assert (recipe.collective, recipe.bucket, recipe.fill, recipe.pull_fill, recipe.resync) == (
        "ring",
        65536,
        "rescaled",
        "zero",
        7,
    )
    assert (trainer.network.way, trainer.network.worker) == ("both", 1)
    assert trainer_of(tiny(), data_of(tiny().training)).recipe.collective == "parameter_server"


@pytest.mark.parametrize(("more", "match"), [
    ([*RING, 'training.reducer={kind="topk"}'], r"training\.reducer.*cannot add up topk"),
    ([*RING, 'training.network={loss=0.1, layers="front"}'], r"training\.network.*the packets of a ring mix"),
    (['training.network={loss=0.1, worker=2}'], r"training\.network\.worker.*is worker 2 of 2"),
])  # fmt: skip
def test_unsupported_ring_and_network_settings_are_rejected(more: list[str], match: str) -> None:
    scenario = tiny(*more)
    with pytest.raises(ScenarioError, match=match):
        trainer_of(scenario, data_of(scenario.training))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Random(2), "Random(loss): is 2"), (lambda: Random("x"), "Random(loss): is 'x', of type str"),
    (lambda: Random(0.3, layers="mid"), "Random(layers)"), (lambda: Random(0.3, magnitudes="big"), "Random(magnitudes)"),
    (lambda: Recipe(fill="mean"), "Recipe(fill)"), (lambda: Recipe(rate=float("nan")), "Recipe(rate): is nan"),
    (lambda: Recipe(workers=0), "Recipe(workers): is 0"), (lambda: Recipe(batch=0), "Recipe(batch): is 0"),
    (lambda: images("synthetic", size=-8), "images(size): is -8"),
    (lambda: images("synthetic", size=100_000), "at most 4096 pixels"),
    (lambda: Trainer(3, None, Recipe()), "Trainer(model): is 3"),
    (lambda: Trainer(torch.nn.Linear(1, 1), 3, Recipe()), "Trainer(data): is 3"),
    (lambda: train(tiny(), 3), "train(out): is 3, of type int"),
])  # fmt: skip
def test_invalid_python_arguments_are_named_in_errors(make: Callable[[], object], words: str) -> None:
    with pytest.raises(GradwireError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(("setting", "words"), [
    ("training.network={loss=2}", "training.network.loss"), ("training.network={loss=0.1, burst=0.5}", "training.network.burst"),
    ("training.network=fake", "training.network: is not a network (got \"fake\"); expected \"simulated\", \"emulated\" or \"ideal\", or a table such as"),
    ("training.network=0.1", "training.network: is not a network (got 0.1)"), ("training.size=100000", "training.size"),
    ("training.encode_time=-1", "is not an encoding time (got -1)"), ("training.encode_time=true", "is not an encoding time (got true)"),
    ("training.encode_time=some", "expected \"none\", \"measured\", or nanoseconds"),
])  # fmt: skip
def test_invalid_setting_gives_exactly_one_error(setting: str, words: str) -> None:
    with pytest.raises(ScenarioError, match="invalid scenario, 1 error") as caught:
        tiny(setting)
    assert words in str(caught.value)
