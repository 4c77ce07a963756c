"""Defines the command `gradwire capture`, which trains a built-in model on real data and records its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.options import Force, complete_from, complete_words
from gradwire.cli.terminal import for_people, progress


@for_people
def cmd_capture(
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    data: Annotated[
        str,
        typer.Option(
            help="CIFAR-10/100 (Parquet or pickles), a folder of pictures per class, or plain text; "
            '"synthetic" generates data.'
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="resnet50, vgg16, gpt2-small, lstm, ... (docs/capture.md)",
            autocompletion=complete_from("gradwire.traces.models", "MODELS"),
        ),
    ] = "resnet50",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pictures are scaled to this many pixels square.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of one sample of text.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Text as byte (default), char or word.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Consecutive iterations recorded in each phase.")] = 6,
    every: Annotated[int, typer.Option(min=1, help="Gradient statistics for every n-th of them; times for all.")] = 1,
    early: Annotated[int, typer.Option(help="Step of the first early iteration.")] = 20,
    late: Annotated[int, typer.Option(help="Step of the first late iteration.")] = 600,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda", autocompletion=complete_words("auto", "cpu", "cuda"))
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="The model's default if absent.")] = None,
    overhead_pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of steps that measure the overhead of recording.")
    ] = 12,
    note: Annotated[str | None, typer.Option(help="A remark for the manifest.")] = None,
    force: Force = False,
) -> None:
    """Train a built-in model on real data and record its gradients. Needs the extra "capture"."""
    from gradwire.traces.capture.builtin_models import BuiltinRun
    from gradwire.traces.storage.writer import replaceable

    run = BuiltinRun(
        model=model, data=data, batch=batch, image_size=image_size, sequence=sequence, tokens=tokens,
        iterations=iterations, every=every, early=early, late=late, device=device, threads=threads, seed=seed,
        learning_rate=learning_rate, overhead_pairs=overhead_pairs, note=note,
    )  # fmt: skip
    with replaceable(out, force):
        with progress(f"capture {model}") as show:
            path = run.train(out, progress=lambda step, steps, loss: show(step / steps, f"step {step} loss {loss:.3f}"))
        typer.echo(f"trace written to {path}")
