"""The trainer: plain PyTorch where nothing happens, numpy where packets are lost, and pairs and checkpoints that hold."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.training.data import Dealer, images, text  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Score, StepRow, Trainer, tensors_of  # noqa: E402
from tests.support.training_cases import parameters, resnet  # noqa: E402

DATA = images("synthetic", 8, limit=400)


def test_one_lossless_worker_equals_plain_pytorch_training() -> None:
    """Parameters after SGD with momentum and decay, and running statistics, are bit-identical."""
    recipe = Recipe(workers=1, batch=16, steps=6, rate=0.05, schedule="constant")
    ours = Trainer(resnet(), DATA, recipe)
    plain, dealer = resnet(), Dealer(DATA, 1, 16, 0)
    optimizer = torch.optim.SGD(plain.parameters(), 0.05, 0.9, weight_decay=1e-4)
    for number in range(6):
        row = ours.step()
        inputs, targets = dealer.step(number)
        optimizer.zero_grad()
        loss = cross_entropy(plain(*inputs), targets)
        loss.backward()
        optimizer.step()
        assert row.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(parameters(ours.model), parameters(plain), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours.model.buffers(), plain.buffers(), strict=True))


def test_lossless_workers_train_with_mean_gradient() -> None:
    """A model without batch norm trains as with the whole batch, to rounding."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10))
    ours = Trainer(copy.deepcopy(net), DATA, Recipe(workers=4, batch=8, steps=5, rate=0.1, schedule="constant"))
    alone = Trainer(net, DATA, Recipe(workers=1, batch=32, steps=5, rate=0.1, schedule="constant"))
    for _ in range(5):
        ours.step(), alone.step()
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(parameters(ours.model), parameters(alone.model), strict=True)
    )


def test_update_with_given_loss_masks_matches_numpy() -> None:
    """In one step of two workers, worker 1 loses the first packet of the last tensor but one."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    recipe = Recipe(
        workers=2, batch=4, steps=1, rate=0.5, schedule="constant", momentum=0.0, weight_decay=0.0, payload=400
    )
    mask = torch.ones(20, dtype=torch.bool)
    mask[0] = False
    before = [each.numpy().copy() for each in parameters(net)]
    inputs, targets = Dealer(DATA, 2, 4, 0).step(0)
    gradients = []
    for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
        net.zero_grad()
        cross_entropy(net(x), y).backward()
        gradients.append([p.grad.numpy().copy() for p in net.parameters()])
    gradients[1][0].reshape(-1)[:100] = 0
    Trainer(net, DATA, recipe, network=Replay([[Answer([[None, None], [mask, None]])]])).step()
    for number, after in enumerate(parameters(net)):
        np.testing.assert_allclose(
            after.numpy(), before[number] - 0.5 * (gradients[0][number] + gradients[1][number]) / 2, atol=1e-6
        )


def test_training_reaches_accuracy_and_packet_loss_raises_its_loss() -> None:
    """Ten noisy patterns are learned far above chance; with 95 % of the packets lost, the loss is higher."""
    data = images("synthetic", 8, augment=False, limit=2000)
    recipe = Recipe(workers=4, batch=16, steps=90, rate=0.1, payload=256)
    clean = [each for each in Trainer(resnet(), data, recipe).run() if isinstance(each, Score)][-1]
    assert clean.accuracy > 0.5 and clean.loss < 2
    harsh = [each for each in Trainer(resnet(), data, recipe, network=Random(0.95)).run() if isinstance(each, Score)][
        -1
    ]
    assert harsh.loss > clean.loss and harsh.step == clean.step == 90


def test_runs_are_paired_and_repeatable() -> None:
    """Equal seeds give equal bits; another seed of losses changes nothing before the first update."""
    recipe = Recipe(workers=2, batch=8, steps=4)
    rows = [
        [t.step() for _ in range(4)]
        for t in (Trainer(resnet(), DATA, recipe, network=Random(0.2, seed=s)) for s in (1, 1, 2))
    ]
    assert rows[0] == rows[1] and rows[0] != rows[2]
    assert rows[0][0].loss == rows[2][0].loss


def test_replayed_training_equals_recorded_training() -> None:
    recipe = Recipe(workers=2, batch=8, steps=5, payload=200)
    recorded = RecordingNetwork(Random(0.3))
    first, second = Trainer(resnet(), DATA, recipe, network=recorded), None
    for _ in range(5):
        first.step()
    second = Trainer(resnet(), DATA, recipe, network=Replay(recorded.answers))
    for _ in range(5):
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters(first.model), parameters(second.model), strict=True))


@pytest.mark.parametrize("reducer", [None, ErrorFeedback(reducer=TopK()), ErrorFeedback(reducer=PowerSGD())])
def test_trainer_resumes_from_checkpoint(reducer, tmp_path) -> None:
    """Six steps equal four steps, a checkpoint file and two steps, to the bit."""
    recipe = Recipe(workers=2, batch=8, steps=6, fill="zero" if reducer else "stale")
    make = lambda: Trainer(resnet(), DATA, recipe, reducer, Random(0.1))
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(6)]
    for _ in range(4):
        first.step()
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(2)] == rows[4:]
    assert all(torch.equal(a, b) for a, b in zip(parameters(whole.model), parameters(second.model), strict=True))
    other = Trainer(resnet(), DATA, Recipe(workers=2, batch=8, steps=7), reducer)
    with pytest.raises(ValueError, match=r"of another recipe: .*steps"):
        other.load_state_dict(first.state_dict())


def test_run_evaluates_periodically_and_stops_at_target() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    heard: list[tuple[float, str]] = []
    trainer = Trainer(resnet(), data, Recipe(workers=2, batch=16, steps=12, rate=0.05))
    found = list(trainer.run(score_every=4, progress=lambda share, words: heard.append((share, words))))
    assert [each.step for each in found if isinstance(each, Score)] == [4, 8, 12]
    assert [each.step for each in found if isinstance(each, StepRow)] == list(range(12))
    assert heard[-1][0] == 1 and "step 12, loss" in heard[-1][1]
    early = list(Trainer(resnet(), data, Recipe(workers=2, batch=16, steps=12)).run(score_every=4, until=0.0))
    assert isinstance(early[-1], Score) and early[-1].step == 4


def test_lost_shares_and_bytes_are_counted() -> None:
    recipe = Recipe(workers=2, batch=8, steps=1, payload=400)
    trainer = Trainer(resnet(), DATA, recipe, network=Random(0.25, quota=True))
    row = trainer.step()
    infos = tensors_of(trainer.model)
    assert row.sent_bytes == 2 * 4 * sum(info.numel for info in infos)
    assert row.lost == pytest.approx(0.25, abs=0.02) and len(trainer.lost) == 2 and len(trainer.lost[0]) == len(infos)


@pytest.mark.parametrize("reducer", [None, TopK(ratio=0.1), PowerSGD()])
def test_encoding_time_is_added_to_clock(reducer) -> None:
    """At 2 ns per element, each worker encodes its tensors, and one server decodes those of both. Every round
    counts the tensors sent in it: in PowerSGD's second one the matrices alone."""
    steps = [
        Trainer(resnet(), DATA, Recipe(workers=2, batch=8, steps=2, encode_time=how), reducer)
        for how in ("none", 2.0, "measured")
    ]
    numel = sum(info.numel for info in steps[0].infos)
    if isinstance(reducer, PowerSGD):
        numel += sum(info.numel for info in steps[0].infos if reducer.low_rank(info))
    free, fixed, measured = (each.step() for each in steps)
    assert (free.time_ps, free.encode_ps, free.decode_ps) == (0, 0, 0)
    assert (fixed.encode_ps, fixed.decode_ps) == (2000 * numel, 4000 * numel)
    assert fixed.time_ps == fixed.clock_ps == fixed.encode_ps + fixed.decode_ps
    assert 0 < measured.encode_ps + measured.decode_ps == measured.time_ps
    assert free.loss == fixed.loss == measured.loss, "it costs time alone"


