"""The asynchronous server: its order worked by hand, one worker as synchronous training, and checkpoints that hold."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.build import trainer_of  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, Replay  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous, LinkTiming  # noqa: E402
from gradwire.training.parameter_server.mipd_trainer import MipdTrainer  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.systems.mipd import MIPD  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import plain, resnet, same  # noqa: E402

DATA = images("synthetic", 8, limit=400)


@pytest.mark.parametrize("reducer", [None, ErrorFeedback(reducer=TopK(ratio=0.1))])
def test_async_with_one_worker_equals_synchronous_training(reducer) -> None:
    """Losses, rates and parameters match bit for bit, also with packet loss; only pulled bytes differ."""
    recipe = Recipe(workers=1, batch=16, steps=6, rate=0.05, clip=1.0, payload=512, feed_back=reducer is not None)
    ours = Asynchronous(resnet(), DATA, recipe, reducer, Random(0.2))
    theirs = Trainer(resnet(), DATA, recipe, reducer, Random(0.2))
    for _ in range(6):
        mine, its = ours.step(), theirs.step()
        assert (mine.loss, mine.sent_bytes, mine.rate) == (its.loss, its.sent_bytes, its.rate)
        assert mine.lost == pytest.approx(its.lost) and mine.lost > 0
        assert mine.pulled_bytes == 4 * sum(info.numel for info in ours.infos)
    assert same(ours.model, theirs.model)


def order(staleness: int | None, *compute: int, turns: int = 8, rate: int = 0) -> list[tuple[int, int, int]]:
    recipe = Recipe(workers=len(compute), batch=2, steps=9, schedule="constant")
    trainer = Asynchronous(plain(), DATA, recipe, staleness=staleness, pace=LinkTiming(compute, rate))
    return [(each.clock_ps, each.worker, each.stale) for each in (trainer.turn() for _ in range(turns))]


def test_turn_order_and_staleness_match_hand_computation() -> None:
    """Worker 0 computes for 1, worker 1 for 3. At 3 both are ready. Worker 1 started at 0 with the parameters of
    that time and is 2 updates behind. Worker 0 has pulled after its second turn, so only worker 1's update is new
    to it."""
    assert order(None, 1, 3) == [(1, 0, 0), (2, 0, 0), (3, 1, 2), (3, 0, 1), (4, 0, 0), (5, 0, 0), (6, 1, 3), (6, 0, 1)]


def test_staleness_bound_delays_fast_worker() -> None:
    """Worker 0 may be one turn ahead. After its second turn, at 2, it waits for worker 1's first, at 3, and pulls
    then."""
    assert order(1, 1, 3) == [(1, 0, 0), (2, 0, 0), (3, 1, 2), (4, 0, 0), (6, 1, 1), (7, 0, 0), (9, 1, 1), (10, 0, 0)]


def test_staleness_of_equal_workers_is_worker_count_minus_one() -> None:
    assert [stale for *_, stale in order(None, 5, 5, 5, turns=9)] == [0, 1, 2, 2, 2, 2, 2, 2, 2]
    assert [worker for _, worker, _ in order(None, 0, 0, 0, turns=6)] == [0, 1, 2, 0, 1, 2], (
        "even if nothing takes time"
    )


def test_transfer_time_follows_link_rate() -> None:
    """Each turn pulls and pushes 3,114 parameters of 4 bytes at 1 kbit/s; computing takes no time."""
    count = sum(p.numel() for p in plain().parameters())
    way = 4 * count * 8 * 10**9
    assert [when for when, *_ in order(None, 0, turns=3, rate=1000)] == [way, 3 * way, 5 * way]


def test_shared_server_link_serializes_transfers() -> None:
    """The server's link takes w for a push or a pull, and both workers begin at 0. Pushes end at w and 2 w, pulls,
    in the other direction, at 2 w and 3 w, and the next pushes at 3 w and 4 w."""
    count = sum(p.numel() for p in plain().parameters())
    way = 4 * count * 8 * 10**9
    recipe = Recipe(workers=2, batch=2, steps=9, schedule="constant")
    trainer = Asynchronous(plain(), DATA, recipe, pace=LinkTiming((0,), server_rate=1000))
    seen = [trainer.turn() for _ in range(4)]
    assert [(each.clock_ps, each.worker) for each in seen] == [(way, 0), (2 * way, 1), (3 * way, 0), (4 * way, 1)]
    other = Asynchronous(plain(), DATA, recipe, pace=LinkTiming((0,), server_rate=1000))
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert [trainer.turn().clock_ps for _ in range(3)] == [other.turn().clock_ps for _ in range(3)]


def test_network_answer_time_delays_push_arrival() -> None:
    """Pushes of even batches take 10, of odd ones 1; computing and pulls take no time. Worker 1 has batch 1 and
    then 2, worker 0 has 0 and then 3. At 11 both arrive, worker 1's first, which was sent at 1."""
    net = plain()
    count = len(list(net.parameters()))
    answers = [[Answer([[None] * count], time)] for time in (10, 1)]
    trainer = Asynchronous(net, DATA, Recipe(workers=2, batch=2, steps=9), network=Replay(answers))
    seen = [trainer.turn() for _ in range(4)]
    assert [(each.clock_ps, each.worker, each.stale) for each in seen] == [
        (1, 1, 0),
        (10, 0, 1),
        (11, 1, 1),
        (11, 0, 1),
    ]


