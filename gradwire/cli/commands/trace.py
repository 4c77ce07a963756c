"""Defines the commands `gradwire trace ...`, which inspect, import, export, merge, retime, plot and compare traces."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli.commands import new as answers
from gradwire.cli.options import Force, Json, complete_from, complete_words, trace_names
from gradwire.cli.terminal import for_people, progress
from gradwire.traces.formats.base import exporters, importers

app = typer.Typer(help="Inspect, import, export and compare traces.", no_args_is_help=True)

TraceName = Annotated[
    str, typer.Argument(help="A trace directory, or the name of a bundled trace.", autocompletion=trace_names)
]


@app.command("info", epilog="Example: gradwire trace info resnet50 --json")
@for_people
def cmd_info(
    trace: TraceName,
    layers: Annotated[bool, typer.Option(help="Add one line per layer.")] = False,
    as_json: Json = False,
) -> None:
    """Show a trace: model, machine, phases, sizes, compute times, gradient magnitudes."""
    from gradwire.traces.tools.info import info, print_info
    from gradwire.traces.trace import load_trace

    loaded = load_trace(trace)
    if as_json:
        typer.echo(json.dumps(info(loaded)))
    else:
        print_info(loaded, layers=layers)


@app.command("model", epilog="Example: gradwire trace model llama-7b --gpu h100 --tp 8 --fsdp --out llama")
@for_people
def cmd_model(
    model: Annotated[str, typer.Argument(help="A model: gradwire list models.", autocompletion=answers.model_names)],
    gpu: answers.Gpu = "h100",
    tensor: answers.Tensor = 1,
    pipeline: answers.Pipeline = 1,
    context: answers.Context = 1,
    expert: answers.Expert = 1,
    fsdp: answers.Fsdp = False,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="All GPUs; needed with --pp.")] = None,
    micro_batch: answers.MicroBatch = None,
    micro_batches: answers.MicroBatches = 1,
    length: answers.Length = None,
    layers: answers.Layers = None,
    recompute: answers.Recompute = False,
    out: Annotated[Path | None, typer.Option(help="The new directory of the trace; MODEL-GPU if absent.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compute the trace of a well-known model on a GPU: gradients, roofline times, and what passes wait for."""
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.scenarios.errors import TraceError
    from gradwire.traces.presets.generate import job_keys, layout_of, memory_note, model_trace
    from gradwire.traces.presets.gpus import find_gpu
    from gradwire.traces.presets.model_specs import find_model
    from gradwire.traces.storage.writer import replaceable

    spec = find_model(model)
    if fsdp and pipeline > 1:
        raise TraceError("has no effect with --pp", "--fsdp", "one of the two")
    place = out or Path(f"{model}-{gpu}")
    sizes = {"gpus": gpus, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    sizes |= {"micro_batch": micro_batch, "micro_batches": micro_batches, "length": length, "recompute": recompute}
    with replaceable(place, force):
        refuse_unwritable(place)
        layout = layout_of(spec, layers, **sizes)
        trace = model_trace(model, gpu, layout)
        trace.save(place)
    if note := memory_note(spec, find_gpu(gpu), layout, fsdp):
        typer.echo(f"note: {note}", err=True)
    entry = trace.manifest["preset"]
    if as_json:
        typer.echo(json.dumps({"trace": str(place), **entry}))
        return
    kept = f"{entry['layers']['kept']} of {entry['layers']['of']} layers" if spec.repeats else "all layers"
    typer.echo(
        f"{spec.title}: {spec.parameters / 1e9:.2f} G parameters; {kept}, {trace.total_bytes / 1e6:,.0f} MB of "
        f"gradients on a GPU, {len(trace.communications)} collectives inside of passes"
    )
    passes, update = (entry["seconds"][key] for key in ("passes", "update"))
    micros = micro_batches if pipeline == 1 else 1
    mfu = micros * entry["flops"] / (micros * passes + (0 if fsdp else update)) / entry["peak_flops"]
    typer.echo(
        f"computing on a GPU ({gpu}, roofline): passes {1e3 * passes:.1f} ms, update {1e3 * update:.1f} ms"
        f"{' divided by the ranks' if fsdp else ''}; at most an MFU of {100 * mfu:.1f} %"
    )
    typer.echo(f"trace written to {place}")
    for key in job_keys(trace, fsdp):
        typer.echo(f"job: {key}")


@app.command("import", epilog="Example: gradwire trace import profile.json.gz --out my-trace")
@for_people
def cmd_import(
    file: Annotated[Path, typer.Argument(help="A file of another tool, gzipped or not.")],
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    format: Annotated[
        str, typer.Option(help=f"auto, {', '.join(importers())}", autocompletion=complete_words("auto", *importers()))
    ] = "auto",
    name: Annotated[str | None, typer.Option(help="Name of the trace; the file's by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of gradients for which the file has only bytes.")] = "float32",
    fit_to: Annotated[
        str, typer.Option(help="Measured trace that the model of magnitudes is fitted to.", autocompletion=trace_names)
    ] = "resnet50",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the magnitudes.")] = 1,
    ranks: Annotated[
        bool,
        typer.Option(
            "--ranks",
            help="Also import the graphs of all ranks: NAME.RANK.et beside it (chakra), or derived from one (simai).",
        ),
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop control dependencies that form cycles (chakra), and count them.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert a PyTorch profile, PipeDream graph, SimAI workload, Chakra trace, GOAL schedule or CSV into a trace.

    Unsupported, skipped (not gradients) and implausible entries are counted and listed.
    """
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.traces.formats import import_trace
    from gradwire.traces.storage.writer import replaceable

    with replaceable(out, force):
        refuse_unwritable(out)
        with progress(f"import {file.name}", as_json) as show:
            trace = import_trace(
                file,
                format=format,
                name=name,
                seed=seed,
                dtype=dtype,
                fit_to=fit_to,
                ranks=ranks,
                repair=repair,
                progress=show,
            )
        trace.save(out)
    source = trace.manifest["source"]
    if as_json:
        typer.echo(json.dumps({"trace": str(out), **source, "timing": trace.manifest["timing"]}))
        return
    typer.echo(
        f"{source['format']}: {len(trace.tensors)} gradients in {len(trace.layers)} layers, "
        f"{trace.total_bytes / 1e6:.1f} MB, {len(trace.iterations)} iterations"
    )
    typer.echo(f"times {trace.manifest['timing']}: {trace.manifest['timing_how']}")
    typer.echo(f"magnitudes: log-normal model fitted to {trace.manifest['magnitudes']['fitted_to']}")
    for title in ("understood", "skipped", "doubtful"):
        for what, count in source.get(title, {}).items():
            typer.echo(f"{title}: {count} x {what}")
    typer.echo(f"trace written to {out}")


@app.command("export", epilog="Example: gradwire trace export resnet50 --format chakra --ranks 8 --out job")
@for_people
def cmd_export(
    trace: TraceName,
    format: Annotated[str, typer.Option(help=", ".join(exporters()), autocompletion=complete_words(*exporters()))],
    out: Annotated[Path, typer.Option(help="The new file; for chakra the prefix of .RANK.et")],
    iteration: Annotated[
        list[int] | None, typer.Option(min=0, help="Index of an iteration; repeatable. The first if absent.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Workers of the job.")] = 1,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a trace for ASTRA-sim (chakra), SimAI (simai), a timeline viewer (perfetto) or as a table (csv)."""
    from gradwire.traces.formats import export_trace
    from gradwire.traces.formats.sink import replace_files
    from gradwire.traces.trace import load_trace

    loaded = load_trace(trace)
    write = lambda place: export_trace(loaded, place, format=format, iterations=iteration, ranks=ranks)  # noqa: E731
    files = replace_files(write, out) if force else write(out)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in files]}))
        return
    for file in files:
        typer.echo(f"written: {file}")


