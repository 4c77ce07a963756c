"""Partial averaging: local steps, what is exchanged, momentum, losses, and its special cases by independent code."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.parameter_server.local_models import LocalModels, flattened  # noqa: E402
from gradwire.training.parameter_server.move_history import MoveHistory  # noqa: E402
from gradwire.training.parameter_server.selections import Fragments, OwnSets, Rotation, flat_positions  # noqa: E402
from gradwire.training.systems.partial_averaging import PartialAveragingSystem  # noqa: E402
from gradwire.training.systems.slimdp import SlimDP  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer, tensors_of  # noqa: E402
from tests.support.training_cases import Points, close, plain, resumes_exactly, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)
CPU = torch.device("cpu")
INFOS = tensors_of(nn.Sequential(nn.Linear(30, 10), nn.Linear(10, 7)))


class Line(nn.Module):
    """Parameters w, of which a sample's loss is half the square of its distance to them: gradients w - x."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def distance(model, inputs, targets):
    return 0.5 * (model.w - inputs[0]).square().sum(dim=1)


def slope(model, inputs, targets):
    return (model.w * inputs[0]).sum(dim=1)


def made(system, recipe, model=None, data=DATA, network=None):
    return system.trainer(model or plain(), data, recipe, None, network)


def line(system, *points: list[float], loss=distance, network=None, **recipe):
    plan = {"rate": 0.5, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "steps": 60, **recipe}
    trainer = made(
        system, Recipe(workers=len(points), batch=1, **plan), Line(*[0.0] * len(points[0])), Points(*points), network
    )
    return with_loss(trainer, loss)


# local steps


@pytest.mark.parametrize("more", [
    {"momentum": 0.0}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"optimizer": "adamw", "weight_decay": 0.1}, {"optimizer": "adamw", "betas": (0.5, 0.9), "epsilon": 1e-3},
], ids=str)  # fmt: skip
def test_local_steps_equal_those_of_torch(more) -> None:
    model, recipe = plain(), Recipe(workers=2, rate=0.05, **more)
    local, theirs = LocalModels(model, recipe), copy.deepcopy(model)
    optimizer = Trainer(theirs, DATA, recipe).optimizer
    generator = torch.Generator().manual_seed(1)
    for number in range(5):
        gradients = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
        local.local_step(1, gradients, 0.05 / (1 + number))
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + number)
        optimizer.step()
    assert torch.allclose(local.flat[1], flattened(list(theirs.parameters())), atol=1e-6)
    assert torch.equal(local.flat[0], flattened(list(model.parameters()))), "the other worker has not moved"


# selections


@pytest.mark.parametrize("share", [1 / 9, 0.3, 0.125, 1.0])
def test_rotation_exchanges_every_element_equally_often(share: float) -> None:
    """A weight matrix of 300 elements, one of 70, and vectors of 10 and 7, which are always whole."""
    rotation = Rotation(INFOS, 3, CPU, share)
    assert [info.numel for info in INFOS] == [300, 10, 70, 7]
    last, counts = torch.full((300,), -1000), torch.zeros(300, dtype=torch.long)
    each = int(300 * share + 1e-9)
    for number in range(40):
        chosen = rotation.choose(number)
        assert [len(part) for part in chosen] == [each, 10, int(70 * share + 1e-9), 7]
        assert chosen[0].tolist() == sorted(set(chosen[0].tolist()))
        waited = number - last
        assert waited[chosen[0]].min() >= 300 // each, "those that have waited longest"
        last[chosen[0]] = number
        counts[chosen[0]] += 1
    assert counts.max() - counts.min() <= 1
    assert not torch.equal(
        Rotation(INFOS, 4, CPU, share).choose(0)[0], Rotation(INFOS, 3, CPU, share).choose(0)[0]
    ) or (share == 1)


