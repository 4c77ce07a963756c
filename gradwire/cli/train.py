"""The command that trains over a network: train."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.cli.options import (
    Device,
    Json,
    PolicyName,
    ScenarioName,
    Set,
    TraceName,
    known_format,
    overrides_of,
)
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.scenarios.learned import Learned


WHAT = "trainings"


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
    out: Annotated[
        Path | None, typer.Option(help="Folder of the trainings; what is there of the same scenario is gone on with.")
    ] = None,
    plots: Annotated[
        str, typer.Option("--plots", metavar="FORMAT", help="Format of the picture that --out writes: png, pdf or svg.")
    ] = "png",
    as_json: Json = False,
) -> None:
    """Train a model over the scenario's network: what the network loses is lost in the update, and its time is the
    clock. Needs the extra "capture"."""
    from gradwire.learn import target_of, train
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.scenarios.gone_on_with import gone_on_with
    from gradwire.scenarios.learned import TRAININGS, say_order
    from gradwire.scenarios.load import load_scenario, load_tables

    known_format(plots)
    target = target_of(until)
    if every and policy is not None:
        raise ScenarioError("names one policy", "--policy", expected="either that or --all")
    loaded = load_scenario(scenario, set=overrides_of(set_, trace, device=device), policy=policy)
    chosen = loaded.variants() if every else (loaded,)
    trainings: list[Learned] = []
    with nullcontext() if out is None else gone_on_with(out, TRAININGS, WHAT):
        if out is not None:  # of all policies, whichever are trained now: the folder may have others
            say_order(out, [str(each["name"]) for each in load_tables(scenario).get("policy", ()) if "name" in each])
        try:
            for each in chosen:
                with progress(f"train {each.name} {each.policy_name}", as_json) as show:
                    place = None if out is None else out / each.policy_name
                    trainings.append(train(each, place, until=target, threads=threads, progress=show))
        except KeyboardInterrupt:
            _stopped(trainings, len(chosen), out)
            if out is not None and trainings:
                _shown(trainings, target, out, plots)
            raise
        if as_json:
            runs = [
                {**done.summary, "scores": [_plain(row) for row in done.scores], "diverged": done.diverged}
                for done in trainings
            ]
            typer.echo(json.dumps({"trainings": runs}))
        else:
            from gradwire.analysis.learning import print_learned

            print_learned(trainings, target)
        said = (words(done) for done in trainings for words in (_replay_words, _engine_words, _device_words))
        for words in dict.fromkeys(each for found in said for each in found):
            typer.echo(words, err=True)
        for done in trainings:
            if done.diverged is not None:
                words = f"note: {done.summary['policy']}: the loss is no number from step {done.diverged} on"
                typer.echo(words, err=True)
        if out is not None:
            _shown(trainings, target, out, plots)
            if not as_json:
                typer.echo(f"trainings and picture: {out}")


def _shown(trainings: Sequence[Learned], target: float | None, out: Path, plots: str) -> None:
    """Table and picture of what has been trained, in their folder."""
    from gradwire.analysis.learning import save_learned, table_text
    from gradwire.scenarios.learned import say_table

    say_table(out, table_text(trainings, target))
    save_learned(trainings, out / f"accuracy.{plots}")


def _stopped(trainings: Sequence[Learned], of: int, out: Path | None) -> None:
    """What there is of a command that was stopped."""
    over = f"{len(trainings)} of {of} trainings were over" if of > 1 else ""
    kept = f"what was trained until the last checkpoint is in {out}; the same command goes on from there"
    words = [over, kept if out is not None else "nothing is kept without --out"]
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


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON, which knows no infinity."""
    odd = {name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: None if name in odd else value for name, value in row.items()}
