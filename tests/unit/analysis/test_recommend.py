"""Recommended settings: the search on functions in closed form, knobs of scenarios, and searches from end to end."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gradwire
from gradwire import cli, load_scenario
from gradwire.analysis.verdict.difference import Samples, difference_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.loading.toml import inline_toml, write_toml
from gradwire.studies.recommend.knobs import Knob, Settings, parse_knob, settings_of
from gradwire.studies.recommend.runner import Recommendation, recommend
from gradwire.studies.recommend.search import Plan, Search, Setting, Space, Trial
from gradwire.studies.sweep import points
from gradwire.studies.sweep.points import key_of, scenario_key
from tests.support.output_cases import gradwire_command
from tests.support.planted_settings import planted_case

SIZES = (4, 4, 3, 2)
Truth = Callable[[Setting], float]


def searched(
    truth: Truth, sizes: Sequence[int] = SIZES, budget: float = 72, noise: float = 0.005, **space: Any
) -> tuple[Search, list[Trial]]:
    """Search a function with noise from seed to seed, whose short runs are wrong by up to 3 %."""
    runs: list[Trial] = []

    def run(trials: Sequence[Trial]) -> dict[Trial, float | None]:
        runs.extend(trials)
        return {trial: value(trial) for trial in trials}

    def value(trial: Trial) -> float:
        seed, own = random.Random(f"seed {trial.seed}"), random.Random(str(trial))
        bias = random.Random(str(trial.setting)).uniform(-0.03, 0.03) if trial.rung == 0 else 0.0
        return truth(trial.setting) * (1 + bias) * (1 + noise * seed.gauss(0, 1)) * (1 + noise * own.gauss(0, 1))

    search = Search(Space(tuple(sizes), (False,) * len(sizes), **space), Plan(budget, (0.25, 1.0), 3), run)
    search.finish()
    return search, runs


def planted(number: int, sizes: Sequence[int] = SIZES) -> Truth:
    """Return a function with main effects up to 35 %, and an interaction of two knobs up to 20 %."""
    rng = random.Random(number)
    mains = [[0.0, *(rng.uniform(-0.15, 0.3) for _ in range(size - 1))] for size in sizes]
    first, second = rng.sample(range(len(sizes)), 2)
    pairs = {pair: rng.uniform(-0.2, 0.2) for pair in product(range(sizes[first]), range(sizes[second]))}
    return lambda setting: (
        100
        * exp(sum(main[at] for main, at in zip(mains, setting, strict=True)) + pairs[setting[first], setting[second]])
    )


def test_search_finds_planted_bests_with_a_quarter_of_the_runs() -> None:
    hits = 0
    for number in range(10):
        truth = planted(number)
        search, _ = searched(truth, budget=96 * 3 / 4)
        hits += truth(search.chosen) <= 1.015 * min(map(truth, product(*map(range, SIZES))))
    assert hits >= 9


def test_search_finds_a_best_that_only_a_combination_reaches() -> None:
    """Each of the two changes alone is a loss, both together are a gain."""

    def truth(setting: Setting) -> float:
        return 70.0 if setting[:2] == (3, 2) else 100.0 + 5 * sum(map(bool, setting))

    search, _ = searched(truth)
    assert search.chosen == (3, 2, 0, 0)


def test_search_of_a_large_space_spends_its_budget_once() -> None:
    sizes = (5, 5, 4, 4, 3, 3, 2)
    truth = planted(3, sizes)
    search, runs = searched(truth, sizes, budget=40)
    assert len(set(runs)) == len(runs)
    cost = sum((0.25, 1.0)[trial.rung] for trial in runs)
    assert cost == search.spent
    assert 36 < cost <= 40
    assert truth(search.chosen) < 0.8 * truth(search.space.user)


def test_knobs_without_effect_stay_at_the_users_value() -> None:
    search, _ = searched(lambda setting: 80.0 if setting[1] == 2 else 100.0)
    assert search.chosen == (0, 2, 0, 0)


def test_gains_within_the_noise_change_nothing() -> None:
    search, _ = searched(lambda setting: 100.0 - 0.01 * sum(setting), noise=0.02)
    assert search.chosen == (0, 0, 0, 0)


def test_sure_gain_below_one_percent_changes_nothing() -> None:
    for gain, chosen in ((0.8, (0, 0, 0, 0)), (1.2, (0, 2, 0, 0))):
        search, _ = searched(lambda setting, gain=gain: 100.0 - gain * (setting[1] == 2), noise=0.0)
        assert search.chosen == chosen


def test_sure_gain_is_chosen_before_a_greater_one_that_may_be_chance() -> None:
    """The second value gains 10 % with each seed, the third one 20 % on average, but loses with one seed."""
    values = {0: (100.0, 101.0, 99.0), 1: (90.0, 91.0, 89.0), 2: (60.0, 61.0, 120.0)}

    def run(trials: Sequence[Trial]) -> dict[Trial, float | None]:
        return {trial: values[trial.setting[0]][trial.seed] for trial in trials}

    search = Search(Space((3,), (False,)), Plan(20, (0.25, 1.0), 3), run)
    search.finish()
    assert search.chosen == (1,)
    assert next(iter(search.finalists)) == (2,)


def test_equal_settings_run_once_and_invalid_ones_never() -> None:
    """The last knob has no effect, and the second value of the first one does not exist."""

    def canonical(setting: Setting) -> Setting | None:
        return None if setting[0] == 1 else (*setting[:3], 0)

    search, runs = searched(
        lambda setting: 100.0 - 50 * (setting[0] == 1) - 9 * setting[3] - setting[2], canonical=canonical
    )
    assert all(trial.setting[0] != 1 and trial.setting[3] == 0 for trial in runs)
    assert search.chosen == (0, 0, 2, 0)


def test_failed_settings_are_not_chosen() -> None:
    def run(trials: Sequence[Trial]) -> dict[Trial, float | None]:
        return {trial: None if trial.setting[0] == 2 else 100.0 - trial.setting[0] * 9 for trial in trials}

    search = Search(Space((4, 2), (False, False)), Plan(24, (0.25, 1.0), 3), run)
    search.finish()
    assert search.chosen == (3, 0)
    assert (2, 0) in search.settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("transport.kind=dctcp, cubic", ("transport.kind", ["dctcp", "cubic"])),
        ("switch.ecn_threshold=8KiB,16KiB", ("switch.ecn_threshold", ["8KiB", "16KiB"])),
        ("job.credit=1,4", ("job.credit", [1, 4])),
        ("job.tagging.layer_priority=false,true", ("job.tagging.layer_priority", [False, True])),
        ('job.exchange={kind="ring"},{kind="tree"}', ("job.exchange", [{"kind": "ring"}, {"kind": "tree"}])),
        ("load_balancing", ("load_balancing", None)),
    ],
)
def test_knobs_are_parsed(text: str, expected: tuple[str, list[Any] | None]) -> None:
    assert parse_knob(text) == expected


def test_a_new_kind_keeps_the_keys_that_it_has() -> None:
    scenario = load_scenario("ring", set=["transport={kind='dctcp', min_rto='3ms'}", "job.exchange.channels=2"])
    knobs = (Knob("transport.kind", ("dctcp", "cubic")), Knob("job.exchange.kind", ("ring", "tree")))
    tables = Settings(scenario, knobs).scenario_of((1, 1)).as_written()
    assert tables["transport"] == {"kind": "cubic", "min_rto": "3ms"}
    assert tables["job"][0]["exchange"] == {"kind": "tree", "bucket": "25MiB"}


def test_default_knobs_are_those_with_an_effect() -> None:
    star = settings_of(load_scenario("ring"), None, 58_000)
    assert "load_balancing" not in [knob.key for knob in star.knobs]
    assert any("load_balancing" in line and "one path" in line for line in star.left_out)
    fabric = settings_of(load_scenario("collectives"), None, 58_000)
    keys = [knob.key for knob in fabric.knobs]
    assert {"load_balancing", "transport.kind", "job.exchange.kind", "job.exchange.bucket"} <= set(keys)
    assert not any("rate" in key or "workers" in key or "buffer" in key for key in keys)
    assert all(fabric.problem(tuple(int(at == n) for at in range(len(keys)))) is None for n in range(len(keys)))


def test_keys_without_effect_do_not_make_new_settings() -> None:
    """Nothing reacts to marks with cubic, so its threshold is the user's."""
    settings = settings_of(
        load_scenario("ring"), {"transport.kind": ["cubic"], "switch.ecn_threshold": ["16KiB"]}, None
    )
    assert settings.canonical((0, 1)) == (0, 1)
    assert settings.canonical((1, 1)) == (1, 0)