def test_core_has_the_largest_elements_and_explorer_the_oldest() -> None:
    rotation = Rotation(INFOS, 1, CPU, 0.3, core=0.1, every=5, weight=2.0)
    values, gradients = torch.zeros(387), torch.zeros(387)
    values[:20], gradients[280:300] = 1.0, 1.0
    last = torch.full((300,), -1)
    for number in range(30):
        rotation.select_core(number, values, gradients)
        core, explorer, keys = rotation.choose(number)[:3]
        assert (len(core), len(explorer), len(keys)) == (30, 60, 0) and not set(core.tolist()) & set(explorer.tolist())
        assert set(range(280, 300)) <= set(core.tolist()) <= set(range(20)) | set(range(280, 300))
        assert [len(part) for part in rotation.new_core(number)] == ([30, 1, 7, 0] if number % 5 == 0 else [])
        rest = sorted(set(range(300)) - set(core.tolist()), key=lambda place: int(last[place]))
        assert last[explorer].max() <= last[rest[59]]
        last[explorer] = last[core] = number


def test_fragments_exchange_whole_tensors_in_turn() -> None:
    fragments = Fragments(INFOS, 0, CPU, 1 / 3)
    seen = [[len(part) for part in fragments.choose(number)] for number in range(3)]
    assert (
        sorted(map(sum, seen)) == [17, 70, 300] and fragments.choose(3)[0].tolist() == fragments.choose(0)[0].tolist()
    )


def test_own_sets_differ_between_workers_and_avoid_the_core() -> None:
    sets = OwnSets(INFOS, 1, CPU, 0.3, 0.1, 5, 1.0, True, 2)
    sets.select_core(0, torch.arange(387.0), torch.zeros(387), 0)
    sets.select_core(0, -torch.arange(387.0).flip(0), torch.zeros(387), 1)
    (core, explorer, _), (other_core, other, _) = (sets.choose(0, worker)[:3] for worker in range(2))
    assert core.tolist() == list(range(270, 300)) and other_core.tolist() == list(range(30))
    assert not set(core.tolist()) & set(explorer.tolist()) and explorer.tolist() != other.tolist()
    assert sets.choose(1, 0)[1].tolist() != explorer.tolist(), "drawn anew"


def test_own_cores_are_chosen_in_exchanges() -> None:
    """With an exchange every third step and a new core in every second one, positions of cores are pushed in steps 3 and
    9, and are those of the greatest gradients of these steps."""
    trainer = line(SlimDP(alpha=0.3, beta=0.1, every=2, period=3, sets="own"), [1.0] * 100, [1.0] * 100, loss=slope)
    keys, nbytes = [], []
    for number in range(9):
        if number == 8:
            trainer.dealer.data.points = torch.arange(100.0).mul(100).repeat(2, 1)
        nbytes.append(trainer.step().sent_bytes // 2)
        keys.append(trainer.selection.cores[0][0].tolist())
    assert nbytes == [0, 0, 240, 0, 0, 200, 0, 0, 240], "4 x 10 + 8 x 20, and 4 x 10 for a new core"
    assert keys[2] == keys[7] != keys[8] == list(range(90, 100))


# exchanges


def test_exchange_matches_hand_computation() -> None:
    """Goals (8 0) and (0 8), rate 1/2; one element at a time. Both workers move half of the way to their goals in each
    step; the exchanged element becomes the mean, and the other one goes on."""
    trainer = line(PartialAveragingSystem(share=0.5), [8.0] * 66 + [0.0] * 66, [0.0] * 66 + [8.0] * 66)
    first = flat_positions(Rotation(trainer.infos, 0, CPU, 0.5).choose(0), [132])
    trainer.step()
    other = torch.ones(132, dtype=torch.bool)
    other[first] = False
    front = torch.arange(132) < 66
    assert (trainer.model.w[first] == 2).all() and (trainer.model.w[other] == 0).all()
    mine = trainer.local.flat[0]
    assert (mine[first] == 2).all() and (mine[other & front] == 4).all() and (mine[other & ~front] == 0).all()
    trainer.step()  # now the others: worker 0 has 6 in front and 0 behind, worker 1 the other way round
    assert (trainer.model.w[other] == 3).all() and (trainer.model.w[first] == 2).all()
    assert (trainer.local.flat[0][first][front[first]] == 5).all()


@pytest.mark.parametrize(("system", "more"), [
    (PartialAveragingSystem(share=1.0), {}), (PartialAveragingSystem(share=1.0, momentum="averaged"), {}),
    (PartialAveragingSystem(share=1.0, momentum="local"), {"nesterov": True}), (PartialAveragingSystem(share=1.0, momentum="zero"), {"momentum": 0.0}),
    (SlimDP(alpha=1.0, beta=0.5, every=2), {}), (SlimDP(alpha=1.0, beta=0.5, every=2, sets="own"), {}), (SlimDP(alpha=1.0, beta=1.0), {}),
])  # fmt: skip
def test_exchanging_everything_equals_synchronous_training(system, more) -> None:
    """To rounding: the mean of the workers' steps is the step of their mean gradient."""
    recipe = Recipe(workers=3, batch=8, steps=6, rate=0.05, **more)
    ours, theirs = made(system, recipe), Trainer(plain(), DATA, recipe)
    for _ in range(6):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-4)
    assert close(ours.model, theirs.model, 1e-5)
    assert torch.allclose(ours.local.flat[0], ours.local.flat[2], atol=1e-6)
    less = made(PartialAveragingSystem(share=0.2), recipe)
    for _ in range(6):
        less.step()
    assert not close(less.model, theirs.model, 1e-3) and not torch.equal(less.local.flat[0], less.local.flat[2])


