"""`reproduce` simulates, emulates or trains the runs that published claims need, judges the claims, and writes page and
figures.

Every run is one task for a pool of `jobs` processes (`gradwire.studies.parallel.process_pool`), and writes its Result
below the output folder atomically. Existing Results are not run again, so an interrupted or killed reproduction
resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.folders.resumable_folder import resumable_folder
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.job.training import Training
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.eta import RemainingTime
from gradwire.studies.parallel.process_pool import Task, completed
from gradwire.studies.parallel.side_by_side import simulate_into
from gradwire.studies.reproduce import TRAINING_SETS
from gradwire.studies.reproduce.claim import Claim
from gradwire.studies.reproduce.measures import costs
from gradwire.studies.reproduce.policies import POLICIES
from gradwire.studies.reproduce.run_plan import (
    PlannedRun,
    all_runs,
    claim_on_testbed,
    planned_part,
    runs_of_claim,
    testbed_runs,
)
from gradwire.studies.reproduce.run_store import RunStore
from gradwire.studies.reproduce.verdicts import Judgement, judge, judge_testbed
from gradwire.studies.training.cost_estimate import SettingCost, costs_by_setting, estimate_costs
from gradwire.studies.training.run import auto_device, check_trainings, train
from gradwire.studies.training.step_time_model import cached_step_times

if TYPE_CHECKING:
    from gradwire.training.data import Images, Text

OnProgress = Callable[[float, str], None]
Figures = dict[str, dict[str, float]]
SIMULATED, EMULATED = "sim", "emu"
"""Worlds that claims are judged by."""
MARK = "reproduction.txt"


@dataclass(frozen=True)
class Reproduction:
    """Settings of a reproduction, which `run` carries out.

    names : of `gradwire.studies.reproduce.SETS`. `claims` : ids of the chosen ones; all if empty.
    out : folder of the Results and the page; an earlier reproduction in it is resumed.
    full : include the settings that take long.
    seeds : number of seeds; by default 3 for quick simulations, and 5 for all others and for training.
    data : for training, locations of "pictures" and "text". `device` : to compute on, as `training.device`.
    world : "sim"; or "emu": settings that fit the testbed run there in virtual time, beside a simulation of the same,
        and claims are judged by that.
    """

    names: Sequence[str]
    out: Path
    claims: Sequence[str] = ()
    full: bool = False
    seeds: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    world: str = SIMULATED

    def run(self, jobs: int = 1, on_progress: OnProgress = lambda share, words: None) -> list[Judgement]:
        """Run what the claims need, `jobs` processes at a time, judge them, and write figures, page.html and
        claims.json.

        Raises `ScenarioError` if a set, claim or device does not exist, data are missing, or no claim fits the testbed.
        Raises `ResultError` if `out` holds something else, or cannot be written.
        """

        chosen, plans, seeds = self._plans()
        with resumable_folder(self.out, MARK, "a reproduction"):
            figures = _results(all_runs(plans), RunStore(self.out), jobs, on_progress, self.full)
            decide = judge if self.world == SIMULATED else judge_testbed
            judgements = [decide(claim, plan, figures) for claim, plan in zip(chosen, plans, strict=True)]
            options = [*(f"--claim {claim}" for claim in self.claims), *(["--full"] if self.full else [])]
            options += [f"--seeds {seeds}", *([f"--world {self.world}"] if self.world != SIMULATED else [])]
            options += [f"--{key} {path}" for key, path in self.data.items()]
            options += [f"--device {self.device}"] if self.device != "cpu" else []
            how = " ".join(["gradwire reproduce", *self.names, *options])
            ground = _ground(plans, self.device, seeds) | {"left_out": self._left_out(plans)}
            _write(self.out, ", ".join(self.names), judgements, how, ground)
        return judgements

    def _left_out(self, plans: Sequence[Sequence[PlannedRun]]) -> list[str]:
        """Return the labels of policies that a quick run leaves out of claims, though it has their settings."""
        from gradwire.studies.reproduce import claims_of

        if self.full or self.world == EMULATED:
            return []
        missing: dict[str, None] = {}
        for claim, plan in zip(claims_of(self.names, self.claims), plans, strict=True):
            settings, policies = ({getattr(run, name) for run in plan} for name in ("setting", "policy"))
            own = [policy for setting in claim.settings if setting.name in settings for policy in setting.policies]
            missing |= dict.fromkeys(POLICIES[policy].label for policy in own if policy not in policies)
        return list(missing)

    def costs(self, on_progress: OnProgress = lambda share, words: None) -> list[SettingCost]:
        """Estimate what `run` would run, by setting: how much is in `out` already, and the time for the rest.

        Only some steps of each kind of training are run, to time them, and nothing is written. Missing data count as
        present. Raises `ScenarioError` if the set or claim does not exist.
        """

        placeholders = {"pictures": "synthetic", "text": "synthetic"}
        _, plans, _ = replace(self, data={**placeholders, **self.data})._plans()
        runs, store = all_runs(plans), RunStore(self.out)
        shares = {run.key: store.share(run.key) for run in runs}
        return costs_by_setting(runs, shares, estimate_costs(runs, on_progress))

    def _plans(self) -> tuple[list[Claim], list[list[PlannedRun]], int]:
        """Return (chosen claims, runs of each, number of seeds). On the testbed claims without runs are left out."""
        from gradwire.studies.reproduce import claims_of

        names, full, data, device = self.names, self.full, self.data, self.device
        chosen = claims_of(names, self.claims)
        seeds = self.seeds or (5 if full or any(name in TRAINING_SETS for name in names) else 3)
        if self.world == EMULATED:
            for value, option in ((device != "cpu", "--device"), (bool(data), "--pictures and --text")):
                if value:
                    raise ScenarioError("has no effect: nothing is trained with --world emu", option, "no such option")
            planned = [(claim, testbed_runs(claim, seeds, full)) for claim in chosen]
            emulated = [(claim_on_testbed(claim, plan), plan) for claim, plan in planned]
            emulated = [(claim, plan) for claim, plan in emulated if claim.expects]
            if not emulated:
                expected = "S1, S3, S8, S9 or S10 of dlcp, or M2 of mlt"
                raise ScenarioError("none of the claims fits the testbed", "--world emu", expected)
            return [claim for claim, _ in emulated], [plan for _, plan in emulated], seeds
        device = device if device != "auto" else auto_device()  # part of a training run's key
        plans = [runs_of_claim(claim, seeds, full, data, device) for claim in chosen]
        if device != "cpu" and not any(run.trained for plan in plans for run in plan):
            raise ScenarioError(f"{device} has no effect: {', '.join(names)} only simulates", "--device", "no --device")
        check_trainings(run.scenario for plan in plans for run in plan)
        if not full:
            chosen = [planned_part(claim, plan) for claim, plan in zip(chosen, plans, strict=True)]
        return chosen, plans, seeds


def _results(runs: Sequence[PlannedRun], store: RunStore, jobs: int, on_progress: OnProgress, full: bool) -> Figures:
    """Return the measures of all runs by key, after simulating those without a stored Result. In a full reproduction
    training runs differ by hours: they are timed first and run shortest first, so that most of them are done if it is
    stopped."""

    measures_by_key: Figures = {}
    for run in runs:
        stored = _figures(run, store)
        if stored is not None:
            measures_by_key[run.key] = stored
    left = [run for run in runs if run.key not in measures_by_key]
    seconds = estimate_costs(left, on_progress) if full else {}
    left.sort(key=lambda run: seconds.get(run.key, 0.0))
    progress = _Progress(left, len(runs), {run.key: seconds.get(run.key, 1.0) for run in left}, on_progress)
    for run in _play(left, store, jobs):
        figures = _figures(run, store)
        if figures is None:
            raise GradwireError(
                "left no Result", run.name, "a run that completes; gradwire reproduce resumes the others"
            )
        measures_by_key[run.key] = figures
        progress.done(run)
    return measures_by_key


class _Progress:
    """Progress of a reproduction. Work is measured in processor seconds of training if they are known; otherwise all
    runs count the same."""

    def __init__(
        self, left: Sequence[PlannedRun], runs: int, work: Mapping[str, float], on_progress: OnProgress
    ) -> None:
        self.runs, self.work, self.on_progress = runs, work, on_progress
        self.done_runs, self.done_work = runs - len(left), 0.0
        self.whole = sum(work.values())
        self.estimate = RemainingTime(len(left))
        self._say("")

    def done(self, run: PlannedRun) -> None:
        """Count a finished run."""
        self.done_runs += 1
        self.done_work += self.work[run.key]
        self.estimate.done(self.work[run.key])
        self._say(f", {run.name}")

    def _say(self, last: str) -> None:
        left = self.whole - self.done_work
        rest = f", {self.estimate.text(left)}" if self.done_work and left > 0 else ""
        share = self.done_work / self.whole if self.whole else 1.0
        self.on_progress(share, f"{self.done_runs}/{self.runs} runs{rest}{last}")


def _figures(run: PlannedRun, store: RunStore) -> dict[str, float] | None:
    """Return the measures of a stored Result, with training costs if needed; None if there is none."""
    measures = store.figures(run.key)
    if measures is None or not (run.target or run.rates):
        return measures

    folder = store.place(run.key)
    step_ps = cached_step_times(folder, run.scenario, run.rates, run.computing) if run.rates else {}
    return measures | costs(TrainingResult.read(folder), run.target, step_ps)


def _play(runs: Sequence[PlannedRun], store: RunStore, jobs: int) -> Iterator[PlannedRun]:
    """Simulate or train runs, `jobs` at a time, and emulate runs one by one; yield each that is done."""
    for run in runs:
        if jobs == 1 or run.is_emulated:
            _one(run, store)
            yield run
    runs = [run for run in runs if jobs > 1 and not run.is_emulated]
    if not runs:
        return
    from gradwire.sim.engine.specialization import engine_fingerprint

    by_key = {run.key: run for run in runs}
    works = [  # training runs determine their engines themselves
        Task(run.key, _one, (run, store), "" if run.trained else engine_fingerprint(run.scenario), run.name)
        for run in runs
    ]
    for key, _ in completed(works, jobs, "a run that completes; gradwire reproduce resumes", "failed: "):
        yield by_key[key]


def _one(run: PlannedRun, store: RunStore) -> None:
    """Run, and measure a simulation here, so that the parent only reads its figures."""
    function = _emulated if run.is_emulated else _trained if run.trained else _simulated
    function(run.scenario, store.place(run.key))
    if not run.trained:
        store.figures(run.key)


def _emulated(scenario: Scenario, folder: Path) -> None:
    """Run on the testbed in virtual time and store the Result."""
    from gradwire.emu.testbed import Request
    from gradwire.studies.connect import emulate

    emulate(scenario, request=Request(clock="virtual")).write(folder)


def _simulated(scenario: Scenario, folder: Path) -> None:
    """Simulate and store the Result; a Result of the same run from another process is equally valid."""

    try:
        simulate_into(scenario, folder)
    except ResultError:
        if not folder.exists():
            raise


def _trained(scenario: Scenario, folder: Path) -> None:
    """Train and store the result, resuming an earlier process."""

    assert scenario.training is not None
    train(scenario, folder, data=_data_of(scenario.training))


_read: dict[tuple[object, ...], Images | Text] = {}


def _data_of(table: Training) -> Images | Text:
    """Return the data of a training run, reusing that of the previous run if equal."""
    from gradwire.training.build import data_of

    settings = (table.model, table.data, table.size, table.augment, table.samples)
    if settings not in _read:
        _read.clear()
        _read[settings] = data_of(table)
    return _read[settings]


def _ground(plans: Sequence[Sequence[PlannedRun]], device: str, seeds: int) -> Json:
    """Return the basis of all figures (`gradwire.studies.reproduce.claims_page.basis_text`)."""

    runs = [run for plan in plans for run in plan]
    emulated = "kernel and sockets in virtual time" if any(run.is_emulated for run in runs) else ""
    traces = dict.fromkeys(job.trace for run in runs for job in run.scenario.job)
    computed = (auto_device() if device == "auto" else device) if any(run.trained for run in runs) else ""
    rules = {POLICIES[run.policy].label: POLICIES[run.policy].ours for run in runs if POLICIES[run.policy].ours}
    return {"traces": [Path(trace).name for trace in traces], "device": computed, "seeds": seeds, "ours": rules} | (
        {"testbed": emulated} if emulated else {}
    )


def _write(out: Path, name: str, judgements: Sequence[Judgement], how: str, ground: Json) -> None:
    """Write figures, page and plain values; those of another choice of claims are overwritten."""
    from gradwire.studies.report.other_sections import claims_page
    from gradwire.studies.reproduce.claims_page import as_dict, png_of
    from gradwire.studies.reproduce.plots.claim_plots import claim_figure

    figures = [claim_figure(judgement) for judgement in judgements]
    for judgement, figure in zip(judgements, figures, strict=True):
        if figure is not None:
            (out / f"{judgement.claim.id}.png").write_bytes(png_of(figure))
    data = {"command": how, **ground, **as_dict(judgements)}
    texts = {
        "page.html": claims_page(f"Claims of {name}, reproduced", judgements, figures, data),
        "claims.json": json.dumps(data, indent=1),
    }
    for file, text in texts.items():
        with atomic_replace(out / file) as partial:
            partial.write_text(text, encoding="utf-8")
