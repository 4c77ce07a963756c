"""Shows a comparison with htsim: a table for the terminal and the page, and a chart of all differences."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.analysis.comparison.tables import Grid
from gradwire.analysis.report import html_page as html
from gradwire.analysis.report.charts import Axis, Lines, Series
from gradwire.studies.htsim.comparison import CLOSE, RowResult, summary

TITLE = "Ultra Ethernet: experiments of htsim"
HEAD = ["experiment", "file", "htsim (us)", "gradwire (us)", "difference"]


def result_grid(results: Sequence[RowResult]) -> Grid:
    """Return both completion times of every experiment; those that cannot be set come last, with the reason."""
    rows = []
    for each in sorted(results, key=lambda each: bool(each.problem)):
        published = f"{each.again_us or each.htsim_last_us:,.1f}"
        file = each.source.rpartition(".")[0].removeprefix("validate_")
        if each.problem:
            rows.append([each.title, file, published, "-", each.problem.splitlines()[-1].strip()])
            continue
        spread = f" ({each.spread_us[0]:,.1f} to {each.spread_us[-1]:,.1f})" if len(each.spread_us) > 1 else ""
        rows.append([each.title, file, published, f"{each.last_us:,.1f}{spread}", f"{each.difference:+.1%}"])
    return Grid("Last completion", HEAD, rows)


def comparison_page(results: Sequence[RowResult], command: str) -> str:
    """Return the page of a comparison."""
    section = html.PageSection(TITLE, "comparison", f"{summary(results)}.")
    section.add(
        html.paragraph(
            "Each experiment is a command of htsim_uec, translated to a scenario by a program. Its figure is the last "
            "completion as htsim counts it, up to the sender's last acknowledgement, which adds the way back to the "
            "delivery that gradwire measures. htsim is deterministic; with several seeds gradwire's is the median."
        ),
        html.chart(_chart([each for each in results if not each.problem])),
        html.grid(result_grid(results), most=5000),
        html.collapsible("Commands", html.code("\n".join(each.command for each in results))),
    )
    return html.html_page(TITLE, [section], command)


def _chart(results: Sequence[RowResult]) -> Lines:
    """Return the chart of differences, in order of size."""
    ordered = sorted(results, key=lambda each: each.difference)
    series = Series(
        "experiments",
        [(number, 100 * each.difference) for number, each in enumerate(ordered, 1)],
        dots=True,
        line=False,
        note=[each.title for each in ordered],
    )
    return Lines(
        "Difference of the last completion from htsim",
        f"Experiments in order of their difference. {CLOSE:.0%} counts as agreement.",
        Axis("experiment"),
        Axis("difference (%)"),
        [series],
    )
