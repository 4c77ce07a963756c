"""`recommend` searches the settings of a scenario that make it fast, and says what each is worth.

Runs are those of sweeps: processes of this machine that store every outcome at once and atomically. The search depends
on the outcomes only, so an interrupted or killed one resumes by repeating it: what is stored is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.result_store.folders.resumable_folder import resumable_folder
from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import GradwireError, ResultError, ScenarioError
from gradwire.scenarios.interrupt import defer_interrupt, is_raised
from gradwire.scenarios.json_data import parse_json
from gradwire.scenarios.loading.load import Overrides, as_override_list, as_scenario, load_scenario
from gradwire.scenarios.readable import three_digits, wall_text
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.validation.argument_checks import (
    require_integer,
    require_path,
    require_positive,
    wrong_type_error,
)
from gradwire.studies.notebook import heard
from gradwire.studies.parallel.process_pool import (
    Task,
    TaskOutcome,
    Workers,
    lasting_workers,
    max_parallel_simulations,
    run_tasks,
)
from gradwire.studies.parallel.sweep_worker import measure_and_store
from gradwire.studies.recommend.knobs import Settings, parse_knob, settings_of
from gradwire.studies.recommend.outcome import Recommendation
from gradwire.studies.recommend.search import Plan, Search, Setting, Space, Trial
from gradwire.studies.sweep.measures import MEASURES, check_measures, sender_kind, split_measure
from gradwire.studies.sweep.point_store import PointStore, Record, write_errors
from gradwire.studies.sweep.points import key_of, scenario_key

OnProgress = Callable[[float, str], object]
MARK, WHAT = "recommend.txt", "a recommendation"
REQUEST = "request.json"
METRICS = {
    "iteration_time": ("iteration_mean_ps", "completion_mean_ps"),
    "tail": ("iteration_max_ps", "completion_p99_ps"),
}
"""Short names of metrics: the measure of a job, and that of traffic."""
DEFAULT_BUDGET = 60
MOST = 1e9
"""Largest budget in runs or minutes (our choice)."""
SHORTER, SHORTEST = 4, 2
"""A rung has a fourth of the iterations of the next one, and at least two: the first is no steady state."""
START_S = 0.5
"""Seconds of a run beside the simulation: start, trace, measures [measured]."""


def recommend(
    scenario: Scenario | str | Path,
    *,
    set: Overrides = (),
    policy: str | None = None,
    knobs: Mapping[str, Sequence[Any] | None] | Sequence[str] | None = None,
    metric: str = "iteration_time",
    budget: float | None = None,
    minutes: float | None = None,
    seeds: int = 3,
    out: str | Path | None = None,
    jobs: int | None = None,
    progress: OnProgress | None = None,
) -> Recommendation:
    """Search the settings that make a scenario fast, within a budget of runs.

        advice = gradwire.recommend("ring", budget=40)
        print(advice.text)                      # the verdict
        advice.scenario                         # the scenario with the recommended settings

    scenario, set, policy : as for `load_scenario`; its settings are the user's, with which all others are compared.
    knobs : keys and values to try, such as {"transport.kind": ["dctcp", "cubic"]} or ["transport.kind=dctcp,cubic"]; a
        key without values has default ones. If absent, keys that can have an effect and cost no hardware.
    metric : what should be small: "iteration_time", "tail", or a measure of sweeps that is a time or a slowdown.
    budget : full runs, 60 if absent; a run with a part of the iterations counts as that part.
    minutes : the budget as minutes of one processor, by the cost that `gradwire check` estimates.
    seeds : of the final comparison, from the scenario's own on.
    out : folder of records, table, plot and recommended scenario, by default `results/recommend-NAME`; an interrupted
        search in it is resumed.
    jobs : simultaneous runs; the outcome does not depend on it.
    progress : called with (fraction, message).

    Raises `ScenarioError` if the scenario, a knob or the budget is invalid, before anything runs.
    Raises `ResultError` if `out` holds something else, or another search.
    Raises `GradwireError` if the scenario itself fails.
    Raises `KeyboardInterrupt` on Ctrl-C; finished runs are kept.
    """
    loaded = _loaded(scenario, set, policy)
    seeds = require_integer(seeds, "recommend(seeds)", 1, ScenarioError)
    jobs = None if jobs is None else require_integer(jobs, "recommend(jobs)", 1, ScenarioError)
    metric = _metric(metric, loaded)
    bandwidth_delay, run_s = _network_and_cost(loaded)
    settings = settings_of(loaded, _knob_values(knobs), bandwidth_delay)
    iterations = _rung_iterations(loaded)
    plan = Plan(_budget(budget, minutes, run_s), tuple(count / iterations[-1] for count in iterations), seeds)
    if plan.budget < plan.least - 1e-9:
        needed = f"at least {three_digits(plan.least)} runs, or fewer seeds"
        if minutes is not None:
            needed += f"; about {wall_text(plan.least * run_s)}"
        raise ScenarioError(f"buys {three_digits(plan.budget)} runs", "recommend(budget)", needed)
    folder = (
        Path("results") / f"recommend-{loaded.name}"
        if out is None
        else require_path(out, "out", "a folder", ResultError)
    )
    with (
        resumable_folder(folder, MARK, WHAT) as output_dir,
        heard(f"recommend {loaded.name}", progress) as on_progress,
        lasting_workers() as workers,
    ):
        _refuse_other_request(output_dir, settings, metric, seeds)
        runs = _Runs(settings, metric, iterations, plan, output_dir, jobs, workers, on_progress)
        search = Search(_space(settings), plan, runs.run, loaded.seed)
        try:
            search.finish()
        except BaseException as stop:
            if isinstance(stop, KeyboardInterrupt) or is_raised():
                done = len(list(runs.store.points.glob("*.json")))
                stop.add_note(f"{'1 run' if done == 1 else f'{done} runs'} done; the same command resumes")
            raise
        if not search.chosen:
            failed = next(record.why for record in runs.records.values() if record.state == "failed")
            raise GradwireError(f"fails with its own settings: {failed}", loaded.display_name, "a scenario that runs")
        with defer_interrupt():
            outcome = Recommendation(settings, search, metric, runs.failures, runs.lost_shares(search), output_dir)
            outcome.write()
        return outcome


def _loaded(scenario: Any, overrides: Overrides, policy: str | None) -> Scenario:
    """Return the user's scenario after all checks of a run."""
    from gradwire.sim.preparation import check_variants
    from gradwire.sim.simulate import check_simulated

    if isinstance(scenario, Scenario):
        if as_override_list(overrides, "recommend(set)"):
            raise ScenarioError("has no effect on a Scenario", "recommend(set)", "a name or file, or no overrides")
        loaded = scenario if policy is None else scenario.variant(policy)
    elif isinstance(scenario, str | Path):
        loaded = load_scenario(scenario, set=overrides, policy=policy)
    else:
        loaded = as_scenario(scenario, "recommend(scenario)")
    if not loaded.senders:
        raise ScenarioError("has no job and no traffic", loaded.display_name, "[[job]] or [[traffic]]")
    check_simulated(loaded)
    check_variants([loaded])
    return loaded


