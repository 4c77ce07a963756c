"""`make_predictor` runs training runs, samples their parameters, and fits a parameter predictor to the samples.

The training runs are ordinary ones. Finished parts are in a folder beside the output file, and are reused.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.result_store.folders.output_folder import atomic_replace, refuse_unwritable, write_error
from gradwire.result_store.provenance import command_line
from gradwire.scenarios.errors import ResultError, ScenarioError, import_extra
from gradwire.scenarios.validation.argument_checks import require_path

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer

ProgressCallback = Callable[[float, str], None]


@dataclass(frozen=True)
class PredictorPlan:
    """The training runs that a predictor is made from, and its fitting.

    models, seeds : every model is trained with every seed; the last seed's samples are held out for evaluation.
    data, size, limit : of models of pictures, see `gradwire.training.data.images`.
    text, length : of models of texts, see `gradwire.training.data.text`.
    workers, batch, steps : of each training run.
    rate : of models of pictures, `text_rate` of texts, whose gradients are clipped to norm 1.
    optimizer, schedule : see `gradwire.training.recipe.Recipe`.
    epochs : of the fitting.
    """

    models: tuple[str, ...] = ("resnet8",)
    seeds: tuple[int, ...] = (1, 2, 3)
    data: str = "synthetic"
    size: int = 16
    limit: int | None = 4096
    text: str = "synthetic"
    length: int = 32
    workers: int = 8
    batch: int = 16
    steps: int = 600
    rate: float = 0.1
    text_rate: float = 1.0
    optimizer: str = "sgd"
    schedule: str = "triangle"
    epochs: int = 40


def make_predictor(
    kind: str,
    out: str | Path,
    plan: PredictorPlan | None = None,
    *,
    threads: int = 1,
    on_progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Make a predictor, and return its manifest.

    kind : "mp2" or "wnn".
    out : the file; finished training runs are in a folder beside it, and are reused.
    on_progress : called with (fraction, message).

    Raises ScenarioError, TraceError if the kind, model or data is unknown, there are fewer than two seeds, or the
    training runs are too short.
    Raises ResultError if the file is a folder, or cannot be written; or the folder beside it has training runs of
    another plan.
    Raises MissingExtraError if torch is not installed.
    """
    torch = import_extra("torch", "capture")
    from gradwire.training.parameter_server.block_fitting import sample_blocks
    from gradwire.training.parameter_server.predictor import NETS, save_predictor
    from gradwire.training.parameter_server.predictor_fitting import sample_scalars

    plan, path = plan or PredictorPlan(), _output_path(out)
    if kind not in NETS:
        raise ScenarioError(f"{kind} has no predictor", "KIND", f"one of {', '.join(NETS)}")
    if len(set(plan.seeds)) < 2:
        raise ScenarioError(f"{len(set(plan.seeds))} seeds", "--seed", "two or more: the last one is held out")
    torch.set_num_threads(threads)
    trainings = _trainers(kind, plan)
    folder = _work_folder(path, kind, plan)
    on_progress = on_progress or (lambda share, words: None)
    samples = []
    for number, (name, seed, make) in enumerate(trainings):
        file = folder / f"{name}-{seed}.pt"
        if not file.is_file():
            begin, count = number / len(trainings), len(trainings)
            sample = sample_blocks if kind == "mp2" else sample_scalars
            samples_of_run = sample(
                make(),
                seed,
                lambda s, w, b=begin, n=count, of=f"{name}, seed {seed}": (  # type: ignore[misc]
                    on_progress(0.8 * (b + s / n), f"{of}, {w}")
                ),
            )
            with atomic_replace(file) as partial:
                torch.save(samples_of_run, partial)
        samples.append((name, seed, torch.load(file, weights_only=True)))
    fitting = _fit(kind, plan, folder, [(seed, run_samples) for _, seed, run_samples in samples], on_progress)
    net, errors = fitting.finished()
    unseen = {name: run_samples for name, seed, run_samples in samples if seed == plan.seeds[-1]}
    manifest = {
        "kind": kind,
        "date": datetime.date.today().isoformat(),
        "command": command_line(),
        "plan": asdict(plan),
        "error": _rounded(errors),
        "error_by_model": {name: _rounded(fitting.judge(net, run_samples)) for name, run_samples in unseen.items()},
        "torch": torch.__version__,
    }
    try:
        with atomic_replace(path) as partial:
            save_predictor(partial, net, manifest)
    except OSError as error:
        raise write_error(error, path) from None
    return manifest


def _rounded(errors: Mapping[str, float]) -> dict[str, float]:
    return {name: round(error, 4) for name, error in errors.items()}


