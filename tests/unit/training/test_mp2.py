"""MP2 and weight nowcasting: what is pushed, what is predicted, bytes, limits, guards; and how predictors are made."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.predictor import Plan, make_predictor  # noqa: E402
from gradwire.scenarios.errors import ResultError, ScenarioError, TraceError  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.network import Answer, Random, Recorded, Replay  # noqa: E402
from gradwire.training.served.fitting import Fitting, errors_blocks, seen_at  # noqa: E402
from gradwire.training.served.mp2 import Mp2Trainer, Predicted, places_at  # noqa: E402
from gradwire.training.served.predictor import (  # noqa: E402
    BLOCK,
    BUNDLED,
    PERIOD,
    SHIPPED,
    BlockPredictor,
    ScalarPredictor,
    WeightNowcaster,
    features,
    kinds_of,
    load_predictor,
    normalised,
    nowcast,
    save_predictor,
)
from gradwire.training.served.samples import LENGTH, of_blocks, of_scalars  # noqa: E402
from gradwire.training.served.wnn import WnnTrainer  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import Points, close, plain, resnet, same  # noqa: E402

DATA = images("synthetic", 8, limit=400)


class Line(nn.Module):
    """A matrix w, whose gradient a test chooses: the sample."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, count))


def slope(model, inputs, targets):
    return (model.w[0] * inputs[0]).sum(dim=1)


def line(rules: Predicted, *points: list[float], network=None, payload: int = 4096, momentum: float = 0.0, steps: int = 60) -> Mp2Trainer:
    recipe = Recipe(len(points), 1, steps, 1.0, "constant", momentum=momentum, weight_decay=0.0, payload=payload)
    return Mp2Trainer(Line(len(points[0])), Points(*points), recipe, rules, network, slope)


# what is pushed


def test_an_eighth_in_each_of_eight_steps() -> None:
    """All places once in a cycle, in another order in the next one, and the same for everybody with the seed."""
    for cycle in range(5):
        rows = torch.stack([places_at(PERIOD * cycle + phase, 7) for phase in range(PERIOD)])
        assert (rows.sum(dim=0) == 1).all() and (rows.sum(dim=1) == BLOCK // PERIOD).all()
    assert not torch.equal(places_at(0, 7), places_at(PERIOD, 7)) and not torch.equal(places_at(0, 7), places_at(0, 8))


def test_bytes_each_way() -> None:
    """Two workers. Everything in the first step; then four of each block's 32 where there are so many, and vectors in full."""
    for pull in ("full", "pushed"):
        trainer = Mp2Trainer(plain(), DATA, Recipe(workers=2, batch=8, steps=9), Predicted(pull=pull, tolerance=1e6))
        rows = [trainer.step() for _ in range(3)]
        for number, row in enumerate(rows):
            now = places_at(number, 0).repeat(100)
            pushed = 3114 if not number else int(now[:216].sum()) + int(now[:2880].sum()) + 18
            assert row.sent_bytes == 2 * 4 * pushed and (number == 0 or 380 <= pushed <= 420)
            assert row.pulled_bytes == 2 * 4 * (3114 if pull == "full" else pushed)


def test_bytes_are_those_of_the_serialised_packets() -> None:
    recorded = Recorded(Random(0.0))
    seen = []
    carry = recorded.carry
    recorded.carry = lambda pushed: (seen.append(sum(len(p) for row in pushed.encoded for e in row for p in e.to_packets(256))), carry(pushed))[1]
    trainer = Mp2Trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3, payload=256), None, recorded)
    assert [trainer.step().sent_bytes for _ in range(3)] == seen


def test_kinds() -> None:
    kinds = dict(zip([n for n, _ in resnet().named_parameters()], kinds_of(resnet()), strict=True))
    assert set(kinds.values()) == {"conv", "norm", "fc", "bias"}
    assert sum(kind == "fc" for kind in kinds.values()) == sum(kind == "bias" for kind in kinds.values()) == 1
    assert kinds_of(plain()) == ["conv", "bias", "fc", "bias"]


# what is predicted


def test_held_moves_by_hand() -> None:
    """Gradients of 1: after the full push everything is taken to go on as it did, which is right."""
    trainer = line(Predicted(predictor="hold", full_every=100), [1.0] * 64, [3.0] * 64)
    for number in range(4):
        trainer.step()
        assert trainer.model.w.detach().view(-1).tolist() == [-2.0 * (number + 1)] * 64
    assert trainer.error == pytest.approx(0, abs=1e-6) and trainer.full == 1
    trainer.dealer.data.points *= 2  # now moves are 4, of which the server hears at an eighth of the places
    before = trainer.model.w.detach().clone()
    trainer.step()
    moved = (before - trainer.model.w.detach()).view(2, BLOCK)
    assert torch.equal(moved, torch.where(places_at(4, 0), 4.0, 2.0).expand(2, BLOCK))
    assert trainer.error == pytest.approx((1 - 0.9) * 0.5, rel=1e-4) or trainer.error == pytest.approx(0.5)


