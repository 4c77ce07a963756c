"""Trainings over seeds: `gradwire train --seeds`, in this process and side by side."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.analysis.confidence_intervals import T95  # noqa: E402
from gradwire.analysis.training.seed_statistics import arms_of, figures_of, rows_by_seed, rows_over  # noqa: E402
from gradwire.analysis.training.training_comparison import draw_arms  # noqa: E402
from gradwire.result_store.training_result import TrainingResult, training_run_folders  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.report.report_inputs import report  # noqa: E402
from gradwire.studies.training.multi_seed import with_seed  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402

SHORT = [
    "training.steps=4",
    "training.samples=200",
    "training.size=8",
    "training.batch=4",
    "job.workers=2",
    "training.network={loss=0.3}",
]


def tiny(*more: str, policy: str = "dctcp"):
    return load_scenario("train-tiny", set=[*SHORT, *more], policy=policy)


def command(*words: str):
    return CliRunner().invoke(
        cli.app, ["train", "train-tiny", *(each for key in SHORT for each in ("--set", key)), *words]
    )


def made(policy: str, seed: int, accuracy: float, reached: int | None = None, clock: int = 10) -> TrainingResult:
    """A training of two steps by hand."""
    step = {
        "step": 0,
        "loss": 1.0,
        "sent_bytes": 100,
        "pulled_bytes": 0,
        "lost": 0.1,
        "time_ps": clock // 2,
        "clock_ps": clock // 2,
    }
    scores = [
        {"step": 1, "loss": 2.0, "accuracy": 0.0 if reached != 1 else 0.9, "clock_ps": clock // 2, "sent_bytes": 100},
        {"step": 2, "loss": 1.0 * seed, "accuracy": accuracy, "clock_ps": clock, "sent_bytes": 200},
    ]
    return TrainingResult(
        {"policy": policy, "label": policy.upper(), "seed": seed, "steps_done": 2, "steps": 2},
        {"steps": [step, {**step, "step": 1, "clock_ps": clock}], "scores": scores},
    )


def cells(rows, label: str) -> list[str]:
    (found,) = [row.cells for row in rows if row.label.strip().startswith(label)]
    return list(found)


def test_seed_means_and_paired_differences_match_hand_computation() -> None:
    """Accuracies are 0.5, 0.6, 0.7, and about 0.1 less; intervals use NumPy's deviations and Student's
    quantiles."""
    one = {1: 0.5, 2: 0.6, 3: 0.7}
    other = {1: 0.4, 2: 0.52, 3: 0.58, 4: 0.9}
    trainings = [made("a", seed, accuracy) for seed, accuracy in one.items()] + [
        made("b", seed, accuracy) for seed, accuracy in other.items()
    ]
    rows = rows_over(arms_of(trainings))
    half = T95[1] * np.std([0.5, 0.6, 0.7], ddof=1) / 3**0.5
    differences = [-0.1, -0.08, -0.12]
    apart = T95[1] * np.std(differences, ddof=1) / 3**0.5
    assert cells(rows, "seeds") == ["3", "4"] and cells(rows, "steps") == ["2", "2"]
    assert cells(rows, "final accuracy")[0] == f"60.0 ± {100 * half:.1f} %"
    assert cells(rows, "minus A") == ["", f"-10.0 ± {100 * apart:.1f} points"], "the fourth seed is in no pair"
    assert cells(rows, "final loss") == ["2.0000", "2.5000"] and cells(rows, "lost") == ["10.0 %", "10.0 %"]
    assert [row.cells for row in rows_by_seed(arms_of(trainings))][-1] == ["none", "90.00 %"]


def test_differences_from_few_seeds_are_unresolved() -> None:
    """Two seeds do not resolve a difference; one seed gives a plain number, and policies need a common seed."""
    two = [made("a", 1, 0.5), made("a", 2, 0.5), made("b", 1, 0.51), made("b", 2, 0.47)]
    same = [made(policy, seed, accuracy) for policy, accuracy in (("a", 0.5), ("b", 0.49)) for seed in (1, 2, 3)]
    assert cells(rows_over(arms_of(same)), "minus A")[1] == "-1.0 ± 0.0 points"
    fewer = [each for each in same if each.seed < 3]
    assert cells(rows_over(arms_of(fewer)), "minus A")[1] == "-1.0 points, unresolved: at least 3 seeds", (
        "two may differ by as much by chance"
    )
    assert cells(rows_over(arms_of(two)), "minus A")[1].endswith(" points, unresolved: at least 3 seeds")
    assert cells(rows_over(arms_of([two[0], two[2]])), "minus A")[1] == "+1.0 points"
    assert cells(rows_over(arms_of([two[0], two[3]])), "minus A")[1] == "no common seed"


def test_median_time_to_accuracy_counts_unreached_seeds() -> None:
    of = lambda *reached: arms_of(
        [made("a", seed, 0.9 if each == 2 else 0.1, each, clock=10**10) for seed, each in enumerate(reached)]
    )
    assert cells(rows_over(of(1, 2, 2), 0.8), "time to accuracy 0.8") == ["10.0 ms"]
    assert cells(rows_over(of(1, 1, 2), 0.8), "time to") == ["5.00 ms"]
    assert cells(rows_over(of(1, 1, None), 0.8), "time to") == ["5.00 ms, 1 of 3 never"]
    assert cells(rows_over(of(1, None, None), 0.8), "time to") == ["not reached by 2 of 3"]
    assert cells(rows_over(of(None, None), 0.8), "time to") == ["not reached"]
    untimed = arms_of([made("a", seed, 0.9, clock=0) for seed in (1, 2)])
    assert cells(rows_over(untimed, 0.8), "steps to accuracy") == ["2"]


def test_diverged_runs_are_counted() -> None:
    odd = [made("a", seed, 0.1) for seed in (1, 2)]
    assert not [row for row in rows_over(arms_of(odd)) if row.label.startswith("runs that diverged")]
    odd[1].steps[1]["loss"] = float("nan")
    assert cells(rows_over(arms_of(odd)), "runs that diverged") == ["1 of 2"]


def test_seed_statistics_are_available_as_numbers() -> None:
    """They are the table's numbers; missing ones are None."""
    arms = arms_of([made("a", seed, 0.5 + seed / 10) for seed in (1, 2, 3)] + [made("b", 2, 0.6, reached=1)])
    one, other = figures_of(arms, until=0.8)
    assert one["accuracy"] == {"mean": pytest.approx(0.7), "half_width": pytest.approx(T95[1] * 0.1 / 3**0.5)}
    assert one["less_first"] is None and one["seeds"] == [1, 2, 3] and one["reached"] == [None, None, 10.0]
    assert (
        other["less_first"] == {"mean": pytest.approx(-0.1), "half_width": None}
        and other["pairs"] == [2]
        and other["reached"] == [5.0]
    )
    assert one["sent_bytes"] == 200 and one["lost"] == pytest.approx(0.1) and one["clock_ps"] == 10


