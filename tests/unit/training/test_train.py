"""`gradwire train` writes, resumes and replays folders of training runs, and rejects other folders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner
from warm import Warm

torch = pytest.importorskip("torch")

import gradwire.studies.training.run as door  # noqa: E402
from gradwire import cli  # noqa: E402
from gradwire.analysis.training.training_comparison import draw_training_runs, rows_of  # noqa: E402
from gradwire.result_store.folders.resumable_folder import resumable_folder  # noqa: E402
from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import ResultError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from tests.support.killing import Killed  # noqa: E402
from tests.support.tiny_training import SHORT, tiny  # noqa: E402

RESTS = ["training.score_every=2", "training.checkpoint_every=2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """A training in one go."""
    folder = tmp_path_factory.mktemp("whole") / "new" / "dlcp"
    return folder, train(tiny(*RESTS), folder)


def test_output_folder_holds_complete_training_result(whole: tuple[Path, TrainingResult]) -> None:
    folder, learned = whole
    assert [row["step"] for row in learned.scores] == [2, 4, 6] and len(learned.steps) == 6
    read = TrainingResult.read(folder)
    assert read.steps == learned.steps and read.scores == learned.scores and read.summary == learned.summary
    assert read.tables["lost"] and all(
        0 < row["lost"] <= 0.1 + 1e-9 or row["lost"] == 1 / 9 for row in read.tables["lost"]
    )
    assert sum(row["time_ps"] for row in read.steps) == read.steps[-1]["clock_ps"] > 0
    assert load_scenario(folder / "scenario.toml", policy="dlcp").training.model == "resnet8"
    assert not list(folder.glob(".*"))


def test_interrupted_run_resumes_to_same_result(
    whole: tuple[Path, TrainingResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted in the fifth step, after a checkpoint at the fourth."""

    def stop(share: float, words: str) -> None:
        if "step 5" in words:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny(*RESTS), tmp_path / "dlcp", progress=stop)
    assert TrainingResult.read(tmp_path / "dlcp").summary["steps_done"] == 4
    learned = train(tiny(*RESTS), tmp_path / "dlcp")
    assert learned.steps == whole[1].steps and learned.scores == whole[1].scores
    assert learned.tables["lost"] == whole[1].tables["lost"]
    one, two = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole[0], tmp_path / "dlcp"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    monkeypatch.setattr(door, "_resume", lambda *_: pytest.fail("what is done is not read again"))


def test_run_killed_at_any_file_write_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills cover each file of both checkpoints. In the end all rows, losses and packets equal those of an
    uninterrupted run."""
    scenario = tiny("training.score_every=3", "training.network={loss=0.3}", "training.keep_missing=true")
    kills = Killed(monkeypatch)
    train(scenario, tmp_path / "whole")
    whole, files = TrainingResult.read(tmp_path / "whole"), kills.done
    assert files == 2 * 8, "scenario, three tables, two of packets, how far it is, and the checkpoint"
    for kill_at in range(1, files + 1):
        kills.next(kill_at)
        place = tmp_path / f"{kill_at}"
        with pytest.raises(KeyboardInterrupt):
            train(scenario, place)
        kills.next(0)
        train(scenario, place)
        found = TrainingResult.read(place)
        assert found.tables == whole.tables and found.summary["steps_done"] == 6, kill_at
        for name in ("missing.parquet", "rounds.parquet"):
            assert parquet.read_table(place / name).equals(parquet.read_table(tmp_path / "whole" / name)), (
                kill_at,
                name,
            )
        assert found.summary["cpu_s"] > 0


def test_tables_with_missing_steps_are_rejected(tmp_path: Path) -> None:
    """Tables of an earlier checkpoint beside a later one would lack the steps between for good."""
    scenario = tiny("training.score_every=3", 'training.network="ideal"')
    train(scenario, tmp_path / "whole")
    part = TrainingResult.read(tmp_path / "whole")
    rows = {name: [row for row in table if row["step"] < 3] for name, table in part.tables.items()}
    TrainingResult(part.summary, rows).write(tmp_path / "whole", (tmp_path / "whole" / "scenario.toml").read_text())
    with pytest.raises(ResultError, match="has 3 of the 6 steps"):
        train(scenario, tmp_path / "whole")


def test_complete_run_without_checkpoint_is_not_restarted(tmp_path: Path) -> None:
    """Reproductions leave such folders. With another program's file in it, a folder is rejected."""
    scenario = tiny('training.network="ideal"')
    train(scenario, tmp_path / "a")
    (tmp_path / "a" / "checkpoint.pt").unlink()
    before = (tmp_path / "a" / "steps.parquet").stat().st_mtime_ns
    assert train(scenario, tmp_path / "a").summary["steps_done"] == 6
    assert (tmp_path / "a" / "steps.parquet").stat().st_mtime_ns == before
    (tmp_path / "a" / "result.json").write_text("{}")
    with pytest.raises(ResultError, match="holds something else"):
        train(scenario, tmp_path / "a")