def test_what_is_not_pushed_stays_without_a_predictor() -> None:
    """After a cycle of eight everything has moved once."""
    trainer = line(Predicted(predictor="none", full_every=1000, tolerance=10.0), [1.0] * 64)
    trainer.step()
    for number in range(1, 9):
        before = trainer.model.w.detach().clone()
        trainer.step()
        assert torch.equal((trainer.model.w.detach() != before).view(2, BLOCK), places_at(number, 0).expand(2, BLOCK))


def test_momentum_is_not_forgotten() -> None:
    """Gradients of 1 and momentum 1/2: velocities 1, 1.5, 1.75, ... whether a parameter is pushed or not."""
    trainer = line(Predicted(predictor="none", full_every=1000, tolerance=10.0), [1.0] * 32, momentum=0.5)
    for number in range(6):
        before = trainer.model.w.detach().clone()
        trainer.step()
        moved = (before - trainer.model.w.detach()).view(-1)
        assert set(moved[places_at(number, 0)].tolist()) == {2 - 0.5**number}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_full_push_in_every_step_is_plain_training(momentum: float) -> None:
    """To rounding; and a network that knows nothing gives another training."""
    recipe = Recipe(workers=3, batch=8, steps=6, rate=0.05, momentum=momentum, clip=50.0)
    ours, theirs = Mp2Trainer(plain(), DATA, recipe, Predicted(full_every=1)), Trainer(plain(), DATA, recipe)
    for _ in range(6):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-4)
    assert close(ours.model, theirs.model) and ours.full == 6
    less = Mp2Trainer(plain(), DATA, recipe, Predicted(predictor="none"))
    for _ in range(6):
        less.step()
    assert not close(less.model, theirs.model, 1e-3)


def test_a_perfect_predictor_is_plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is told the truth: nothing else is approximated."""
    recipe = Recipe(workers=2, batch=8, steps=9, rate=0.05)
    ours, theirs = Mp2Trainer(plain(), DATA, recipe, Predicted(full_every=100, tolerance=1e9)), Trainer(plain(), DATA, recipe)
    truth = []

    def told(seen, age, values, last, scale, spread, conv):
        return truth[-1] if len(values) == len(truth[-1]) else torch.zeros_like(values)

    monkeypatch.setattr(ours, "_guess", told)
    for _ in range(9):
        before = [p.detach().clone() for p in theirs.model.parameters()]
        theirs.step()
        moved = [(a.detach() - b).view(-1) for a, b in zip(theirs.model.parameters(), before, strict=True)]
        truth.append(torch.cat([nn.functional.pad(moved[at], (0, -len(moved[at]) % BLOCK)).view(-1, BLOCK) for at in (0, 2)]))
        ours.step()
    assert close(ours.model, theirs.model, 1e-5) and ours.full == 1


def test_the_predictor_hears_how_long_ago_each_was_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its place in its cycle; everything was in step 0. What was held out to see how good predictions are, a step longer."""
    trainer = line(Predicted(full_every=1000, tolerance=1e9), [1.0] * 64)
    heard = []
    monkeypatch.setattr(trainer, "_guess", lambda seen, age, *told: (heard.append(age.clone()), torch.zeros_like(seen))[1])
    for _ in range(20):
        trainer.step()
    assert len(heard) == 2 * 19
    for number in range(1, 20):
        pushed = [min(back for back in range(number + 1) if back == number or places_at(number - back, 0)[place]) for place in range(BLOCK)]
        before = [min(back for back in range(1, number + 1) if back == number or places_at(number - back, 0)[place]) for place in range(BLOCK)]
        watched, whole = heard[2 * number - 2 : 2 * number]
        now = places_at(number, 0).nonzero().view(-1).tolist()
        assert whole.tolist() == pushed
        assert [int(watched[place]) for place in now] == [before[place] if at % 2 == 0 else 0 for at, place in enumerate(now)]