def _metric(metric: Any, scenario: Scenario) -> str:
    """Return the measure of a metric. Raises `ScenarioError` unless it exists, and smaller is better."""
    if not isinstance(metric, str):
        raise wrong_type_error(metric, "recommend(metric)", "a metric, such as iteration_time", ScenarioError)
    if metric in METRICS:
        return METRICS[metric][0 if scenario.job else 1]
    if split_measure(metric)[1] not in MEASURES and (near := nearest(metric, METRICS)):
        raise ScenarioError(f"no metric {metric!r}", "recommend(metric)", f"{', '.join(METRICS)}, or a measure{near}")
    names = [table.name for table in scenario.senders]
    check_measures([metric], names, "recommend(metric)")
    sender, name = split_measure(metric)
    if not (name.endswith("_ps") or "slowdown" in name or name == "exposed_share"):
        expected = f"a time or a slowdown, such as {', '.join(METRICS)}, completion_p99_ps"
        raise ScenarioError(f"{metric} is not to be minimised", "recommend(metric)", expected)
    tables = [table for table in scenario.senders if not sender or table.name == sender][:1]
    kind = "job" if any(table in scenario.job for table in tables) else "traffic"
    if sender_kind(name) not in ("", kind):
        raise ScenarioError(f"{metric} exists for {sender_kind(name)} only", "recommend(metric)", ", ".join(METRICS))
    return metric


