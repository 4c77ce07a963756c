"""Weight nowcasting: its networks, their samples and errors, and the jumps in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import ScenarioError, TraceError  # noqa: E402
from gradwire.studies.training.predictor_making import PredictorPlan, make_predictor  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.parameter_server.predictor import load_predictor  # noqa: E402
from gradwire.training.parameter_server.predictor_fitting import Fitting, errors_scalars, extrapolated, sample_scalars  # noqa: E402
from gradwire.training.parameter_server.weight_nowcaster import ScalarPredictor, WeightNowcaster, normalise, nowcast  # noqa: E402
from gradwire.training.parameter_server.wnn_trainer import WnnTrainer  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.training_cases import plain, resnet, same  # noqa: E402

DATA = images("synthetic", 8, limit=400)


def test_scalar_predictor_matches_the_published_layers_in_numpy() -> None:
    """Layers, sizes and activations are those of the authors' code, computed here without torch."""
    torch.manual_seed(3)
    net = ScalarPredictor()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) / 4)
    assert sum(parameter.numel() for parameter in net.parameters()) == 9425
    history = np.random.default_rng(4).normal(size=(7, 5)).astype(np.float32)
    state = {name: value.numpy() for name, value in net.state_dict().items()}

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def stream(name: str, x: np.ndarray) -> np.ndarray:
        x = dense(f"{name}.0", x)
        small = np.maximum(dense(f"{name}.1.compress", x), 0)
        assert (x.shape[1], small.shape[1]) == (64, 8)
        x = dense(f"{name}.1.offset", small) + dense(f"{name}.1.factor", small) * np.exp(
            dense(f"{name}.1.exponent", small) * x
        )
        x = dense(f"{name}.2", x)
        assert x.shape[1] == 32
        return np.where(x > 0, x, 0.3 * x)

    both = np.concatenate([stream("values", history), stream("differences", np.diff(history))], axis=1)
    expected = np.tanh(dense("out", both))[:, 0]
    assert np.allclose(net(torch.from_numpy(history)).detach().numpy(), expected, atol=1e-5)


def test_penalty_of_scalar_predictor_counts_the_streams_linear_layers() -> None:
    net = ScalarPredictor()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(-1)
    weights, biases = 5 * 64 + 64 * 32 + 4 * 64 + 64 * 32, 2 * (64 + 32)
    assert net.penalty().item() == pytest.approx(1e-6 * weights + 0.1 * biases)


def test_nowcast_matches_hand_computation() -> None:
    """Values 0 to 4 are normalised to 0 to 1/2; a prediction of 1/4 is a step of 2."""
    history = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    values, spread = normalise(history)
    assert values[0].tolist() == pytest.approx([0, 0.125, 0.25, 0.375, 0.5], rel=1e-5)
    assert spread.tolist() == pytest.approx([4.00001])

    class Quarter(ScalarPredictor):
        def forward(self, values):
            return torch.full((len(values),), 0.25)

    assert nowcast(Quarter(), history).tolist() == pytest.approx([6.000005])
    still = torch.ones(5, 1)
    assert nowcast(ScalarPredictor(), still).tolist() == pytest.approx([1], abs=2e-5), "what does not move stays"


def test_nowcasting_jumps_every_fifth_period_except_for_norm_layers() -> None:
    recipe = Recipe(workers=2, batch=8, steps=20)
    ours, theirs = WnnTrainer(resnet(), DATA, recipe, period=2), Trainer(resnet(), DATA, recipe)
    for _ in range(10):
        assert same(ours.model, theirs.model) and not ours.jumps
        row = ours.step()
        theirs.step()
    assert ours.jumps == 1 and row.pulled_bytes == row.sent_bytes
    for kind, a, b in zip(ours.kinds, ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b) is (kind == "norm"), kind


def test_nowcasting_run_resumes_from_checkpoint() -> None:
    recipe = Recipe(workers=2, batch=8, steps=20)
    make = lambda: WnnTrainer(resnet(), DATA, recipe, period=1)
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(8)]
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    assert [second.step() for _ in range(5)] == rows[3:] and second.jumps == 1


