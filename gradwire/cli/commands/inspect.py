"""The command `gradwire check` validates a scenario, `schema` prints the JSON Schema, `list` what scenarios can name,
and `telemetry` shows a run's queues and drops.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import (
    Force,
    Json,
    ScenarioName,
    Set,
    TraceName,
    Trust,
    complete_from,
    overrides_from_options,
    policy_names,
)
from gradwire.cli.terminal import for_people

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire.sim.cost_estimate import RunCost
    from gradwire.topology.base_rtt import NetworkSize


@for_people
def cmd_check(
    scenario: ScenarioName,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Check this policy of the scenario alone.", autocompletion=policy_names),
    ] = None,
    trace: TraceName = None,
    set_: Set = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Validate a scenario, its network and its traces; report every error at once."""
    from gradwire.scenarios.loading.load import load_scenario
    from gradwire.scenarios.validation.scenario import notes as notes_of
    from gradwire.sim.cost_estimate import estimate_cost
    from gradwire.sim.preparation import check_variants, extents, prepare_inputs
    from gradwire.studies.training.run import check_trainings

    loaded = load_scenario(scenario, set=overrides_from_options(set_, trace), policy=policy)
    variants = loaded.variants()
    networks = extents(variants, check_variants(variants))
    check_trainings(variants)
    notes = notes_of(variants)
    costs = [estimate_cost(variant, prepare_inputs(variant)) for variant in variants]
    if as_json:
        listed = [{"policies": names, **_extent_json(extent)} for names, extent in networks]
        policies = [variant.policy_name for variant in variants]
        cost = [None if each is None else each._asdict() for each in costs]
        about = {"name": loaded.name, "policies": policies, "networks": listed, "costs": cost, "notes": notes}
        typer.echo(json.dumps(about))
        return
    typer.echo(f"{loaded.name} is valid: " + ", ".join(variant.policy_name for variant in variants))
    for names, extent in networks:
        owners = f" of {', '.join(names)}" if len(networks) > 1 else ""
        typer.echo(f"network{owners}: {_extent_text(extent)}")
    typer.echo(f"cost: {_cost_text(costs)}")
    for note in notes:
        typer.echo(f"note: {note}")


def _cost_text(costs: Sequence[RunCost | None]) -> str:
    """Return the estimated cost of all variants in one line."""
    from gradwire.scenarios.readable import count_text, size_text, wall_text

    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return "not estimated: the network or an iteration is too large to be counted in a check"
    least = "at least " if any(cost.is_lower_bound for cost in known) else ""
    hops, seconds = sum(cost.packet_hops for cost in known), sum(cost.seconds for cost in known)
    runs = f"{len(known)} runs" if len(known) > 1 else "1 run"
    memory = size_text(max(cost.memory_bytes for cost in known))
    return f"{runs}, {least}{count_text(hops)} packet-hops, about {wall_text(seconds)} on one core, {memory} of memory"


def _extent_json(extent: NetworkSize) -> dict[str, object]:
    """Return a network as JSON; `base_rtt_ps`: fastest and slowest, null for networks too large for a check."""
    data = asdict(extent)
    return data | {"base_rtt_ps": data.pop("round_trips")}


def _extent_text(extent: NetworkSize) -> str:
    """Return a network in one line."""
    from gradwire.scenarios.readable import time_text

    counts = [("host", "s", extent.hosts), ("switch", "es", extent.switches), ("cable", "s", extent.cables)]
    if extent.machines:
        counts[:1] = [("host", "s", extent.machines), ("accelerator", "s", extent.hosts)]
    elif extent.cards != extent.hosts:
        counts.insert(1, ("network card", "s", extent.cards))
    parts = [f"{count:,} {one if count == 1 else one + more}" for one, more, count in counts]
    if extent.round_trips:
        fastest, slowest = (time_text(time) for time in extent.round_trips)
        parts.append(f"base round trips of {fastest}" + (f" to {slowest}" if slowest != fastest else ""))
    return ", ".join(parts)


@for_people
def cmd_telemetry(
    result: Annotated[Path, typer.Argument(help="A Result directory.")],
    port: Annotated[
        list[str] | None,
        typer.Option("--port", "--ports", help="A port (leaf0->h3) or a node (all its ports); repeatable."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot queues, utilisation and queueing delays to this new .png, .pdf, .svg or .jpg."),
    ] = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Write the packet log to this new pcapng file, for Wireshark.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show the ports of one run: queues, queueing delays, drops and marks, as far as [output] recorded them."""
    from gradwire.analysis.telemetry.telemetry import chosen_ports, describe
    from gradwire.analysis.telemetry.telemetry_tables import print_telemetry
    from gradwire.result_store.folders.output_folder import refuse_unwritable
    from gradwire.result_store.folders.replacement import PLOT_HEADS, replaced_file
    from gradwire.result_store.result import Result

    if plot is not None:
        from gradwire.analysis.figure_files import format_of

        format_of(plot)
    with replaced_file(plot, force, *PLOT_HEADS), replaced_file(pcap, force, b"\n\r\r\n"):
        for file in (plot, pcap):
            if file is not None:
                refuse_unwritable(file, file=True)
        loaded = Result.read(result)
        ports = chosen_ports(loaded, port or [])
        only = ports if port else None
        telemetry = describe(loaded, only)
        if as_json:
            typer.echo(json.dumps(telemetry))
        else:
            print_telemetry(telemetry, bool(port))
        if plot is not None:
            from gradwire.analysis.telemetry.telemetry_plot import draw_telemetry

            drawn = draw_telemetry(loaded, plot, only)
            if not as_json:
                typer.echo(f"plot: {plot}" + (f" ({', '.join(drawn)})" if drawn else ""))
        if pcap is not None:
            from gradwire.analysis.pcap.packet_capture import write_capture

            count = write_capture(loaded, pcap, ports)
            if not as_json:
                typer.echo(f"capture: {pcap}, {count:,} packets")


@for_people
def cmd_schema() -> None:
    """Print the JSON Schema of scenario files, for editors and other programs."""
    from gradwire.scenarios.schema.scenario import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


MOST_NAMES = 6
"""Names of a kind in the list of kinds."""


@for_people
def cmd_list(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="scenarios, traces, models, transports, balancers, topologies, measures, ...; all kinds if absent.",
            autocompletion=complete_from("gradwire.studies.catalog", "KINDS"),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what scenarios and commands can name: scenarios, traces, models, transports, measures, ..."""
    from gradwire.studies.catalog import KINDS, catalog

    if kind is None:
        lists = {each: catalog(each) for each in KINDS}
        if as_json:
            typer.echo(json.dumps({each: dict(entries) for each, entries in lists.items()}))
            return
        for each, entries in lists.items():
            rest = len(entries) - MOST_NAMES
            more = f", and {rest} more" if rest > 0 else ""
            typer.echo(f"{each}: {', '.join(name for name, _ in entries[:MOST_NAMES])}{more}")
        return
    entries = catalog(kind)
    if as_json:
        typer.echo(json.dumps(dict(entries)))
        return
    width = max(len(name) for name, _ in entries)
    for name, line in entries:
        typer.echo(f"{name:<{width}}  {line}".rstrip())