@app.command("host", epilog="Example: gradwire trace host nccl-topo.xml")
@for_people
def cmd_host(
    file: Annotated[Path, typer.Argument(help="NCCL's topology of a host, as NCCL_TOPO_DUMP_FILE writes it.")],
    as_json: Json = False,
) -> None:
    """Describe the host of an NCCL topology file: accelerators, NICs near them, and the tables of a scenario."""
    from gradwire.topology.nccl_topology import read_nccl_topology

    host = read_nccl_topology(file)
    tables = host.tables()
    if as_json:
        devices = {"gpus": [gpu.__dict__ for gpu in host.gpus], "nics": [nic.__dict__ for nic in host.nics]}
        typer.echo(json.dumps(devices | {"tables": tables, "skipped": dict(host.skipped)}))
        return
    for gpu in host.gpus:
        nvlink = f", NVLink {gpu.nvlink_bps / 1e9:,.0f} Gbit/s" if gpu.nvlink_bps else ""
        pci = f", PCI {gpu.pci_bps / 1e9:,.0f} Gbit/s" if gpu.pci_bps else ""
        near = ", ".join(nic.name for nic in host.nearest_nics(gpu)) or "none"
        typer.echo(f"{gpu.name}: CPU node {gpu.numa or '?'}{pci}{nvlink}; nearest NICs: {near}")
    for nic in host.nics:
        rate = f", {nic.net_bps / 1e9:,.0f} Gbit/s" if nic.net_bps else ""
        typer.echo(f"{nic.name}: NIC at CPU node {nic.numa or '?'}{rate}")
    for what, count in host.skipped.items():
        typer.echo(f"skipped: {count} x {what}")
    typer.echo("")
    for name, table in tables.items():
        typer.echo(f"[{name}]")
        for key, value in table.items():
            typer.echo(f"{key} = {json.dumps(value)}")