def test_samples_are_parameters_at_the_ends_of_ten_successive_epochs() -> None:
    """An epoch has four steps here; twelve epochs hold three spans of ten."""
    make = lambda: Trainer(plain(), DATA, Recipe(workers=4, batch=25, steps=48, rate=0.05))
    samples, other = sample_scalars(make(), 1), make()
    ends = []
    for number in range(48):
        other.step()
        if number % 4 == 3:
            ends.append(other.model[3].bias.detach().clone())
    bias = samples["kind"] == 2
    assert int(bias.sum()) == 3 * (8 + 10)
    spans = {tuple(row.tolist()) for row in torch.cat([samples["history"], samples["target"][:, None]], dim=1)[bias]}
    for first in range(3):
        for row in torch.stack([*ends[first : first + 5], ends[first + 9]], dim=1):
            assert tuple(row.tolist()) in spans


def decays(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Parameters of all types that approach a value by a fifth per epoch."""
    generator = torch.Generator().manual_seed(seed)
    left = 0.8 ** torch.arange(10.0)
    rows = torch.randn(count, 1, generator=generator) + torch.randn(count, 1, generator=generator) * left
    return {"history": rows[:, :5], "target": rows[:, 9], "kind": torch.arange(count) % 3}


def test_errors_of_predictions_match_hand_computation() -> None:
    """A net that predicts no movement has error 1, a line is extrapolated exactly, and so is 3 movement of 6 half."""
    net = WeightNowcaster()
    with torch.no_grad():
        for kind in ("conv", "fc", "bias"):
            net.of(kind).out.weight.zero_()
        net.bias.out.bias.fill_(np.arctanh(0.375))
    line = torch.arange(10.0)
    history = torch.stack([line[:5], -2 * line[:5], line[:5] * 2])
    samples = {"history": history, "target": torch.tensor([9.0, -18.0, 20.0]), "kind": torch.tensor([0, 1, 2])}
    assert extrapolated(history).tolist() == pytest.approx([9, -18, 18])
    errors = errors_scalars(net, samples)
    assert {name: round(error, 4) for name, error in errors.items()} == {
        "predicted": round((5 + 10 + 6) / 27, 4),
        "linear": round(2 / 27, 4),
        "predicted_conv": 1,
        "linear_conv": 0,
        "predicted_fc": 1,
        "linear_fc": 0,
        "predicted_bias": 0.5,
        "linear_bias": round(2 / 12, 4),
    }


def test_fitted_nowcaster_beats_linear_extrapolation_of_decays() -> None:
    """A line through five values overshoots a decay; the network learns to stop."""
    fitting = Fitting("wnn", decays(9000, 1), decays(900, 2), 12)
    errors = [fitting.step() for _ in range(12)]
    _, found = fitting.finished()
    assert min(errors) == found["predicted"]
    for kind in ("conv", "fc", "bias"):
        assert found[f"predicted_{kind}"] < 0.2 < 0.8 < found[f"linear_{kind}"], kind


PLAN = PredictorPlan(seeds=(1, 2), size=8, limit=256, workers=2, batch=8, steps=159, epochs=1)


def test_training_runs_below_ten_epochs_are_refused_before_training(tmp_path: Path) -> None:
    """An epoch has 256 / 16 = 16 steps. No file is left."""
    with pytest.raises(ScenarioError, match=r"--steps: is 159; expected at least 160: 10 epochs of 16 steps"):
        make_predictor("wnn", tmp_path / "new.npz", PLAN)
    words = [
        "predictor",
        "wnn",
        "--size",
        "8",
        "--samples",
        "1280",
        "--steps",
        "99",
        "--out",
        str(tmp_path / "new.npz"),
    ]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 2 and "at least 100" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_invalid_recipe_of_a_predictor_is_refused_before_training(tmp_path: Path) -> None:
    for plan, words in (
        (replace(PLAN, optimizer="adam"), "adamw"),
        (replace(PLAN, schedule="cosine"), "triangle"),
        (replace(PLAN, batch=200), "256 samples for 2 workers with 200 each"),
    ):
        with pytest.raises((ScenarioError, TraceError), match=words):
            make_predictor("mp2", tmp_path / "new.npz", plan)
    assert not list(tmp_path.iterdir())


def test_nowcaster_of_other_sizes_is_rejected(tmp_path: Path) -> None:
    """Files of the earlier network, with 16 units and other layers, give one clear error."""
    np.savez(tmp_path / "old.npz", manifest=np.array('{"kind": "wnn"}'), **{"conv.values.weight": np.zeros((16, 5))})
    with pytest.raises(TraceError, match="is not a predictor"):
        load_predictor("wnn", tmp_path / "old.npz")
