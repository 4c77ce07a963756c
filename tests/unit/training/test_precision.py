"""Mixed precision: gradients near float32's and float32 themselves, the same bits again, and nothing else than asked for."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from training_cases import same  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.traces.models import find_model  # noqa: E402
from gradwire.training.backward import sliced_layers  # noqa: E402
from gradwire.training.backward.worker_gradients import JointGradients, sequential_gradients  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.precision import check_precision, exact, in_precision  # noqa: E402
from gradwire.training.trainer import Recipe, losses_of  # noqa: E402

MIXED = 'training.precision="bfloat16"'
SHORT = [
    "training.steps=6", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2",
    'training.network="ideal"',
]  # fmt: skip
OVERLAPPED = ['job.exchange={kind="overlapped", batch=4}', "job.servers=0"]


def trainer(*settings: str):
    asked = load_scenario("train-tiny", set=[*SHORT, *settings], policy="dctcp")
    return trainer_of(asked, data_of(asked.training))


def distance(one, other) -> float:
    """Of the gradients of all workers from others, as a share of these."""
    pairs = [(a, b) for mine, theirs in zip(one, other, strict=True) for a, b in zip(mine, theirs, strict=True)]
    away, whole = (
        sum(float(each.square().sum()) for each in what) for what in zip(*[(a - b, b) for a, b in pairs], strict=True)
    )
    return (away / whole) ** 0.5


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "char-lstm", "char-gpt"])
def test_bfloat16_gradients_have_float32_type_and_are_close_to_float32(name: str) -> None:
    """bfloat16 has 8 bits: each rounding has a relative error of 2^-9. All gradients together are under three
    percent off (2.3 for ResNet-20, which is 20 layers deep)."""
    torch.manual_seed(1)
    model, text = find_model(name).build(10), name.startswith("char")
    try:
        check_precision(model, "bfloat16", torch.device("cpu"))
    except ScenarioError as error:
        pytest.skip(str(error))
    inputs = torch.randint(10, (32, 16)) if text else torch.randn(32, 3, 32, 32)
    targets = torch.randint(10, (32, 16) if text else (32,))
    mixed = in_precision(losses_of, "bfloat16", torch.device("cpu"))
    _, expected = sequential_gradients(model, losses_of, (inputs,), targets, 4)
    _, found = sequential_gradients(model, mixed, (inputs,), targets, 4)
    assert {each.dtype for mine in found for each in mine} == {torch.float32}
    assert 1e-4 < distance(found, expected) < 0.03, "as good as float32, or far from it"
    if name.startswith("resnet"):  # all at once as one after the other
        _, at_once = JointGradients(model, 4)(mixed, (inputs,), targets)
        assert {each.dtype for mine in at_once for each in mine} == {torch.float32}
        assert distance(at_once, found) < 1e-3


def test_joint_bfloat16_gradients_support_layers_with_bias() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )  # fmt: skip
    inputs, targets = (torch.randn(16, 3, 8, 8),), torch.randint(10, (16,))
    mixed = in_precision(losses_of, "bfloat16", torch.device("cpu"))
    _, expected = sequential_gradients(model, losses_of, inputs, targets, 4)
    assert 1e-4 < distance(JointGradients(model, 4)(mixed, inputs, targets)[1], expected) < 0.02


def test_float32_loss_function_is_returned_unchanged() -> None:
    assert in_precision(losses_of, "float32", torch.device("cpu")) is losses_of
    assert exact(in_precision(losses_of, "bfloat16", torch.device("cpu"))) is losses_of


@pytest.mark.parametrize("more", [[], OVERLAPPED, ['training.system={kind="slimdp", every=2}'], ['training.model="char-gpt"', "training.size=16"]],
                         ids=["servers", "overlapped", "slimdp", "gpt"])  # fmt: skip
def test_bfloat16_training_repeats_and_resumes_bit_identically(more: list[str]) -> None:
    """Losses are close to those of float32, but not equal."""
    whole, again, plain = trainer(MIXED, *more), trainer(MIXED, *more), trainer(*more)
    rows, expected = [whole.step() for _ in range(6)], [plain.step() for _ in range(6)]
    first = [again.step() for _ in range(3)]
    later = trainer(MIXED, *more)
    later.load_state_dict(again.state_dict())
    assert [*first, *[later.step() for _ in range(3)]] == rows and same(whole.model, later.model)
    assert rows[0].loss == pytest.approx(expected[0].loss, rel=0.01) and rows[0].loss != expected[0].loss
    assert {each.dtype for each in whole.model.parameters()} == {torch.float32}
    assert rows[0].sent_bytes == expected[0].sent_bytes


def test_batch_norm_statistics_move_once_in_first_step() -> None:
    """The gradient method is chosen in float32 before."""
    one = trainer(MIXED)
    one.step()
    counted = [value for name, value in one.model.named_buffers() if name.endswith("num_batches_tracked")]
    assert counted and all(int(each) == 1 for each in counted)


def test_resume_checks_precision_and_takes_old_checkpoints_as_float32() -> None:
    plain = trainer()
    plain.step()
    saved = plain.state_dict()
    with pytest.raises(ValueError, match="another recipe: precision"):
        trainer(MIXED).load_state_dict(saved)
    del saved["recipe"]["precision"]
    later = trainer()
    later.load_state_dict(saved)
    assert later.done == 1
    with pytest.raises(ValueError, match="another recipe: precision"):
        trainer(MIXED).load_state_dict(saved)


def test_cpu_without_bfloat16_for_recurrent_layers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch itself would fail in the first step, with an obscure message of a library."""

    def fails(*_: object) -> None:
        raise RuntimeError("could not create a primitive descriptor")

    text = ['training.model="char-lstm"', "training.size=16"]
    expected = trainer(*text)  # float32 is computed everywhere
    monkeypatch.setattr(torch.nn.LSTM, "forward", fails)
    with pytest.raises(
        ScenarioError, match=r"(?s)training.precision: this processor cannot compute.*expected.*float32, or a GPU"
    ):
        trainer(MIXED, *text)
    trainer(MIXED)  # has no such layers
    before = torch.random.get_rng_state()
    with pytest.raises(ScenarioError):
        check_precision(expected.model, "bfloat16", torch.device("cpu"))
    assert torch.equal(before, torch.random.get_rng_state()), "looking draws nothing"


def test_unknown_precision_is_rejected() -> None:
    with pytest.raises(ScenarioError, match=r"(?s)training.precision.*float32.*bfloat16"):
        trainer('training.precision="float16"')
    with pytest.raises(ScenarioError, match=r"Recipe\(precision\)"):
        Recipe(precision="half")  # type: ignore[arg-type]


def test_unavailable_kernels_warn_once_and_fall_back_to_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.training.backward.triton_kernels", None)
    sliced_layers._kernels.cache_clear()
    with pytest.warns(UserWarning, match="kernels for cuda:7 cannot be used; libraries take twice as long") as said:
        assert sliced_layers._kernels(torch.device("cuda:7")) is sliced_layers._kernels(torch.device("cuda:7")) is None
    sliced_layers._kernels.cache_clear()
    assert len(said) == 1
    assert sliced_layers.kernels_for(torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16)) is None, (
        "on the processor, without a word"
    )
