"""Networks, reducers, models and checkpoints that do not fit: one message, with class, file and line of whose they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.ddp_hooks import ReducerHook, register  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.exchange.ring_allreduce import HopMasks  # noqa: E402
from gradwire.training.loss_replay.loss_recording import LossRecording  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, EvenLoss, Ideal, Random, RecordingNetwork  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.systems.slimdp import SlimDP  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.training_cases import plain  # noqa: E402

HERE = Path(__file__).resolve()
DATA = images("synthetic", 8, limit=200)
RECIPE = Recipe(workers=2, batch=4, steps=3, payload=400)
ROWS = [[None] * 4] * 2


def trainer(*arguments: Any, **more: Any) -> Trainer:
    return Trainer(plain(), DATA, RECIPE, *arguments, **more)


class Mine:
    """A network that answers whatever it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def carry(self, pushed):
        return self.answer(pushed) if callable(self.answer) else self.answer


CARRY = f"carry of Mine ({HERE}:{Mine.carry.__code__.co_firstlineno})"


def masks(mask: Any) -> list[list[Any]]:
    return [[mask, None, None, None], [None] * 4]


WRONG = [
    (None, "returns None; expected a gradwire.training.networks.builtin_networks.Answer"),
    ((ROWS, 0), "returns a tuple of 2;"),
    (3, "returns 3;"),
    (Answer, "returns something of type type;"),
    (Answer(None), "returns arrived = None; expected a row of masks for each of 2 workers"),
    (Answer([[None] * 4]), "returns arrived = a list of 1; expected a row of masks for each of 2 workers"),
    (Answer([[None] * 3] * 2), "returns arrived[0] = a list of 3; expected a mask, or None, for each of 4 tensors"),
    (Answer(masks(torch.ones(2, dtype=torch.bool))), "returns arrived[0][0] = a tensor of bool, (2,); expected None, or a tensor of bool, (3,)"),
    (Answer(masks(torch.ones(3))), "returns arrived[0][0] = a tensor of float32, (3,);"),
    (Answer(masks(np.ones(3, bool))), "returns arrived[0][0] = something of type ndarray;"),
    (Answer(masks([True] * 3)), "returns arrived[0][0] = a list of 3;"),
    (Answer(ROWS, -1), "returns time_ps = -1; expected picoseconds, a whole number from 0"),
    (Answer(ROWS, 1.5), "returns time_ps = 1.5; expected picoseconds, a whole number from 0"),
    (Answer(ROWS, 2.0), "returns time_ps = 2.0;"), (Answer(ROWS, True), "returns time_ps = True;"),
    (Answer(ROWS, math.nan), "returns time_ps = nan;"),
    (Answer(ROWS, math.inf), "returns time_ps = inf;"),
    (Answer(ROWS, "1ms"), "returns time_ps = something of type str;"),
    (Answer(ROWS, None), "returns time_ps = None;"),
    (Answer(ROWS, pulled=[[None] * 4]), "returns pulled = a list of 1;"),
    (Answer(ROWS, pulled=masks(torch.ones(9, dtype=torch.bool))), "returns pulled[0][0] = a tensor of bool, (9,);"),
    (Answer(ROWS, hops=HopMasks(((0, 1, 2, 3),), [None])), "returns hops of a ring in an exchange with servers;"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=[words for _, words in WRONG])
def test_invalid_network_answers_are_rejected(answer: Any, words: str) -> None:
    """The trainer uses the network directly or inside another one; no step is trained."""
    given = (lambda pushed: answer) if callable(answer) else answer
    for wrapped in (lambda each: each, LossRecording, RecordingNetwork, EvenLoss):
        made = trainer(network=wrapped(Mine(given)))
        with pytest.raises(ScenarioError) as caught:
            made.step()
        assert str(caught.value).startswith(f"Trainer(network): {CARRY} {words}")
        assert made.done == 0 and made.clock_ps == 0


@pytest.mark.parametrize(("hops", "words"), [
    (7, "returns hops = 7; expected gradwire.training.exchange.ring_allreduce.HopMasks"),
    (HopMasks(((0,),), [None]), "returns hops.buckets = a tuple of 1; expected each of 4 tensors once"),
    (HopMasks(5, [None]), "returns hops.buckets = 5;"),
    (HopMasks(((0, 1, 2, 3),), []), "returns hops.masks = a list of 0; expected a mask, or None, for each of 1 buckets"),
    (HopMasks(((0, 1, 2, 3),), [torch.ones(2, 2, 3, dtype=torch.bool)]), "returns hops.masks[0] = a tensor of bool, (2, 2, 3); expected None, or a tensor of bool, (2, 2, 16)"),
])  # fmt: skip
def test_invalid_ring_answers_are_rejected(hops: Any, words: str) -> None:
    ring = Recipe(workers=2, batch=4, steps=3, payload=400, collective="ring")
    with pytest.raises(ScenarioError) as caught:
        Trainer(plain(), DATA, ring, network=Mine(Answer(ROWS, hops=hops))).step()
    assert str(caught.value).startswith(f"Trainer(network): {CARRY} {words}")


def test_network_error_names_file_and_line() -> None:
    def answer(pushed):
        return pushed.nothing

    with pytest.raises(
        ScenarioError, match=rf"carry of Mine stopped: {HERE}:\d+: AttributeError: 'Pushed' object"
    ) as caught:
        trainer(network=Mine(answer)).step()
    assert f":{answer.__code__.co_firstlineno + 1}:" in str(caught.value)
    with pytest.raises(ScenarioError, match="carry of Mine"):
        SlimDP().trainer(plain(), DATA, RECIPE, Dense(), Mine(None)).step()


def test_valid_user_defined_network_equals_builtin_network() -> None:
    """Its bits are those of the built-in network, and its time may be any integer type."""
    rule = Random(0.3)
    theirs, ours = trainer(network=Mine(rule.carry)), trainer(network=rule)
    assert [theirs.step() for _ in range(3)] == [ours.step() for _ in range(3)]
    made = trainer(network=Mine(Answer(ROWS, np.int64(5))))
    assert [made.step().clock_ps for _ in range(2)] == [5, 10]


@pytest.mark.parametrize(("more", "words"), [
    ({"worker": -3}, r"Random\(worker\): is -3; expected a whole number from 0"),
    ({"worker": 0.5}, r"Random\(worker\)"), ({"worker": True}, r"Random\(worker\)"), ({"worker": "1"}, r"Random\(worker\)"),
    ({"seed": -1}, r"Random\(seed\): is -1"), ({"seed": 1.5}, r"Random\(seed\)"), ({"seed": None}, r"Random\(seed\): is None"),
    ({"quota": "no"}, r"Random\(quota\): is 'no'.*expected True or False"), ({"last": 1}, r"Random\(last\)"),
    ({"loss": -0.1}, r"Random\(loss\)"), ({"loss": math.nan}, r"Random\(loss\): is nan"), ({"loss": "much"}, r"Random\(loss\)"),
    ({"burst": 0.5}, r"Random\(burst\)"), ({"burst": math.nan}, r"Random\(burst\): is nan"), ({"burst": None}, r"Random\(burst\)"),
    ({"layers": "middle"}, r"Random\(layers\)"), ({"magnitudes": None}, r"Random\(magnitudes\)"), ({"way": "there"}, r"Random\(way\)"),
])  # fmt: skip
def test_invalid_random_loss_arguments_are_rejected(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        Random(**{"loss": 0.5, **more})


@pytest.mark.parametrize("collective", ["parameter_server", "ring"])
def test_random_loss_of_missing_worker_is_rejected(collective: Any) -> None:
    recipe = Recipe(workers=2, batch=4, steps=3, payload=400, collective=collective)
    with pytest.raises(ScenarioError, match=r"Random\(worker\): is 2, but only 2 workers push; expected below 2"):
        Trainer(plain(), DATA, recipe, network=Random(0.5, worker=2)).step()
    assert Trainer(plain(), DATA, recipe, network=Random(0.5, worker=1)).step().lost > 0


def frozen() -> torch.nn.Module:
    model = plain()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(("given", "words"), [
    ({"reducer": "topk"}, r"Trainer\(reducer\): is 'topk', of type str; expected a reducer, such as TopK\(ratio=0.01\)"),
    ({"reducer": TopK}, r"Trainer\(reducer\): is the class TopK; .*make one: TopK\(\.\.\.\)"),
    ({"reducer": ""}, r"Trainer\(reducer\)"),
    ({"network": Ideal}, r"Trainer\(network\): is the class Ideal; .*make one: Ideal\(\.\.\.\)"),
    ({"network": "ideal"}, r"Trainer\(network\): is 'ideal'.*an object with carry"),
    ({"network": 0}, r"Trainer\(network\): is 0"),
    ({"model": torch.nn.Sequential(torch.nn.Flatten())}, r"Trainer\(model\): is a Sequential without parameters"),
    ({"model": torch.nn.Linear}, r"Trainer\(model\)"),
    ({"model": frozen()}, r"Trainer\(model\): has frozen parameters, 0\.weight, 0\.bias; expected parameters that all require"),
    ({"model": frozen().requires_grad_(False)}, r"has frozen parameters, 0\.weight, 0\.bias, 3\.weight and 1 more"),
    ({"model": plain().double()}, r"Trainer\(model\): has parameters of float64, 0\.weight, .*expected float32"),
    ({"data": type(DATA)}, r"Trainer\(data\)"),
    ({"loss": 3}, r"Trainer\(loss\)"),
])  # fmt: skip
def test_invalid_trainer_arguments_are_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        Trainer(**{"model": plain(), "data": DATA, "recipe": RECIPE, **given})


class Odd(Dense):
    """A reducer that answers whatever it is told to."""

    kind: Literal["odd"] = "odd"  # type: ignore[assignment]
    sends: Any = None
    makes: Any = None
    late: int = 0

    def compress(self, tensor, info, state):
        return self.sends(tensor) if self.sends and state.step >= self.late else super().compress(tensor, info, state)

    def decode(self, encoded, info, arrived=None):
        return self.makes(info) if self.makes else super().decode(encoded, info, arrived)


SENDS = [
    (lambda x: None, "returns None for 0.weight; expected a gradwire.training.exchange.encoded_tensors.Encoded"),
    (lambda x: 3, "returns 3 for 0.weight;"),
    (lambda x: x.view(-1), "returns a tensor of float32, (216,) for 0.weight;"),
    (lambda x: Encoded((torch.ones(3), torch.ones(4))), "returns fields (3,), (4,) for 0.weight; expected fields of equally many units"),
    (lambda x: Encoded(()), "returns fields none for 0.weight;"),
    (lambda x: Encoded((torch.tensor(1.0),)), "returns fields () for 0.weight;"),
    (lambda x: Encoded(x.view(-1)), "returns fields = a tensor of float32, (216,) for 0.weight; expected a tuple of tensors"),
    (lambda x: Encoded(([1.0],)), "returns fields = a tuple of 1 for 0.weight;"),
    (lambda x: Encoded((x.view(-1),), (1.0,)), "returns head = a tuple of 1 for 0.weight;"),
    (lambda x: Encoded((x.view(-1),), known=None), "returns known = None for 0.weight;"),
    (lambda x: Encoded((x.view(2, -1),)), "returns an encoding of 0.weight that cannot be sent: a unit of 432 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("sends", "words"), SENDS, ids=[words for _, words in SENDS])
def test_invalid_reducer_encodings_are_rejected(sends: Any, words: str) -> None:
    """Error feedback, momentum correction and later steps are covered, too."""
    expected = f"reducer: compress of Odd ({HERE}:{Odd.compress.__code__.co_firstlineno}) {words}"
    for wrapped in (lambda each: each, lambda each: MomentumCorrection(reducer=ErrorFeedback(reducer=each))):
        with pytest.raises(ScenarioError) as caught:
            trainer(wrapped(Odd(sends=sends))).step()
        assert str(caught.value).startswith(expected)
    made = trainer(Odd(sends=sends, late=1))
    made.step()
    with pytest.raises(ScenarioError):
        made.step()


@pytest.mark.parametrize(("makes", "words"), [
    (lambda info: None, "returns None for 0.weight; expected a tensor of float32, (216,)"),
    (lambda info: torch.ones(info.numel + 1), "returns a tensor of float32, (217,) for 0.weight;"),
    (lambda info: torch.ones(info.numel, dtype=torch.float64), "returns a tensor of float64, (216,) for 0.weight;"),
    (lambda info: [0.0] * info.numel, "returns a list of 216 for 0.weight;"),
])  # fmt: skip
def test_invalid_reducer_decodings_are_rejected(makes: Any, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        trainer(ErrorFeedback(reducer=Odd(makes=makes))).step()
    assert str(caught.value).startswith(f"reducer: decode of Odd ({HERE}:{Odd.decode.__code__.co_firstlineno}) {words}")


def test_invalid_restored_gradients_are_rejected() -> None:
    class Short(Dense):
        def restore(self, mean, info, state):
            return mean[:1]

    with pytest.raises(
        ScenarioError, match=r"restore of Short \(.*test_strangers.py:\d+\) returns a tensor of float32, \(1,\)"
    ):
        trainer(Short()).step()


def test_builtin_reducers_are_checked_in_first_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """User-defined reducers are checked in every step."""
    seen: list[Reducer] = []
    monkeypatch.setattr("gradwire.training.value_checks.check_encoded", lambda reducer, *_: seen.append(reducer))
    for reducer, counts in ((ErrorFeedback(reducer=TopK(ratio=0.1)), [8, 8]), (Odd(), [8, 16])):
        made = trainer(reducer)
        seen.clear()
        for count in counts:
            made.step()
            assert len(seen) == count
    assert isinstance(made.exchange, Exchange)


def test_learning_rate_after_last_step_follows_schedule() -> None:
    """The rate of a triangle stays at zero, so parameters stay; other schedules have their last rate."""
    made = trainer()
    rates = [made.step().rate for _ in range(3)]
    assert rates == [made.recipe.rate_at(step) for step in range(3)] and min(rates) > 0
    before = [each.detach().clone() for each in made.model.parameters()]
    assert [made.step().rate for _ in range(3)] == [0, 0, 0]
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    assert not list(made.run())
    assert Recipe(steps=4, schedule="constant").rate_at(9) == 0.1 and Recipe(steps=4, schedule="steps").rate_at(
        9
    ) == pytest.approx(0.001)
    assert Recipe(steps=4, rise=1.0).rate_at(9) == 0 == Recipe(steps=4, rise=0.0).rate_at(4)


@pytest.mark.parametrize(("saved", "words"), [
    ({}, r"Trainer.load_state_dict\(saved\): is \{\}, of type dict; expected the state_dict of"),
    (None, "is None"), ([1], r"is \[1\]"), ({"recipe": 3}, "is {'recipe': 3}"),
    ({"recipe": {}}, "of another recipe"),
])  # fmt: skip
def test_invalid_state_dicts_are_rejected(saved: Any, words: str) -> None:
    made = trainer()
    with pytest.raises((ScenarioError, ValueError), match=words):
        made.load_state_dict(saved)
    assert made.done == 0 and made.step().step == 0


@pytest.mark.parametrize("name", ["done", "model", "optimizer", "exchange", "network", "replicas"])
def test_incomplete_state_dicts_are_rejected(name: str) -> None:
    made = trainer()
    made.step()
    saved = made.state_dict()
    with pytest.raises(ScenarioError, match=rf"load_state_dict\(saved\): lacks '{name}'; expected"):
        trainer().load_state_dict({key: value for key, value in saved.items() if key != name})
    if name not in ("done", "network"):
        with pytest.raises(ScenarioError, match=r"load_state_dict\(saved\): (does not fit|lacks)"):
            trainer().load_state_dict({**saved, name: {"a": 1}})
    again = trainer()
    again.load_state_dict(saved)
    assert again.step() == made.step()


@pytest.mark.parametrize(("reducer", "words"), [
    (None, r"register\(reducer\): is None"), ("topk", r"register\(reducer\): is 'topk'"), (TopK, r"register\(reducer\): is the class TopK"),
])  # fmt: skip
def test_invalid_hook_arguments_are_rejected_at_registration(reducer: Any, words: str) -> None:
    """The error comes before any process group is used, and before DDP has a hook."""
    wanted = torch.nn.parallel.DistributedDataParallel
    ddp = wanted.__new__(wanted)
    with pytest.raises(ScenarioError, match=words):
        register(ddp, reducer)
    with pytest.raises(ScenarioError, match=r"register\(ddp\): is Linear"):
        register(torch.nn.Linear(4, 2), Dense())
    with pytest.raises(ScenarioError, match=r"register\(seed\): is 'one'"):
        register(ddp, Dense(), seed="one")
    with pytest.raises(ScenarioError, match=r"Reduced\(reducer\)"):
        ReducerHook(torch.nn.Linear(4, 2), reducer)