def test_zero_staleness_equals_mean_gradient_training() -> None:
    """All workers pull together: N updates of 1/N gradient each equal one mean update without momentum."""
    recipe = Recipe(workers=4, batch=8, steps=5, rate=0.1, momentum=0.0, weight_decay=0.0)
    ours = Asynchronous(plain(), DATA, recipe, staleness=0, pace=LinkTiming((1, 2, 3, 4)))
    theirs = Trainer(plain(), DATA, recipe)
    for _ in range(5):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-5)
    for mine, its in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(mine, its, atol=1e-6)
    stale = Asynchronous(plain(), DATA, recipe, pace=LinkTiming((1, 2, 3, 4)))
    for _ in range(5):
        stale.step()
    assert not all(
        torch.allclose(a, b, atol=1e-4)
        for a, b in zip(stale.model.parameters(), theirs.model.parameters(), strict=True)
    )


def test_push_uses_gradient_at_pulled_parameters() -> None:
    """Worker 1's first push has the gradient at the initial parameters, although worker 0 has already moved
    them."""
    recipe = Recipe(workers=2, batch=4, steps=3, rate=0.4, schedule="constant", momentum=0.0, weight_decay=0.0)
    net = plain()
    before = copy.deepcopy(net)
    trainer = Asynchronous(net, DATA, recipe, pace=LinkTiming((1, 1)))
    inputs, targets = trainer.dealer.step(0)
    for worker in range(2):
        assert trainer.turn().stale == worker
    expected = [p.detach().clone() for p in before.parameters()]
    for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
        before.zero_grad()
        nn.functional.cross_entropy(before(x), y).backward()
        for value, parameter in zip(expected, before.parameters(), strict=True):
            value -= 0.4 / 2 * parameter.grad
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.parameters(), expected, strict=True))


def test_async_run_resumes_from_checkpoint(tmp_path) -> None:
    """The checkpoint holds pushes in flight and waiting workers."""
    recipe = Recipe(workers=3, batch=8, steps=6)
    make = lambda: Asynchronous(
        resnet(),
        DATA,
        recipe,
        ErrorFeedback(reducer=TopK(ratio=0.45)),
        Random(0.1),
        staleness=1,
        pace=LinkTiming((10**9, 4 * 10**9), 10**9),
    )
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(6)]
    assert [first.step() for _ in range(4)] == rows[:4], "and it is repeatable"
    assert any(first.flying) or first.waiting
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(2)] == rows[4:]
    assert same(whole.model, second.model) and whole.log == second.log


@pytest.mark.parametrize("make", [
    lambda *given: Asynchronous(*given, pace=LinkTiming((10**9, 10**11))),
    lambda model, data, recipe, _, network: MipdTrainer(model, data, recipe, MIPD(), network, pace=LinkTiming((10**9, 10**11))),
], ids=["asynchronous", "mipd"])  # fmt: skip
def test_loss_shares_are_reported_per_turn(make) -> None:
    """Workers 0 and 2 are a hundred times faster and take all turns of the first steps, two each. A row of `lost`
    belongs to one turn, `senders` names its worker, and the element-weighted mean is the step's loss."""
    trainer = make(resnet(), DATA, Recipe(workers=4, batch=2, steps=9, payload=512), None, Random(0.2))
    numels = [info.numel for info in trainer.infos]
    for number in range(3):
        row = trainer.step()
        assert list(trainer.senders) == [each.worker for each in trainer.log] == [0, 2, 0, 2]
        mean = sum(share * numel for shares in trainer.lost for share, numel in zip(shares, numels, strict=True))
        assert row.lost == pytest.approx(mean / 4 / sum(numels)) and row.lost > 0.05, number
        assert len({tuple(shares) for shares in trainer.lost}) == 4
    assert trainer.turn().worker == 0, "turns alone leave what is said of the step"
    assert len(trainer.lost) == 4


def test_lost_table_agrees_with_step_losses(tmp_path) -> None:
    scenario = load_scenario("train-tiny", policy="dlcp", set=[
        "training.steps=3", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=4",
        "training.network={loss=0.2}", 'training.system={kind="asynchronous", computing=["1ms","100ms"]}',
    ])  # fmt: skip
    learned = train(scenario)
    numels = [info.numel for info in trainer_of(scenario, DATA).infos]
    for row in learned.steps:
        mine = [each for each in learned.tables["lost"] if each["step"] == row["step"]]
        assert sum(each["lost"] * numels[each["tensor"]] for each in mine) / 4 / sum(numels) == pytest.approx(
            row["lost"]
        )
        assert {each["worker"] for each in mine} == {0, 2} and max(each["lost"] for each in mine) <= 1


def test_step_counts_pushed_and_pulled_bytes() -> None:
    """Two workers push the top 10 % and pull all parameters; a step has one turn per worker."""
    trainer = Asynchronous(plain(), DATA, Recipe(workers=2, batch=8, steps=2), TopK(ratio=0.1))
    row = trainer.step()
    sizes = [info.numel for info in trainer.infos]
    assert row.sent_bytes == 2 * sum(8 * max(1, size // 10) for size in sizes)
    assert row.pulled_bytes == 2 * 4 * sum(sizes) == trainer.pulled_bytes


def test_async_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    recipe = Recipe(workers=4, batch=16, steps=90, rate=0.1)
    *_, last = Asynchronous(resnet(), data, recipe, pace=LinkTiming((10, 11, 12, 30))).run()
    assert isinstance(last, Score) and last.accuracy > 0.5 and last.pulled_bytes > 0


def test_reducers_and_fills_that_need_all_workers_are_rejected() -> None:
    with pytest.raises(ValueError, match="powersgd has 2 rounds"):
        Asynchronous(plain(), DATA, Recipe(), PowerSGD())
    with pytest.raises(ValueError, match="expected zero: they push one by one"):
        Asynchronous(plain(), DATA, Recipe(fill="stale"))
