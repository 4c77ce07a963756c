"""`write_scenario` writes a commented scenario, and its trace, from a model, its parallelism, GPUs and a fabric.

The scenario passes `gradwire check` without a remark before it is written.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gradwire.result_store.folders.output_folder import new_file
from gradwire.result_store.folders.replacement import replaced_file
from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, parse_toml
from gradwire.scenarios.loading.toml import inline_toml
from gradwire.scenarios.terminal_text import printable
from gradwire.sim.preparation import check_variants
from gradwire.studies.fabrics import FABRICS, FabricPreset
from gradwire.traces.presets.generate import layout_of, model_trace
from gradwire.traces.presets.layout import Layout
from gradwire.traces.presets.model_specs import MODEL_SPECS, find_model
from gradwire.traces.presets.roofline import VALUE_BYTES, rank_parameters
from gradwire.traces.storage.writer import replaceable
from gradwire.traces.trace import Trace, bundled_traces, load_trace

LAYERS = 2
"""Repeated layers of a stage that a trace keeps by default: a run takes a minute or two (our choice)."""
ITERATIONS = 3
COMMENT_COLUMN = 42


@dataclass(frozen=True)
class ScenarioRequest:
    """Answers to the questions of `gradwire new scenario`.

    model : a preset, or "" with `trace`, a trace directory or bundled trace. layout : None of its sizes are checked.
    fsdp : parameters are sharded over all data-parallel ranks.
    """

    model: str
    gpus: int
    gpu: str = "h100"
    fabric: str = "rail-400g"
    layout: Layout = field(default_factory=Layout)
    fsdp: bool = False
    trace: str = ""


class NewScenario(NamedTuple):
    """Files that were written, and the command that runs them."""

    scenario: Path
    trace: Path | None
    command: str


def write_scenario(request: ScenarioRequest, file: str | Path, force: bool = False) -> NewScenario:
    """Write the scenario to `file`, and the trace of a preset beside it, with the ending .trace.

    Raises GradwireError if an answer is invalid, or the files cannot be written; nothing is written then. They must
    not exist, unless `force` replaces earlier ones, which begin alike.
    """
    path = Path(file)
    if path.suffix != ".toml":
        raise ScenarioError("does not end in .toml", str(path), "the name of a scenario file, such as job.toml")
    if request.fabric not in FABRICS:
        known = ", ".join(FABRICS) + nearest(request.fabric, FABRICS)
        raise ScenarioError("unknown fabric", repr(request.fabric), f"one of {known}")
    if request.fsdp and request.layout.pipeline > 1:
        raise ScenarioError("has no effect with --pp", "--fsdp", "one of the two")
    folder = path.with_suffix(".trace")
    targets = [path] if request.trace else [path, folder]
    taken = [str(target) for target in targets if os.path.lexists(target)]
    if taken and (path.is_dir() or not force):
        raise ScenarioError("exists already", ", ".join(taken), "another name, or --force to replace an earlier output")
    trace = load_trace(request.trace) if request.trace else _preset_trace(request)
    text = _text(request, trace, path, _location(request.trace, path) if request.trace else f"./{folder.name}")
    _check(text, path, None if request.trace else trace)
    heads = [f"# {spec.title} on ".encode() for spec in MODEL_SPECS.values()]
    with (
        nullcontext() if request.trace else replaceable(folder, force),
        replaced_file(path, force, *heads, b"# the trace "),
        new_file(path) as partial,
    ):
        partial.write_text(text, encoding="utf-8")
        if not request.trace:
            trace.save(folder)
    return NewScenario(path, None if request.trace else folder, f"gradwire compare {shlex.quote(str(path))}")


def _location(trace: str, path: Path) -> str:
    """Return a trace as the scenario at `path` names it: relative to its folder, unless it is bundled or absolute."""
    if trace in bundled_traces() or os.path.isabs(trace):
        return trace
    return f"./{os.path.relpath(trace, path.parent)}"


def _check(text: str, path: Path, trace: Trace | None) -> None:
    """Raise ScenarioError unless a scenario, with a trace that is not written yet, passes the checks of a run."""
    tables = parse_toml(path, text)
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        if trace is not None:
            tables["job"][0]["trace"] = str(trace.save(Path(folder) / "trace"))
        check_variants(build_scenario(tables, str(path)).at(path.parent).variants())


def _preset_trace(request: ScenarioRequest) -> Trace:
    spec = find_model(request.model)
    layout = request.layout
    if not layout.layers:
        kept = min(spec.repeats, LAYERS * layout.pipeline)
        layout = replace(layout, layers=kept)
    sizes = {key: value for key, value in vars(layout).items() if key != "layers"}
    sizes["gpus"] = request.gpus
    return model_trace(request.model, request.gpu, layout_of(spec, layers=layout.layers, **sizes), name=request.model)


def _text(request: ScenarioRequest, trace: Trace, path: Path, location: str) -> str:
    """Return the TOML of the scenario."""
    fabric = FABRICS[request.fabric]
    name = re.sub(r"[^\w.+-]", "-", path.stem)
    title = (
        MODEL_SPECS[request.model].title if request.model else printable(f"the trace {' '.join(trace.name.split())}")
    )
    sharded = ", FSDP" if request.fsdp else ""
    file = printable(shlex.quote(path.name)).replace("\n", " ")
    text = f"""\