def _trainers(kind: str, plan: PredictorPlan) -> list[tuple[str, int, Callable[[], Trainer]]]:
    """Return (model, seed, function that makes its trainer); the plan and data are checked before any training."""
    import torch

    from gradwire.scenarios.schema.job.training import Training
    from gradwire.training.data import Images, Text, images, text
    from gradwire.training.recipe import Recipe, check_samples
    from gradwire.training.scenario_checks import model_kind
    from gradwire.training.trainer import Trainer

    kinds = {name: model_kind(Training(model=name)) for name in plan.models}
    data: dict[str, Images | Text] = {}
    for task in {kind.task for kind in kinds.values()}:
        pictures = task == "images"
        data[task] = images(plan.data, plan.size, limit=plan.limit) if pictures else text(plan.text, plan.length)
        check_samples(len(data[task]), plan.workers, plan.batch)
        if kind == "wnn":
            _check_epochs(plan, len(data[task]) // (plan.workers * plan.batch), task)

    def recipe(name: str, seed: int) -> Recipe:
        rate, clip = (plan.rate, 0.0) if kinds[name].task == "images" else (plan.text_rate, 1.0)
        choices: dict[str, Any] = {"optimizer": plan.optimizer, "schedule": plan.schedule}
        return Recipe(plan.workers, plan.batch, plan.steps, rate, clip=clip, data_seed=seed, seed=seed, **choices)

    def make(name: str, recipe: Recipe) -> Trainer:
        torch.manual_seed(recipe.seed)
        model_data = data[kinds[name].task]
        return Trainer(kinds[name].build(model_data.classes), model_data, recipe)

    return [(name, seed, partial(make, name, recipe(name, seed))) for name in plan.models for seed in plan.seeds]


def _check_epochs(plan: PredictorPlan, epoch: int, task: str) -> None:
    """Raise ScenarioError if a training run has too few epochs, of `epoch` steps each, for one prediction."""
    from gradwire.training.parameter_server.weight_nowcaster import HISTORY

    if plan.steps < 2 * HISTORY * epoch:
        expected = f"at least {2 * HISTORY * epoch}: {2 * HISTORY} epochs of {epoch} steps with this data ({task})"
        raise ScenarioError(f"is {plan.steps}", "--steps", expected)


def _fit(
    kind: str, plan: PredictorPlan, folder: Path, samples: Sequence[tuple[int, Any]], on_progress: ProgressCallback
) -> Any:
    """Return a finished fitting, resumed if it was interrupted."""
    import torch

    from gradwire.training.parameter_server.predictor_fitting import Fitting

    def joined(unseen: bool) -> Any:
        selected = [run_samples for seed, run_samples in samples if (seed == plan.seeds[-1]) is unseen]
        return {name: torch.cat([run_samples[name] for run_samples in selected]) for name in selected[0]}

    fitting, file = Fitting(kind, joined(False), joined(True), plan.epochs), folder / "fitting.pt"
    if file.is_file():
        fitting.load_state_dict(torch.load(file, weights_only=True))
    while fitting.done < plan.epochs:
        error = fitting.step()
        on_progress(0.8 + 0.2 * fitting.done / plan.epochs, f"epoch {fitting.done}, error {error:.3f}")
        with atomic_replace(file) as partial:
            torch.save(fitting.state_dict(), partial)
    return fitting


def _output_path(out: str | Path) -> Path:
    """Return the path of the predictor, which may exist; checked before any training."""
    path = require_path(out, "make_predictor(out)", "a file", ResultError)
    if os.path.isdir(path):  # Path.is_dir raises if a name is too long
        raise ResultError("is a folder", str(path), "a file in it, or beside it")
    if not os.path.lexists(path):
        refuse_unwritable(path, file=True)
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise ResultError("may not be written there", str(path), "a folder that can be written to")
    return path


def _work_folder(path: Path, kind: str, plan: PredictorPlan) -> Path:
    """Return the folder of training samples, new or of the same plan."""
    folder = path.with_name(f"{path.name}.work")
    plan_text = json.dumps({"kind": kind, **asdict(plan)}, indent=1)
    plan_file = folder / "plan.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if plan_file.is_file():
            if plan_file.read_text(encoding="utf-8") != plan_text:
                raise ResultError(
                    "holds training runs of another plan", str(folder), f"as {plan_file} says, or another --out"
                )
        elif any(folder.iterdir()):
            raise ResultError("holds something else", str(folder), "another --out")
        else:
            plan_file.write_text(plan_text, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"cannot be written: {error.strerror}", str(folder), "a folder with free space") from None
    return folder
