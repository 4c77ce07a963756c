"""Defines the command `gradwire reproduce`, which tests published claims and prints verdicts, or lists the planned
runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradwire.cli.clusters.study import reproduce_clusters
from gradwire.cli.options import Device, Json, Live, complete_from, complete_words
from gradwire.cli.terminal import for_people, progress

if TYPE_CHECKING:
    from gradwire.studies.reproduce.runner import Reproduction


@for_people
def cmd_reproduce(
    sets: Annotated[
        list[str],
        typer.Argument(
            help="One or several of: dlcp, mlt; regimes: where bounded loss pays off; schedulers; lee: overlapped "
            "averaging; tolerance: effect of lost gradients on accuracy; reducers; mp2, mipd, slimdp: systems compared "
            "with dense training and reducers; loop: accuracy over time on a fabric, by transport. Or alone: clusters, "
            "measured bus bandwidths beside the model of gradwire collective; uec, the experiments of htsim's Ultra "
            "Ethernet simulator (--htsim).",
            autocompletion=complete_from("gradwire.studies.reproduce", "SETS"),
        ),
    ],
    claim: Annotated[list[str] | None, typer.Option("--claim", help="Only this claim, such as S4; repeatable.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Also run the long settings.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=99, help="Seeds of every run; if absent, 3 for quick simulations, else 5.")
    ] = None,
    pictures: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Training data: CIFAR-10, pictures by class, or synthetic.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="FILE", help="Training text, or synthetic.")] = None,
    device: Device = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Runs at a time; as many as processors if absent, one with --device."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output directory of Results and page; an earlier reproduction is resumed.")
    ] = None,
    world: Annotated[
        str,
        typer.Option(
            metavar="sim|emu",
            help="emu: judge by real sockets in virtual time, with simulations beside them. For dlcp and mlt.",
            autocompletion=complete_words("sim", "emu"),
        ),
    ] = "sim",
    htsim: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For uec: a checkout of github.com/ultraethernet/uet-htsim.")
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="For uec: also run the checkout's own htsim_uec and compare with that.")
    ] = False,
    only_list: Annotated[
        bool, typer.Option("--list", help="Only list the runs, those that are done, and the time for the rest.")
    ] = False,
    measurements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For clusters: measured times as CSV; those with gradwire if absent."),
    ] = None,
    live: Live = None,
    as_json: Json = False,
) -> None:
    """Test published claims: the claim, the measurement, and the verdict. An interrupted command can be resumed. A
    claim that is not reproduced is not an error."""
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.studies.parallel.process_pool import cores
    from gradwire.studies.reproduce.runner import Reproduction

    if "clusters" in sets:
        if len(sets) > 1 or claim or full or only_list or world != "sim":
            raise ScenarioError("goes with --measurements, --out and --json only", "reproduce clusters", "nothing else")
        reproduce_clusters(measurements, out or Path("results") / "reproduce-clusters", as_json)
        return
    if measurements is not None:
        raise ScenarioError("is for clusters", f"--measurements {measurements}", "gradwire reproduce clusters")
    if world not in ("sim", "emu"):
        raise ScenarioError(f'"{world}" is no world', "--world", "sim, or emu")
    if "uec" in sets:
        unused = {"--full": full, "--pictures": pictures, "--text": text, "--device": device, "--list": only_list}
        for option in (name for name, value in unused.items() if value):
            raise ScenarioError("has no effect on uec", option, "--htsim, --claim, --seeds, --jobs, --out, --beside")
        if len(sets) > 1 or htsim is None:
            expected = "reproduce uec --htsim FOLDER, a checkout of github.com/ultraethernet/uet-htsim"
            raise ScenarioError("needs htsim's files, and is reproduced alone", "uec", expected)
        chosen = " ".join(claim or ())
        _compare_htsim(
            htsim, out or Path("results/reproduce-uec"), chosen, seeds or 1, jobs or cores(), beside, as_json
        )
        return
    if htsim is not None or beside:
        raise ScenarioError("is for uec only", "--htsim, --beside", "reproduce uec")
    output_dir = out or Path("results") / f"reproduce-{'-'.join([*sets, *(['testbed'] if world == 'emu' else [])])}"
    jobs = jobs or (cores() if device is None else 1)
    data = {key: value for key, value in (("pictures", pictures), ("text", text)) if value is not None}
    reproduction = Reproduction(sets, output_dir, claim or (), full, seeds, data, device or "cpu", world)
    if only_list:
        _list(reproduction, jobs, as_json)
        return
    with progress(f"reproduce {' '.join(sets)}", as_json) as show:
        judgements = reproduction.run(jobs, show)
    if as_json:
        from gradwire.studies.reproduce.claims_page import as_dict

        typer.echo(json.dumps(as_dict(judgements)))
        return
    from gradwire.studies.reproduce.claims_page import agreement_lines, basis_text, finding_lines, published_words

    typer.echo(basis_text(json.loads((output_dir / "claims.json").read_text(encoding="utf-8"))))
    for each in judgements:
        typer.echo(f"\n{each.claim.id}  {each.claim.sentence}")
        published = published_words(each.claim.published, each.claim.source)
        typer.echo(f"    published: {published} (source: {each.claim.source})")
        for line in (*finding_lines(each), *agreement_lines(each)):
            typer.echo(f"    {line}")
        typer.echo(f"    {each.verdict.upper()}. {each.reason}")
    typer.echo(f"\npage and plots: {output_dir}/page.html")


def _compare_htsim(checkout: Path, out: Path, chosen: str, seeds: int, jobs: int, beside: bool, as_json: bool) -> None:
    """Compare with htsim's experiments; print the table and write the page."""
    from gradwire.analysis.comparison.tables import print_grid
    from gradwire.result_store.folders.output_folder import atomic_replace
    from gradwire.result_store.provenance import command_line
    from gradwire.studies.htsim.comparison import compare_rows, summary
    from gradwire.studies.htsim.page import comparison_page, result_grid

    with progress("reproduce uec", as_json) as show:
        results = compare_rows(checkout, out, chosen, seeds, jobs, beside, show)
    with atomic_replace(out / "page.html") as partial:
        partial.write_text(comparison_page(results, command_line()), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in results]))
        return
    print_grid(result_grid(results))
    typer.echo(f"{summary(results)}\npage and figures: {out}/page.html, rows.json")