@app.command("example-dumps", epilog="Example: gradwire trace example-dumps --fault straggler --out dumps")
@for_people
def cmd_example_dumps(
    out: Annotated[Path, typer.Option(help="The new folder of the dumps, a file per rank.")],
    fault: Annotated[
        str,
        typer.Option(
            help="healthy, straggler, slow_link or flapping_nic, at a drawn rank.",
            autocompletion=complete_from("gradwire.traces.collective_logs.example_job", "FAULTS"),
        ),
    ] = "straggler",
    ranks: Annotated[int, typer.Option(min=16, max=4096, help="Ranks of the job, 8 per host.")] = 64,
    layout: Annotated[
        str,
        typer.Option(
            help="data, tensor_data or sharded.",
            autocompletion=complete_from("gradwire.traces.collective_logs.example_job", "LAYOUTS"),
        ),
    ] = "tensor_data",
    format: Annotated[
        str, typer.Option(help="flight_recorder, json (its other form) or inspector.")
    ] = "flight_recorder",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the job, its fault and its noise.")] = 1,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write flight recorder dumps or Inspector lines of an invented job with a known fault, to try monitoring on."""
    from dataclasses import replace

    import numpy as np

    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.result_store.folders.replacement import replaced_folder
    from gradwire.scenarios.errors import TraceError
    from gradwire.traces.collective_logs import flight_recorder, inspector
    from gradwire.traces.collective_logs.example_job import example_job, random_fault, random_shape

    if format not in ("flight_recorder", "json", "inspector"):
        raise TraceError(f"format {format!r}", "--format", "flight_recorder, json or inspector")
    with replaced_folder(out, force, r"rank_?\d+(\.json)?|.+-pid\d+\.log"):
        refuse_unwritable(out)
        rng = np.random.default_rng(seed)
        shape = replace(random_shape(rng, ranks), layout=layout)
        injected = random_fault(fault, shape, rng)
        log = example_job(shape, injected, seed)
        written = (
            inspector.write(log, out)
            if format == "inspector"
            else flight_recorder.write(log, out, as_json=format == "json")
        )
    if as_json:
        typer.echo(json.dumps({"files": len(written), "fault": injected._asdict()}))
    else:
        where = f" at rank {injected.rank}" if injected.rank >= 0 else ""
        typer.echo(f"{fault}{where}: {len(written)} files of {len(log):,} collectives in {out}")


@app.command("merge", epilog="Example: gradwire trace merge run1.trace.rank0 run1.trace.rank1 --out run1.trace")
@for_people
def cmd_merge(
    sources: Annotated[list[Path], typer.Argument(help="Traces recorded by the ranks of one job.")],
    out: Annotated[Path, typer.Option(help="The new directory of the merged trace.")],
    force: Force = False,
) -> None:
    """Merge the traces of the ranks of one job."""
    from gradwire.traces.storage.writer import replaceable
    from gradwire.traces.tools.rank_merge import merge_ranks

    with replaceable(out, force):
        typer.echo(f"trace written to {merge_ranks(sources, out)}")


@app.command("retime", epilog="Example: gradwire trace retime resnet50 --times profile.json.gz --out resnet50-gpu")
@for_people
def cmd_retime(
    trace: TraceName,
    times: Annotated[
        str, typer.Option(help="Source of the times: a trace, or a file that gradwire trace import reads.")
    ],
    out: Annotated[Path, typer.Option(help="The new directory of the trace.")],
    format: Annotated[
        str,
        typer.Option(
            help=f"Format of the file: auto, {', '.join(importers())}",
            autocompletion=complete_words("auto", *importers()),
        ),
    ] = "auto",
    name: Annotated[str | None, typer.Option(help="Name of the new trace; the directory's by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of gradients for which the file has only bytes.")] = "float32",
    share: Annotated[bool, typer.Option(help="Store no magnitudes: always read them from the bundled TRACE.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Combine the gradients of one trace with the times of another recording of the same model, such as a GPU's.

    Gradients are matched by name, or by order and size; unmatched ones are listed with their substitutes.
    docs/traces.md has the rules.
    """
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.traces.storage.writer import replaceable, write
    from gradwire.traces.tools.retime import describe_retiming, load_times, require_equal_magnitudes, retime
    from gradwire.traces.trace import load_trace

    with replaceable(out, force):
        refuse_unwritable(out)
        sizes = load_trace(trace)
        with progress(f"read {Path(times).name}", as_json) as show:
            timed, source = load_times(times, format=format, dtype=dtype, progress=show)
        command = ["gradwire", "trace", "retime", Path(trace).name, "--times", Path(times).name]
        command += [*(["--share"] if share else []), "--out", out.name]
        retimed = retime(sizes, timed, name or out.name, source, shlex.join(command))
        if share:
            require_equal_magnitudes(retimed, trace)
        write(retimed, out, chunks_of=trace if share else None)
    if as_json:
        typer.echo(json.dumps({"trace": str(out), **retimed.manifest["retimed"]}))
        return
    for line in describe_retiming(retimed.manifest):
        typer.echo(line)
    typer.echo(f"trace written to {out}")


@app.command("plot", epilog="Example: gradwire trace plot resnet50 --out resnet50-plots")
@for_people
def cmd_plot(
    trace: TraceName,
    out: Annotated[Path, typer.Option(help="Directory of the plots.")],
    iteration: Annotated[int, typer.Option(min=0, help="Index of the iteration to plot.")] = 0,
    force: Force = False,
) -> None:
    """Plot the timeline of one iteration and the gradient magnitudes of each layer."""
    from gradwire.result_store.folders.replacement import replaced_folder
    from gradwire.traces.tools.plot import plot_trace
    from gradwire.traces.trace import load_trace

    with replaced_folder(out, force, r"(timeline|magnitudes)\.png"):
        for path in plot_trace(load_trace(trace), out, iteration):
            typer.echo(f"plot: {path}")


@app.command("diff", epilog="Example: gradwire trace diff resnet50 my-trace")
@for_people
def cmd_diff(
    first: TraceName,
    second: Annotated[str, typer.Argument(help="Trace to compare with the first.", autocompletion=trace_names)],
    as_json: Json = False,
) -> None:
    """Compare two traces: tensors, sizes, compute times per phase, magnitudes."""
    from gradwire.traces.tools.diff import diff, print_diff
    from gradwire.traces.trace import load_trace

    difference = diff(load_trace(first), load_trace(second))
    if as_json:
        typer.echo(json.dumps(difference))
    else:
        print_diff(difference)
