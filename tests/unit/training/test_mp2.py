"""MP2: what is exchanged, the server's predicted model, its network, and how that is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.parameter_server.block_fitting import PERIOD, block_errors, sample_blocks  # noqa: E402
from gradwire.training.parameter_server.block_predictor import BLOCK, CHANNELS, BlockPredictor, features, predicted  # noqa: E402
from gradwire.training.parameter_server.move_history import MoveHistory  # noqa: E402
from gradwire.training.parameter_server.mp2_trainer import Mp2Trainer  # noqa: E402
from gradwire.training.parameter_server.predictor import kinds_of  # noqa: E402
from gradwire.training.parameter_server.predictor_fitting import Fitting  # noqa: E402
from gradwire.training.systems.mp2 import MP2  # noqa: E402
from gradwire.training.systems.partial_averaging import PartialAveragingSystem  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import Points, close, plain, resnet, resumes_exactly, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)


class Line(nn.Module):
    """A matrix w, whose gradient a test chooses: the sample."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, count))


def slope(model, inputs, targets):
    return (model.w[0] * inputs[0]).sum(dim=1)


def line(rules: MP2, *points: list[float]) -> Mp2Trainer:
    recipe = Recipe(len(points), 1, 60, 1.0, "constant", momentum=0.0, weight_decay=0.0)
    return with_loss(Mp2Trainer(Line(len(points[0])), Points(*points), recipe, rules), slope)