def test_everything_is_pushed_when_predictions_fail() -> None:
    """Nothing is predicted, an error of 1, and no more than 1/2 is tolerated: then every second step is full."""
    trainer = line(Predicted(predictor="none", full_every=1000, tolerance=0.5), [1.0] * 64)
    rows = [trainer.step() for _ in range(6)]
    assert [row.sent_bytes == 4 * 64 for row in rows] == [True, False] * 3 and trainer.full == 3
    regular = line(Predicted(predictor="none", full_every=3, tolerance=10.0), [1.0] * 64)
    assert [regular.step().sent_bytes == 4 * 64 for _ in range(7)] == [True, False, False] * 2 + [True]


def test_what_is_lost_is_averaged_over_the_others_or_held() -> None:
    """Two workers, gradients 1 and 3, 32 parameters in 16 packets at first: nothing of the last two parameters arrives of worker
    1, nothing of the first two of anybody."""
    first, second = torch.ones(16, dtype=torch.bool), torch.ones(16, dtype=torch.bool)
    first[0] = second[0] = second[15] = False
    gone = Replay([[Answer([[first], [second]])], [Answer([[None], [None]])]])
    trainer = line(Predicted(predictor="hold", full_every=100), [1.0] * 32, [3.0] * 32, network=gone, payload=8)
    row = trainer.step()
    assert trainer.model.w.detach().view(-1).tolist() == [0.0] * 2 + [-2.0] * 28 + [-1.0] * 2
    assert row.lost == pytest.approx(3 / 32)


def test_features_are_what_they_say() -> None:
    """In units of the tensor, whatever these are: scaled parameters and moves give the same features."""
    one, two = torch.full((3,), 0.5), torch.full((3,), 2.0)
    seen, last, values = torch.randn(3, BLOCK), torch.randn(3, BLOCK), torch.randn(3, BLOCK)
    age, conv = torch.arange(BLOCK) % 9, torch.tensor([True, False, True])
    x = features(seen, age, values, last, one, two, conv)
    assert x.shape == (3, 6, BLOCK)
    assert torch.allclose(x[:, 0], seen * 2) and torch.allclose(x[:, 2], values / 2) and torch.allclose(x[:, 3], last * 2)
    assert x[0, 1].tolist() == (age / 8).tolist() and x[:, 4, 0].tolist() == [1, 0, 1] and x[:, 5, 0].tolist() == [0, 1, 0]
    again = features(7 * seen, age, 9 * values, 7 * last, 7 * one, 9 * two, conv)
    assert torch.allclose(x, again, atol=1e-5)


@pytest.mark.parametrize("predictor", ["bundled", "several", "hold", "none"])
def test_least_squares_of_four_workers(predictor: str) -> None:
    """Each worker has another optimum; the mean is found, however the rest is predicted."""
    def distance(model, inputs, targets):
        return 0.5 * (model.w[0] - inputs[0]).square().sum(dim=1)

    points = torch.randn(4, 96, generator=torch.Generator().manual_seed(2)) * 3
    recipe = Recipe(4, 1, 400, 0.1, "triangle", rise=0.01, momentum=0.0, weight_decay=0.0)
    trainer = Mp2Trainer(Line(96), Points(*points.tolist()), recipe, Predicted(predictor=predictor, full_every=1000), None, distance)
    for _ in range(400):
        trainer.step()
    mean = points.mean(dim=0)
    assert float((trainer.model.w.detach()[0] - mean).norm() / mean.norm()) < 0.1
    assert trainer.full < 400 / 2


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    recipe = Recipe(workers=2, batch=8, steps=9, payload=256)
    make = lambda: Mp2Trainer(resnet(), DATA, recipe, Predicted(full_every=7), Random(0.1))  # noqa: E731
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(9)]
    assert [first.step() for _ in range(5)] == rows[:5]
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(4)] == rows[5:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_it_learns() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = Mp2Trainer(resnet(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1)).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


# predictors


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_bundled_predictors_are_small_and_say_where_they_are_from(kind: str, name: str) -> None:
    net, manifest = load_predictor(kind, name)
    assert sum(p.numel() for p in net.parameters()) < 15_000 and (BUNDLED / SHIPPED[kind, name]).stat().st_size < 80_000
    assert manifest["command"].startswith("gradwire predictor") and manifest["date"] and len(manifest["plan"]["seeds"]) >= 2
    assert manifest["error"]["predicted"] < 1, "better than to stay"
    if kind == "mp2":
        assert manifest["error"]["predicted"] < manifest["error"]["hold"]
    if name == "several":
        assert set(manifest["plan"]["models"]) == set(manifest["error_by_model"]) == {"resnet8", "vgg11-quarter", "char-lstm"}
        assert all(each["predicted"] < each["hold"] for each in manifest["error_by_model"].values())


def test_every_shipped_file_has_a_name() -> None:
    assert sorted(SHIPPED.values()) == sorted(each.name for each in BUNDLED.iterdir())


def test_nowcast_by_hand() -> None:
    """Values 0 1 2 3 4: range 4, normalised 0 to 1/2; an answer of 1/4 is a step of 2."""
    history = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    values, spread = normalised(history)
    assert values.tolist() == [[0, 0.125, 0.25, 0.375, 0.5]] and spread.tolist() == [4]

    class Quarter(ScalarPredictor):
        def forward(self, values):
            return torch.full((len(values),), 0.25)

    assert nowcast(Quarter(), history).tolist() == [6]
    still = torch.ones(5, 1)
    assert nowcast(ScalarPredictor(), still).tolist() == [1], "what does not move stays"


def test_nowcasting_jumps_each_fifth_period_and_leaves_normalisations_alone() -> None:
    recipe = Recipe(workers=2, batch=8, steps=20)
    ours, theirs = WnnTrainer(resnet(), DATA, recipe, period=2), Trainer(resnet(), DATA, recipe)
    for _ in range(10):
        assert same(ours.model, theirs.model) and not ours.jumps
        row = ours.step()
        theirs.step()
    assert ours.jumps == 1 and row.pulled_bytes == row.sent_bytes
    for kind, a, b in zip(ours.kinds, ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b) is (kind == "norm"), kind


def test_nowcasting_goes_on_from_a_checkpoint() -> None:
    recipe = Recipe(workers=2, batch=8, steps=20)
    make = lambda: WnnTrainer(resnet(), DATA, recipe, period=1)  # noqa: E731
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(8)]
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    assert [second.step() for _ in range(5)] == rows[3:] and second.jumps == 1


