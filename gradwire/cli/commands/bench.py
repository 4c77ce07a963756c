"""Defines the commands `gradwire bench fabric`, `traces`, `emu` and `training`, which measure gradwire's own speed."""

from __future__ import annotations

from typing import Annotated

import typer

from gradwire.cli.options import Json
from gradwire.cli.terminal import for_people

bench_app = typer.Typer(help="Measure gradwire's own speed.", no_args_is_help=True)


@bench_app.command("fabric", epilog="Example: gradwire bench fabric --case incast --hosts 128 --transport dctcp")
@for_people
def cmd_bench_fabric(
    case: Annotated[str | None, typer.Option(help="permutation or incast; all if absent.")] = None,
    hosts: Annotated[int | None, typer.Option(help="128, 432 or 1024; all if absent.")] = None,
    transport: Annotated[str | None, typer.Option(help="One transport, or all; the usual three if absent.")] = None,
    feature: Annotated[
        str | None, typer.Option(help="An extra feature of switches or the engine, a load balancer, or all.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="One thread count; 1 and 2 if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Speed of the packet engine: packet-hops per second on fat-trees, for each transport."""
    from gradwire.benchmarks.fabric import bench_fabric

    bench_fabric(case=case, hosts=hosts, transport=transport, feature=feature, threads=threads, as_json=as_json)


@bench_app.command("traces", epilog="Example: gradwire bench traces --case resnet50")
@for_people
def cmd_bench_traces(
    case: Annotated[str | None, typer.Option(help="One trace by name; all if absent.")] = None, as_json: Json = False
) -> None:
    """Speed of reading traces: the bundled ones, and a synthetic one of 138 million parameters."""
    from gradwire.benchmarks.traces import bench_traces

    bench_traces(case=case, as_json=as_json)


@bench_app.command("emu", epilog="Example: gradwire bench emu --case virtual")
@for_people
def cmd_bench_emu(
    case: Annotated[str | None, typer.Option(help="core, tun, agents or virtual; all if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Speed of the testbed: its userspace switch, its agents on the wall clock, and virtual time."""
    from gradwire.benchmarks.emu import bench_emu

    bench_emu(case=case, as_json=as_json)


@bench_app.command("training", epilog="Example: gradwire bench training --model resnet8")
@for_people
def cmd_bench_training(
    model: Annotated[str, typer.Option(help="resnet8, or resnet20.")] = "resnet20", as_json: Json = False
) -> None:
    """Speed of training: eight workers in one process, and the simulator in the loop, compared with plain PyTorch."""
    from gradwire.benchmarks.training import bench_training

    bench_training(model=model, as_json=as_json)
