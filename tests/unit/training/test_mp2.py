"""MP2: what is pushed, what is predicted, bytes, limits and guards."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.parameter_server.mp2_trainer import Mp2Trainer, positions_at  # noqa: E402
from gradwire.training.parameter_server.predictor import BLOCK, PERIOD, features, kinds_of  # noqa: E402
from gradwire.training.systems.mp2 import MP2  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import Points, close, plain, resnet, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)


class Line(nn.Module):
    """A matrix w, whose gradient a test chooses: the sample."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, count))


def slope(model, inputs, targets):
    return (model.w[0] * inputs[0]).sum(dim=1)


def line(
    rules: MP2, *points: list[float], network=None, payload: int = 4096, momentum: float = 0.0, steps: int = 60
) -> Mp2Trainer:
    recipe = Recipe(len(points), 1, steps, 1.0, "constant", momentum=momentum, weight_decay=0.0, payload=payload)
    return with_loss(Mp2Trainer(Line(len(points[0])), Points(*points), recipe, rules, network), slope)


# what is pushed


def test_each_step_pushes_one_eighth_of_positions() -> None:
    """A cycle of eight steps covers all positions once; the order changes with cycle and seed."""
    for cycle in range(5):
        rows = torch.stack([positions_at(PERIOD * cycle + phase, 7) for phase in range(PERIOD)])
        assert (rows.sum(dim=0) == 1).all() and (rows.sum(dim=1) == BLOCK // PERIOD).all()
    assert not torch.equal(positions_at(0, 7), positions_at(PERIOD, 7)) and not torch.equal(
        positions_at(0, 7), positions_at(0, 8)
    )


def test_pushed_and_pulled_bytes_match_element_count() -> None:
    """Two workers push all elements in the first step. Then they push four of each block's 32 elements, and vectors
    in full."""
    for pull in ("full", "pushed"):
        trainer = Mp2Trainer(plain(), DATA, Recipe(workers=2, batch=8, steps=9), MP2(pull=pull, tolerance=1e6))
        rows = [trainer.step() for _ in range(3)]
        for number, row in enumerate(rows):
            now = positions_at(number, 0).repeat(100)
            pushed = 3114 if not number else int(now[:216].sum()) + int(now[:2880].sum()) + 18
            assert row.sent_bytes == 2 * 4 * pushed and (number == 0 or 380 <= pushed <= 420)
            assert row.pulled_bytes == 2 * 4 * (3114 if pull == "full" else pushed)


def test_sent_bytes_equal_serialised_packets() -> None:
    recorded = RecordingNetwork(Random(0.0))
    seen = []
    carry = recorded.carry
    recorded.carry = lambda pushed: (
        seen.append(sum(len(p) for row in pushed.encoded for e in row for p in e.to_packets(256))),
        carry(pushed),
    )[1]
    trainer = Mp2Trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3, payload=256), MP2(), recorded)
    assert [trainer.step().sent_bytes for _ in range(3)] == seen


def test_parameter_kinds_follow_layer_types() -> None:
    kinds = dict(zip([n for n, _ in resnet().named_parameters()], kinds_of(resnet()), strict=True))
    assert set(kinds.values()) == {"conv", "norm", "fc", "bias"}
    assert sum(kind == "fc" for kind in kinds.values()) == sum(kind == "bias" for kind in kinds.values()) == 1
    assert kinds_of(plain()) == ["conv", "bias", "fc", "bias"]


# what is predicted


def test_hold_predictor_matches_hand_computation() -> None:
    """Gradients are constant: after the full push, repeating the last move is an exact prediction."""
    trainer = line(MP2(predictor="hold", full_every=100), [1.0] * 64, [3.0] * 64)
    for number in range(4):
        trainer.step()
        assert trainer.model.w.detach().view(-1).tolist() == [-2.0 * (number + 1)] * 64
    assert trainer.error == pytest.approx(0, abs=1e-6) and trainer.full == 1
    trainer.dealer.data.points *= 2  # now moves are 4, of which the server hears at an eighth of the places
    before = trainer.model.w.detach().clone()
    trainer.step()
    moved = (before - trainer.model.w.detach()).view(2, BLOCK)
    assert torch.equal(moved, torch.where(positions_at(4, 0), 4.0, 2.0).expand(2, BLOCK))
    assert trainer.error == pytest.approx((1 - 0.9) * 0.5, rel=1e-4) or trainer.error == pytest.approx(0.5)