def test_learning_rate_schedules() -> None:
    triangle = Recipe(steps=100, rate=1.0, rise=0.2)
    rates = [triangle.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.05) and max(rates) == 1 and rates[19] == 1 and rates[60] == pytest.approx(0.5)
    steps = Recipe(steps=100, schedule="steps", rate=1.0)
    assert [steps.rate_at(step) for step in (0, 49, 50, 74, 75)] == [1, 1, 0.1, 0.1, 0.01]


# data


def test_epoch_covers_every_sample_once() -> None:
    """Workers have disjoint slices; another epoch has another order."""
    dealer = Dealer(images("synthetic", 8, augment=False, limit=240), 4, 10, seed=3)
    seen = [dealer.step(number)[0][0] for number in range(dealer.steps_per_epoch)]
    rows = {each.numpy().tobytes() for each in itertools.chain(*seen)}
    assert dealer.steps_per_epoch == 6 and len(rows) == 240
    assert not torch.equal(dealer.step(6)[0][0], seen[0]) and torch.equal(dealer.step(0)[0][0], seen[0])
    with pytest.raises(TraceError, match="240 samples for"):
        Dealer(images("synthetic", 8, limit=240), 25, 10, seed=3)


def test_augmented_images_are_shifted_and_mirrored() -> None:
    """One bright spot stays one spot, at most an eighth of the size away, perhaps mirrored."""
    data = images("synthetic", 16, limit=10)
    spot = torch.zeros(10, 3, 16, 16)
    spot[:, :, 8, 3] = 1
    data.train = (spot, data.train[1])
    places = set()
    for step in range(40):
        (pictures,), _ = data.batch(np.arange(10), np.random.default_rng(step))
        assert pictures.shape == spot.shape and (pictures.sum(dim=(1, 2, 3)) == 3).all()
        places |= {(int(r), int(c)) for _, r, c in pictures[:, 0].nonzero()}
    assert places == {(8 + d, c + e) for d in range(-2, 3) for e in range(-2, 3) for c in (3, 12)}


def test_text_targets_are_next_tokens(tmp_path) -> None:
    (tmp_path / "t.txt").write_text("abcdefghij" * 40)
    data = text(tmp_path / "t.txt", 8)
    (inputs,), targets = data.batch(np.arange(5), np.random.default_rng(0))
    assert inputs.shape == (5, 8) and torch.equal(inputs[:, 1:], targets[:, :-1]) and data.classes == 11, (
        "one for what is not known"
    )
    held, answers = data.validation_batches()
    assert held.shape == answers.shape == (4, 8) and torch.equal(held.flatten()[1:], answers.flatten()[:-1])
    with pytest.raises(TraceError, match="at least 1010"):
        text(tmp_path / "t.txt", 100)
