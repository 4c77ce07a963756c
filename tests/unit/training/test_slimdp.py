"""Slim-DP: a step worked by hand, its bytes, its limits, and that nothing that is not exchanged is lost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.parameter_server.slimdp_trainer import SlimTrainer  # noqa: E402
from gradwire.training.systems.slimdp import SlimDP  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import Points, close, plain, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)


class Line(nn.Module):
    """Parameters w, of which a sample's loss is half the square of its distance to them: gradients w - x."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def distance(model, inputs, targets):
    return 0.5 * (model.w - inputs[0]).square().sum(dim=1)


def line(
    slim: SlimDP,
    steps: int = 9,
    rate: float = 0.5,
    network=None,
    momentum: float = 0.0,
    payload: int = 4096,
    goals=None,
) -> SlimTrainer:
    points = Points(*(goals or [[8.0, 0.0, 2.0, 0.0], [0.0, 8.0, 0.0, 2.0]]))
    recipe = Recipe(len(points), 1, steps, rate, "constant", momentum=momentum, weight_decay=0.0, payload=payload)
    return with_loss(SlimTrainer(Line(*[0.0] * points.points.shape[1]), points, recipe, slim, network), distance)


def test_slimdp_step_with_core_of_one_matches_hand_computation() -> None:
    """Goals are (8 0 2 0) and (0 8 0 2), the rate is 1/2. One element of four is exchanged, that of the largest
    gradient.

    Step 0: worker 0 goes to (4 0 1 0), pushes 4 at 0: the server has (2 0 0 0) + from worker 1 (0 2 0 0) = (2 2 0 0).
    Worker 0 pulls its own place only: (2 0 1 0); worker 1 has (0 2 0 1).
    Step 1: to (5 0 1.5 0): moved by 3 at 0; server (3.5 3.5 0 0), worker 0 (3.5 0 1.5 0).
    """
    trainer = line(SlimDP(alpha=0.25, beta=0.25))
    rows = [trainer.step()]
    assert trainer.model.w.tolist() == [2, 2, 0, 0]
    assert [row[0].tolist() for row in trainer.copies.values] == [[2, 0, 1, 0], [0, 2, 0, 1]]
    rows.append(trainer.step())
    assert trainer.model.w.tolist() == [3.5, 3.5, 0, 0]
    assert [row[0].tolist() for row in trainer.copies.values] == [[3.5, 0, 1.5, 0], [0, 3.5, 0, 1.5]]
    assert [(row.sent_bytes, row.pulled_bytes) for row in rows] == [(16, 8), (8, 8)], (
        "2 values; at first 2 keys as well"
    )


@pytest.mark.parametrize(("unsent", "expected"), [("kept", [0.75]), ("dropped", [0.25])])
def test_unsent_updates_match_hand_computation(unsent: str, expected: list[float]) -> None:
    """One worker has the goal (9, 1) and the rate 1/2. The core is element 0 at first; element 1 moves to 1/2, then
    to 3/4. In step 1 the core is selected anew by the gradient alone, (9, 1) having left (4.5, 0.5); the test makes
    it element 1."""
    trainer = line(SlimDP(alpha=0.5, beta=0.5, unsent=unsent), goals=[[9.0, 1.0]])
    trainer.step()
    assert trainer.model.w.tolist() == [4.5, 0] and trainer.copies.values[0][0].tolist() == [4.5, 0.5]
    trainer.cores[0][0] = torch.tensor([1])
    trainer.step()
    assert trainer.model.w.tolist() == [4.5, *expected] and trainer.copies.values[0][0].tolist() == [6.75, *expected]


@pytest.mark.parametrize("keys", [True, False])
def test_bytes_match_published_formula(keys: bool) -> None:
    """Each direction and worker has 4 beta n + 8 (alpha - beta) n bytes. With a shared seed it has 4 alpha n. Every
    q-th step pushes 4 beta n bytes of keys as well."""
    goals = [[1.0] * 1000] * 3
    trainer = line(SlimDP(alpha=0.3, beta=0.1, every=3, keys=keys), goals=goals)
    each = 3 * (4 * 100 + (8 if keys else 4) * 200)
    rows = [trainer.step() for _ in range(4)]
    assert [row.pulled_bytes for row in rows] == [each] * 4
    assert [row.sent_bytes for row in rows] == [each + 3 * 4 * 100, each, each, each + 3 * 4 * 100]


def test_sent_bytes_equal_serialised_packets() -> None:
    recorded = RecordingNetwork(Random(0.0))
    seen = []
    carry = recorded.carry
    recorded.carry = lambda pushed: (
        seen.append(sum(len(p) for row in pushed.encoded for e in row for p in e.to_packets(256) if e.units)),
        carry(pushed),
    )[1]
    trainer = SlimTrainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3, payload=256), SlimDP(every=2), recorded)
    assert [trainer.step().sent_bytes for _ in range(3)] == seen


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
def test_alpha_of_one_equals_synchronous_training(beta: float) -> None:
    """With momentum and decay they agree to rounding, and all copies are equal."""
    recipe = Recipe(workers=3, batch=8, steps=6, rate=0.05)
    ours, theirs = (
        SlimTrainer(plain(), DATA, recipe, SlimDP(alpha=1.0, beta=beta, every=2)),
        Trainer(plain(), DATA, recipe),
    )
    for _ in range(6):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-4)
    assert close(ours.model, theirs.model)
    assert all(torch.equal(a, b) for a, b in zip(ours.copies.values[0], ours.copies.values[2], strict=True))
    less = SlimTrainer(plain(), DATA, recipe, SlimDP(alpha=0.5, beta=0.2))
    for _ in range(6):
        less.step()
    assert not close(less.model, theirs.model, 1e-3)
    assert not torch.equal(less.copies.values[0][0], less.copies.values[2][0]), "copies differ"


