"""Models and data of the user's own in a scenario: what they are in Python, and mistakes in them in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.result_store.provenance import input_digests  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import check_trainings, train  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.data import Images, Text  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.picture_cases import write_picture  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "spirals.toml"
SHORT = ["training.steps=6", "training.batch=8", 'training.network="ideal"']

NETS = """
import torch
from torch import nn
from gradwire.training.data import Images, Text

class Letters(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.size, self.inner, self.outer = size, nn.Embedding(classes, 8), nn.Linear(8, classes)
    def forward(self, tokens):
        return self.outer(self.inner(tokens))

def pictures(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)) if classes < 0 else nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, classes))

def words(*, size=16):
    tokens = torch.arange(1000) % 7
    return Text(tokens[:800], tokens[800:], 7, size)

def squares(samples):
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, 8, 8, generator=draws)
    return Images((x, torch.arange(samples) % 3), (x, torch.arange(samples) % 3), 3, augment=False)

def listed():
    return [1, 2, 3]

def unheld():
    x = torch.zeros(64, 2)
    return Images((x, x[:, 0].long()), (x[:0], x[:0, 0].long()), 2, augment=False)

def broken():
    raise OSError("disk on fire")

def frozen(classes):
    net = nn.Linear(2, classes)
    net.bias.requires_grad = False
    return net

def wide(classes):
    return nn.Linear(3, classes)

def narrow(classes):
    return nn.Linear(2, classes - 1)

def late(classes):
    class Late(nn.Linear):
        calls = 0
        def forward(self, x):
            Late.calls += self.training
            if Late.calls > 20:
                raise KeyError("twenty-one")
            return super().forward(x)
    return Late(2, classes)

def leaves(classes):
    raise SystemExit(0)

class Own(BaseException):
    pass

def odd(classes):
    raise Own("whatever")

shared = nn.Linear(2, 2)

def again(classes):
    return shared

def meta(classes):
    return nn.Linear(2, classes, device="meta")

class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()

def detached(classes):
    return Detached(2, classes)

def without_gradients(classes):
    torch.set_grad_enabled(False)
    return nn.Linear(2, classes)

class Few(nn.Linear):
    def forward(self, x):
        if not self.training and len(x) > 2:
            raise RuntimeError("too many at once")
        return super().forward(x)

def few(classes):
    return Few(2, classes)

async def later(classes):
    return nn.Linear(2, classes)

