"""A ring that loses packets, against a walk by hand: worker by worker, hop by hop, element by element."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire.training.backward.worker_gradients import JointGradients  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.ring_allreduce import HopMasks, Ring, RingLayout, buckets_of  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.replicas import Replicas  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer, losses_of  # noqa: E402
from tests.support.training_cases import pushed_round, resnet  # noqa: E402

DATA = images("synthetic", 8, limit=400)


class ByHand:
    """The oracle: a worker is a dictionary of segments, a message an element with what it says of itself."""

    def __init__(self, workers: int, fill: str, pull_fill: str) -> None:
        self.n, self.fill, self.pull_fill = workers, fill, pull_fill
        self.came: dict[tuple[int, int, int], float] = {}
        self.had: dict[tuple[int, int], float] = {}

    def step(self, gradients: np.ndarray, arrives) -> np.ndarray:
        """gradients: [workers, elements], elements a multiple of N. arrives(hop, sender, place in segment)."""
        n, size = self.n, gradients.shape[1] // self.n
        result = np.zeros_like(gradients)
        for element in range(gradients.shape[1]):
            segment, place = divmod(element, size)
            sender, total, members = segment, gradients[segment][element], 1
            for hop in range(n - 1):
                if not arrives(hop, sender, place):
                    total, members = (self.came.get((hop, sender, element), 0.0) if self.fill == "stale" else 0.0), 0
                self.came[hop, sender, element] = total
                sender = (sender + 1) % n
                total, members = total + gradients[sender][element], members + 1
            value = total / (members if self.fill == "rescaled" else n)
            result[sender][element] = value
            for hop in range(n - 1, 2 * n - 2):
                if not arrives(hop, sender, place):
                    value = 0.0 if self.pull_fill == "zero" else self.had.get(((sender + 1) % n, element), 0.0)
                sender = (sender + 1) % n
                result[sender][element] = value
        self.had = {(w, e): result[w][e] for w in range(n) for e in range(gradients.shape[1])}
        return result


@pytest.mark.parametrize("pull_fill", ["stale", "zero"])
@pytest.mark.parametrize("fill", ["zero", "rescaled", "stale"])
def test_lossy_ring_equals_per_element_oracle(fill: str, pull_fill: str) -> None:
    """Three steps of 5 workers and two padded buckets lose a third of all packets."""
    draws = np.random.default_rng(3)
    layout = RingLayout((7, 4, 13), ((2, 1), (0,)), 5, 8)  # 17 and 7 elements: segments of 4 and 2, of 2 and 1 packets
    assert [layout.segment(b) for b in (0, 1)] == [4, 2] and [layout.packets(b) for b in (0, 1)] == [2, 1]
    ring, hands = Ring(fill, pull_fill), [ByHand(5, fill, pull_fill) for _ in range(2)]
    for _ in range(3):
        gradients = [[torch.from_numpy(draws.normal(size=size)) for size in (7, 4, 13)] for _ in range(5)]
        masks = [torch.from_numpy(draws.random((8, 5, layout.packets(b))) > 0.33) for b in (0, 1)]
        means = ring.reduce(layout, gradients, masks)
        for number, tensors in enumerate(layout.buckets):
            flat = np.zeros((5, layout.segment(number) * 5))
            for worker in range(5):
                content = np.concatenate([gradients[worker][t].numpy() for t in tensors])
                flat[worker, : len(content)] = content
            expected = hands[number].step(flat, lambda h, w, p, m=masks[number]: bool(m[h, w, p // 2]))
            for worker in range(5):
                mine = np.concatenate([means[worker][t].numpy() for t in tensors])
                np.testing.assert_allclose(mine, expected[worker][: len(mine)], rtol=1e-12)


def test_one_lost_partial_sum_matches_hand_computation() -> None:
    """Three workers have 1, 10 and 100 in one element. Segment 0 goes 0 -> 1 -> 2 and back round. Without worker
    0's first packet 110 of 2 workers are left, without worker 1's 100 of one."""
    layout = RingLayout((3,), ((0,),), 3, 4)
    gradients = [[torch.tensor([value, 0.0, 0.0])] for value in (1.0, 10.0, 100.0)]
    for hop, sender, zero, rescaled in ((0, 0, 110 / 3, 55.0), (1, 1, 100 / 3, 100.0)):
        mask = torch.ones(4, 3, 1, dtype=torch.bool)
        mask[hop, sender] = False
        (view,) = Ring("zero").reduce(layout, gradients, [mask])
        assert float(view[0][0]) == pytest.approx(zero)
        (view,) = Ring("rescaled").reduce(layout, gradients, [mask])
        assert float(view[0][0]) == pytest.approx(rescaled)


def test_all_gather_loss_affects_all_later_workers() -> None:
    """Segment 0 is complete at worker 2. Worker 2 sends it to 0 in hop 2, and 0 to 1 in hop 3."""
    layout = RingLayout((3,), ((0,),), 3, 4)
    for hop, sender, lacks in ((2, 2, [0, 1]), (3, 0, [1])):
        ring = Ring("zero", "stale")
        (before,) = ring.reduce(layout, [[torch.tensor([6.0, 0.0, 0.0])]] * 3, [None])
        assert float(before[0][0]) == 6
        mask = torch.ones(4, 3, 1, dtype=torch.bool)
        mask[hop, sender] = False
        views = ring.reduce(layout, [[torch.tensor([9.0, 0.0, 0.0])]] * 3, [mask])
        assert [float(view[0][0]) for view in views] == [6.0 if w in lacks else 9.0 for w in range(3)]


def test_surviving_share_matches_closed_form() -> None:
    """(1 / N) sum of (1 - q)^d over d < N: 0.712 for eight workers at 10 %."""
    layout = RingLayout((80_000,), ((0,),), 8, 4)
    ones = [[torch.ones(80_000)] for _ in range(8)]
    hops = Random(0.1, way="push").carry(pushed_round(layout)).hops
    (view,) = Ring("zero").reduce(layout, ones, hops.masks)
    assert float(view[0].mean()) == pytest.approx(sum(0.9**d for d in range(8)) / 8, abs=0.01)
    (view,) = Ring("rescaled").reduce(layout, ones, hops.masks)
    assert torch.allclose(view[0], torch.ones(80_000))


def test_random_ring_losses_follow_direction_worker_and_quota() -> None:
    layout = RingLayout((3000, 300), buckets_of((3000, 300), 100), 4, 40)
    assert layout.buckets == ((1,), (0,)), "from the last, closed at 100 bytes"
    for way, hops in (("push", range(3)), ("pull", range(3, 6)), ("both", range(6))):
        mask = Random(0.5, way=way, worker=2).carry(pushed_round(layout)).hops.masks[1]
        assert {int(h) for h in (~mask).nonzero()[:, 0]} == set(hops)
        assert {int(w) for w in (~mask).nonzero()[:, 1]} == {2}
    exact = Random(0.1, quota=True, last=True, way="both").carry(pushed_round(layout)).hops.masks[1]
    packets = layout.packets(1)
    assert packets == 75 and set((~exact).sum(dim=2).flatten().tolist()) == {7, 8}
    assert not exact[..., -7:].any() and exact[..., :-8].all()
    with pytest.raises(ValueError, match="expected all"):
        Random(0.1, layers="front").carry(pushed_round(layout))


def test_lost_shares_of_ring_are_counted_by_sender() -> None:
    """Worker 1 sends six messages of two packets. The second packet of one is lost: a sixth of a half, all in
    tensor 1."""
    layout = RingLayout((4, 12), ((0, 1),), 4, 8)  # segments of 4 elements: tensor 0 is the first one
    mask = torch.ones(6, 4, 2, dtype=torch.bool)
    mask[0, 1, 1] = False  # segment 1: elements 6 and 7, the third and fourth of tensor 1
    shares = layout.lost([mask])
    # in six hops worker 1 sends segments 1, 0, 3, 2, 1, 0: of tensor 1 sixteen elements
    assert shares[1] == [0.0, 2 / 16] and shares[0] == shares[2] == shares[3] == [0.0, 0.0]
    assert layout.nbytes == 6 * 16


def states(trainer: Trainer) -> list[torch.Tensor]:
    own = [each.detach() for each in trainer.model.parameters()] + list(trainer.model.buffers())
    if trainer.replicas is None:
        return own
    theirs = [v.detach() for mine in trainer.replicas.values for v in mine]
    return own + theirs + [value for each in trainer.replicas.buffers for value in each.values()]


def same(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(states(one), states(other), strict=True))


@pytest.mark.parametrize("fill", ["zero", "rescaled", "stale"])
def test_lossless_ring_training_equals_parameter_server(fill: str) -> None:
    """Losses and parameters are bit-identical, over a network with a loss of zero."""
    plain = Trainer(resnet(), DATA, Recipe(workers=4, batch=4, steps=3))
    ring = Trainer(
        resnet(),
        DATA,
        Recipe(workers=4, batch=4, steps=3, collective="ring", fill=fill),
        network=Random(0.0, way="both"),
    )
    for _ in range(3):
        assert plain.step().loss == ring.step().loss
    assert same(plain, ring) and ring.replicas is None


def linear() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))


def test_two_lossy_ring_steps_match_numpy() -> None:
    """Autograd computes gradients; the ring, and momentum and decay of each diverging worker, are by hand."""
    recipe = Recipe(
        workers=4, batch=4, steps=2, rate=0.5, schedule="constant", payload=400, collective="ring", fill="rescaled"
    )
    recorded = RecordingNetwork(Random(0.2, way="both"))
    trainer = Trainer(linear(), DATA, recipe, network=recorded)
    rows = [trainer.step() for _ in range(2)]
    hand, numels = ByHand(4, "rescaled", "stale"), [1920, 10]
    values = [[p.detach().numpy().copy() for p in linear().parameters()] for _ in range(4)]
    momentum = [None] * 4
    for step in range(2):
        inputs, targets = trainer.dealer.step(step)
        gradients = np.zeros((4, 1932), np.float64)
        for worker, (x, y) in enumerate(zip(inputs[0].chunk(4), targets.chunk(4), strict=True)):
            net = linear()
            for p, v in zip(net.parameters(), values[worker], strict=True):
                p.data = torch.from_numpy(v)
            losses_of(net, (x,), y).mean().backward()
            weight, bias = (p.grad.numpy().ravel() for p in net.parameters())
            gradients[worker, :1930] = np.concatenate([bias, weight])  # the bucket begins with the last tensor
        hops = recorded.answers[step][0].hops
        assert hops.buckets == ((1, 0),)
        means = hand.step(gradients, lambda h, w, p, m=hops.masks[0]: bool(m[h, w, p // 100]))
        for worker in range(4):
            mean = [means[worker][10:1930].reshape(10, 192), means[worker][:10]]
            decayed = [g + 1e-4 * v for g, v in zip(mean, values[worker], strict=True)]
            momentum[worker] = (
                decayed
                if momentum[worker] is None
                else [0.9 * m + g for m, g in zip(momentum[worker], decayed, strict=True)]
            )
            values[worker] = [
                (v - 0.5 * m).astype(np.float32) for v, m in zip(values[worker], momentum[worker], strict=True)
            ]
    for worker in range(4):
        for mine, theirs in zip(trainer.replicas.values[worker], values[worker], strict=True):
            np.testing.assert_allclose(mine.detach().numpy(), theirs, atol=2e-6)
    every = np.array([np.concatenate([v.ravel() for v in mine]) for mine in values])
    away = every - every.mean(axis=0)
    assert rows[-1].apart_max == pytest.approx(np.abs(away).max(), rel=1e-3) and numels == [1920, 10]
    assert rows[-1].apart_rms == pytest.approx(np.sqrt((away**2).mean()), rel=1e-3) and rows[-1].apart_rms > 0


@pytest.mark.parametrize("fill", ["stale", "zero"])
def test_lost_pull_leaves_old_parameters_or_zeros(fill: str) -> None:
    """Worker 1 loses the first packet of the weights in the pulls of both steps. It computes the second step's
    gradient at the old values there (or zeros); the servers are unaffected."""
    mask = torch.ones(20, dtype=torch.bool)
    mask[0] = False
    recipe = Recipe(
        workers=2,
        batch=4,
        steps=2,
        rate=0.5,
        schedule="constant",
        momentum=0.0,
        weight_decay=0.0,
        payload=400,
        pull_fill=fill,
    )
    answer = Answer([[None, None]] * 2, pulled=[[None, None], [mask, None]])
    trainer = Trainer(linear(), DATA, recipe, network=Replay([[answer]]))
    start = [p.detach().clone() for p in linear().parameters()]
    server, mine = copy.deepcopy(start), copy.deepcopy(start)
    for step in range(2):
        row = trainer.step()
        inputs, targets = trainer.dealer.step(step)
        total = [torch.zeros_like(p) for p in start]
        for x, y, values in zip(inputs[0].chunk(2), targets.chunk(2), (server, mine), strict=True):
            net = linear()
            for p, v in zip(net.parameters(), values, strict=True):
                p.data = v.clone()
            losses_of(net, (x,), y).mean().backward()
            total = [t + p.grad / 2 for t, p in zip(total, net.parameters(), strict=True)]
        server = [s - 0.5 * g for s, g in zip(server, total, strict=True)]
        kept = mine[0].reshape(-1)[:100].clone() if fill == "stale" else torch.zeros(100)
        mine = [s.clone() for s in server]
        mine[0].reshape(-1)[:100] = kept
        assert row.lost == 0 and row.lost_back == pytest.approx(100 / (2 * 1930))
    for ours, theirs in (
        (trainer.model.parameters(), server),
        (trainer.replicas.values[0], server),
        (trainer.replicas.values[1], mine),
    ):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.numpy(), atol=1e-6)
    away = (mine[0] - server[0]).abs().max() / 2
    assert row.apart_max == pytest.approx(float(away), rel=1e-4)


@pytest.mark.parametrize("recipe", [
    Recipe(workers=4, batch=4, steps=6, payload=200, collective="ring", fill="stale"),
    Recipe(workers=4, batch=4, steps=6, payload=200, resync=4),
])  # fmt: skip
def test_lossy_run_with_replicas_resumes_and_replays(recipe: Recipe, tmp_path) -> None:
    """Replicas, their momentum and stale values resume to the bit; a replay loses the same packets."""
    recorded = RecordingNetwork(Random(0.1, way="both"))
    make = lambda network: Trainer(resnet(), DATA, recipe, network=network)
    whole, first, second = make(recorded), make(Random(0.1, way="both")), make(Random(0.1, way="both"))
    rows = [whole.step() for _ in range(6)]
    assert whole.replicas is not None and rows[-1].apart_rms > 0
    for _ in range(3):
        first.step()
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(3)] == rows[3:] and same(whole, second)
    again = make(Replay(recorded.answers))
    assert [again.step() for _ in range(6)] == rows and same(whole, again)


@pytest.mark.parametrize("collective", ["ring", "parameter_server"])
def test_resync_makes_worker_parameters_equal(collective: str) -> None:
    """Every third step all workers become equal; in a ring this doubles the bytes of the step."""
    recipe = Recipe(workers=4, batch=4, steps=6, payload=200, collective=collective, resync=3)
    trainer = Trainer(resnet(), DATA, recipe, network=Random(0.2, way="pull"))
    rows = [trainer.step() for _ in range(6)]
    assert [row.apart_max == 0 for row in rows] == [False, False, True] * 2
    ring = collective == "ring"
    assert rows[2].sent_bytes == (2 if ring else 1) * rows[1].sent_bytes and rows[0].sent_bytes == rows[1].sent_bytes
    for mine, statistics in zip(trainer.replicas.values, trainer.replicas.buffers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, trainer.model.parameters(), strict=True))
        assert all(torch.equal(value, statistics[name]) for name, value in trainer.model.named_buffers())


def test_replicas_have_separate_batch_norm_statistics() -> None:
    """Inputs differ in scale by worker. The model's statistics are the mean, and lent parameters are restored."""
    net = resnet().train()
    replicas = Replicas(net, 2)
    before = [p.detach().clone() for p in net.parameters()]
    inputs = (
        torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        * torch.tensor([1.0] * 4 + [5.0] * 4)[:, None, None, None]
    )
    replicas.answers(losses_of, (inputs,), torch.arange(8))
    small, large = (each["bn1.running_var"] for each in replicas.buffers)
    assert float((large - 0.9).mean() / (small - 0.9).mean()) == pytest.approx(25, rel=0.5)
    assert torch.allclose(dict(net.named_buffers())["bn1.running_var"], (small + large) / 2)
    with replicas.of(1):
        assert torch.equal(dict(net.named_buffers())["bn1.running_var"], large)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


