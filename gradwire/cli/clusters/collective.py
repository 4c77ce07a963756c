"""Defines the command `gradwire collective`, which prints nccl-tests' table for a described cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.options import Json, Set, Threads, complete_from, complete_words
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.studies.busbw.nccl_tests_log import MeasuredTest
    from gradwire.studies.busbw.runner import CollectiveTest, Outcome


def preset_policy_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the policies of the presets of --on, or of all, that complete a word."""
    from gradwire.scenarios.errors import GradwireError
    from gradwire.studies.busbw.presets import list_presets, policy_names

    names = ["all"]
    for source in context.params.get("on") or list_presets():
        try:
            names += policy_names(source)
        except GradwireError:  # a file that is not there yet
            continue
    return complete_words(*dict.fromkeys(names))(incomplete)


@for_people
def cmd_collective(
    collective: Annotated[
        str,
        typer.Argument(
            help="all_reduce, all_gather, reduce_scatter, alltoall, broadcast, reduce or sendrecv.",
            autocompletion=complete_from("gradwire.studies.busbw.collectives", "COLLECTIVES"),
        ),
    ],
    on: Annotated[
        list[str],
        typer.Option(
            "--on",
            metavar="PRESET",
            help="The cluster: a name of `gradwire list presets`, or a .toml file; repeatable, side by side.",
            autocompletion=complete_from("gradwire.studies.busbw.presets", "list_presets"),
        ),
    ],
    ranks: Annotated[int, typer.Option(help="Ranks, one per accelerator.")],
    first: Annotated[str, typer.Option("-b", "--minbytes", metavar="SIZE", help="First size: 8, 64K, 1M, 8G.")] = "8",
    last: Annotated[str, typer.Option("-e", "--maxbytes", metavar="SIZE", help="Last size.")] = "128M",
    factor: Annotated[
        float | None, typer.Option("-f", "--stepfactor", help="Factor between sizes; 2 without -i.")
    ] = None,
    step: Annotated[str | None, typer.Option("-i", "--stepbytes", metavar="SIZE", help="Difference of sizes.")] = None,
    datatype: Annotated[
        str,
        typer.Option("-d", "--datatype", help="float, half, int8, ...", autocompletion=complete_words("float", "half")),
    ] = "float",
    redop: Annotated[
        str, typer.Option("-o", "--op", help="Reduction, a label only: sum, prod, min, max, avg.")
    ] = "sum",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="A policy of the preset; repeatable, or all, side by side.",
            autocompletion=preset_policy_names,
        ),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help='As NCCL_ALGO: Ring, Tree, NVLS, NVLSTree; "^Tree" excludes.',
            autocompletion=complete_words("Ring", "Tree", "NVLS", "NVLSTree"),
        ),
    ] = None,
    proto: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="As NCCL_PROTO: LL, LL128, Simple.",
            autocompletion=complete_words("LL", "LL128", "Simple"),
        ),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Printed output of nccl-tests or rccl-tests to put beside.")
    ] = None,
    ideal: Annotated[bool, typer.Option("--ideal", help="Take an ideal wire; simulate no packets.")] = False,
    set: Set = None,
    threads: Threads = 1,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves: .png, .pdf or .svg.")] = None,
    as_json: Json = False,
) -> None:
    """Print the table of nccl-tests for a cluster: time, algbw and busbw by size, with NCCL modelled and the network
    between hosts simulated."""
    from gradwire.analysis.figure_files import format_of, save_figure
    from gradwire.studies.busbw.tables import as_dict, draw, side_by_side_lines, table_lines

    if plot is not None:
        format_of(plot)
    log = _measured(measured)
    test = _test(collective, ranks, (first, last), factor, step, (datatype, redop), (algo, proto))
    outcomes = _outcomes(test, on, policy or [], set or [], threads, ideal, as_json)
    if log is not None and log.test and log.test != test.collective.name:
        _refuse_other(log.path, log.test, test.collective.name)
    if as_json:
        typer.echo(json.dumps(as_dict(test, outcomes, log)))
    else:
        one = len(outcomes) == 1 and log is None
        lines = table_lines(test, outcomes[0]) if one else side_by_side_lines(test, outcomes, log)
        typer.echo("\n".join(lines))
    if plot is not None:
        save_figure(draw(test, outcomes, log), plot)


def _measured(path: Path | None) -> MeasuredTest | None:
    """Read a log before anything is simulated."""
    from gradwire.studies.busbw.nccl_tests_log import read_log

    return None if path is None else read_log(path)


def _refuse_other(path: str, test: str, wanted: str) -> None:
    from gradwire.scenarios.errors import ScenarioError

    raise ScenarioError(f"holds a test of {test}", f"--measured {path}", f"one of {wanted}")


def _test(
    collective: str,
    ranks: int,
    ends: tuple[str, str],
    factor: float | None,
    step: str | None,
    kind: tuple[str, str],
    choices: tuple[str | None, str | None],
) -> CollectiveTest:
    """Return the test that the options describe. Raises ScenarioError."""
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.studies.busbw import collectives
    from gradwire.studies.busbw.runner import CollectiveTest, parse_algorithms, parse_protocols

    datatype, redop = kind
    if datatype not in collectives.TYPE_BYTES:
        raise ScenarioError("no such data type", f"-d {datatype}", ", ".join(collectives.TYPE_BYTES))
    if redop not in ("sum", "prod", "min", "max", "avg"):
        raise ScenarioError("no such reduction", f"-o {redop}", "sum, prod, min, max or avg")
    if factor is not None and step is not None:
        raise ScenarioError("are two ways to choose sizes", "-f, -i", "one of them")
    low, high = (collectives.parse_test_size(text, name) for text, name in zip(ends, ("-b", "-e"), strict=True))
    by = None if step is None else collectives.parse_test_size(step, "-i")
    grows = 2.0 if factor is None and by is None else factor
    algo, proto = choices
    return CollectiveTest(
        collectives.collective_named(collective),
        ranks,
        tuple(collectives.sweep_sizes(low, high, grows, by)),
        datatype,
        redop,
        parse_algorithms(algo) if algo else (),
        parse_protocols(proto) if proto else (),
    )


def _outcomes(
    test: CollectiveTest,
    names: list[str],
    policies: list[str],
    overrides: list[str],
    threads: int,
    ideal: bool,
    quiet: bool,
) -> list[Outcome]:
    """Run every preset under every policy; all are read before the first one runs."""
    from gradwire.studies.busbw.presets import load_preset, policy_names
    from gradwire.studies.busbw.runner import layout_of, run_test

    planned = []
    for name in names:
        chosen: list[str | None] = list(policy_names(name)) if policies == ["all"] else [*policies] or [None]
        for policy in chosen:
            preset = load_preset(name, overrides, policy)
            layout_of(preset, test.ranks)
            parts = [*([Path(name).stem] if len(names) > 1 or policy is None else []), *([policy] if policy else [])]
            planned.append((preset, " ".join(parts)))
    outcomes = []
    with progress(f"collective {test.collective.name}", quiet) as show:
        for number, (preset, label) in enumerate(planned):
            show(number / len(planned), label)
            outcomes.append(run_test(test, preset, label, threads, ideal))
    return outcomes
