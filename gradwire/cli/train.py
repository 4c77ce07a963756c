"""The command that trains over a network: train."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.notes import print_notes
from gradwire.cli.options import (
    Device,
    Json,
    PolicyName,
    ScenarioName,
    Set,
    TraceName,
    Trust,
    known_format,
    overrides_of,
)
from gradwire.cli.terminal import for_people, progress
from gradwire.scenarios.interrupt import deferred

if TYPE_CHECKING:
    from gradwire.scenarios.learned import Learned
    from gradwire.seeds import Wanted


WHAT = "trainings"
SEEDS = ("seed", "training.model_seed", "training.data_seed", "training.network.seed")
"""Keys that `--seeds` sets."""


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    example = "Example: gradwire train train-tiny --all --out results/tiny"
    app.command("train", epilog=example)(cmd_train)


@for_people
def cmd_train(
    scenario: ScenarioName,
    policy: PolicyName = None,
    every: Annotated[bool, typer.Option("--all", help="Under each of its policies, one after the other.")] = False,
    trace: TraceName = None,
    set_: Set = None,
    until: Annotated[
        str | None, typer.Option(metavar="accuracy=X", help="Stop when held-out data is predicted that well.")
    ] = None,
    device: Device = None,
    threads: Annotated[int, typer.Option(min=1, max=128, help="Threads of torch; bits may depend on it.")] = 1,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=99, help="Train from seeds 1 to this: other initial parameters, order of data, losses; "
                     "and say how far apart policies are."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=256, help="Trainings at a time, each in a process of its own.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the trainings; what is there of the same scenario is gone on with.")
    ] = None,
    plots: Annotated[
        str, typer.Option("--plots", metavar="FORMAT", help="Format of the picture that --out writes: png, pdf or svg.")
    ] = "png",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train a model over the scenario's network: what the network loses is lost in the update, and its time is the
    clock. Needs the extra "capture"."""
    from gradwire.learn import target_of
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.scenarios.load import load_scenario
    from gradwire.seeds import Wanted, of_seed

    known_format(plots)
    target = target_of(until)
    if every and policy is not None:
        raise ScenarioError("names one policy", "--policy", expected="either that or --all")
    overrides = overrides_of(set_, trace, device=device)
    if seeds is not None and (said := [each for each in overrides if each.partition("=")[0].strip() in SEEDS]):
        raise ScenarioError(f"sets what --set {said[0]} does", "--seeds", "one of the two")
    loaded = load_scenario(scenario, set=overrides, policy=policy)
    chosen = loaded.variants() if every else [loaded]
    print_notes(chosen, trained=True)
    if jobs > 1 and any(each.training is not None and each.training.network == "emulated" for each in chosen):
        what = "would have trainings on real sockets disturb each other"
        raise ScenarioError(what, "--jobs", expected='1 with training.network = "emulated"')
    asked = [each if seeds is None else of_seed(each, seed) for seed in range(1, (seeds or 1) + 1) for each in chosen]
    with _places(out, scenario, seeds) as places:
        wanted = [
            Wanted(each, None if out is None else places[n // len(chosen)] / each.policy_name)
            for n, each in enumerate(asked)
        ]
        trainings: dict[int, Learned] = {}
        try:
            for number, done in _trained(wanted, jobs, target, threads, as_json, seeds is not None):
                trainings[number] = done
        except KeyboardInterrupt:
            with deferred():
                _stopped(len(trainings), len(wanted), out)
                if out is not None and trainings:
                    _shown(_in_order(trainings), target, out, places, plots)
            raise
        found = _in_order(trainings)
        with deferred():
            _printed(found, target, as_json, seeds is not None)
            if out is not None:
                _shown(found, target, out, places, plots)
                if not as_json:
                    typer.echo(f"trainings and picture: {out}")


@contextmanager
def _places(out: Path | None, scenario: str, seeds: int | None) -> Iterator[list[Path]]:
    """The folders that hold the trainings of each seed, or of the scenario as it is; each as if by a command of its
    own. What holds trainings of the other kind is refused."""
    from gradwire.scenarios.errors import ResultError
    from gradwire.scenarios.gone_on_with import gone_on_with
    from gradwire.scenarios.learned import SEED, SUMMARY, TRAININGS, say_order, seeds_in
    from gradwire.scenarios.load import load_tables

    if out is None:
        yield []
        return
    names = [str(each["name"]) for each in load_tables(scenario).get("policy", ()) if "name" in each]
    if seeds is None and out.is_dir() and seeds_in(out):
        raise ResultError("holds trainings of several seeds", str(out), "--seeds, or a new folder")
    if seeds is not None and any(out.glob(f"*/{SUMMARY}")):
        raise ResultError("holds trainings of one seed", str(out), "no --seeds, or a new folder")
    with ExitStack() as stack:
        stack.enter_context(gone_on_with(out, TRAININGS, WHAT))
        places = [out] if seeds is None else [out / f"{SEED}{seed}" for seed in range(1, seeds + 1)]
        for each in places:
            if each != out:
                stack.enter_context(gone_on_with(each, TRAININGS, WHAT))
            say_order(each, names)  # of all policies, whichever are trained now: the folder may have others
        yield places


def _trained(
    wanted: Sequence[Wanted], jobs: int, until: float | None, threads: int, quiet: bool, seeded: bool
) -> Iterator[tuple[int, Learned]]:
    """One after the other here, or side by side in processes."""
    from gradwire.learn import train
    from gradwire.seeds import train_apart

    if jobs > 1:
        with progress(f"train {wanted[0].scenario.name}", quiet) as show:
            yield from train_apart(wanted, jobs, until, threads, show)
        return
    for number, (each, place) in enumerate(wanted):
        seed = f", seed {each.seed}" if seeded else ""
        with progress(f"train {each.name} {each.policy_name}{seed}", quiet) as show:
            done = train(each, place, until=until, threads=threads, progress=show)
        yield number, done


def _in_order(trainings: Mapping[int, Learned]) -> list[Learned]:
    return [trainings[number] for number in sorted(trainings)]


def _printed(trainings: Sequence[Learned], target: float | None, as_json: bool, seeded: bool) -> None:
    """What came of them, and what there is to say of it."""
    from gradwire.analysis.over_seeds import arms_of, figures_of, print_over

    if as_json:
        runs = [
            {**done.summary, "scores": _plain(list(done.scores)), "diverged": done.diverged}
            for done in trainings
        ]
        arms = {"arms": _plain(figures_of(arms_of(trainings), target))} if seeded else {}
        typer.echo(json.dumps({"trainings": runs, **arms}))
    elif seeded:
        print_over(arms_of(trainings), target)
    else:
        from gradwire.analysis.learning import print_learned

        print_learned(trainings, target)
    said = (words(done) for done in trainings for words in (_replay_words, _engine_words, _device_words))
    for words in dict.fromkeys(each for found in said for each in found):
        typer.echo(words, err=True)
    for done in trainings:
        if done.diverged is not None:
            which = f"{done.summary['policy']}{f', seed {done.seed}' if seeded else ''}"
            typer.echo(f"note: {which}: the loss is no number from step {done.diverged} on", err=True)


def _shown(
    trainings: Sequence[Learned], target: float | None, out: Path, places: Sequence[Path], plots: str
) -> None:
    """Tables and pictures of what has been trained, in their folders."""
    from gradwire.analysis.learning import save_arms, save_learned, table_text
    from gradwire.analysis.over_seeds import arms_of, table_over
    from gradwire.scenarios.learned import say_table

    for seed, place in enumerate(places, 1):
        mine = [each for each in trainings if place == out or each.seed == seed]
        if mine:
            say_table(place, table_text(mine, target))
            save_learned(mine, place / f"accuracy.{plots}")
    if list(places) != [out]:
        arms = arms_of(trainings)
        say_table(out, table_over(arms, target))
        save_arms([(arm.name, arm.trainings) for arm in arms], out / f"accuracy.{plots}")


def _stopped(done: int, of: int, out: Path | None) -> None:
    """What there is of a command that was stopped."""
    from gradwire.scenarios.learned import CHECKPOINT, SUMMARY

    over = f"{done} of {of} trainings were over" if of > 1 else ""
    kept = f"what was trained until the last checkpoint is in {out}; the same command goes on from there"
    if out is None:
        kept = "nothing is kept without --out"
    elif not any(each for name in (CHECKPOINT, SUMMARY) for each in out.rglob(name)):
        kept = f"no checkpoint has been written to {out} yet"
    words = [over, kept]
    typer.echo("; ".join(each for each in words if each), err=True)


def _replay_words(done: Learned) -> list[str]:
    """What a replay's scenario says of the network in vain."""
    replayed = done.summary.get("replayed")
    if not (replayed and replayed["otherwise"]):
        return []
    keys = ", ".join(replayed["otherwise"])
    are = "are" if len(replayed["otherwise"]) > 1 else "is"
    what = f"{keys} {are} otherwise there and {'make' if are == 'are' else 'makes'} no difference"
    return [f"note: {done.summary['policy']}: times and losses are those of {replayed['folder']}; {what}"]


def _engine_words(done: Learned) -> list[str]:
    """On what it ran, and what was otherwise than the scenario says, where that were real sockets."""
    engine = done.summary.get("engine")
    if not engine:
        return []
    found = [f"on real sockets: {engine['clock']} clock, switches {engine.get('switch', 'none yet')}"]
    found += [f"differs: {words}" for words in engine.get("substitutions", ())]
    if count := len(engine["disturbed"]):
        of = done.summary["policy"]
        found.append(f"disturbed: {of}: {count} of its steps, with which this machine did not keep up; the first, "
                     f"{engine['disturbed'][0]}")  # fmt: skip
    return found


def _device_words(done: Learned) -> list[str]:
    """On what it was computed, and what does not repeat there, where that was no CPU."""
    found = []
    for each in done.summary.get("devices", ()):  # none was noted before there was a choice
        if each["device"] != "cpu":
            found.append(f"computed on {each['device']}, {each['name']}")
        if each["not_deterministic"]:
            names = ", ".join(each["not_deterministic"])
            found.append(f"note: another training will have other bits: on {each['device']} {names} cannot be repeated")
        found += [f"note: slower than {each['name']} could: {words}" for words in each.get("slower", ())]
    return found


def _plain(value: Any) -> Any:
    """The same for JSON, which knows no number that is none."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