def _list(reproduction: Reproduction, jobs: int, as_json: bool) -> None:
    """Print the planned runs, as a table or as JSON."""
    from gradwire.analysis.comparison.tables import Grid, print_grid
    from gradwire.scenarios.readable import wall_text

    with progress(f"reproduce {' '.join(reproduction.names)} --list", as_json) as show:
        rows = reproduction.costs(show)
    runs, done = sum(row.runs for row in rows), sum(row.kept for row in rows)
    left = [row.left_s for row in rows if row.left_s is not None]
    if as_json:
        whole = {"runs": runs, "kept": done, "left_s": sum(left) if left else None}
        typer.echo(json.dumps({**whole, "settings": [asdict(row) for row in rows]}))
        return
    head = ["setting", "runs", "done", "started", "steps", "time per run", "left"]
    lines = []
    for row in rows:
        counts = [f"{row.runs}", f"{row.kept}", f"{row.begun}", f"{row.steps:,}" if row.steps else ""]
        lines.append([row.setting, *counts, _range(row.least_s, row.most_s), _left(row.left_s)])
    print_grid(Grid(f"{', '.join(reproduction.names)}: {runs} runs, {done} done", head, lines))
    if not left:
        typer.echo("Simulations are not timed beforehand; each takes seconds to minutes.")
        return
    several = f", {wall_text(sum(left) / jobs)} with {jobs} runs at a time on as many free ones" if jobs > 1 else ""
    typer.echo(f"left: about {_left(sum(left))} of one processor{several}")
    typer.echo("Estimated from some steps of each kind of training. The command can be interrupted and resumed.")


def _left(seconds: float | None) -> str:
    """Return the remaining time of a setting as text; empty if unknown, as for simulations."""
    from gradwire.scenarios.readable import wall_text

    return "" if seconds is None else wall_text(seconds) if seconds else "nothing"


def _range(least: float | None, most: float | None) -> str:
    """Return the range of times of one run as text."""
    from gradwire.scenarios.readable import wall_text

    if least is None or most is None:
        return ""
    low, high = wall_text(least), wall_text(most)
    return low if low == high else f"{low} to {high}"