def test_equal_replicas_have_gradients_of_one_model() -> None:
    """Batch norm statistics agree as well."""
    one, other = resnet().train(), resnet().train()
    inputs, targets = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    losses, gradients = JointGradients(one, 4)(losses_of, (inputs,), targets)
    theirs, others = Replicas(other, 4).answers(losses_of, (inputs,), targets)
    assert losses == pytest.approx(theirs, rel=1e-5)
    for mine, their in zip(gradients, others, strict=True):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, their, strict=True))
    assert all(
        torch.allclose(a.float(), b.float(), atol=1e-6) for a, b in zip(one.buffers(), other.buffers(), strict=True)
    )


def test_score_covers_replicas_of_all_workers() -> None:
    """Each worker answers its part. With one worker whose parameters are all zero, a fourth of the answers are
    class 0."""
    data = images("synthetic", 8, augment=False, limit=800)
    trainer = Trainer(linear(), data, Recipe(workers=4, batch=4, steps=40, rate=0.05))
    list(trainer.run())
    alone = trainer.score()
    trainer.replicas = Replicas(trainer.model, 4)
    assert trainer.score().accuracy == alone.accuracy
    with torch.no_grad():
        for value in trainer.replicas.values[2]:
            value.zero_()
    count = len(data.test[1])
    part = data.test[1].tensor_split(4)[2]
    with torch.no_grad():
        right = (trainer.model.eval()(data.test[0].tensor_split(4)[2]).argmax(dim=1) == part).sum()
    expected = alone.accuracy - float(right - (part == 0).sum()) / count
    found = trainer.score()
    assert isinstance(found, Score) and found.accuracy == pytest.approx(expected)
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), trainer.replicas.values[0], strict=True))