def history_of(model: nn.Module, seed: int = 1) -> MoveHistory:
    """A history of random moves of a model's parameters."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [parameter.numel() for parameter in model.parameters()]
    history = MoveHistory(torch.randn(sum(sizes), generator=generator), sizes)
    for _ in range(3):
        history.rates += 0.5
        history.record(torch.arange(sum(sizes)), history.values + torch.randn(sum(sizes), generator=generator))
    history.rates += 1.0
    return history


def test_mp2_without_prediction_is_partial_averaging_in_rotation() -> None:
    recipe = Recipe(workers=2, batch=8, steps=6, rate=0.05)
    ours = Mp2Trainer(plain(), DATA, recipe, MP2(period=8, predictor="none"))
    theirs = PartialAveragingSystem(share=0.125).trainer(plain(), DATA, recipe, None, None)
    assert [ours.step() for _ in range(6)] == [theirs.step() for _ in range(6)]
    assert close(ours.model, theirs.model, 0) and ours.score() == theirs.score()


def test_every_predictor_trains_the_same_workers() -> None:
    """What the server predicts is evaluated, and changes nothing else."""
    scores, trained = {}, {}
    for predictor in ("bundled", "several", "hold", "none"):
        trainer = Mp2Trainer(resnet(), DATA, Recipe(workers=2, batch=8, steps=12, rate=0.1), MP2(predictor=predictor))
        for _ in range(6):
            trainer.step()
        scores[predictor] = trainer.score()
        for _ in range(6):
            trainer.step()
        trained[predictor] = trainer.local.flat
    assert all(torch.equal(trained["none"], flat) for flat in trained.values())
    assert len({score.loss for score in scores.values()}) == 4
    score = trainer.score()
    rows = {row["predictor"]: row for row in trainer.prediction_rows()}
    assert set(rows) == {"none", "hold"} and rows["none"]["error"] == 1 != rows["hold"]["error"]
    assert rows["none"]["loss"] == score.loss


def test_held_velocity_predicts_steady_moves_exactly() -> None:
    """Gradients are constant: from the first exchange on, an element is known exactly at any time."""
    trainer = line(MP2(predictor="hold", period=4), [1.0] * 128, [3.0] * 128)
    for number in range(9):
        trainer.step()
        if number >= 3:
            assert trainer.full_model("hold").tolist() == [-2.0 * (number + 1)] * 128
            assert trainer.full_model("none") is trainer.history.values
    stale = trainer.history.values
    assert sorted(set(stale.tolist())) == [-18, -16, -14, -12], "a quarter in each of the last four steps"


def test_predictor_begins_with_held_velocities() -> None:
    """A network that has learned nothing predicts what `hold` does; of vectors it leaves the known values."""
    model = resnet()
    history, kinds = history_of(model), kinds_of(model)
    ours, held = predicted(BlockPredictor(), history, kinds), history.held()
    for kind, mine, hold, known in zip(
        kinds, *(v.split(history.sizes) for v in (ours, held, history.values)), strict=True
    ):
        assert torch.allclose(mine, hold if kind in ("conv", "fc") else known, atol=1e-5), kind


def test_predictor_features_do_not_depend_on_scale_or_on_learning_rate() -> None:
    """Parameters seven times as large that move seven times as far look the same; so do the same moves at half the
    learning rate."""
    model = resnet()
    kinds, one, two = kinds_of(model), history_of(model), history_of(model)
    for name in ("values", "velocity", "earlier"):
        setattr(two, name, 7 * getattr(two, name))
    first, second = features(one, kinds), features(two, kinds)
    assert first.x.shape == (len(first.scale), CHANNELS, BLOCK) and torch.allclose(first.x, second.x, atol=1e-4)
    assert torch.allclose(7 * first.scale, second.scale)
    slow = history_of(model)
    slow.velocity, slow.earlier, slow.at, slow.rates = 2 * slow.velocity, 2 * slow.earlier, slow.at / 2, slow.rates / 2
    third = features(slow, kinds)
    assert torch.allclose(first.x, third.x, atol=1e-4)
    assert torch.allclose(first.scale * first.passed, third.scale * third.passed, atol=1e-5)


def test_predictor_sees_the_persistence_of_other_layers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    history, kinds = history_of(model), kinds_of(model)
    assert kinds == ["fc", "bias"] * 3
    history.persistence = torch.tensor([0.1, 9.0, 0.3, 9.0, 0.7, 9.0])
    x = features(history, kinds).x
    assert x.shape == (6, CHANNELS, BLOCK)
    assert torch.allclose(x[::2, 5:, 0], torch.tensor([[0.1, 0.1, 0.5], [0.3, 0.1, 0.7], [0.7, 0.2, 0.7]]))


def test_sampling_for_predictors_leaves_training_unchanged() -> None:
    def made() -> Trainer:
        return Trainer(plain(), DATA, Recipe(workers=2, batch=8, steps=60, rate=0.05))

    trainer, other = made(), made()
    samples = sample_blocks(trainer, 1, most=50)
    for _ in range(60):
        other.step()
    assert close(trainer.model, other.model, 0)
    assert samples["x"].shape[1:] == (CHANNELS, BLOCK) and len(samples["x"]) == len(samples["target"]) > 1000
    assert (samples["target"][samples["age"] == 0] == 0).all(), "what was just heard of is known"
    known = (samples["age"] == 0).float().mean()
    assert 0.1 < known < 0.16, "a ninth, and the padding of blocks"


def test_fitted_predictor_beats_holding_decaying_moves() -> None:
    """Velocities halve from one exchange to the next: holding them is twice too far, which the network learns."""
    generator = torch.Generator().manual_seed(3)

    def made(count: int) -> dict[str, torch.Tensor]:
        x = torch.randn(count, CHANNELS, BLOCK, generator=generator)
        return {"x": x, "target": x[:, 0] / 2, "age": torch.rand(count, BLOCK, generator=generator),
                "scale": torch.ones(count, 1)}  # fmt: skip

    fitting = Fitting("mp2", made(2000), made(200), 8)
    errors = [fitting.step() for _ in range(8)]
    net, best = fitting.finished()
    assert best["hold"] == pytest.approx(1, rel=1e-4) and min(errors) == best["predicted"] < 0.5
    assert block_errors(net, fitting.unseen) == best
    again = Fitting("mp2", fitting.learned, fitting.unseen, 8)
    for _ in range(5):
        again.step()
    later = Fitting("mp2", fitting.learned, fitting.unseen, 8)
    later.load_state_dict(again.state_dict())
    assert [later.step() for _ in range(3)] == errors[5:], "resumed to the bit"


def test_mp2_run_resumes_from_checkpoint(tmp_path: Path) -> None:
    recipe = Recipe(workers=2, batch=8, steps=14, payload=256)
    make = lambda: Mp2Trainer(resnet(), DATA, recipe, MP2(), Random(0.1))
    whole, second = resumes_exactly(make, 14, 10, tmp_path)
    assert torch.equal(whole.full_model("bundled"), second.full_model("bundled")) and PERIOD == MP2().period


def test_mp2_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = Mp2Trainer(resnet(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1), MP2()).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


def test_parameter_kinds_follow_layer_types() -> None:
    kinds = dict(zip([n for n, _ in resnet().named_parameters()], kinds_of(resnet()), strict=True))
    assert set(kinds.values()) == {"conv", "norm", "fc", "bias"}
    assert sum(kind == "fc" for kind in kinds.values()) == sum(kind == "bias" for kind in kinds.values()) == 1
    assert kinds_of(plain()) == ["conv", "bias", "fc", "bias"]
