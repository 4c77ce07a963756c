"""User-defined models and data in a scenario train and resume as the same ones do in Python."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.result_store.provenance import input_digests  # noqa: E402
from gradwire.scenarios.errors import ResultError  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.data import Images, Text  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.own_model_cases import scenario, write_example  # noqa: E402
from tests.support.picture_cases import write_picture  # noqa: E402


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The example in a folder of its own, with a module of more."""
    return write_example(tmp_path)


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