@pytest.mark.parametrize(("outer", "outer_momentum"), [(1.0, 0.0), (0.4, 0.9)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_local_sgd_with_outer_optimiser_equals_independent_code(outer, outer_momentum, optimizer) -> None:
    """Local SGD and DiLoCo: every third step all parameters are averaged, and the server makes a step of torch's SGD
    with Nesterov momentum by the mean move."""
    recipe = Recipe(workers=2, batch=8, steps=9, rate=0.05, schedule="constant", optimizer=optimizer)
    system = PartialAveragingSystem(
        share=1.0, every=3, momentum="local", outer_rate=outer, outer_momentum=outer_momentum
    )
    ours = made(system, recipe)
    models = [plain() for _ in range(2)]
    optimizers = [Trainer(model, DATA, recipe).optimizer for model in models]
    server = [parameter.detach().clone() for parameter in plain().parameters()]
    nesterov = outer_momentum > 0
    outer_sgd = torch.optim.SGD([nn.Parameter(value) for value in server], outer, outer_momentum, nesterov=nesterov)
    for number in range(9):
        inputs, targets = ours.dealer.step(number)
        for worker, (model, optimizer_of) in enumerate(zip(models, optimizers, strict=True)):
            optimizer_of.zero_grad()
            cross_entropy(model(inputs[0].chunk(2)[worker]), targets.chunk(2)[worker]).backward()
            optimizer_of.step()
        ours.step()
        if number % 3 == 2:
            for parameter, *locals_of in zip(
                outer_sgd.param_groups[0]["params"], *(m.parameters() for m in models), strict=True
            ):
                parameter.grad = parameter.data - torch.stack([each.detach() for each in locals_of]).mean(dim=0)
            outer_sgd.step()
            for model in models:
                for parameter, value in zip(model.parameters(), outer_sgd.param_groups[0]["params"], strict=True):
                    parameter.data.copy_(value.data)
        expected = outer_sgd.param_groups[0]["params"]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours.model.parameters(), expected, strict=True))


def test_kept_share_leaves_workers_between_their_own_and_the_servers_values() -> None:
    """Goals 8 and 0, rate 1/2: workers come to 4 and 0, the server to 2; with a quarter kept they go on from 2.5 and
    1.5."""
    trainer = line(PartialAveragingSystem(share=1.0, mixing=0.25), [8.0], [0.0])
    trainer.step()
    assert trainer.model.w.item() == 2 and trainer.local.flat.view(-1).tolist() == [2.5, 1.5]


@pytest.mark.parametrize("system", [
    PartialAveragingSystem(share=0.2), PartialAveragingSystem(pieces="tensors", momentum="local", every=2), SlimDP(sets="own"), SlimDP(),
], ids=["rotation", "tensors", "own", "core"])  # fmt: skip
def test_moves_that_are_not_pushed_are_conserved(system) -> None:
    """Gradients do not depend on the parameters: the server and the waiting moves add up to the sum of all steps."""
    points = [[float(3 * w + e % 7) for e in range(100)] for w in range(3)]
    trainer = line(system, *points, loss=slope, rate=0.1)
    for _ in range(9):
        trainer.step()
    waiting = (trainer.local.flat - trainer.local.common).mean(dim=0)
    expected = -0.1 * 9 * torch.tensor(points).mean(dim=0)
    assert torch.allclose(trainer.model.w.detach() + waiting, expected, atol=1e-4) and waiting.abs().max() > 0.1