# {title} on {request.gpus} GPUs{sharded}: {fabric.title}.
#
#     gradwire check {file}  # errors, size and cost
#     gradwire compare {file}  # is the network the bottleneck, and which policy helps?
#
# docs/scenario.md explains every key.

name = "{name}"
description = {inline_toml(f"{title} on {request.gpus} GPUs{sharded}.")}
seed = 1
{fabric.tables(request.gpus)}
[[job]]
name = "{name}"
trace = {inline_toml(location)}
{_job(request, trace, fabric)}
{fabric.policies}"""
    return _aligned(text)


def _job(request: ScenarioRequest, trace: Trace, fabric: FabricPreset) -> str:
    """Return the keys of the job."""
    layout = request.layout
    lines = [f"workers = {request.gpus}", f"iterations = {ITERATIONS}"]
    if (model := trace.manifest.get("preset")) and model["layers"]["kept"] < model["layers"]["of"]:
        kept, of = model["layers"]["kept"], model["layers"]["of"]
        lines.insert(0, f"# {kept} of {of} layers; results are scaled up, and the verdict states the error")
    inside = fabric.has_accelerators and layout.tensor == layout.context == layout.expert == 1
    if trace.graphs is not None:
        lines.append('exchange = { kind = "graph" }  # the graphs of all ranks, stages included')
        return "\n".join(lines) + "\n"
    if layout.micro_batches > 1:
        lines.append(f"accumulate = {layout.micro_batches}  # micro-batches")
    if trace.communications:
        kind = "sharded" if request.fsdp else "ring"
        note = "ZeRO, stage 1: with tensor ranks, parameters stay" if request.fsdp else "gradients"
        lines.append(f'exchange = {{ kind = "{kind}" }}  # {note}')
        lines.append("parallel = {}  # sizes of the groups: those of the trace")
    elif request.fsdp:
        algorithm = "hierarchical" if inside else "ring"
        lines.append(f'exchange = {{ kind = "fsdp", algorithm = "{algorithm}", unit = "{_unit(request, trace)}" }}')
    elif inside:
        lines.append('exchange = { kind = "hierarchical" }  # rings inside hosts, then on each rail')
    else:
        lines.append('exchange = { kind = "ring" }')
    return "\n".join(lines) + "\n"


def _unit(request: ScenarioRequest, trace: Trace) -> str:
    """Return the size of an FSDP unit: that of a repeated layer, or else a tenth of the model."""
    repeated = MODEL_SPECS[request.model].repeated if request.model else ()
    size = sum(VALUE_BYTES * rank_parameters(block, request.layout) for block in repeated) or trace.total_bytes / 10
    return f"{max(1, int(0.95 * size / 2**20))}MiB"


def _aligned(text: str) -> str:
    """Align comments behind values."""
    lines = []
    for line in text.splitlines():
        value, separator, comment = line.partition("  # ")
        lines.append(f"{value.rstrip():<{COMMENT_COLUMN}}  # {comment.strip()}" if separator else line)
    return "\n".join(lines) + "\n"