def _network_and_cost(scenario: Scenario) -> tuple[float | None, float]:
    """Return the link rate times the longest base round trip in bytes, if known, and the seconds of a run."""
    from gradwire.sim.cost_estimate import estimate_cost
    from gradwire.sim.preparation import extents, prepare_inputs

    inputs = prepare_inputs(scenario)
    ((_, extent),) = extents([scenario], [inputs.needs.network])
    cost = estimate_cost(scenario, inputs)
    trips = extent.round_trips
    return (
        None if trips is None else scenario.link.rate / 8 * trips[1] / 1e12,
        START_S + (0.0 if cost is None else cost.seconds),
    )


def _knob_values(knobs: Any) -> dict[str, Sequence[Any] | None] | None:
    if knobs is None:
        return None
    if isinstance(knobs, Mapping):
        for key, values in knobs.items():
            if not isinstance(key, str):
                raise wrong_type_error(key, "recommend(knobs)", "keys such as transport.kind", ScenarioError)
            if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
                raise wrong_type_error(values, f"recommend(knobs[{key!r}])", "a list of values, or None", ScenarioError)
        return dict(knobs)
    pairs = [parse_knob(text) for text in as_override_list(knobs, "recommend(knobs)")]
    keys = [key for key, _ in pairs]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise ScenarioError("is named twice", f"knob {key}", "each key once, with all its values")
    return dict(pairs)


def _budget(budget: Any, minutes: Any, run_s: float) -> float:
    """Return the budget in full runs."""
    if budget is not None and minutes is not None:
        raise ScenarioError("has no effect beside budget", "recommend(minutes)", "one of the two")
    if minutes is not None:
        expected = "minutes above zero"
        return float(int(_finite(minutes, "recommend(minutes)", expected) * 60 / run_s))
    if budget is None:
        return DEFAULT_BUDGET
    return _finite(budget, "recommend(budget)", "runs above zero")


def _finite(value: Any, where: str, expected: str) -> float:
    """Return a number above zero, and at most `MOST`. Raises `ScenarioError`."""
    number = require_positive(value, where, expected, ScenarioError)
    if number > MOST:
        raise ScenarioError(f"is {value}", where, f"{expected}, at most {MOST:g}")
    return number