def test_seeds_with_different_ends_have_no_mean_curve(tmp_path: Path) -> None:
    """As with --until, each seed is drawn to its end, in the plot and on the page."""
    short = made("a", 2, 0.9)
    early = TrainingResult(short.summary, {**short.tables, "scores": list(short.scores)[:1]})
    for second, lines in ((short, [1, 2, 2]), (early, [1, 2])):
        figure = draw_arms([("A", [made("a", 1, 0.5), second])])
        drawn = [line.get_xdata() for line in figure.axes[0].get_lines()]
        assert sorted(len(each) for each in drawn) == ([2, 2, 2] if second is short else [1, 2]), lines
        page = tmp_path / f"{len(second.scores)}.html"
        report(made("a", 1, 0.5), second, out=page)
        text = page.read_text()
        assert ("means of the seeds, and the range" in text) == (second is short)
        assert ("each seed, up to its own end" in text) == (second is early)


def test_report_names_seed_without_evaluation(tmp_path: Path) -> None:
    """Such a seed counts in no mean."""
    begun = TrainingResult({**made("a", 3, 0.5).summary, "steps_done": 0}, {"steps": [], "scores": []})
    report(made("a", 1, 0.5), made("a", 2, 0.6), begun, out=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "1 policy, each from 2 seeds" in text and "A, seed 3: 0 steps, no evaluation yet." in text


def test_with_seed_sets_all_random_seeds() -> None:
    scenario = with_seed(tiny(), 7)
    assert (
        scenario.seed,
        scenario.training.model_seed,
        scenario.training.data_seed,
        scenario.training.network.seed,
    ) == (7, 7, 7, 7)
    assert scenario.policy_name == "dctcp" and tiny().seed != 7
    written = [f"{key}=7" for key in ("seed", "training.model_seed", "training.data_seed", "training.network.seed")]
    assert train(scenario).steps == train(tiny(*written)).steps
    assert train(with_seed(tiny(), 8)).steps[0]["loss"] != train(scenario).steps[0]["loss"]
    with pytest.raises(ScenarioError, match="has no training table"):
        with_seed(load_scenario("demo"), 1)
    with pytest.raises(ScenarioError, match="with_seed"):
        with_seed(tiny(), 0)


def test_train_command_runs_all_policies_with_all_seeds(tmp_path: Path) -> None:
    """Each folder of a seed is one as `--all` makes it. More seeds resume, and parallel jobs give the same bits."""
    out = tmp_path / "out"
    done = command("--all", "--seeds", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "mean over the seeds" in done.output and "same seeds" in done.output
    places = training_run_folders(out)
    assert [str(each.relative_to(out)) for each in places] == [
        f"seed-{k}/{name}" for k in (1, 2) for name in ("dctcp", "dlcp", "topk")
    ]
    for place, policy in ((out / "seed-2" / "topk", "topk"), (out / "seed-1" / "dlcp", "dlcp")):
        seed = int(place.parent.name[-1])
        assert (
            TrainingResult.read(place).steps == train(with_seed(tiny(policy=policy), seed)).steps
            and TrainingResult.read(place).seed == seed
        )
    before = {each: (each / "steps.parquet").stat().st_mtime_ns for each in places}
    told = command("--all", "--seeds", "3", "--jobs", "2", "--out", str(out), "--json")
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    runs = said["trainings"]
    assert [(arm["seeds"], arm["pairs"]) for arm in said["arms"]] == [([1, 2, 3], [1, 2, 3])] * 3
    assert [(run["seed"], run["policy"]) for run in runs] == [
        (k, name) for k in (1, 2, 3) for name in ("dctcp", "dlcp", "topk")
    ]
    assert {each: (each / "steps.parquet").stat().st_mtime_ns for each in places} == before, (
        "what is over is not trained again"
    )
    assert TrainingResult.read(out / "seed-3" / "dlcp").steps == train(with_seed(tiny(policy="dlcp"), 3)).steps
    table = (out / "trainings.txt").read_text()
    accuracy = fmean(TrainingResult.read(out / f"seed-{k}" / "dlcp").scores[-1]["accuracy"] for k in (1, 2, 3))
    assert f"{100 * accuracy:.1f} ± " in table
    assert (out / "accuracy.png").stat().st_size > 1000 and (out / "seed-3" / "accuracy.png").is_file()
    assert "seeds" not in (out / "seed-3" / "trainings.txt").read_text()


def test_output_folders_of_one_and_several_seeds_are_not_mixed(tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    assert command("--policy", "dctcp", "--out", str(one)).exit_code == 0
    assert command("--policy", "dctcp", "--seeds", "2", "--jobs", "2", "--out", str(several)).exit_code == 0
    for words, said in (
        (["--seeds", "2", "--out", str(one)], "one: holds training runs of one seed"),
        (["--out", str(several)], "several: holds training runs of several seeds"),
    ):
        done = command("--policy", "dctcp", *words)
        assert done.exit_code == 2 and said in " ".join(done.output.split())
    assert sorted(each.name for each in one.iterdir()) == ["accuracy.png", "dctcp", "trainings.txt"]


@pytest.mark.parametrize("key", ["seed", "training.model_seed", "training.data_seed", "training.network.seed"])
def test_seeds_option_rejects_explicit_seed_keys(key: str) -> None:
    done = command("--policy", "dctcp", "--seeds", "2", "--set", f"{key}=7")
    assert done.exit_code == 2 and f"--seeds: sets the same key as --set {key}=7; expected one of the two" in " ".join(
        done.output.split()
    )


def test_seeds_without_output_folder_write_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a process are the command's, and parallel jobs reject real sockets."""
    monkeypatch.chdir(tmp_path)
    done = command("--policy", "dlcp", "--seeds", "2", "--jobs", "2")
    assert done.exit_code == 0 and "seeds" in done.output and list(tmp_path.iterdir()) == []
    for words, said in (
        (["--set", "training.batch=500"], "at least 1000"),
        (["--set", 'training.network="emulated"'], "--jobs: would let training runs"),
    ):
        done = command("--policy", "dlcp", "--seeds", "2", "--jobs", "2", *words)
        assert done.exit_code == 2 and said in " ".join(done.output.split()), done.output
    assert list(tmp_path.iterdir()) == []
