"""Defines the commands `gradwire train`, which trains models over a scenario's network, and `predictor`, which fits
parameter predictors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli import options
from gradwire.cli.effect_notes import print_notes
from gradwire.cli.live_page import current_page
from gradwire.cli.terminal import for_people, progress
from gradwire.scenarios.interrupt import defer_interrupt

if TYPE_CHECKING:
    from gradwire.result_store.training_result import TrainingResult
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.studies.run_logs.targets import LogFunction


CONTENT = "training runs"
SEEDS = ("seed", "training.model_seed", "training.data_seed", "training.network.seed")
"""Keys that `--seeds` sets."""


@for_people
def cmd_train(
    scenario: options.ScenarioName,
    policy: options.PolicyName = None,
    every: Annotated[bool, typer.Option("--all", help="Train under each policy, one after the other.")] = False,
    trace: options.TraceName = None,
    set_: options.Set = None,
    until: Annotated[str | None, typer.Option(metavar="accuracy=X", help="Stop at this validation accuracy.")] = None,
    device: options.Device = None,
    threads: Annotated[
        int, typer.Option(min=1, max=128, help="Threads of torch; results may depend on it in the last bits.")
    ] = 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99,
            help="Train with seeds 1 to this: other initial parameters, order of data, losses; "
            "and compare policies statistically.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Parallel training runs, each in its own process.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; existing training runs of the same scenario are resumed.")
    ] = None,
    plots: options.Plots = "png",
    log: options.Log = None,
    live: options.Live = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Train a model over the scenario's network: gradients that the network loses are missing in the update, and its
    time is the clock. Needs the extra "capture"."""
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.scenarios.loading.load import load_scenario
    from gradwire.studies.run_logs.targets import check_logs
    from gradwire.studies.training.multi_seed import with_seed
    from gradwire.studies.training.run import parse_target

    options.check_plot_format(plots)
    logs = log or []
    check_logs(logs, "--log")
    target = parse_target(until)
    if every and policy is not None:
        raise ScenarioError("cannot be combined with --all", "--policy", expected="one of them")
    overrides = options.overrides_from_options(set_, trace, device=device)
    if seeds is not None and (conflicts := [each for each in overrides if each.partition("=")[0].strip() in SEEDS]):
        raise ScenarioError(f"sets the same key as --set {conflicts[0]}", "--seeds", "one of the two")
    loaded = load_scenario(scenario, set=overrides, policy=policy)
    chosen = loaded.variants() if every else [loaded]
    print_notes(chosen, trained=True)
    if jobs > 1 and any(each.training is not None and each.training.network == "emulated" for each in chosen):
        what = "would let training runs on real sockets disturb each other"
        raise ScenarioError(what, "--jobs", expected='1 with training.network = "emulated"')
    scenarios = [
        each if seeds is None else with_seed(each, seed) for seed in range(1, (seeds or 1) + 1) for each in chosen
    ]
    with _claimed_folders(out, scenario, seeds) as folders:
        requests = [
            (each, None if out is None else folders[n // len(chosen)] / each.policy_name)
            for n, each in enumerate(scenarios)
        ]
        runs_by_number: dict[int, TrainingResult] = {}
        try:
            for number, run in _train(requests, jobs, target, threads, as_json, seeds is not None, logs):
                runs_by_number[number] = run
        except KeyboardInterrupt:
            with defer_interrupt():
                _print_interrupted(len(runs_by_number), len(requests), out)
                if out is not None and runs_by_number:
                    _write_summaries(_in_order(runs_by_number), target, out, folders, plots)
            raise
        runs = _in_order(runs_by_number)
        with defer_interrupt():
            _print_runs(runs, target, as_json, seeds is not None)
            if out is not None:
                _write_summaries(runs, target, out, folders, plots)
                if not as_json:
                    typer.echo(f"training runs and plot: {out}")


@contextmanager
def _claimed_folders(out: Path | None, scenario: str, seeds: int | None) -> Iterator[list[Path]]:
    """Yield the folders of each seed's training runs, or of the scenario as it is, claimed as by separate commands.
    Raises ResultError for a folder of the other kind."""
    from gradwire.result_store.folders.resumable_folder import resumable_folder
    from gradwire.result_store.training_result import MARKER_FILE, SEED_PREFIX, SUMMARY, seed_folders, write_order
    from gradwire.scenarios.errors import ResultError
    from gradwire.scenarios.loading.load import load_tables

    if out is None:
        yield []
        return
    names = [str(policy["name"]) for policy in load_tables(scenario).get("policy", ()) if "name" in policy]
    if seeds is None and out.is_dir() and seed_folders(out):
        raise ResultError("holds training runs of several seeds", str(out), "--seeds, or a new folder")
    if seeds is not None and any(out.glob(f"*/{SUMMARY}")):
        raise ResultError("holds training runs of one seed", str(out), "no --seeds, or a new folder")
    with ExitStack() as stack:
        stack.enter_context(resumable_folder(out, MARKER_FILE, CONTENT))
        folders = [out] if seeds is None else [out / f"{SEED_PREFIX}{seed}" for seed in range(1, seeds + 1)]
        for folder in folders:
            if folder != out:
                stack.enter_context(resumable_folder(folder, MARKER_FILE, CONTENT))
            write_order(folder, names)  # all policies, since the folder may have runs of others
        yield folders


def _train(
    requests: Sequence[tuple[Scenario, Path | None]],
    jobs: int,
    until: float | None,
    threads: int,
    quiet: bool,
    seeded: bool,
    log: Sequence[str],
) -> Iterator[tuple[int, TrainingResult]]:
    """Yield (number, training run), one after the other in this process or in parallel processes."""
    from gradwire.studies.training.multi_seed import train_in_processes
    from gradwire.studies.training.run import train

    if jobs > 1:
        with progress(f"train {requests[0][0].name}", quiet) as show:
            yield from train_in_processes(requests, jobs, until, threads, show, log)
        return
    for number, (scenario, folder) in enumerate(requests):
        seed = f", seed {scenario.seed}" if seeded else ""
        with progress(f"train {scenario.name} {scenario.policy_name}{seed}", quiet) as show:
            page = current_page()
            shown: list[str | LogFunction] = [*log, *([page.training] if page is not None else [])]
            run = train(scenario, folder, until=until, threads=threads, progress=show, log=shown)
        yield number, run


def _in_order(runs_by_number: Mapping[int, TrainingResult]) -> list[TrainingResult]:
    return [runs_by_number[number] for number in sorted(runs_by_number)]


def _print_runs(runs: Sequence[TrainingResult], target: float | None, as_json: bool, seeded: bool) -> None:
    """Print the training runs, their notes, or their JSON."""
    from gradwire.analysis.comparison.tables import print_rows
    from gradwire.analysis.training.seed_statistics import arms_of, figures_of, table_over

    if as_json:
        listed = [{**run.summary, "scores": _plain(list(run.scores)), "diverged": run.diverged} for run in runs]
        arms = {"arms": _plain(figures_of(arms_of(runs), target))} if seeded else {}
        typer.echo(json.dumps({"trainings": listed, **arms}))
    elif seeded:
        print_rows(*table_over(arms_of(runs), target))
    else:
        from gradwire.analysis.training.training_comparison import table_of

        print_rows(*table_of(runs, target))
    notes = [note for run in runs for lines in (_replay_words, _engine_words, _device_words) for note in lines(run)]
    for note in dict.fromkeys(notes):
        typer.echo(note, err=True)
    for run in runs:
        if run.diverged is not None:
            which = f"{run.summary['policy']}{f', seed {run.seed}' if seeded else ''}"
            typer.echo(f"note: {which}: the loss is not finite from step {run.diverged} on", err=True)


def _write_summaries(
    runs: Sequence[TrainingResult], target: float | None, out: Path, folders: Sequence[Path], plots: str
) -> None:
    """Write tables and plots of the training runs into their folders."""
    from gradwire.analysis.comparison.tables import table_text
    from gradwire.analysis.training.seed_statistics import arms_of, table_over
    from gradwire.analysis.training.training_comparison import save_arms, table_of
    from gradwire.result_store.training_result import write_table

    for seed, folder in enumerate(folders, 1):
        seed_runs = [run for run in runs if folder == out or run.seed == seed]
        if seed_runs:
            write_table(folder, table_text(*table_of(seed_runs, target)))
            save_arms([(run.name, [run]) for run in seed_runs], folder / f"accuracy.{plots}")
    if list(folders) != [out]:
        arms = arms_of(runs)
        write_table(out, table_text(*table_over(arms, target)))
        save_arms([(arm.name, arm.trainings) for arm in arms], out / f"accuracy.{plots}")


def _print_interrupted(done: int, total: int, out: Path | None) -> None:
    """Print what remains of an interrupted command."""
    from gradwire.result_store.training_result import CHECKPOINT, SUMMARY

    count = f"{done} of {total} training runs are complete; " if total > 1 else ""
    saved = f"{out} holds the last checkpoint; the same command resumes from it"
    if out is None:
        saved = "nothing is saved without --out"
    elif not any(each for name in (CHECKPOINT, SUMMARY) for each in out.rglob(name)):
        saved = f"no checkpoint has been written to {out} yet"
    typer.echo(f"{count}{saved}", err=True)


def _replay_words(done: TrainingResult) -> list[str]:
    """Return notes on network keys of a replay's scenario that have no effect."""
    replayed = done.summary.get("replayed")
    if not (replayed and replayed["otherwise"]):
        return []
    keys = ", ".join(replayed["otherwise"])
    folder = replayed["folder"]
    return [f"note: {done.summary['policy']}: times and losses are those of {folder}; ignored keys that differ: {keys}"]


def _engine_words(done: TrainingResult) -> list[str]:
    """Return lines on the testbed and its deviations from the scenario, if the network was emulated."""
    engine = done.summary.get("engine")
    if not engine:
        return []
    lines = [f"on real sockets: {engine['clock']} clock, switches {engine.get('switch', 'none yet')}"]
    lines += [f"differs: {words}" for words in engine.get("substitutions", ())]
    if count := len(engine["disturbed"]):
        lines.append(
            f"disturbed: {done.summary['policy']}: this machine was too slow for {count} of its steps; the first, "
            f"{engine['disturbed'][0]}"
        )
    return lines


def _device_words(done: TrainingResult) -> list[str]:
    """Return lines on the compute device and its nondeterminism, if it was not a CPU."""
    lines = []
    for device in done.summary.get("devices", ()):  # absent in older training runs
        if device["device"] != "cpu":
            lines.append(f"computed on {device['device']}, {device['name']}")
        if device["not_deterministic"]:
            names = ", ".join(device["not_deterministic"])
            lines.append(f"note: not reproducible to the bit: on {device['device']} {names} are nondeterministic")
        lines += [f"note: slower than {device['name']} could: {words}" for words in device.get("slower", ())]
    return lines


def _plain(value: Any) -> Any:
    """Return the value for JSON, with non-finite numbers as null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@for_people
def cmd_predictor(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="System of the predictor: mp2 or wnn.",
            autocompletion=options.complete_words("mp2", "wnn"),
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output file; a folder beside it holds the finished training runs.")],
    model: Annotated[list[str] | None, typer.Option(help="Model of the training runs; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Two or more seeds; the last one is the test set.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of pictures, or synthetic.")] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Pixels of a side.")] = None,
    text: Annotated[str | None, typer.Option(help="Text file for language models, or synthetic.")] = None,
    samples: Annotated[int | None, typer.Option(min=200, help="Maximum number of pictures.")] = None,
    steps: Annotated[int | None, typer.Option(min=60, help="Steps of each training run.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of each of 8 workers in a step.")] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Optimizer of the training runs: sgd or adamw.", autocompletion=options.complete_words("sgd", "adamw")
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Schedule of the rate: triangle, constant or steps.",
            autocompletion=options.complete_words("triangle", "constant", "steps"),
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate of models of pictures.")] = None,
    text_rate: Annotated[float | None, typer.Option(help="Learning rate of models of texts.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the fit.")] = None,
    threads: Annotated[int, typer.Option(min=1, max=128, help="Threads of torch.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Build a predictor of parameters: run plain training runs, sample them, and fit a network. Needs the extra
    "capture"."""
    from gradwire.studies.training.predictor_making import PredictorPlan, make_predictor

    choices = {
        "models": tuple(model) if model else None,
        "seeds": tuple(seed) if seed else None,
        "data": data,
        "size": size,
        "text": text,
        "limit": samples,
        "steps": steps,
        "batch": batch,
        "optimizer": optimizer,
        "schedule": schedule,
        "rate": rate,
        "text_rate": text_rate,
        "epochs": epochs,
    }
    plan = PredictorPlan(**{name: value for name, value in choices.items() if value is not None})  # type: ignore[arg-type]
    with progress(f"predictor {kind}", as_json) as show:
        manifest = make_predictor(kind, out, plan, threads=threads, on_progress=show)
    if as_json:
        typer.echo(json.dumps(manifest))
        return
    rows = {"": manifest["error"]} if len(plan.models) == 1 else {"": manifest["error"], **manifest["error_by_model"]}
    for name, errors in rows.items():
        of = f" of {name}" if name else ""
        typer.echo(
            f"relative error of predicted updates in an unseen training run{of}: "
            + ", ".join(f"{how} {value:.3f}" for how, value in errors.items())
        )
    typer.echo(f"predictor: {out}")
