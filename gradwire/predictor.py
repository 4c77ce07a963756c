"""Predictors of parameters for the systems that want one: what `gradwire predictor` does; `make_predictor` is for
programs.

Normal trainings are run, parameters sampled from them, and a network is fitted to the samples. What is done is in a
folder beside the file that comes of it, and is not done again.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.errors import MissingExtraError, ResultError, ScenarioError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.output import cannot_write, refuse_unwritable, replaced
from gradwire.scenarios.record import command_line

if TYPE_CHECKING:
    from gradwire.training.trainer import Trainer

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Plan:
    """The trainings that a predictor is made from, and how it is fitted.

    models, seeds : every model is trained with every seed; what the last seed gives is not learned from, but judged by.
    data, size, limit : of models of pictures, see `gradwire.training.data.images`.
    text, length : of models of texts, see `gradwire.training.data.text`.
    workers, batch, steps : of each training.
    rate : of models of pictures, `text_rate` of texts, whose gradients are clipped to norm 1.
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
    epochs: int = 40


def make_predictor(
    kind: str, out: str | Path, plan: Plan | None = None, *, threads: int = 1, told: Progress | None = None
) -> dict[str, Any]:
    """Make a predictor, and return its manifest.

    Parameters
    ----------
    kind : "mp2" or "wnn".
    out : the file; trainings that are done are in a folder beside it, and are not done again.
    told : hears the share that is done and words.

    Raises
    ------
    ScenarioError, TraceError
        There is no such kind, model or data, or there are not two seeds.
    ResultError
        The file is a folder, or cannot be written; or the folder beside it has trainings of another plan.
    MissingExtraError
        torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "capture") from error
    from gradwire.training.served.predictor import NETS, save_predictor

    plan, place = plan or Plan(), _file(out)
    if kind not in NETS:
        raise ScenarioError(f"{kind} has no predictor", "KIND", f"one of {', '.join(NETS)}")
    if len(set(plan.seeds)) < 2:
        raise ScenarioError(f"{len(set(plan.seeds))} seeds", "--seed", "two or more: the last one is judged by")
    torch.set_num_threads(threads)
    trainings = _trainers(plan)
    folder = _folder(place, kind, plan)
    hear = told or (lambda share, words: None)
    samples = []
    for number, (name, seed, make) in enumerate(trainings):
        file = folder / f"{name}-{seed}.pt"
        if not file.is_file():
            begin, whole = number / len(trainings), len(trainings)
            found = _sampled(kind, make(), seed, lambda s, w, b=begin, n=whole, of=f"{name}, seed {seed}":  # type: ignore[misc]
                             hear(0.8 * (b + s / n), f"{of}, {w}"))  # fmt: skip
            with replaced(file) as partial:
                torch.save(found, partial)
        samples.append((name, seed, torch.load(file, weights_only=True)))
    fitting = _fitted(kind, plan, folder, [(seed, each) for _, seed, each in samples], hear)
    net, errors = fitting.finished()
    unseen = {name: each for name, seed, each in samples if seed == plan.seeds[-1]}
    manifest = {
        "kind": kind, "date": datetime.date.today().isoformat(), "command": command_line(),
        "plan": asdict(plan), "error": _rounded(errors),
        "error_by_model": {name: _rounded(fitting.judge(net, each)) for name, each in unseen.items()},
        "torch": torch.__version__,
    }  # fmt: skip
    try:
        with replaced(place) as partial:
            save_predictor(partial, net, manifest)
    except OSError as error:
        raise cannot_write(error, place) from None
    return manifest


def _rounded(errors: Mapping[str, float]) -> dict[str, float]:
    return {name: round(each, 4) for name, each in errors.items()}


def _trainers(plan: Plan) -> list[tuple[str, int, Callable[[], Trainer]]]:
    """(model, seed, what makes its trainer); models and data are looked at before anything is trained."""
    import torch

    from gradwire.scenarios.schema.training import Training
    from gradwire.training.asked import model_kind
    from gradwire.training.data import Images, Text, images, text
    from gradwire.training.trainer import Recipe, Trainer

    kinds = {name: model_kind(Training(model=name)) for name in plan.models}
    data: dict[str, Images | Text] = {}
    for task in {kind.task for kind in kinds.values()}:
        pictures = task == "images"
        data[task] = images(plan.data, plan.size, limit=plan.limit) if pictures else text(plan.text, plan.length)

    def made(name: str, seed: int) -> Trainer:
        torch.manual_seed(seed)
        mine, pictures = data[kinds[name].task], kinds[name].task == "images"
        rate, clip = (plan.rate, 0.0) if pictures else (plan.text_rate, 1.0)
        recipe = Recipe(plan.workers, plan.batch, plan.steps, rate, clip=clip, data_seed=seed, seed=seed)
        return Trainer(kinds[name].build(mine.classes), mine, recipe)

    return [
        (name, seed, lambda name=name, seed=seed: made(name, seed)) for name in plan.models for seed in plan.seeds  # type: ignore[misc]
    ]


def _sampled(kind: str, trainer: Trainer, seed: int, told: Progress) -> Any:
    from gradwire.training.served.samples import of_blocks, of_scalars

    return (of_blocks if kind == "mp2" else of_scalars)(trainer, seed, told)


def _fitted(kind: str, plan: Plan, folder: Path, samples: Sequence[tuple[int, Any]], told: Progress) -> Any:
    """A fitting that is done; gone on with where it was stopped."""
    import torch

    from gradwire.training.served.fitting import Fitting

    def joined(unseen: bool) -> Any:
        some = [each for seed, each in samples if (seed == plan.seeds[-1]) is unseen]
        return {name: torch.cat([each[name] for each in some]) for name in some[0]}

    fitting, file = Fitting(kind, joined(False), joined(True), plan.epochs), folder / "fitting.pt"
    if file.is_file():
        fitting.load_state_dict(torch.load(file, weights_only=True))
    while fitting.done < plan.epochs:
        error = fitting.step()
        told(0.8 + 0.2 * fitting.done / plan.epochs, f"epoch {fitting.done}, error {error:.3f}")
        with replaced(file) as partial:
            torch.save(fitting.state_dict(), partial)
    return fitting


def _file(out: str | Path) -> Path:
    """Where the predictor is to be, which may be there; found out before anything is trained."""
    place = path_of(out, "make_predictor(out)", "a file", ResultError)
    if os.path.isdir(place):  # where a name is too long, Path's own raises
        raise ResultError("is a folder", str(place), "a file in it, or beside it")
    if not os.path.lexists(place):
        refuse_unwritable(place, file=True)
    elif not os.access(place.parent, os.W_OK | os.X_OK):
        raise ResultError("may not be written there", str(place), "a folder that can be written to")
    return place


def _folder(place: Path, kind: str, plan: Plan) -> Path:
    """Where trainings are kept, new or of the same plan."""
    folder = place.with_name(f"{place.name}.work")
    words = json.dumps({"kind": kind, **asdict(plan)}, indent=1)
    kept = folder / "plan.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if kept.is_file():
            if kept.read_text(encoding="utf-8") != words:
                raise ResultError("holds trainings of another plan", str(folder), f"as {kept} says, or another --out")
        elif any(folder.iterdir()):
            raise ResultError("holds something else", str(folder), "another --out")
        else:
            kept.write_text(words, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"cannot be written: {error.strerror}", str(folder), "a folder with room") from None
    return folder