def test_implied_momentum_is_the_mean_velocity_since_the_last_exchange() -> None:
    """Gradients 1 and 3, momentum 1/2: velocities are 2 (1 - 2^-k) and 6 (1 - 2^-k) in step k, in the mean 2 and 3. An
    element that is exchanged in step 2 for the first time has moved by those of both steps, 2.5 in the mean."""
    trainer = line(PartialAveragingSystem(share=0.5), [1.0] * 132, [3.0] * 132, loss=slope, momentum=0.5, rate=0.1)
    for _ in range(2):
        trainer.step()
    other = torch.ones(132, dtype=torch.bool)
    other[Rotation(trainer.infos, 0, CPU, 0.5).choose(0)[0]] = False
    assert torch.allclose(trainer.local.first[:, other], torch.tensor(2.5), atol=1e-6)
    assert torch.allclose(trainer.local.first[0, ~other], torch.tensor(2.0), atol=1e-6), "2 in step 1, then 2/2 + 1"


@pytest.mark.parametrize("momentum", ["averaged", "zero", "local"])
def test_other_momentum_rules_match_hand_computation(momentum: str) -> None:
    """Gradients 1 and 3, momentum 1/2: after one step velocities are 1 and 3."""
    trainer = line(PartialAveragingSystem(share=1.0, momentum=momentum), [1.0], [3.0], loss=slope, momentum=0.5)
    row = trainer.step()
    expected = {"averaged": [2, 2], "zero": [0, 0], "local": [1, 3]}[momentum]
    assert trainer.local.first.view(-1).tolist() == expected
    assert row.sent_bytes == row.pulled_bytes == 2 * (8 if momentum == "averaged" else 4)


def test_bytes_of_each_system_match_the_number_of_elements() -> None:
    """3,000 elements; Slim-DP's own sets have 4 beta n + 8 (alpha - beta) n bytes each way, and 4 beta n more pushed
    with a new core; shared sets 4 alpha n, and the core's positions come back."""
    points = [[1.0] * 3000] * 3
    for system, pushed, pulled in (
        (PartialAveragingSystem(share=1 / 9), [4 * 333] * 3, [4 * 333] * 3),
        (PartialAveragingSystem(share=0.5, every=2), [0, 4 * 1500, 0], [0, 4 * 1500, 0]),
        (SlimDP(alpha=0.3, beta=0.1, every=2), [4 * 900] * 3, [4 * 1200, 4 * 900, 4 * 1200]),
        (SlimDP(alpha=0.3, beta=0.0), [4 * 900] * 3, [4 * 900] * 3),
        (SlimDP(alpha=0.3, beta=0.1, every=2, sets="own"), [4 * (300 + 1200 + 300), 4 * 1500, 4 * 1800], [4 * 1500] * 3),
        (SlimDP(alpha=0.3, beta=0.1, every=2, sets="own", keys=False), [4 * 1200, 4 * 900, 4 * 1200], [4 * 900] * 3),
    ):  # fmt: skip
        rows = [trainer.step() for trainer in [line(system, *points)] for _ in range(3)]
        assert [row.sent_bytes for row in rows] == [3 * nbytes for nbytes in pushed], system
        assert [row.pulled_bytes for row in rows] == [3 * nbytes for nbytes in pulled], system


@pytest.mark.parametrize("system", [SlimDP(every=2, sets="own"), PartialAveragingSystem(momentum="averaged")])
def test_sent_bytes_equal_serialised_packets(system) -> None:
    recorded = RecordingNetwork(Random(0.0))
    seen = []
    carry = recorded.carry
    recorded.carry = lambda pushed: (
        seen.append(sum(len(p) for row in pushed.encoded for e in row for p in e.to_packets(256) if e.units)),
        carry(pushed),
    )[1]
    trainer = made(system, Recipe(workers=2, batch=4, steps=3, payload=256), network=recorded)
    assert [trainer.step().sent_bytes for _ in range(3)] == seen


