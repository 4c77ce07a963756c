"""A reducer of the user's own in a scenario: the class that it is in Python, and mistakes in it in one line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradwire.result_store.provenance import input_digests  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import check_trainings, train  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.state import State  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "largest_signs.toml"
SHORT = ["training.samples=100", "training.steps=4", "training.batch=4", "training.network={loss=0.2}"]


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The example in a folder of its own, whose module may be changed."""
    for each in (EXAMPLE, EXAMPLE.with_suffix(".py")):
        shutil.copy(each, tmp_path)
    return tmp_path / EXAMPLE.name


def scenario(file: Path, *more: str):
    return load_scenario(file, set=[*SHORT, *more], policy="signs")


def module(beside: Path, old: str, new: str) -> None:
    file = beside.with_suffix(".py")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_scenario_with_user_defined_reducer_equals_reducer_in_python(beside: Path) -> None:
    """The training run has the bits of one whose reducer was built by hand; content identifies the module."""
    asked = scenario(beside, "training.reducer.ratio=0.1")
    data = data_of(asked.training)
    named = trainer_of(asked, data)
    own = sys.modules[type(named.exchange.reducer.reducer.reducer).__mro__[1].__module__].LargestSigns
    by_hand = trainer_of(asked, data)
    by_hand.exchange.reducer = ErrorFeedback(reducer=own(ratio=0.1))
    for _ in range(4):
        one, other = named.step(), by_hand.step()
        assert one == other and one.sent_bytes > 0
    assert all(torch.equal(a, b) for a, b in zip(named.model.parameters(), by_hand.model.parameters(), strict=True))
    before = input_digests(asked)
    assert set(before) == {"training.reducer"}
    module(beside, "0.05", "0.07")
    assert input_digests(asked) != before


def test_largest_signs_example_decodes_partial_arrivals(beside: Path) -> None:
    """The two largest elements have their signs and mean size; missing elements are zero."""
    reducer = trainer_of(
        scenario(beside, "training.reducer.ratio=0.5"), data_of(scenario(beside).training)
    ).exchange.reducer
    info, x = TensorInfo("w", (4,), 4, "float32", 0), torch.tensor([1.0, -5.0, 3.0, 0.5])
    encoded = reducer.reducer.compress(x, info, State(0, 0, 0))
    assert encoded.nbytes() == 2 * 5 + 4
    assert reducer.decode(encoded, info).tolist() == [0, -4, 4, 0]
    assert reducer.decode(encoded, info, torch.tensor([True, False])).tolist() == [0, -4, 0, 0]


def test_run_with_user_defined_reducer_resumes(beside: Path, tmp_path: Path) -> None:
    whole = train(scenario(beside, "training.score_every=2"), tmp_path / "whole")

    def stop(share: float, words: str) -> None:
        if "step 3" in words:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(scenario(beside, "training.score_every=2"), tmp_path / "parts", progress=stop)
    again = train(load_scenario(tmp_path / "parts" / "scenario.toml", policy="signs"), tmp_path / "parts")
    assert again.steps == whole.steps and again.scores == whole.scores


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("class LargestSigns(Reducer)", "class LargestSigns", r"'largest_signs:LargestSigns' is not a reducer; expected a class derived from"),
        ("class LargestSigns", "class Other", "no LargestSigns in .*largest_signs.py"),
        ("def decode", "def decoded", r"largest_signs.py: LargestSigns has no decode"),
        ("ratio: Ratio", "share: Ratio", r"training.reducer.ratio: unknown key; expected only share"),
        ("import torch\n", "import torch\nraise OSError('no')\n", r"cannot load .*largest_signs.py:\d+: OSError: no"),
    ],
)  # fmt: skip
def test_check_reports_errors_in_reducer_module(beside: Path, old: str, new: str, words: str) -> None:
    module(beside, old, new)
    with pytest.raises(ScenarioError, match=words):
        check_trainings([scenario(beside)])