def test_samples_are_of_the_training_that_would_be_without() -> None:
    """Moves add up to the difference of parameters, which sampling does not change; the age of what is seen is MP2's."""
    def made() -> Trainer:
        return Trainer(plain(), DATA, Recipe(workers=2, batch=8, steps=40, rate=0.05))

    trainer, other = made(), made()
    samples = of_blocks(trainer, 1, most=1000)
    for _ in range(40):
        other.step()
    assert close(trainer.model, other.model)
    assert samples["moved"].shape[1:] == (LENGTH + 1, BLOCK) and len(samples["values"]) == 10 * 97
    assert samples["conv"].view(10, 97)[0].sum() == 7
    x, target, unknown = seen_at(samples, 37, 0)
    assert int(unknown.sum()) == BLOCK - BLOCK // PERIOD and torch.equal(~unknown, places_at(37, 0))
    known = ~unknown
    assert torch.allclose(x[:, 0][:, known], target[:, known]) and (x[:, 0][:, unknown] == 0).all()
    for place in range(BLOCK):
        age = next(back for back in range(LENGTH) if places_at(37 - back, 0)[place])
        assert torch.allclose(x[:, 3, place] * samples["scale"], samples["moved"][:, LENGTH - age, place])
        assert x[0, 1, place] == age / PERIOD
    scalars = of_scalars(made(), 1, most=50)
    assert scalars["history"].shape[1] == 5 and set(scalars["kind"].tolist()) == {0, 1, 2}


def test_fitting_learns_what_can_be_learned() -> None:
    """Moves that fade by a tenth in each step: to hold them is wrong by what they have faded, which a network finds out."""
    generator = torch.Generator().manual_seed(3)

    def made(count: int) -> dict[str, torch.Tensor]:
        start = torch.randn(count, 1, BLOCK, generator=generator)
        moved = start * 0.9 ** torch.arange(LENGTH + 1).view(1, -1, 1)
        scale = moved[:, -1].abs().mean(dim=1)
        return {"moved": moved, "values": torch.randn(count, BLOCK, generator=generator), "scale": scale,
                "spread": torch.ones(count), "conv": torch.ones(count, dtype=torch.bool)}  # fmt: skip

    fitting = Fitting("mp2", made(2000), made(200), 12)
    errors = [fitting.step() for _ in range(12)]
    net, found = fitting.finished()
    assert min(errors) == found["predicted"] < 0.9 * found["hold"]
    assert errors_blocks(net, fitting.unseen) == found
    again = Fitting("mp2", fitting.learned, fitting.unseen, 12)
    for _ in range(5):
        again.step()
    later = Fitting("mp2", fitting.learned, fitting.unseen, 12)
    later.load_state_dict(again.state_dict())
    assert [later.step() for _ in range(7)] == errors[5:], "gone on with to the bit"


PLAN = Plan(seeds=(1, 2), size=8, limit=200, workers=2, batch=8, steps=60, epochs=2)