def test_unsent_updates_are_conserved_unless_dropped() -> None:
    """Gradients do not depend on the parameters. The server's parameters and unsent updates add up to the sum of
    all steps."""

    def slope(model, inputs, targets):
        return (model.w * inputs[0]).sum(dim=1)

    goals = [[float(3 * w + e % 7) for e in range(50)] for w in range(3)]
    recipe = Recipe(3, 1, 9, 0.1, "constant", momentum=0.0, weight_decay=0.0)
    for unsent, holds in (("kept", True), ("dropped", False)):
        trainer = SlimTrainer(
            Line(*[0.0] * 50), Points(*goals), recipe, SlimDP(alpha=0.3, beta=0.1, every=2, unsent=unsent)
        )
        trainer.loss = slope
        for _ in range(9):
            trainer.step()
        held = sum(trainer.copies.values[w][0] - trainer.common[w][0] for w in range(3)) / 3
        expected = -0.1 * 9 * torch.tensor(goals).mean(dim=0)
        assert torch.allclose(trainer.model.w.detach() + held, expected, atol=1e-4) is holds


def test_explorer_visits_all_elements_outside_the_core() -> None:
    trainer = line(SlimDP(alpha=0.3, beta=0.1, every=100), goals=[[float(e) for e in range(100)]] * 2)
    seen: set[int] = set()
    for number in range(60):
        trainer.step()
        ((core, explorer),) = trainer._choose_sets(0, number)
        assert len(core) == 10 and len(explorer) == 20 and not set(core.tolist()) & set(explorer.tolist())
        seen |= set(explorer.tolist())
    assert core.tolist() == list(range(90, 100)), "where gradients were largest when it was selected"
    assert (
        seen == set(range(90))
        and trainer._choose_sets(0, 1)[0][1].tolist() != trainer._choose_sets(1, 1)[0][1].tolist()
    )


@pytest.mark.parametrize(("slim", "arrives"), [
    (SlimDP(alpha=0.3, beta=0.15), True), (SlimDP(alpha=0.3, beta=0.0), True), (SlimDP(alpha=0.3, beta=0.3, every=400), False),
    (SlimDP(alpha=1.0, beta=0.5), True),
])  # fmt: skip
def test_least_squares_converges_unless_only_a_fixed_core_is_sent(slim: SlimDP, arrives: bool) -> None:
    """Each worker has another optimum. With a core only that never changes, 70 % of the elements never reach the
    server."""
    generator = torch.Generator().manual_seed(2)
    goals = (torch.randn(4, 60, generator=generator) * 3).tolist()
    points = Points(*goals)
    recipe = Recipe(4, 1, 400, 0.2, "triangle", rise=0.01, momentum=0.0, weight_decay=0.0)
    trainer = with_loss(SlimTrainer(Line(*[0.0] * 60), points, recipe, slim), distance)
    for _ in range(400):
        trainer.step()
    mean = points.points.mean(dim=0)
    assert bool((trainer.model.w.detach() - mean).norm() / mean.norm() < 0.2) is arrives


def test_lost_push_is_not_added_to_server() -> None:
    """Worker 1 loses the only packet of its core in the first step."""
    gone = Replay([[Answer([[None] * 3, [torch.tensor([False]), None, None]])]])
    trainer = line(SlimDP(alpha=0.25, beta=0.25), network=gone)
    row = trainer.step()
    assert trainer.model.w.tolist() == [2, 0, 0, 0] and trainer.copies.values[1][0].tolist() == [0, 0, 0, 1]
    assert row.lost == 0.5 and trainer.lost == [[0.0], [1.0]]


def test_slimdp_run_resumes_from_checkpoint(tmp_path) -> None:
    recipe = Recipe(workers=2, batch=8, steps=6, payload=256)
    make = lambda: SlimTrainer(plain(), DATA, recipe, SlimDP(every=4), Random(0.1))
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(6)]
    assert [first.step() for _ in range(3)] == rows[:3]
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(3)] == rows[3:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_slimdp_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = SlimTrainer(plain(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1), SlimDP()).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


def test_core_above_alpha_and_rescaled_fill_are_rejected() -> None:
    with pytest.raises(ValueError, match="is more than alpha"):
        SlimDP(alpha=0.2, beta=0.3)
    with pytest.raises(ValueError, match="expected zero: updates are pushed"):
        SlimTrainer(plain(), DATA, Recipe(fill="rescaled"), SlimDP())