def test_unpushed_elements_stay_without_predictor() -> None:
    """Each step of a cycle moves its pushed positions only."""
    trainer = line(MP2(predictor="none", full_every=1000, tolerance=10.0), [1.0] * 64)
    trainer.step()
    for number in range(1, 9):
        before = trainer.model.w.detach().clone()
        trainer.step()
        assert torch.equal(
            (trainer.model.w.detach() != before).view(2, BLOCK), positions_at(number, 0).expand(2, BLOCK)
        )


def test_momentum_of_unpushed_elements_accumulates() -> None:
    """Gradients of 1 and momentum 1/2 give velocities 1, 1.5, 1.75, ..., whether a parameter is pushed or not."""
    trainer = line(MP2(predictor="none", full_every=1000, tolerance=10.0), [1.0] * 32, momentum=0.5)
    for number in range(6):
        before = trainer.model.w.detach().clone()
        trainer.step()
        moved = (before - trainer.model.w.detach()).view(-1)
        assert set(moved[positions_at(number, 0)].tolist()) == {2 - 0.5**number}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_full_push_in_every_step_equals_plain_training(momentum: float) -> None:
    """They agree to rounding; without predictions the result differs."""
    recipe = Recipe(workers=3, batch=8, steps=6, rate=0.05, momentum=momentum, clip=50.0)
    ours, theirs = Mp2Trainer(plain(), DATA, recipe, MP2(full_every=1)), Trainer(plain(), DATA, recipe)
    for _ in range(6):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-4)
    assert close(ours.model, theirs.model) and ours.full == 6
    less = Mp2Trainer(plain(), DATA, recipe, MP2(predictor="none"))
    for _ in range(6):
        less.step()
    assert not close(less.model, theirs.model, 1e-3)


def test_perfect_predictor_equals_plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictor returns the true moves; no other part is approximated."""
    recipe = Recipe(workers=2, batch=8, steps=9, rate=0.05)
    ours, theirs = (
        Mp2Trainer(plain(), DATA, recipe, MP2(full_every=100, tolerance=1e6)),
        Trainer(plain(), DATA, recipe),
    )
    truth = []

    def told(seen, age, values, last, scale, spread, conv):
        return truth[-1] if len(values) == len(truth[-1]) else torch.zeros_like(values)

    monkeypatch.setattr(ours, "_predict", told)
    for _ in range(9):
        before = [p.detach().clone() for p in theirs.model.parameters()]
        theirs.step()
        moved = [(a.detach() - b).view(-1) for a, b in zip(theirs.model.parameters(), before, strict=True)]
        truth.append(
            torch.cat([nn.functional.pad(moved[at], (0, -len(moved[at]) % BLOCK)).view(-1, BLOCK) for at in (0, 2)])
        )
        ours.step()
    assert close(ours.model, theirs.model, 1e-5) and ours.full == 1


def test_predictor_receives_age_of_each_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age follows from the position in its cycle; step 0 pushed all. Positions held out to measure the error
    have the age since the push before."""
    trainer = line(MP2(full_every=1000, tolerance=1e6), [1.0] * 64)
    heard = []
    monkeypatch.setattr(
        trainer, "_predict", lambda seen, age, *told: (heard.append(age.clone()), torch.zeros_like(seen))[1]
    )
    for _ in range(20):
        trainer.step()
    assert len(heard) == 2 * 19
    for number in range(1, 20):
        pushed = [
            min(back for back in range(number + 1) if back == number or positions_at(number - back, 0)[place])
            for place in range(BLOCK)
        ]
        before = [
            min(back for back in range(1, number + 1) if back == number or positions_at(number - back, 0)[place])
            for place in range(BLOCK)
        ]
        watched, whole = heard[2 * number - 2 : 2 * number]
        now = positions_at(number, 0).nonzero().view(-1).tolist()
        assert whole.tolist() == pushed
        assert [int(watched[place]) for place in now] == [
            before[place] if at % 2 == 0 else 0 for at, place in enumerate(now)
        ]