RING = ['job.exchange={kind="ring"}', "job.servers=0", "job.pull_bound=0.2", "job.pull_important=false"]
KEEPS = "training.keep_missing=true"


@pytest.mark.parametrize("more", [
    [], RING, ["job.pull_bound=0.2", "job.pull_important=false"],
    ['training.reducer={kind="powersgd", rank=1}', "training.error_feedback=true", "training.network={loss=0.3}"],
    ['training.network={loss=0.3, way="both"}'], ["training.encode_time=2.0"],
], ids=["servers", "ring", "both ways", "two rounds", "rule", "encoding"])  # fmt: skip
def test_replay_of_recorded_run_is_bit_identical(tmp_path: Path, more: list[str]) -> None:
    """The first run is stopped and resumed. Its folder alone gives the same losses, clock and parameters."""

    def stop(share: float, words: str) -> None:
        if "step 4" in words:
            raise KeyboardInterrupt

    keeping = tiny("training.score_every=2", "job.push_bound=0.3", KEEPS, *more)
    with pytest.raises(KeyboardInterrupt):
        train(keeping, tmp_path / "first", progress=stop)
    first = train(keeping, tmp_path / "first")
    assert first.tables["lost"] and {row["lost"] for row in first.steps} != {0.0}
    network = f'training.network={{replay="{tmp_path / "first"}"}}'
    again = tiny(
        "training.score_every=2", "job.push_bound=0.3", *[each for each in more if "network" not in each], network
    )
    second = train(again, tmp_path / "second")
    assert {row["retransmitted"] for row in second.steps} == {None}  # nothing was sent
    assert [row | {"retransmitted": None} for row in first.steps] == second.steps
    assert second.scores == first.scores and second.tables["lost"] == first.tables["lost"]
    one, two = (torch.load(tmp_path / each / "checkpoint.pt", weights_only=True) for each in ("first", "second"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])


def test_replay_of_mismatched_or_damaged_run_is_rejected(tmp_path: Path, whole: tuple[Path, TrainingResult]) -> None:
    train(tiny(KEEPS), tmp_path / "kept")
    network = f'training.network={{replay="{tmp_path / "kept"}"}}'
    with pytest.raises(
        ScenarioError, match=r"training\.network\.replay: .* another training run: 6 steps there, 7 here;"
    ):
        train(tiny(network, "training.steps=7"))
    with pytest.raises(ScenarioError, match="another training run: payload 4096 there, 8192 here;"):
        train(tiny(network, "transport.payload=8KiB"))
    for folder, words in (
        (whole[0], "did not record its lost packets"),
        (tmp_path / "nowhere", "nowhere: is not there"),
    ):
        with pytest.raises(ResultError, match=words):
            train(tiny(f'training.network={{replay="{folder}"}}'))
    for more in (KEEPS, network):
        with pytest.raises(ScenarioError, match="needs synchronous steps"):
            tiny('training.system={kind="mipd"}', 'training.network="ideal"', more, "job.push_bound=0.0")
    (tmp_path / "kept" / "missing.parquet").write_bytes(b"nothing")
    with pytest.raises(ResultError, match="is damaged"):
        train(tiny(network))