@pytest.mark.parametrize("feed_back", [False, True])
def test_lost_push_is_left_out_of_the_mean(feed_back: bool) -> None:
    """Goals (8 4) and (0 4), rate 1/2. Worker 1 loses its first packet of one element, and both lose the second: the
    server has worker 0's 4, and nothing new. With feedback the workers keep their lost moves."""
    lost = torch.tensor([True, False]), torch.tensor([False, False])
    network = Replay([[Answer([[lost[0]], [lost[1]]])]])
    trainer = line(
        PartialAveragingSystem(share=1.0), [8.0, 4.0], [0.0, 4.0], network=network, payload=4, feed_back=feed_back
    )
    row = trainer.step()
    assert trainer.model.w.tolist() == [4, 0] and row.lost == 0.75 and trainer.lost == [[0.5], [1.0]]
    assert trainer.local.flat.tolist() == ([[4, 2], [4, 2]] if feed_back else [[4, 0], [4, 0]])


@pytest.mark.parametrize("more", [{}, {"optimizer": "adamw"}], ids=["sgd", "adamw"])
@pytest.mark.parametrize("system", [
    PartialAveragingSystem(momentum="averaged", every=2), PartialAveragingSystem(pieces="tensors", share=0.5, outer_momentum=0.9, outer_rate=0.4, mixing=0.5, momentum="zero"),
    SlimDP(every=4, momentum="local"), SlimDP(every=4, sets="own"),
], ids=["averaged", "tensors", "core", "own"])  # fmt: skip
def test_run_resumes_from_checkpoint(system, more, tmp_path) -> None:
    recipe = Recipe(workers=2, batch=8, steps=8, payload=256, rate=0.01, **more)
    make = lambda: made(system, recipe, network=Random(0.1))
    whole, second = resumes_exactly(make, 8, 5, tmp_path)
    assert torch.equal(whole.local.flat, second.local.flat)


@pytest.mark.parametrize(("system", "arrives"), [
    (PartialAveragingSystem(share=1 / 9), True), (SlimDP(), True), (SlimDP(sets="own"), True), (SlimDP(alpha=0.3, beta=0.3, every=400), False),
])  # fmt: skip
def test_least_squares_converges_unless_only_a_fixed_core_is_sent(system, arrives: bool) -> None:
    """Each worker has another optimum. With a core only that never changes, 70 % of the elements never reach the
    server."""
    points = torch.randn(4, 80, generator=torch.Generator().manual_seed(2)) * 3
    trainer = line(system, *points.tolist(), rate=0.2, schedule="triangle", rise=0.01, steps=400)
    for _ in range(400):
        trainer.step()
    mean = points.mean(dim=0)
    assert bool((trainer.model.w.detach() - mean).norm() / mean.norm() < 0.2) is arrives


def test_partial_averaging_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    recipe = Recipe(workers=4, batch=16, steps=90, rate=0.1)
    *_, last = made(PartialAveragingSystem(), recipe, data=data).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


def test_conflicting_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="is more than alpha"):
        SlimDP(alpha=0.2, beta=0.3)
    for system, more, words in (
        (SlimDP(), {"fill": "rescaled"}, "expected zero: parameters are pushed"),
        (PartialAveragingSystem(), {"optimizer": "adamw"}, "cannot be worked out for adamw; expected averaged"),
        (SlimDP(sets="own", momentum="implied"), {}, "all workers exchange at the same time; expected local"),
    ):
        with pytest.raises(ValueError, match=words):
            made(system, Recipe(**more))


def test_move_history_measures_how_persistent_moves_are() -> None:
    """Two tensors. In the first every velocity halves from one exchange to the next, in the second it turns round."""
    history = MoveHistory(torch.zeros(6), [4, 2])
    everything, moved = torch.arange(6), torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0, 1.0])
    for rate, factor in ((0.5, torch.ones(6)), (0.25, torch.tensor([0.5] * 4 + [-1.0] * 2))):
        history.rates += rate
        history.record(everything, history.values - rate * factor * moved)
    assert torch.allclose(history.velocity, factor * moved) and torch.allclose(history.earlier, moved)
    assert torch.allclose(history.persistence, torch.tensor([0.1 * 0.5, 0.1 * -1.0]))
    history.rates += 2.0
    assert torch.allclose(history.held(), history.values - 2 * factor * moved)
