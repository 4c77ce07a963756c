"""The command that makes predictors of parameters: predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Json
from gradwire.cli.terminal import for_people, progress


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    example = "Example: gradwire predictor mp2 --model resnet8 --seed 1 --seed 2 --out predictor.npz"
    app.command("predictor", epilog=example)(cmd_predictor)


@for_people
def cmd_predictor(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="mp2, or wnn: the system that it is for.")],
    out: Annotated[Path, typer.Option(help="The file; what is done is kept in a folder beside it.")],
    model: Annotated[list[str] | None, typer.Option(help="Of the trainings; may be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Two or more; what the last gives is judged by.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of pictures, or synthetic.")] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Pixels of a side.")] = None,
    text: Annotated[str | None, typer.Option(help="File of text for models that learn it, or synthetic.")] = None,
    samples: Annotated[int | None, typer.Option(min=200, help="At most so many pictures.")] = None,
    steps: Annotated[int | None, typer.Option(min=60, help="Of each training.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the fitting.")] = None,
    threads: Annotated[int, typer.Option(min=1, max=128, help="Threads of torch.")] = 1,
    as_json: Json = False,
) -> None:
    """Make a predictor of parameters: run normal trainings, sample them, and fit a network. Needs the extra
    "capture"."""
    from gradwire.predictor import Plan, make_predictor

    asked = {
        "models": tuple(model) if model else None, "seeds": tuple(seed) if seed else None, "data": data, "size": size,
        "text": text, "limit": samples, "steps": steps, "epochs": epochs,
    }  # fmt: skip
    plan = Plan(**{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    with progress(f"predictor {kind}", as_json) as show:
        manifest = make_predictor(kind, out, plan, threads=threads, told=show)
    if as_json:
        typer.echo(json.dumps(manifest))
        return
    rows = {"": manifest["error"]} if len(plan.models) == 1 else {"": manifest["error"], **manifest["error_by_model"]}
    for name, errors in rows.items():
        of = f" of {name}" if name else ""
        typer.echo(f"distance from an unseen training's moves{of}, relative to these: "
                   + ", ".join(f"{how} {value:.3f}" for how, value in errors.items()))  # fmt: skip
    typer.echo(f"predictor: {out}")