def test_prediction_error_above_tolerance_forces_full_push() -> None:
    """Without predictions the error is 1; a tolerance of 1/2 makes every second step full."""
    trainer = line(MP2(predictor="none", full_every=1000, tolerance=0.5), [1.0] * 64)
    rows = [trainer.step() for _ in range(6)]
    assert [row.sent_bytes == 4 * 64 for row in rows] == [True, False] * 3 and trainer.full == 3
    regular = line(MP2(predictor="none", full_every=3, tolerance=10.0), [1.0] * 64)
    assert [regular.step().sent_bytes == 4 * 64 for _ in range(7)] == [True, False, False] * 2 + [True]


def test_lost_elements_use_mean_of_arrived_ones_or_stay() -> None:
    """Two workers with gradients 1 and 3 send 32 parameters in 16 packets. Worker 1 loses the last two parameters,
    and both workers lose the first two."""
    first, second = torch.ones(16, dtype=torch.bool), torch.ones(16, dtype=torch.bool)
    first[0] = second[0] = second[15] = False
    gone = Replay([[Answer([[first], [second]])], [Answer([[None], [None]])]])
    trainer = line(MP2(predictor="hold", full_every=100), [1.0] * 32, [3.0] * 32, network=gone, payload=8)
    row = trainer.step()
    assert trainer.model.w.detach().view(-1).tolist() == [0.0] * 2 + [-2.0] * 28 + [-1.0] * 2
    assert row.lost == pytest.approx(3 / 32)


def test_predictor_features_are_scale_invariant() -> None:
    """Features are in units of the tensor: scaled parameters and moves give the same ones."""
    one, two = torch.full((3,), 0.5), torch.full((3,), 2.0)
    seen, last, values = torch.randn(3, BLOCK), torch.randn(3, BLOCK), torch.randn(3, BLOCK)
    age, conv = torch.arange(BLOCK) % 9, torch.tensor([True, False, True])
    x = features(seen, age, values, last, one, two, conv)
    assert x.shape == (3, 6, BLOCK)
    assert (
        torch.allclose(x[:, 0], seen * 2) and torch.allclose(x[:, 2], values / 2) and torch.allclose(x[:, 3], last * 2)
    )
    assert (
        x[0, 1].tolist() == (age / 8).tolist() and x[:, 4, 0].tolist() == [1, 0, 1] and x[:, 5, 0].tolist() == [0, 1, 0]
    )
    again = features(7 * seen, age, 9 * values, 7 * last, 7 * one, 9 * two, conv)
    assert torch.allclose(x, again, atol=1e-5)


@pytest.mark.parametrize("predictor", ["bundled", "several", "hold", "none"])
def test_four_workers_reach_mean_optimum_with_every_predictor(predictor: str) -> None:
    """Each worker has another optimum; the trainer finds the mean, however unpushed elements are predicted."""

    def distance(model, inputs, targets):
        return 0.5 * (model.w[0] - inputs[0]).square().sum(dim=1)

    points = torch.randn(4, 96, generator=torch.Generator().manual_seed(2)) * 3
    recipe = Recipe(4, 1, 400, 0.1, "triangle", rise=0.01, momentum=0.0, weight_decay=0.0)
    trainer = Mp2Trainer(Line(96), Points(*points.tolist()), recipe, MP2(predictor=predictor, full_every=1000))
    trainer.loss = distance
    for _ in range(400):
        trainer.step()
    mean = points.mean(dim=0)
    assert float((trainer.model.w.detach()[0] - mean).norm() / mean.norm()) < 0.1
    assert trainer.full < 400 / 2


def test_mp2_run_resumes_from_checkpoint(tmp_path: Path) -> None:
    recipe = Recipe(workers=2, batch=8, steps=9, payload=256)
    make = lambda: Mp2Trainer(resnet(), DATA, recipe, MP2(full_every=7), Random(0.1))
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(9)]
    assert [first.step() for _ in range(5)] == rows[:5]
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(4)] == rows[5:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_mp2_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = Mp2Trainer(resnet(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1), MP2()).run()
    assert isinstance(last, Score) and last.accuracy > 0.4