SMALL = {"job.order": ["layer"], "job.tagging.layer_priority": [True], "job.exchange.partition": ["16KiB", "64KiB"]}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.toml"
    path.write_text(write_toml(planted_case(1)[0]))
    return path


def arguments(scenario: Path, out: Path, *more: str) -> list[str]:
    knobs = [f"--knob={key}={','.join(map(inline_toml, values))}" for key, values in SMALL.items()]
    return ["recommend", str(scenario), *knobs, "--budget", "20", "--out", str(out), *more]


FILES = ("recommended.toml", "recommendation.json", "ranking.csv", "ranking.png", "request.json")


@pytest.fixture(scope="module")
def advised(small: Path) -> tuple[Path, str]:
    out = small.parent / "advice"
    done = CliRunner().invoke(cli.app, arguments(small, out, "--jobs", "2"))
    assert done.exit_code == 0, done.output
    return out, done.stdout


def test_recommended_scenario_runs_as_fast_as_stated(small: Path, advised: tuple[Path, str]) -> None:
    out, printed = advised
    stated = json.loads((out / "recommendation.json").read_text())
    assert stated["text"] in " ".join(printed.split())
    for scenario, mean in ((out / "recommended.toml", stated["recommended"]), (small, stated["yours"])):
        seed = load_scenario(scenario).seed
        runs = [gradwire.simulate(load_scenario(scenario, set=[f"seed={seed + more}"])) for more in range(3)]
        assert sum(gradwire.metrics(run)[0].iteration.mean_ps for run in runs) / 3 == pytest.approx(mean)
    assert stated["change"]["share"] == pytest.approx(stated["recommended"] / stated["yours"] - 1)
    assert stated["change"]["share"] < -0.05
    assert stated["cost"] <= stated["budget"]
    assert len(stated["worths"]) == len(stated["set"])
    assert all(worth["share"] > 0 for worth in stated["worths"])


