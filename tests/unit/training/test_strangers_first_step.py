"""What is tried once of reducers of the user's own, in the first step: that what is lost counts as nothing, and that
gradients are theirs to read only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from gradwire.training.value_checks import is_builtin  # noqa: E402
from tests.support.training_cases import plain, same  # noqa: E402

HERE = Path(__file__).resolve()
DATA = images("synthetic", 8, limit=200)


def trainer(reducer: Reducer, momentum: float = 0.9, **more: Any) -> Trainer:
    recipe = Recipe(workers=2, batch=4, steps=3, payload=400, momentum=momentum, **more)
    return Trainer(plain(), DATA, recipe, reducer, Random(0.3))


class Ignores(Dense):
    """What has not arrived is taken to have."""

    def decode(self, encoded, info, arrived=None):
        return super().decode(encoded, info)


class Changes(Dense):
    def compress(self, tensor, info, state):
        tensor.mul_(0.5)
        return super().compress(tensor, info, state)


class Halves(Dense):
    """Leaves out every other element."""

    def decode(self, encoded, info, arrived=None):
        return super().decode(encoded, info, arrived)[::2]


def feedback(reducer: Reducer) -> Reducer:
    return ErrorFeedback(reducer=reducer)


@pytest.mark.parametrize(("reducer", "words"), [
    (Ignores(), "returns values for units that have not arrived, of 0.weight"),
    (Changes(), "changes the gradient of 0.weight that it is given"),
    (Halves(), r"returns a tensor .* for 0.weight; expected a tensor of float32, \(216,\)"),
], ids=["ignores", "changes", "halves"])  # fmt: skip
def test_asynchronous_trainer_checks_user_defined_reducers(reducer: Reducer, words: str) -> None:
    made = Asynchronous(plain(), DATA, Recipe(workers=2, batch=4, steps=3, payload=400), reducer)
    with pytest.raises(ScenarioError, match=words):
        made.step()
    assert made.done == 0 and same(made.model, plain())


@pytest.mark.parametrize(
    "around", [lambda each: each, feedback, lambda each: MomentumCorrection(reducer=feedback(each))]
)
def test_reducer_that_ignores_lost_packets_is_rejected(around: Any) -> None:
    """The error comes before training, even if no packet is lost yet."""
    made = trainer(around(Ignores()))
    place = f"{HERE}:{Ignores.decode.__code__.co_firstlineno}"
    with pytest.raises(ScenarioError) as caught:
        made.step()
    assert str(caught.value) == (
        f"reducer: decode of Ignores ({place}) returns values for units that have not arrived, of 0.weight; "
        "expected zeros for what has not arrived"
    )
    assert made.done == 0 and same(made.model, plain())


@pytest.mark.parametrize("around", [lambda each: each, feedback])
@pytest.mark.parametrize("collective", ["parameter_server", "ring"])
def test_reducer_that_changes_its_gradient_is_rejected(collective: str, around: Any) -> None:
    more = {"collective": collective, "pull_fill": "zero"} if collective == "ring" else {}
    place = f"{HERE}:{Changes.compress.__code__.co_firstlineno}"

    class Adds(Changes):
        adds_up: ClassVar[bool] = True
        kind: str = "adds"  # type: ignore[assignment]

    with pytest.raises(ScenarioError) as caught:
        trainer(around(Adds()), **more).step()
    assert str(caught.value) == (
        f"reducer: compress of Adds ({place}) changes the gradient of 0.weight that it is given; "
        "expected an unchanged gradient; change a copy, tensor.clone()"
    )


OWN = [
    Dense(), Half(), TopK(ratio=0.1), RandomK(ratio=0.1), DGC(ratio=0.1), QSGD(levels=8, bucket=64), TernGrad(), SignSGD(), PowerSGD(rank=1),
]  # fmt: skip


@pytest.mark.parametrize("own", OWN, ids=[each.kind for each in OWN])
def test_subclasses_of_builtin_reducers_are_accepted_and_equal_them(own: Reducer) -> None:
    """Their bits are those of the built-in reducers, which are not checked."""
    mine = type("Mine", (type(own),), {})(**own.model_dump())
    assert is_builtin(own) and not is_builtin(mine)
    momentum = 0.0 if own.has_momentum else 0.9
    one, other = trainer(own, momentum), trainer(mine, momentum)
    assert [one.step() for _ in range(3)] == [other.step() for _ in range(3)]
    assert same(one.model, other.model)


def test_lost_packet_check_runs_in_first_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in reducers are not checked. NaN is neither a wrong decoding nor a changed gradient."""
    asked: list[Any] = []

    class Counts(Dense):
        def decode(self, encoded, info, arrived=None):
            asked.append(arrived)
            return super().decode(encoded, info, arrived)

    made = trainer(Counts())
    counts = []
    for _ in range(3):
        asked.clear()
        made.step()
        counts.append(sum(each is not None and not each.any() and len(each) > 100 for each in asked))
    assert counts == [1, 0, 0]
    made = trainer(Counts())
    with torch.no_grad():
        made.model[0].weight[0] = float("nan")
    assert made.step().step == 0
    Trainer(plain(), DATA, Recipe(workers=2, batch=4, steps=3), RandomK(ratio=0.1)).step()