def test_check_rejects_invalid_reducer_parameters(beside: Path) -> None:
    with pytest.raises(ScenarioError, match=r"training.reducer.ratio: is out of range \(got 3\)"):
        check_trainings([scenario(beside, "training.reducer.ratio=3")])
    with pytest.raises(ScenarioError, match=r"kind: is unknown \(got \"mine\"\); expected dgc, .*my_module:MyClass"):
        scenario(beside, 'training.reducer={kind="mine"}')


def test_user_defined_reducer_may_declare_its_kind(beside: Path) -> None:
    module(beside, "    ratio: Ratio", '    kind: Literal["signs"] = "signs"\n    ratio: Ratio')
    module(beside, "import torch\n", "from typing import Literal\n\nimport torch\n")
    check_trainings([scenario(beside)])


@pytest.mark.parametrize(
    ("old", "line", "where"),
    [
        ("        chosen = values[indices]\n", 22, r"compress of LargestSigns stopped in step 0 at conv1\.weight"),
        ("        indices, signs = encoded.fields\n", 27, r"decode of LargestSigns stopped at conv1\.weight"),
    ],
    ids=["compress", "decode"],
)  # fmt: skip
def test_reducer_error_is_one_line(beside: Path, old: str, line: int, where: str) -> None:
    module(beside, old, "        raise ValueError('of mine')\n")
    data = data_of(scenario(beside).training)
    with pytest.raises(
        ScenarioError, match=rf"^training.reducer: {where}: .*largest_signs.py:{line}: ValueError: of mine$"
    ):
        trainer_of(scenario(beside), data).step()


def test_reducer_error_in_later_step_names_step_and_tensor(beside: Path) -> None:
    """Errors of `settle` and `magnitudes` are reported, too."""
    old = "        values = flat(tensor)\n"
    module(beside, old, f"{old}        if state.step == 2 and info.name == 'fc.bias': raise ValueError('of mine')\n")
    with pytest.raises(
        ScenarioError,
        match=r"^training.reducer: compress of LargestSigns stopped in step 2 at fc\.bias: .*ValueError: of mine$",
    ):
        train(scenario(beside))
    module(
        beside,
        "    def decode(",
        "    def settle(self, sent, info, state):\n        raise KeyError(info.numel)\n\n    def decode(",
    )
    with pytest.raises(ScenarioError, match=r"settle of LargestSigns stopped in step 0 at conv1\.weight: .*KeyError"):
        train(scenario(beside))
    module(
        beside,
        "    def decode(",
        "    def magnitudes(self, encoded, info):\n        return encoded.nothing\n\n    def decode(",
    )
    with pytest.raises(ScenarioError, match=r"magnitudes of LargestSigns stopped at conv1\.weight: .*AttributeError"):
        train(scenario(beside, 'training.network={loss=0.2, magnitudes="small"}'))


def test_missing_reducer_module_error_names_searched_folder(beside: Path, tmp_path: Path) -> None:
    mine = 'training.reducer.kind="of_mine:Signs"'
    words = rf"cannot load 'of_mine:Signs': No module named 'of_mine' in {tmp_path} \(`modules`\) or on Python's path;"
    with pytest.raises(ScenarioError, match=words):
        check_trainings([scenario(beside, mine)])
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ScenarioError, match=rf"No module named 'of_mine' in {tmp_path / 'elsewhere'} "):
        check_trainings([scenario(beside, mine, f'modules="{tmp_path}/elsewhere"')])
    (tmp_path / "of_mine.py").write_text("import of_nobody\n")
    with pytest.raises(ScenarioError, match=rf"cannot load .*: No module named 'of_nobody' \({tmp_path}/of_mine.py\);"):
        check_trainings([scenario(beside, mine)])


def test_error_feedback_rejects_reducer_with_error_memory(beside: Path) -> None:
    """The user-defined class already remembers its unsent part."""
    assert not Reducer.remembers_error
    module(beside, "    ratio: Ratio", "    remembers_error = True\n    ratio: Ratio")
    module(beside, "class LargestSigns", "from typing import ClassVar\n\n\nclass LargestSigns")
    module(beside, "    remembers_error = True", "    remembers_error: ClassVar[bool] = True")
    with pytest.raises(ScenarioError, match="keeps what it does not send itself"):
        check_trainings([scenario(beside)])