def test_ring_rejects_topk_and_masks_of_wrong_shape() -> None:
    with pytest.raises(ValueError, match="cannot add up topk"):
        Trainer(resnet(), DATA, Recipe(workers=2, batch=4, collective="ring"), TopK())
    mask = torch.ones(2, 2, 3, dtype=torch.bool)
    trainer = Trainer(
        linear(),
        DATA,
        Recipe(workers=2, batch=4, collective="ring"),
        network=Replay([[Answer([], hops=HopMasks(((1, 0),), [mask]))]]),
    )
    trainer.network.answers[0][0] = Answer([[None, None]] * 2, hops=HopMasks(((1, 0),), [mask]))
    with pytest.raises(ValueError, match=r"bucket 0: a mask of \(2, 2, 3\) for hops, senders and packets \(2, 2, 1\)"):
        trainer.step()


def test_random_server_losses_follow_direction_worker_and_layers() -> None:
    """Losses of one worker occur in both directions; push losses are the same without pull losses."""
    layout = RingLayout((3000, 300), ((0, 1),), 4, 40)
    pushed = dataclasses.replace(pushed_round(layout), layout=None)
    both = Random(0.5, way="both", worker=2).carry(pushed)
    for masks in (both.arrived, both.pulled):
        assert [row == [None, None] for row in masks] == [True, True, False, True]
        assert 0.4 < float(masks[2][0].float().mean()) < 0.6 and len(masks[2][0]) == 300
    assert not torch.equal(both.arrived[2][0], both.pulled[2][0])
    there = Random(0.5).carry(pushed)
    assert torch.equal(there.arrived[2][0], both.arrived[2][0]) and not there.pulled
    front = Random(0.5, way="pull", layers="front").carry(pushed)
    assert front.arrived[0] == [None, None] and front.pulled[0][1] is None and front.pulled[0][0] is not None