def _rung_iterations(scenario: Scenario) -> list[int]:
    """Return the iterations of the first job at every rung, fewest first. A scenario whose end or faults have their own
    times has one rung, and so has one without jobs."""
    if not scenario.job:
        return [1]
    counts = [min(job.iterations for job in scenario.job)]
    is_timed = scenario.fault or scenario.duration is not None or any(job.start for job in scenario.job)
    while not is_timed and len(counts) < 3:
        fewer = max(SHORTEST, -(-counts[0] // SHORTER))
        if fewer > counts[0] / 2:
            break
        counts.insert(0, fewer)
    return counts


def _space(settings: Settings) -> Space:
    ranks = [knob.ranks for knob in settings.knobs]
    return Space(
        tuple(len(knob.values) for knob in settings.knobs),
        tuple(rank is not None for rank in ranks),
        tuple(rank or () for rank in ranks),
        settings.canonical,
    )


def _refuse_other_request(folder: Path, settings: Settings, metric: str, seeds: int) -> None:
    """Write what the folder's search is about. Raises `ResultError` if it holds another one."""
    request = {
        "scenario": scenario_key(settings.scenario),
        "knobs": {knob.key: list(knob.values) for knob in settings.knobs},
        "metric": metric,
        "seeds": seeds,
    }
    path = folder / REQUEST
    if path.is_file():
        before = None
        with suppress(OSError, ValueError):
            before = parse_json(path.read_text(encoding="utf-8"))
        known = before if isinstance(before, dict) else {}
        different = [name for name, value in request.items() if known.get(name) != value]
        if different:
            what = f"holds a search with another {', '.join(different)}"
            raise ResultError(what, str(folder), "another folder, or the same command; budget and jobs may differ")
        return
    with write_errors(folder), atomic_replace(path) as partial:
        partial.write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")


@dataclass
class _Runs:
    """Runs trials in processes, and keeps their records. `failures` : reason by setting, in the order of the runs."""

    settings: Settings
    metric: str
    iterations: Sequence[int]
    plan: Plan
    folder: Path
    jobs: int | None
    workers: Workers
    on_progress: OnProgress
    records: dict[Trial, Record] = field(default_factory=dict)
    failures: dict[Setting, str] = field(default_factory=dict)
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.store = PointStore(self.folder)
        self.store.make()
        self.store.remove_partial_files()

    def scenario_of(self, trial: Trial) -> Scenario:
        """Return the scenario of a trial."""
        scenario = self.settings.scenario_of(trial.setting)
        share = self.plan.rungs[trial.rung]
        jobs = tuple(
            job.model_copy(
                update={"iterations": max(SHORTEST, round(share * job.iterations)) if share < 1 else job.iterations}
            )
            for job in scenario.job
        )
        return scenario.model_copy(update={"job": jobs, "seed": scenario.seed + trial.seed})

    def run(self, trials: Sequence[Trial]) -> dict[Trial, float | None]:
        """Return the values of trials, of which those without a record are run first."""
        from gradwire.sim.engine.specialization import engine_fingerprint

        scenarios = {trial: self.scenario_of(trial) for trial in trials}
        keys: dict[Trial, str] = {}
        engines: dict[Trial, str] = {}
        for trial, scenario in scenarios.items():
            try:
                engines[trial], keys[trial] = engine_fingerprint(scenario), key_of(scenario)
            except GradwireError as error:  # of a component or a trace
                self.records[trial] = Record("failed", why=" ".join(str(error).split()))
        stored = self.store.read_all(keys.values())
        tasks: dict[str, Task[Any]] = {}
        for trial, key in keys.items():
            if key not in stored:
                arguments = (scenarios[trial], key, self.folder, False)
                tasks.setdefault(key, Task(key, measure_and_store, arguments, engines[trial]))
        before = len(self.records)
        hosts = self.settings.scenario.host_count or 0
        most = self.jobs or max_parallel_simulations(hosts)
        count = min(most, max(1, len(tasks)))
        for done, ended in enumerate(run_tasks(list(tasks.values()), count, shared=self.workers), 1):
            stored[ended.work.key] = self._record(ended)
            share = (self.spent + done / len(tasks) * self._cost(trials)) / self.plan.budget
            runs = "1 run" if before + done == 1 else f"{before + done} runs"
            self.on_progress(min(1.0, share), f"{runs}, {three_digits(100 * share)} % of the budget")
        self.spent += self._cost(trials)
        self.records |= {trial: stored[key] for trial, key in keys.items()}
        return {trial: self._value(trial) for trial in trials}

    def _cost(self, trials: Sequence[Trial]) -> float:
        return sum(self.plan.rungs[trial.rung] for trial in trials)

    def _record(self, ended: TaskOutcome) -> Record:
        """Return the record of a run. That of a killed process is not stored, so that a resumed search tries again."""
        if isinstance(ended.error, ResultError):  # writing failed, not the run
            raise ended.error
        if ended.value is not None:
            return ended.value[0]  # type: ignore[no-any-return]
        why = ended.lost and f"its process was {ended.lost}"
        return Record("failed", why=why or f"{type(ended.error).__name__}: {ended.error}")

    def _value(self, trial: Trial) -> float | None:
        """Return the metric of a trial; None with a reason if it failed, or ended before the user's run would."""
        record = self.records[trial]
        value = record.figure(*split_measure(self.metric)) if record.state == "done" else None
        why = record.why or f"has no {self.metric}"
        if record.ended_by == "duration":
            user = self.records.get(Trial((0,) * len(trial.setting), trial.rung, 0))
            if user is not None and user.ended_by == "done":
                value, why = None, "not done at scenario.duration, unlike yours"
        if value is None:
            self.failures.setdefault(trial.setting, why)
        return value

    def lost_shares(self, search: Search) -> tuple[float, float]:
        """Return the share of bytes that the user's setting and the chosen one lose."""
        yours, chosen = (
            self.records[Trial(setting, self.plan.last, 0)].figure(split_measure(self.metric)[0], "lost_share") or 0.0
            for setting in (search.space.user, search.chosen)
        )
        return yours, chosen