@pytest.mark.parametrize("kind", ["mp2", "wnn"])
def test_a_predictor_is_made_and_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[float, str]] = []
    manifest = make_predictor(kind, tmp_path / "new.npz", PLAN, told=lambda share, words: heard.append((share, words)))
    shares = [share for share, _ in heard]
    assert shares == sorted(shares) and shares[-1] == 1 and "seed 2" in heard[100][1]
    net, read = load_predictor(kind, tmp_path / "new.npz")
    assert read == json.loads(json.dumps(manifest)) and read["plan"]["seeds"] == [1, 2]
    system = Mp2Trainer if kind == "mp2" else WnnTrainer
    more = (Predicted(predictor=str(tmp_path / "new.npz")),) if kind == "mp2" else ()
    named = {} if kind == "mp2" else {"predictor": str(tmp_path / "new.npz")}
    system(resnet(), DATA, Recipe(workers=2, batch=8, steps=2), *more, **named).step()
    monkeypatch.setattr("gradwire.predictor._sampled", lambda *_: pytest.fail("what is done is not done again"))
    make_predictor(kind, tmp_path / "new.npz", PLAN)
    again, _ = load_predictor(kind, tmp_path / "new.npz")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    with pytest.raises(ResultError, match="of another plan"):
        make_predictor(kind, tmp_path / "new.npz", Plan(seeds=(1, 3)))


@pytest.mark.slow
def test_a_predictor_of_pictures_and_texts(tmp_path: Path) -> None:
    """Of two models that learn different things: each is trained on its own data with its own rate, and the errors on what is not
    learned from are those of both, and of each."""
    plan = replace(PLAN, models=("resnet8", "char-lstm"), epochs=1)
    manifest = make_predictor("mp2", tmp_path / "both.npz", plan)
    assert {path.name for path in (tmp_path / "both.npz.work").glob("*.pt")} == {
        "resnet8-1.pt", "resnet8-2.pt", "char-lstm-1.pt", "char-lstm-2.pt", "fitting.pt",
    }  # fmt: skip
    each = manifest["error_by_model"]
    assert set(each) == {"resnet8", "char-lstm"} and each["resnet8"] != each["char-lstm"]
    for how, both in manifest["error"].items():
        assert 0.9 * min(e[how] for e in each.values()) <= both <= 1.1 * max(e[how] for e in each.values())
    lstm = torch.load(tmp_path / "both.npz.work" / "char-lstm-2.pt", weights_only=True)
    assert not lstm["conv"].any() and len(lstm["values"])


def test_predictors_of_something_else_are_refused(tmp_path: Path) -> None:
    save_predictor(tmp_path / "wnn.npz", WeightNowcaster(), {"kind": "wnn"})
    save_predictor(tmp_path / "small.npz", BlockPredictor(8), {"kind": "mp2"})
    (tmp_path / "text.npz").write_text("mine")
    np.savez(tmp_path / "bare.npz", x=np.zeros(3))
    for name, words in (("wnn", "is a predictor for wnn"), ("small", "is no predictor"), ("text", "is no predictor"), ("bare", "is no predictor"), ("nowhere", "cannot be read")):
        with pytest.raises(TraceError, match=words):
            load_predictor("mp2", tmp_path / f"{name}.npz")


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """A predictor and its manifest, as JSON; and the same again, from what is there."""
    words = ["mp2", "--size", "8", "--samples", "200", "--steps", "60", "--epochs", "1", "--seed", "1", "--seed", "2", "--out", "p.npz"]
    for more in (["--json"], []):
        line = [sys.executable, "-m", "gradwire", "predictor", *words, *more]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        if more:
            manifest = json.loads(done.stdout)
            assert manifest == load_predictor("mp2", tmp_path / "p.npz")[1] and manifest["plan"]["steps"] == 60
    assert "relative to these: predicted 0." in done.stdout and done.stdout.endswith("predictor: p.npz\n")


@pytest.mark.slow
def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    for words, said in ((["xyz"], "has no predictor"), (["mp2", "--seed", "1"], "two or more"), (["mp2", "--model", "resnet9"], "did you mean"), (["wnn", "--model", "bert-base"], "learns masked"), (["mp2", "--data", "nowhere"], "no such data")):
        line = [sys.executable, "-m", "gradwire", "predictor", *words, "--out", "p.npz"]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    with pytest.raises(ScenarioError, match="1 seeds"):
        make_predictor("mp2", tmp_path / "p.npz", Plan(seeds=(1,)))
    assert not list(tmp_path.iterdir())
