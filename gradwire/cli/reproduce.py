"""The command that holds published claims against simulated figures."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Device, Json
from gradwire.cli.terminal import for_people, progress


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    app.command("reproduce", epilog="Example: gradwire reproduce dlcp --claim S4 --out results/claims")(
        cmd_reproduce
    )


def set_names(incomplete: str) -> list[str]:
    """For shells that complete words: sets of claims."""
    from gradwire.analysis.claims import SETS

    return [name for name in SETS if name.startswith(incomplete)]


@for_people
def cmd_reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="dlcp, mlt; regimes: where bounded loss pays and where it does not; schedulers; lee: averaging that "
            "overlaps; tolerance: what lost gradients cost in accuracy; reducers; mp2, mipd, slimdp: systems beside "
            "dense training and reducers; loop: what is learned by when over a fabric, under each transport.",
            autocompletion=set_names,
        ),
    ],
    claim: Annotated[
        list[str] | None, typer.Option("--claim", help="Only this claim, such as S4; repeatable.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also the settings that take long.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=99, help="Seeds of every run; 3 of simulations, 5 of trainings if absent."),
    ] = None,
    pictures: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="What trainings learn from: CIFAR-10, pictures by class, or synthetic."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="FILE", help="What trainings of text learn from, or synthetic.")
    ] = None,
    device: Device = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Runs at a time; as many as processors if absent, one with --device."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of Results and page; one of an earlier reproduction is gone on with."),
    ] = None,
    only_list: Annotated[
        bool,
        typer.Option("--list", help="Only list what would be run, what is there already, and how long the rest takes."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run published claims: what was claimed, what is measured here, and whether it shows. Interrupted, it goes on
    where it was. A claim that does not show is no error."""
    from gradwire.reproduce import reproduce

    place = out or Path("results") / f"reproduce-{name}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or (cores if device is None else 1)
    given = {"pictures": pictures, "text": text}
    data = {key: value for key, value in given.items() if value is not None}
    if only_list:
        _list(name, place, claim or [], full, seeds, jobs, data, device or "cpu", as_json)
        return
    with progress(f"reproduce {name}", as_json) as show:
        judgements = reproduce(
            name, place, claims=claim or (), full=full, seeds=seeds, jobs=jobs, data=data,
            device=device or "cpu", told=show,
        )  # fmt: skip
    if as_json:
        from gradwire.analysis.claims.page import as_dict

        typer.echo(json.dumps(as_dict(judgements)))
        return
    from gradwire.analysis.claims.page import ground_words, published_words

    typer.echo(ground_words(json.loads((place / "claims.json").read_text(encoding="utf-8"))))
    for each in judgements:
        typer.echo(f"\n{each.claim.id}  {each.claim.sentence}")
        typer.echo(f"    published: {published_words(each.claim)} (source: {each.claim.source})")
        for one in each.findings:
            condition = f" [{one.expect.condition}]" if one.expect.condition else ""
            holds = "?" if one.holds is None else "+" if one.holds else "-"
            typer.echo(f"    {holds} {one.expect.text}{condition}: {one.measured}, expected {one.wanted}")
        typer.echo(f"    {each.verdict.upper()}. {each.reason}")
    typer.echo(f"\npage and pictures: {place}/page.html")


def _list(
    name: str, place: Path, claims: list[str], full: bool, seeds: int | None, jobs: int, data: dict[str, str],
    device: str, as_json: bool,
) -> None:  # fmt: skip
    """What would be run, as a table or as JSON."""
    from gradwire.analysis.tables import Grid, print_grid
    from gradwire.reproduce import listing
    from gradwire.scenarios.readable import wall_text

    with progress(f"reproduce {name} --list", as_json) as show:
        rows = listing(name, place, claims=claims, full=full, seeds=seeds, data=data, device=device, told=show)
    runs, kept = sum(row.runs for row in rows), sum(row.kept for row in rows)
    left = [row.left_s for row in rows if row.left_s is not None]
    if as_json:
        whole = {"runs": runs, "kept": kept, "left_s": sum(left) if left else None}
        typer.echo(json.dumps({**whole, "settings": [asdict(row) for row in rows]}))
        return
    head = ["setting", "runs", "there", "begun", "steps", "each", "left"]
    lines = [
        [row.setting, f"{row.runs}", f"{row.kept}", f"{row.begun}", f"{row.steps:,}" if row.steps else "",
         _range(row.least_s, row.most_s), _left(row.left_s)]
        for row in rows
    ]  # fmt: skip
    print_grid(Grid(f"{name}: {runs} runs, {kept} of them there", head, lines))
    if not left:
        typer.echo("Simulations are not timed beforehand: seconds to minutes each.")
        return
    several = f", {wall_text(sum(left) / jobs)} with {jobs} at a time on as many free ones" if jobs > 1 else ""
    typer.echo(f"left: about {_left(sum(left))} of one processor{several}")
    typer.echo("Some steps of each kind of training were timed just now. Stopped at any time, it goes on where it was.")


def _left(seconds: float | None) -> str:
    """What is left of a setting; of simulations that is not known."""
    from gradwire.scenarios.readable import wall_text

    return "" if seconds is None else wall_text(seconds) if seconds else "nothing"


def _range(least: float | None, most: float | None) -> str:
    """Times of one run."""
    from gradwire.scenarios.readable import wall_text

    if least is None or most is None:
        return ""
    low, high = wall_text(least), wall_text(most)
    return low if low == high else f"{low} to {high}"
