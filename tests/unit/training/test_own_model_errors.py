"""Errors in user-defined models and data are reported in one line, most of them before the training."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ScenarioError  # noqa: E402
from gradwire.studies.training.run import check_trainings, train  # noqa: E402
from gradwire.training.data import Text  # noqa: E402
from tests.support.own_model_cases import scenario, write_example  # noqa: E402


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The example in a folder of its own, with a module of more."""
    return write_example(tmp_path)


def test_model_function_that_returns_same_module_twice_is_rejected(beside: Path) -> None:
    """The second run would begin with the trained parameters of the first."""
    asked = scenario(beside, 'training.model="nets:again"')
    train(asked)
    with pytest.raises(
        ScenarioError, match="what nets:again makes: is a module that it returned before; expected a new one"
    ):
        train(asked)


def test_user_code_error_in_evaluation_or_batch_is_one_line(beside: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"nets:few stopped at samples \(500, 2\): .*nets.py:\d+: RuntimeError: too many at once"
    ):
        train(scenario(beside, 'training.model="nets:few"'))
    with pytest.raises(ScenarioError, match=r"batch of Moody stopped in step 0: .*nets.py:\d+: KeyError: 'not now'"):
        train(scenario(beside, 'training.data="nets:moody"'))


REFUSED = [
    (['model="nets:nothing"'], r"training.model.*no nothing in .*nets.py"),
    (['model="nets:number"'], r"training.model: 'nets:number' is not a function"),
    (['model="nets:words"'], r"training.model: nets:words stopped: .*nets.py: TypeError: words\(\) takes 0 positional"),
    (['model="nets:frozen"'], r"training.model: what nets:frozen makes: has frozen parameters, bias"),
    (['data="nets:number"'], r"training.data: 'nets:number' is not a function"),
    (['model="nets:leaves"'], r"training.model: nets:leaves stopped: .*nets.py:\d+: SystemExit: 0"),
    (['model="nets:odd"'], r"training.model: nets:odd stopped: .*nets.py:\d+: Own: whatever"),
    (['model="nets:meta"'], r"what nets:meta makes: has parameters on the meta device"),
    (['model="nets:later"'], r"what nets:later makes: is .*coroutine"),
    (['model="netz:net"'], r"training.model: cannot load 'netz:net': .*expected an importable module:function"),
    (
        ['model="my-net:net"'],
        r"training.model: model 'my-net:net'; expected one of .*; or module:function, a user-defined one",
    ),
    (
        ['learns="text"'],
        r"training.learns: is text; expected none: the task is known from training.data, spirals:points",
    ),
    (
        ['learns="text"', 'model="resnet8"', 'data="synthetic"'],
        r"training.learns: is text; .*from training.model, resnet8",
    ),
]


AT_ONCE = [
    *REFUSED,
    (['data="nets:broken"'], r"training.data: nets:broken stopped: .*nets.py:\d+: OSError: disk on fire"),
    (['data="nets:listed"'], r"training.data: nets:listed makes something of type list; expected .*Images or a Text"),
    (['data="nets:unheld"'], r"nets:unheld makes an Images without held-out samples; expected at least one in test"),
    (['data="nets:wrong"'], r"training.data: nets:wrong: Images\(train\): has a label 3; expected classes 0 to 1"),
    (['data="nets:arrays"'], r"nets:arrays: Images\(train\): is \(ndarray of float64, \(64, 2\); ndarray of float64, \(64,\)\), of type tuple"),
    (['data="nets:sparse"'], r"nets:sparse: Images\(train\): is \(Tensor of float32, \(64, 2\)"),
    (['data="nets:wide_test"'], r"training.model: spirals:Perceptron stopped at held-out samples \(2, 3\): .*RuntimeError"),
    (['data="nets:double"'], r"spirals:Perceptron stopped at samples \(2, 2\) of float64: .*RuntimeError"),
    (['model="nets:detached"'], r"nets:detached returns something without gradients for samples \(2, 2\)"),
    (['size=8'], r"training.size: is 8, and spirals:points has no parameter for it; expected none, or a parameter size"),
    (['augment=false'], r"training.augment: is False, and spirals:points has no parameter"),
    (['model="nets:wide"'], r"training.model: nets:wide stopped at samples \(2, 2\): .*nets.py: RuntimeError: mat1 and mat2"),
    (['model="nets:narrow"'], r"nets:narrow returns a tensor of float32, \(2, 1\) for samples \(2, 2\); .*of 2 classes, \(2, 2\)"),
    (['model="resnet8"'], r"training.data: resnet8 stopped at samples \(2, 2\): .*resnet.py:\d+: RuntimeError"),
    (['model="char-lstm"'], r"training.data: spirals:points makes an Images, and char-lstm learns texts; expected texts"),
    (['model="resnet8"', 'data="nets:words"'], r"nets:words makes a Text, and resnet8 learns pictures; expected pictures"),
    (['samples=9'], r"8 samples for 4 workers with 8 each in a step"),
]  # fmt: skip


def told(file: Path, keys: list[str]):
    return scenario(file, *(f"training.{key}" for key in keys))


@pytest.mark.parametrize(("keys", "said"), AT_ONCE)
def test_user_code_errors_are_reported_before_training(
    beside: Path, tmp_path: Path, keys: list[str], said: str
) -> None:
    with pytest.raises(GradwireError, match=said):
        train(told(beside, keys), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("keys", "said"), REFUSED)
def test_check_reports_user_code_errors(beside: Path, keys: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        check_trainings([told(beside, keys)])


def test_missing_modules_folder_is_reported(beside: Path, tmp_path: Path) -> None:
    for make in (lambda each: check_trainings([each]), train):
        with pytest.raises(
            ScenarioError, match=r"modules: \S*nowhere is not a folder; expected the folder of the module of 'spirals:"
        ):
            make(scenario(beside, f'modules="{tmp_path / "nowhere"}"'))


def test_check_accepts_spirals_example(beside: Path) -> None:
    check_trainings([scenario(beside)])


def test_model_error_in_later_step_is_one_line(beside: Path) -> None:
    """The model fails at the 21st batch of a worker, in the sixth step."""
    with pytest.raises(
        ScenarioError, match=r"nets:late stopped at samples \(8, 2\): .*nets.py:\d+: KeyError: 'twenty-one'"
    ):
        train(scenario(beside, 'training.model="nets:late"'))
    said = CliRunner().invoke(
        cli.app,
        ["train", str(beside), "--policy", "whole", "--set", 'training.model="nets:late"', "--set", "training.steps=9"],
    )
    assert said.exit_code == 2 and "nets:late stopped" in said.output and "Traceback" not in said.output


def test_user_defined_batch_norm_over_one_value_is_reported(beside: Path) -> None:
    (beside.parent / "normed.py").write_text(
        "from torch import nn\ndef net(classes):\n    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, classes))\n"
    )
    with pytest.raises(ScenarioError, match="gives the batch norm 1 one value per channel"):
        train(scenario(beside, 'training.model="normed:net"', "training.batch=1"))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Text(torch.zeros(9), torch.zeros(9).long(), 2, 4), r"Text\(train\)"),
        (lambda: Text(torch.zeros(9).long(), torch.zeros(4).long(), 2, 4), "has 4 tokens.*more than a span, of 4"),
        (lambda: Text(torch.full((9,), 2), torch.zeros(9).long(), 2, 4), r"has a token 2.*0 to 1, of Text\(classes\)"),
    ],
)  # fmt: skip
def test_invalid_text_data_is_rejected(made, said: str) -> None:
    with pytest.raises(GradwireError, match=said):
        made()