def test_killed_search_resumes_to_the_same_bytes(small: Path, advised: tuple[Path, str]) -> None:
    out = small.parent / "killed"
    process = subprocess.Popen(gradwire_command(*arguments(small, out, "--jobs", "1")), cwd=small.parent)
    end = time.monotonic() + 120
    while len(list(out.glob("points/*.json"))) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("points/*.json")}
    assert len(before) >= 5
    assert not (out / "recommendation.json").exists()
    done = CliRunner().invoke(cli.app, arguments(small, out, "--jobs", "1"))
    assert done.exit_code == 0, done.output
    assert [(out / name).read_bytes() for name in FILES] == [(advised[0] / name).read_bytes() for name in FILES]
    assert all((out / "points" / name).stat().st_mtime_ns == written for name, written in before.items())


def test_interrupt_that_a_library_converted_tells_how_to_resume(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(search: Search) -> None:
        raise ValueError("converted")

    monkeypatch.setattr(Search, "finish", converted)
    for is_raised in (True, False):
        monkeypatch.setattr("gradwire.studies.recommend.runner.is_raised", lambda is_raised=is_raised: is_raised)
        with pytest.raises(ValueError) as caught:
            recommend(small, out=tmp_path / "out")
        notes = getattr(caught.value, "__notes__", [])
        assert notes == ["0 runs done; the same command resumes"] * is_raised


def test_metrics_are_measures(small: Path, tmp_path: Path) -> None:
    advice = recommend(
        small, knobs={"job.order": ["layer"]}, metric="iteration_max_ps", budget=10, out=tmp_path / "out"
    )
    assert advice.chosen == {"job.order": "layer"}
    seed = advice.scenario.seed
    runs = [gradwire.simulate(load_scenario(advice.file, set=[f"seed={seed + more}"])) for more in range(3)]
    longest = [gradwire.metrics(run)[0].iteration.max_ps for run in runs]
    assert sum(longest) / 3 == pytest.approx(advice.ranking[0][1].mean_ps)


def test_search_is_resumed_with_another_version_of_the_engine(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs are repeated, but the folder remains that of the same search."""
    scenario = load_scenario(small)
    before = scenario_key(scenario), key_of(scenario)
    monkeypatch.setattr(points, "engine_digest", lambda: "another")
    assert scenario_key(scenario) == before[0]
    assert key_of(scenario) != before[1]
    assert scenario_key(load_scenario(small, set=["link.rate=40Gbps"])) != before[0]


def test_folder_of_another_search_is_refused(small: Path, advised: tuple[Path, str]) -> None:
    before = (advised[0] / "recommendation.json").read_bytes()
    for more, words in (
        (["--set", "link.rate=40Gbps"], "another scenario"),
        (["--seeds", "2"], "another seeds"),
        (["--metric", "tail"], "another metric"),
        (["--knob", "switch.ecn_threshold"], "another knobs"),
    ):
        done = CliRunner().invoke(cli.app, arguments(small, advised[0], *more))
        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
    assert (advised[0] / "recommendation.json").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--knob", "transport.kind=dlpc"], "did you mean 'dlcp'"),
        (["--knob", "switch.ecn_treshold=8KiB"], 'unknown key; expected "ecn_threshold"'),
        (["--knob", "load_balancin"], "did you mean 'load_balancing'"),
        (["--knob", "load_balancing=spray_random"], "one path between any two hosts"),
        (["--knob", "seed=1,2"], "cannot be a knob"),
        (["--knob", "traffic.load=0.5"], "has no [[traffic]]"),
        (["--knob", "switch.buffer="], "has no values"),
        (["--knob", "switch.buffer=1GB", "--knob", "switch.buffer=2MiB"], "is named twice"),
        (["--knob", "job.order=fifo"], "nothing to search"),
        (["--knob", "placement.kind=a"], "unknown key"),
        (["--knob", "link.rate.x.kind=1"], "link.rate"),
        (["--knob", "switch[0].buffer=1MiB"], "there is no [0]"),
        (["--budget", "5"], "at least"),
        (["--budget", "-1"], "runs above zero"),
        (["--budget", "nan"], "runs above zero"),
        (["--budget", "inf"], "at most 1e+09"),
        (["--minutes", "1e308"], "at most 1e+09"),
        (["--budget", "20", "--minutes", "1"], "one of the two"),
        (["--minutes", "0.001"], "at least"),
        (["--metric", "iteration_tim"], "did you mean 'iteration_time'"),
        (["--metric", "iterations"], "not to be minimised"),
        (["--metric", "slowdown_p99"], "exists for traffic only"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(small: Path, tmp_path: Path, more: list[str], words: str) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(cli.app, ["recommend", str(small), "--out", str(out), *more])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert not out.exists()


@pytest.mark.parametrize(
    "knobs",
    [
        {"switch.buffer": "1MiB"},
        {"switch.buffer": [None]},
        {"switch.buffer": []},
        [3],
        3,
        {5: [1]},
        {"job.name": ["a"]},
        {"job[5].exchange.kind": ["ring"]},
        {"job.jitter": [[[]] * 2]},
    ],
)
def test_bad_knobs_from_python_are_refused(knobs: Any, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^(knob|recommend\(knobs)"):
        recommend("ring", knobs=knobs, out=tmp_path / "out")


def test_settings_with_a_missing_trace_are_named(tmp_path: Path) -> None:
    """A trace is read after the checks of a scenario; its absence ends no search."""
    tables, _ = planted_case(1)
    advice = recommend(build_scenario(tables), knobs={"job.trace": ["nowhere"]}, budget=12, out=tmp_path / "out")
    assert advice.chosen == {}
    assert "no such trace" in (tmp_path / "out" / "recommendation.json").read_text(encoding="utf-8")


def test_values_are_checked_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    scenario_of = Settings.scenario_of
    monkeypatch.setattr(Settings, "scenario_of", lambda self, setting: built.append(0) or scenario_of(self, setting))
    tables, _ = planted_case(1)
    values = [0.2 + 0.01 * number for number in range(40)]
    settings = settings_of(build_scenario(tables), {"job.compute_scale": values}, None)
    assert len(settings.knobs[0].values) == 41 and len(built) < 4 * 41


def test_settings_that_end_too_early_are_named(tmp_path: Path) -> None:
    tables, _ = planted_case(1)
    tables["duration"] = "100ms"
    advice = recommend(build_scenario(tables), knobs={"job.compute_scale": [0.2]}, budget=12, out=tmp_path / "out")
    assert advice.chosen == {}
    assert any(line.startswith("failed: job.compute_scale = 0.2: not done") for line in advice.notes)


def is_as_good_as_the_grid(number: int, folder: Path) -> bool:
    """Return True if a search with a quarter of the grid's runs chooses as well as the grid.

    The choice may differ from the grid's best by chance, or by a hundredth.
    """
    tables, knobs = planted_case(number)
    scenario = build_scenario(tables)
    count = len(list(product(*knobs.values())))
    advice = recommend(scenario, knobs=knobs, budget=3 * count / 4, out=folder / str(number))
    assert advice.search.spent <= 3 * count / 4
    grid = whole_grid(advice, folder / f"grid {number}")
    gap = difference_of(grid[advice.search.chosen], min(grid.values(), key=lambda samples: samples.mean_ps))
    return gap.change <= 0.01 or not gap.is_significant


def whole_grid(advice: Recommendation, folder: Path) -> dict[Setting, Samples]:
    """Return the mean iterations of all settings and seeds, by a sweep."""
    knobs = advice.settings.knobs
    base = advice.settings.scenario
    axes = [{"name": f"k{number}", "key": knob.key, "values": list(knob.values)} for number, knob in enumerate(knobs)]
    outcome = gradwire.sweep(
        {
            "name": "grid",
            "scenario": base.as_written(),
            "axis": axes,
            "seeds": [base.seed + more for more in range(3)],
            "measures": ["iteration_mean_ps"],
        },
        out=folder,
    )
    means: dict[Setting, dict[tuple[int, int], float]] = {}
    for row in outcome.points_table.to_pylist():
        setting = tuple(knob.values.index(row[f"k{number}"]) for number, knob in enumerate(knobs))
        means.setdefault(setting, {})[row["seed"] - base.seed, 0] = row["iteration_mean_ps"]
    return {setting: Samples(values) for setting, values in means.items()}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_planted_settings_are_found_with_a_quarter_of_the_runs(number: int, tmp_path: Path) -> None:
    """One scenario of each family."""
    assert is_as_good_as_the_grid(number, tmp_path)
