"""A training is gone on with by the modules and data that it was begun with: what was edited since is refused, and
nothing is written."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.result_store.provenance import input_digests  # noqa: E402
from gradwire.scenarios.errors import GradwireError, ResultError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.parameter_server.predictor_file import predictor_path  # noqa: E402
from gradwire.training.scenario_checks import inputs_of  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "largest_signs.toml"
SHORT = [
    "training.samples=100",
    "training.steps=4",
    "training.batch=4",
    "training.network={loss=0.2}",
    "training.score_every=2",
]


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The example in a folder of its own, whose module imports another one."""
    for each in (EXAMPLE, EXAMPLE.with_suffix(".py")):
        shutil.copy(each, tmp_path)
    module = tmp_path / "largest_signs.py"
    module.write_text(
        module.read_text().replace("import torch\n", "import torch\n\nimport shared_by_signs  # noqa\n", 1)
    )
    (tmp_path / "shared_by_signs.py").write_text("SIZE = 1\n")
    return tmp_path / EXAMPLE.name


def scenario(file: Path, *more: str):
    return load_scenario(file, set=[*SHORT, *more], policy="signs")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def stop(share: float, words: str) -> None:
    if "step 3" in words:
        raise KeyboardInterrupt


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("file", ["largest_signs.py", "shared_by_signs.py"])
def test_resume_rejects_edited_module(beside: Path, tmp_path: Path, finished: bool, file: str) -> None:
    out = tmp_path / "out"
    if finished:
        train(scenario(beside), out)
    else:
        with pytest.raises(KeyboardInterrupt):
            train(scenario(beside), out, progress=stop)
    before = content(out)
    module = beside.with_name(file)
    text = module.read_text()
    module.write_text(f"{text}\n# another one\n")
    words = rf"^{out}: was made with another {file} \(largest_signs:LargestSigns\); expected the file as it was, or a new folder$"
    for until in (None, 0.01):
        with pytest.raises(ResultError, match=words):
            train(scenario(beside), out, until=until)
    if file.startswith("shared"):  # the other one may be found where Python looks, too
        module.unlink()
        with pytest.raises(ResultError, match=f"was made with {file}, which is missing now"):
            train(scenario(beside), out)
    assert content(out) == before
    module.write_text(text)
    assert train(scenario(beside), out).summary["steps_done"] == 4


def test_summary_records_input_digests(beside: Path, tmp_path: Path) -> None:
    asked = scenario(beside)
    assert train(asked, tmp_path / "out").summary["inputs"] == input_digests(asked)
    assert set(input_digests(asked)) == {"training.reducer", "training.reducer: shared_by_signs.py"}
    place = tmp_path / "out" / "training.json"
    summary = json.loads(place.read_text())
    del summary["inputs"]  # as of before there were any
    place.write_text(json.dumps(summary))
    beside.with_name("shared_by_signs.py").write_text("SIZE = 2\n")
    assert train(asked, tmp_path / "out").summary["steps_done"] == 4


def test_resume_rejects_edited_topology_file(tmp_path: Path) -> None:
    """A user-defined topology is an input; the command reports its change in one line."""
    file = tmp_path / "mine.edges"
    first = "".join(f"h{host} s0\n" for host in range(9))
    file.write_text(first)
    short = [
        *SHORT,
        "training.size=8",
        "job.workers=2",
        f'topology={{kind="graph", file="{file}"}}',
        'training.network="ideal"',
    ]
    asked = [
        "train",
        "train-tiny",
        "--policy",
        "dctcp",
        "--out",
        str(tmp_path / "out"),
        *(word for each in short for word in ("--set", each)),
    ]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    file.write_text(first + "h9 s0\n")
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 2 and "was made with another mine.edges (topology.file)" in " ".join(done.output.split())


def test_resume_rejects_edited_data_and_predictor_files(tmp_path: Path) -> None:
    """A user's text and predictor file are inputs; data passed in memory and bundled predictors are not."""
    text, predictor = tmp_path / "words.txt", tmp_path / "mine.npz"
    text.write_text("a text of some words, " * 400)
    predictor.write_bytes(predictor_path("wnn", "bundled").read_bytes())
    more = [
        'training.model="char-lstm"',
        f'training.data="{text}"',
        "training.size=8",
        "training.samples=100",
        "training.steps=2",
        "training.batch=2",
        "job.workers=2",
        'training.network="ideal"',
    ]
    system = f'training.system={{kind="wnn", predictor="{predictor}"}}'

    def asked(*others: str):
        return load_scenario(
            "train-tiny",
            set=[*(each for each in more if "samples" not in each), "job.pull_bound=0", *others],
            policy="dctcp",
        )

    train(asked(system), tmp_path / "out")
    inputs = json.loads((tmp_path / "out" / "training.json").read_text())["inputs"]
    assert inputs == {f"training.data: {text.name}": digest(text), "training.system.predictor": digest(predictor)}
    assert set(inputs_of(asked('training.system={kind="wnn"}'))) == {f"training.data: {text.name}"}
    assert inputs_of(asked(), own_data=True) == {}
    for file in (text, predictor):
        kept = file.read_bytes()
        file.write_bytes(kept + b"x")
        with pytest.raises(ResultError, match=f"was made with another {file.name} "):
            train(asked(system), tmp_path / "out")
        file.write_bytes(kept)
    text.rename(tmp_path / "gone.txt")
    with pytest.raises(GradwireError, match="no such text"):
        train(asked(system), tmp_path / "out")
    (tmp_path / "gone.txt").rename(text)
    assert train(asked(system), tmp_path / "out").summary["steps_done"] == 2


def test_input_digests_distinguish_files_of_equal_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "words.txt").write_text(f"{folder} text of some words")
    asked = load_scenario(
        "train-tiny",
        set=['training.model="char-lstm"', f'training.data="{tmp_path}"', "training.size=8"],
        policy="dctcp",
    )
    assert inputs_of(asked) == {
        f"training.data: {name}/words.txt": digest(tmp_path / name / "words.txt") for name in ("a", "b")
    }
