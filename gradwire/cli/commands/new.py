"""Defines the command `gradwire new`, which writes a scenario of a model, or the skeleton of a component."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gradwire.cli.options import Force, Json, complete_from, complete_words, trace_names
from gradwire.cli.terminal import for_people

GPU, FABRIC = "h100", "rail-400g"
KINDS = ("scenario", "transport", "load_balancer", "queue_policy")
model_names = complete_from("gradwire.traces.presets.model_specs", "MODEL_SPECS")
gpu_names = complete_from("gradwire.traces.presets.gpus", "GPUS")
fabric_names = complete_from("gradwire.studies.fabrics", "FABRICS")
Model = Annotated[str, typer.Option("--model", help="A model: gradwire list models.", autocompletion=model_names)]
Gpu = Annotated[str, typer.Option("--gpu", help="A GPU: v100, a100, h100, h200, b200.", autocompletion=gpu_names)]
Tensor = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the matrices of a layer.")]
Pipeline = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
Context = Annotated[int, typer.Option("--cp", min=1, help="GPUs that share a sample, each a part of its length.")]
Expert = Annotated[int, typer.Option("--ep", min=1, help="GPUs that share the experts of a layer.")]
Fsdp = Annotated[bool, typer.Option("--fsdp", help="Shard parameters over all data-parallel GPUs.")]
MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", min=1, help="Samples of a micro-batch; the model's own if absent.")
]
MicroBatches = Annotated[int, typer.Option("--micro-batches", min=1, help="Micro-batches of an iteration.")]
Length = Annotated[int | None, typer.Option("--length", min=1, help="Tokens of a sample; the model's own if absent.")]
Layers = Annotated[
    int | None, typer.Option("--layers", min=1, help="Keep this many of the repeated layers; results are scaled up.")
]
Recompute = Annotated[bool, typer.Option("--recompute", help="The backward pass repeats the forward pass.")]


@for_people
def cmd_new(
    kind: Annotated[
        str,
        typer.Argument(
            help="scenario, or a component: transport, load_balancer or queue_policy.",
            autocompletion=complete_words(*KINDS),
        ),
    ],
    file: Annotated[Path, typer.Argument(help="A new file: job.toml, or for a component my_transport.py.")],
    model: Model = "",
    trace: Annotated[
        str,
        typer.Option("--trace", help="A trace instead of a model: a directory or bundled.", autocompletion=trace_names),
    ] = "",
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="All GPUs of the job.")] = None,
    gpu: Gpu = GPU,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    context: Context = 1,
    expert: Expert = 1,
    fsdp: Fsdp = False,
    micro_batch: MicroBatch = None,
    micro_batches: MicroBatches = 1,
    length: Length = None,
    layers: Layers = None,
    recompute: Recompute = False,
    fabric: Annotated[
        str, typer.Option("--fabric", help="A network: gradwire list fabrics.", autocompletion=fabric_names)
    ] = FABRIC,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a scenario of a model on GPUs and a fabric, or a working skeleton of a component.

    A skeleton has a test and a scenario beside it (docs/extending.md). On a terminal, missing answers are asked for.
    """
    of_model: dict[str, object] = {"--gpu": gpu != GPU, "--tp": tensor > 1, "--pp": pipeline > 1, "--cp": context > 1}
    of_model |= {"--ep": expert > 1, "--micro-batch": micro_batch, "--length": length, "--layers": layers}
    of_model["--recompute"] = recompute
    if kind != "scenario":
        others = {"--model": model, "--trace": trace, "--gpus": gpus, "--fsdp": fsdp, "--fabric": fabric != FABRIC}
        _refuse(others | of_model | {"--micro-batches": micro_batches > 1}, f"on a {kind}", "gradwire new scenario")
        _write_component(kind, file, force, as_json)
        return
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.studies.scenario_writer import ScenarioRequest, write_scenario
    from gradwire.traces.presets.generate import memory_note
    from gradwire.traces.presets.gpus import find_gpu
    from gradwire.traces.presets.model_specs import MODEL_SPECS, find_model

    if not model and not trace:
        model = _ask("Which model", "llama-7b", "--model", f"one of {', '.join(MODEL_SPECS)}, or --trace TRACE", str)
    if model and trace:
        raise ScenarioError("are both given", "--model and --trace", "one of them")
    if trace:
        _refuse(of_model, "with --trace", "--model")
    if gpus is None:
        gpus = _ask("How many GPUs", "64", "--gpus", "the number of GPUs", int)
    from gradwire.traces.presets.layout import Layout

    spec = find_model(model) if model else None
    layout = Layout(
        gpus=gpus,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        micro_batch=micro_batch or (spec.batch if spec else 1),
        micro_batches=micro_batches,
        length=length or (spec.length if spec else 1),
        layers=layers or 0,
        recompute=recompute,
    )
    request = ScenarioRequest(model, gpus, gpu, fabric, layout, fsdp, trace)
    written = write_scenario(request, file, force)
    if spec and (note := memory_note(spec, find_gpu(gpu), layout, fsdp)):
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({name: None if path is None else str(path) for name, path in written._asdict().items()}))
        return
    typer.echo(f"scenario: {written.scenario}")
    if written.trace is not None:
        typer.echo(f"trace: {written.trace}")
    typer.echo(f"next:\n    gradwire check {shlex.quote(str(written.scenario))}\n    {written.command}")


def _refuse(answers: dict[str, object], where: str, expected: str) -> None:
    """Raise ScenarioError if options are given that have no effect."""
    from gradwire.scenarios.errors import ScenarioError

    if given := [option for option, answer in answers.items() if answer]:
        raise ScenarioError(f"has no effect {where}", ", ".join(given), f"{expected}, or to leave it out")


def _ask(question: str, default: str, option: str, expected: str, kind: Callable[[str], Any]) -> Any:
    """Return the answer to a question on a terminal. Raises ScenarioError elsewhere, or for an invalid answer."""
    from gradwire.scenarios.errors import ScenarioError

    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        raise ScenarioError("is missing", option, expected)
    print(f"{question}? [{default}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip() or default
    try:
        return kind(answer)
    except ValueError:
        raise ScenarioError(f"is {answer!r}", option, expected) from None


def _write_component(kind: str, file: Path, force: bool, as_json: bool) -> None:
    """Write a skeleton, and print its files and commands."""
    from gradwire.testing.skeleton import write_skeleton

    skeleton = write_skeleton(kind, file, force)
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in skeleton._asdict().items()}))
        return
    for name, path in skeleton._asdict().items():
        typer.echo(f"{name}: {path}")
    typer.echo("next:")
    for command in skeleton.commands():
        typer.echo(f"    {command}")