def test_complete_run_is_returned_unchanged(whole: tuple[Path, TrainingResult]) -> None:
    again = train(tiny(*RESTS), whole[0])
    assert again.steps == whole[1].steps and again.scores == whole[1].scores


def test_run_stops_at_target_accuracy() -> None:
    learned = train(tiny("training.score_every=2"), until=1e-6)
    assert [row["step"] for row in learned.scores] == [2] and learned.summary["steps_done"] == 2
    assert rows_of([learned], 1e-6)[-1].cells[0] != "not reached" and rows_of([learned], 1.0)[-1].cells == [
        "not reached"
    ]


def test_output_folder_with_other_content_is_rejected(whole: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="holds a training run of another scenario"):
        train(tiny("training.score_every=3"), whole[0])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ResultError, match="holds something else"):
        train(tiny(), tmp_path)
    with pytest.raises(ResultError, match="is a file"):
        train(tiny(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_damaged_run_folders_are_rejected(whole: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    import shutil

    for name, words in (
        ("checkpoint.pt", "cannot be resumed"),
        ("steps.parquet", "is damaged"),
        ("training.json", "is damaged"),
    ):
        folder = tmp_path / name
        shutil.copytree(whole[0], folder)
        (folder / name).write_bytes(b"\x80rubbish")
        with pytest.raises(ResultError, match=words):
            train(tiny(*RESTS), folder)


@pytest.mark.parametrize(
    ("column", "value"),
    [("clock_ps", "soon"), ("clock_ps", None), ("loss", "low"), ("step", 1.5), ("step", "one null")],
)
def test_tables_with_wrong_value_types_are_rejected(
    whole: tuple[Path, TrainingResult], tmp_path: Path, column: str, value: object
) -> None:
    import shutil

    folder = tmp_path / "damaged"
    shutil.copytree(whole[0], folder)
    table = parquet.read_table(folder / "steps.parquet")
    others = [value] * table.num_rows if value != "one null" else [*table[column].to_pylist()[:-1], None]
    parquet.write_table(table.set_column(table.column_names.index(column), column, [others]), folder / "steps.parquet")
    with pytest.raises(ResultError, match=r"steps\.parquet: is damaged"):
        TrainingResult.read(folder)


def test_report_rejects_undecodable_scenario_file(whole: tuple[Path, TrainingResult], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(whole[0], tmp_path / "damaged")
    with (tmp_path / "damaged" / "scenario.toml").open("ab") as file:
        file.write(b"\xff\xfe")
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "damaged"), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 2 and not (tmp_path / "page.html").exists()


def test_plot_has_one_curve_per_training_run(whole: tuple[Path, TrainingResult]) -> None:
    """The time axis appears only if runs have times."""
    figure = draw_training_runs([whole[1], whole[1]])
    assert [axes.get_xlabel() for axes in figure.axes] == ["steps", "sent by all workers, MiB", "simulated time, ms"]
    assert all(len(axes.get_lines()) == 2 for axes in figure.axes)
    ideal = train(tiny('training.network="ideal"'))
    assert len(draw_training_runs([ideal]).axes) == 2


def test_plot_uses_log_byte_axis_and_figure_legend_if_needed(whole: tuple[Path, TrainingResult]) -> None:
    """A hundredth of the bytes needs a log axis; more than four names need a figure legend."""
    one = whole[1]
    little = [{**row, "sent_bytes": row["sent_bytes"] // 100} for row in one.scores]
    less = TrainingResult(one.summary, {**one.tables, "scores": little})
    scales = [axes.get_xscale() for axes in draw_training_runs([one, less]).axes]
    assert scales == ["linear", "log", "linear"] and draw_training_runs([one, one]).axes[1].get_xscale() == "linear"
    few, many = draw_training_runs([one] * 4), draw_training_runs([one] * 5)
    assert few.axes[-1].get_legend() and not few.legends and not many.axes[-1].get_legend()
    assert len(many.legends[0].get_texts()) == 5


@pytest.mark.slow
def test_train_command_writes_folder_json_and_one_line_errors(tmp_path: Path) -> None:
    """The command trains all policies, draws a plot and prints JSON; bad input has exit code 2."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return Warm.with_torch().run("train", "train-tiny", *words, timeout=300)

    sets = [word for each in SHORT for word in ("--set", each)]
    done = run("--all", *sets, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "final accuracy" in done.stdout and "DLCP, 10 %" in done.stdout
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "accuracy.png",
        "dctcp",
        "dlcp",
        "topk",
        "trainings.txt",
    ]
    again = run("--policy", "topk", *sets, "--json", "--out", "out")
    (found,) = json.loads(again.stdout)["trainings"]
    assert found["steps_done"] == 6 and found["scores"]
    for words in (
        ["--until", "soon"],
        ["--all", "--policy", "dlcp"],
        ["--set", "training.batch=0"],
        ["--plots", "gif"],
    ):
        wrong = run(*words)
        assert wrong.returncode == 2 and wrong.stderr.startswith("gradwire: ") and "Traceback" not in wrong.stderr


def test_steps_table_records_worker_divergence(tmp_path: Path) -> None:
    train(tiny(*RING[:2], 'training.network={loss=0.2, way="pull"}'), tmp_path / "ring")
    steps = TrainingResult.read(tmp_path / "ring").steps
    assert steps[-1]["apart_max"] > steps[-1]["apart_rms"] > 0


def test_table_shows_encoding_time_only_if_counted() -> None:
    rows = lambda *how: {
        row.label.strip(): row.cells for row in rows_of([train(tiny(f"training.encode_time={each}")) for each in how])
    }
    assert "encoding and decoding" not in rows('"none"')
    # 75,290 elements by 6 steps; a server that decodes what two have sent
    assert rows("2.0", '"none"')["encoding and decoding"] == [
        f"{75_290 * 6 * 3 * 2 / 1e6:.2f} ms (2 ns an element)",
        "not included",
    ]


def command(*words: str) -> tuple[int, str]:
    """Exit code and everything that was said by `gradwire train train-tiny`, of a few steps."""
    short = [word for each in SHORT for word in ("--set", each)]
    found = CliRunner().invoke(cli.app, ["train", "train-tiny", "--policy", "dctcp", *short, *words])
    return found.exit_code, found.stdout + "\n" + found.stderr


def test_command_leaves_folder_with_other_content_unchanged(tmp_path: Path) -> None:
    (tmp_path / "accuracy.png").write_text("mine")
    code, said = command("--out", str(tmp_path))
    assert code == 2 and "does not hold training runs" in said
    assert [path.name for path in tmp_path.iterdir()] == ["accuracy.png"] and (
        tmp_path / "accuracy.png"
    ).read_text() == "mine"
    assert command("--out", "")[0] == 2


def test_output_folder_in_use_is_rejected(tmp_path: Path) -> None:
    with resumable_folder(tmp_path / "out", "trainings.txt", "training runs"):
        code, said = command("--out", str(tmp_path / "out"))
        assert code == 2 and "another program" in said
    assert command("--out", str(tmp_path / "out"))[0] == 0


def test_command_reports_diverged_training(tmp_path: Path) -> None:
    code, said = command(
        "--json",
        "--set",
        "training.optimizer.rate=1000",
        "--set",
        "training.optimizer.weight_decay=10",
        "--set",
        "training.network=ideal",
        "--set",
        "training.steps=40",
    )
    assert code == 0 and "the loss is not finite from step" in said
    (training,) = json.loads(said.splitlines()[0], parse_constant=lambda name: pytest.fail(name))["trainings"]
    assert training["diverged"] > 0 and training["scores"][-1]["loss"] is None