def wrong():
    return Images((torch.zeros(64, 2), torch.full((64,), 3)), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def arrays():
    import numpy as np
    return Images((np.zeros((64, 2)), np.zeros(64)), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def wide_test():
    return Images((torch.zeros(64, 2), torch.zeros(64).long()), (torch.zeros(4, 3), torch.zeros(4).long()), 2, augment=False)

def double():
    return Images((torch.zeros(64, 2).double(), torch.zeros(64).long()), (torch.zeros(4, 2), torch.zeros(4).long()), 2, augment=False)

def sparse():
    x = torch.zeros(64, 2).to_sparse()
    return Images((x, torch.zeros(64).long()), (x, torch.zeros(64).long()), 2, augment=False)

class Moody(Images):
    def batch(self, indices, draws):
        if len(indices) > 2:
            raise KeyError("not now")
        return super().batch(indices, draws)

def moody():
    x = torch.zeros(64, 2)
    return Moody((x, x[:, 0].long()), (x, x[:, 0].long()), 2, augment=False)

number = 7
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The example in a folder of its own, with a module of more."""
    for each in (EXAMPLE, EXAMPLE.with_suffix(".py")):
        shutil.copy(each, tmp_path)
    (tmp_path / "nets.py").write_text(dedent(NETS))
    return tmp_path / EXAMPLE.name


def scenario(file: Path, *more: str, policy: str = "whole"):
    return load_scenario(file, set=[*SHORT, *more], policy=policy)


def test_scenario_with_user_defined_model_equals_trainer_in_python(beside: Path) -> None:
    """A trainer built by hand with the example's model and data gives the same bits."""
    asked = scenario(beside, "training.data_seed=3", "training.model_seed=5")
    learned = train(asked)
    namespace: dict[str, object] = {}
    exec(beside.with_suffix(".py").read_text(), namespace)
    torch.manual_seed(5)
    trainer = Trainer(
        namespace["Perceptron"](2),
        namespace["points"](),
        Recipe(4, 8, 6, data_seed=3, seed=asked.seed, payload=512),  # type: ignore[operator]
    )
    assert [row["loss"] for row in learned.tables["steps"]] == [trainer.step().loss for _ in range(6)]
    assert learned.tables["scores"][-1]["accuracy"] == trainer.score().accuracy


def test_user_defined_data_function_receives_scenario_settings(beside: Path) -> None:
    assert len(data_of(scenario(beside, "training.samples=100").training, beside.parent)) == 80
    found = data_of(scenario(beside, 'training.data="nets:words"', "training.size=9").training, beside.parent)
    assert isinstance(found, Text) and found.length == 9


def test_user_defined_model_learns_data_from_files(beside: Path, tmp_path: Path) -> None:
    """Data are pictures in folders by class, synthetic pictures, and a text."""
    for split in ("train", "test"):
        for number in range(64):
            write_picture(tmp_path / "colours" / split / "ab"[number % 2] / f"{number}.png", (200 * (number % 2), 0, 0))
    pictures = 'training.model="nets:pictures"'
    colours = f'training.data="{tmp_path / "colours"}"'
    learned = train(
        scenario(beside, pictures, colours, "training.size=8", "training.augment=false", "training.batch=4")
    )
    assert learned.tables["scores"][-1]["accuracy"] == 1.0
    made_up = scenario(beside, pictures, 'training.data="synthetic"')
    assert data_of(made_up.training, beside.parent).train[0].shape[1:] == (3, 32, 32)  # type: ignore[union-attr]
    (tmp_path / "text.txt").write_text("abcdefgh" * 400)
    said = ['training.learns="text"', 'training.model="nets:Letters"', f'training.data="{tmp_path / "text.txt"}"']
    letters = scenario(beside, *said, "training.size=12")
    trainer = trainer_of(letters, data_of(letters.training, beside.parent))
    assert trainer.model.size == 12 and trainer.data.length == 12
    before = trainer.score().loss
    for _ in range(6):
        trainer.step()
    assert trainer.score().loss < before


def test_bundled_model_learns_user_defined_data(beside: Path) -> None:
    words = scenario(beside, 'training.model="char-lstm"', 'training.data="nets:words"', "training.batch=2")
    assert train(words).tables["steps"][-1]["loss"] > 0
    squares = scenario(beside, 'training.model="resnet8"', 'training.data="nets:squares"', "training.samples=64")
    trainer = trainer_of(squares, data_of(squares.training, beside.parent))
    assert isinstance(trainer.data, Images) and trainer.infos[-1].shape == (3,)


def stop(share: float, words: str) -> None:
    """Hears of progress, and ends a training in its sixth step."""
    if words.startswith("step 5,"):
        raise KeyboardInterrupt


def test_run_with_user_defined_model_resumes(beside: Path, tmp_path: Path) -> None:
    """A finished or stopped run resumes with the bits of an uninterrupted one; the command with --seeds resumes,
    too."""
    asked = scenario(beside, "training.score_every=2", "training.steps=8", "training.network={loss=0.2}")
    whole = train(asked, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "stopped", progress=stop)
    assert train(asked, tmp_path / "stopped").tables == whole.tables == train(asked, tmp_path / "whole").tables
    command = [
        "train",
        str(beside),
        "--policy",
        "whole",
        "--seeds",
        "2",
        "--out",
        str(tmp_path / "seeds"),
        "--set",
        "training.steps=3",
    ]
    assert [CliRunner().invoke(cli.app, command).exit_code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_dropout_random_state_resumes_from_checkpoint(beside: Path, tmp_path: Path, batch: int, precision: str) -> None:
    """With few samples the first step tries joint gradients, also after a resume; with more it does not."""
    (beside.parent / "drops.py").write_text(
        "from torch import nn\ndef net(classes):\n    return nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, classes))\n"
    )
    asked = scenario(
        beside,
        'training.model="drops:net"',
        f"training.batch={batch}",
        "training.score_every=2",
        "training.steps=8",
        f'training.precision="{precision}"',
    )
    whole = train(asked, tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "stopped", progress=stop)
    torch.rand(7)  # somebody else draws
    assert train(asked, tmp_path / "stopped").tables == whole.tables


def test_user_defined_package_supports_relative_imports(beside: Path) -> None:
    package = beside.parent / "pack" / "age"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 5\n")
    (package.parent / "more.py").write_text("MORE = 2\n")
    (package / "nets.py").write_text(
        "from torch import nn\nfrom .sizes import WIDTH\nfrom ..more import MORE\n"
        "def net(classes):\n    return nn.Sequential(nn.Linear(2, WIDTH * MORE), nn.Linear(WIDTH * MORE, classes))\n"
    )
    asked = scenario(beside, 'training.model="pack.age.nets:net"')
    assert trainer_of(asked, data_of(asked.training, beside.parent)).infos[0].shape == (10, 2)
    digests = input_digests(asked)
    assert {"training.model", "training.model: pack/age/sizes.py", "training.model: pack/more.py"} <= set(digests)


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


def test_user_defined_model_cannot_disable_gradients_globally(beside: Path) -> None:
    train(scenario(beside, 'training.model="nets:without_gradients"'))
    assert torch.is_grad_enabled()


def test_resume_rejects_edited_model(beside: Path, tmp_path: Path) -> None:
    asked = scenario(beside)
    train(asked, tmp_path / "out")
    module = beside.with_suffix(".py")
    module.write_text(module.read_text().replace("64)", "63)", 1).replace("Linear(64, 64)", "Linear(63, 64)"))
    with pytest.raises(ResultError, match=r"was made with another spirals.py \(spirals:Perceptron\)"):
        train(scenario(beside), tmp_path / "out")


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


def test_inseparable_user_defined_model_uses_sequential_gradients(beside: Path) -> None:
    """Few samples per worker make the trainer try joint gradients; the model rejects more than four samples."""
    (beside.parent / "mixed.py").write_text(
        dedent("""
        import torch
        from torch import nn

        class Mixed(nn.Module):
            def __init__(self, classes):
                super().__init__()
                self.one, self.other = nn.Linear(2, 4), nn.Linear(4, classes)

            def forward(self, x):
                if len(x) > 4:
                    raise ValueError("at most four")
                return self.other(self.one(x))
    """)
    )
    asked = scenario(beside, 'training.model="mixed:Mixed"', "training.batch=2")
    trainer = trainer_of(asked, data_of(asked.training, beside.parent))
    trainer.step()
    assert trainer.gradients.method_text == "one worker after the other"


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
