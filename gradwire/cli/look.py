"""The commands that look at what is asked and what is answered: check, schema, telemetry."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Json, ScenarioName, Set, TraceName, Trust, overrides_of, policy_names
from gradwire.cli.terminal import for_people

if TYPE_CHECKING:
    from gradwire.experiment.extent import Extent


def register(app: typer.Typer) -> None:
    """Add the commands to the door's."""
    app.command("check", epilog="Example: gradwire check my.toml --set switch.queues=4")(cmd_check)
    example = "Example: gradwire telemetry results/one --plot queues.png --port leaf0"
    app.command("telemetry", epilog=example)(cmd_telemetry)
    app.command("schema", epilog="Example: gradwire schema > scenario.schema.json")(cmd_schema)


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
    """Validate a scenario, its network and the traces it names; every mistake is reported at once."""
    from gradwire.learn import check_trainings
    from gradwire.scenarios.checks.scenario import notes as notes_of
    from gradwire.scenarios.load import load_scenario
    from gradwire.sim.precheck import check_variants, extents

    loaded = load_scenario(scenario, set=overrides_of(set_, trace), policy=policy)
    variants = loaded.variants()
    found = extents(variants, check_variants(variants))
    check_trainings(variants)
    notes = notes_of(variants)
    if as_json:
        networks = [{"policies": names, **_extent_json(extent)} for names, extent in found]
        policies = [variant.policy_name for variant in variants]
        typer.echo(json.dumps({"name": loaded.name, "policies": policies, "networks": networks, "notes": notes}))
        return
    typer.echo(f"{loaded.name} is valid: " + ", ".join(variant.policy_name for variant in variants))
    for names, extent in found:
        whose = f" of {', '.join(names)}" if len(found) > 1 else ""
        typer.echo(f"network{whose}: {_extent_text(extent)}")
    for note in notes:
        typer.echo(f"note: {note}")


def _extent_json(extent: Extent) -> dict[str, object]:
    """A network for programs; `base_rtt_ps`: fastest and slowest, null for networks that are too large for a check."""
    found = asdict(extent)
    return found | {"base_rtt_ps": found.pop("round_trips")}


def _extent_text(extent: Extent) -> str:
    """A network in one line."""
    from gradwire.scenarios.readable import time_text

    counts = [("host", "s", extent.hosts), ("switch", "es", extent.switches), ("cable", "s", extent.cables)]
    if extent.cards != extent.hosts:
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
        typer.Option(help="Draw queues, utilisation and waiting times into this new .png, .pdf, .svg or .jpg."),
    ] = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Write the log of packets to this new pcapng file, for Wireshark.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at the ports of one run: queues, waiting times, drops and marks; what was recorded says [output]."""
    from gradwire.analysis.telemetry import chosen_ports, describe
    from gradwire.analysis.telemetry_show import print_telemetry
    from gradwire.scenarios.output import refuse_unwritable
    from gradwire.scenarios.result import Result

    if plot is not None:
        from gradwire.analysis.figures import format_of

        format_of(plot)
    for file in (plot, pcap):
        if file is not None:
            refuse_unwritable(file, file=True)
    loaded = Result.read(result)
    wanted = chosen_ports(loaded, port or [])
    only = wanted if port else None
    found = describe(loaded, only)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        print_telemetry(found, bool(port))
    if plot is not None:
        from gradwire.analysis.telemetry_plot import draw_telemetry

        shown = draw_telemetry(loaded, plot, only)
        if not as_json:
            typer.echo(f"picture: {plot}" + (f" ({', '.join(shown)})" if shown else ""))
    if pcap is not None:
        from gradwire.analysis.capture import write_capture

        count = write_capture(loaded, pcap, wanted)
        if not as_json:
            typer.echo(f"capture: {pcap}, {count:,} packets")


@for_people
def cmd_schema() -> None:
    """Print the JSON Schema of scenario files, for editors and other programs."""
    from gradwire.scenarios.schema.scenario import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
