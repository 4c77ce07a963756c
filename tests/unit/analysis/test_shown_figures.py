"""What readers see of figures: policies in one order, intervals that say what they are, trimming by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from output_cases import run

from gradwire.analysis.breakdown.breakdown import PART_LABELS, PARTS
from gradwire.analysis.comparison.markdown_report import _losses
from gradwire.analysis.confidence_intervals import half_width, shown_half_width
from gradwire.result_store.provenance import members
from gradwire.studies.sweep.plots.plot_data import begin_at_zero
from gradwire.studies.sweep.sweep_tables import cell_of

POLICIES = """
name = "ordered"
topology = { kind = "star", hosts = 3 }
[switch]
ecn_threshold = "64KiB"
[[traffic]]
name = "burst"
kind = "incast"
fan_in = 2
receiver = "h2"
size = "20kB"
[[policy]]
name = "zulu"
label = "Zulu"
[policy.set]
transport = "dctcp"
[[policy]]
name = "mike"
label = "Mike"
[policy.set]
transport = "dctcp"
switch = { ecn_threshold = "32KiB" }
[[policy]]
name = "alpha"
label = "Alpha"
[policy.set]
transport = "dctcp"
switch = { ecn_threshold = "16KiB" }
"""
ORDER = ["Zulu", "Mike", "Alpha"]


def ordered(text: str) -> list[str]:
    """The policies in the order in which a text names them first."""
    return sorted(ORDER, key=lambda name: text.index(name))


def test_policies_appear_in_scenario_order_everywhere(own_directory: Path) -> None:
    Path("ordered.toml").write_text(POLICIES)
    first = run("compare", "ordered.toml", "--out", "compared")
    assert first.returncode == 0, first.stderr
    assert [path.name for path in members("compared")] == ["zulu", "mike", "alpha"]
    again, reported = run("compare", "compared"), run("report", "compared", "--out", "page.html", "--no-perfetto")
    assert (again.returncode, reported.returncode) == (0, 0), again.stderr + reported.stderr
    page = Path("page.html").read_text()
    drawn = [
        [each["name"] for each in json.loads(found)["series"]]
        for found in re.findall(r'<script type="application/json">(.*?)</script>', page)
        if '"series"' in found
    ]
    assert drawn and all(each == ORDER for each in drawn), "colours go by the place"
    for text in (first.stdout, again.stdout, Path("compared/report.md").read_text(), page):
        assert ordered(text) == ORDER


def test_unnamed_comparison_members_follow_in_alphabetical_order(own_directory: Path) -> None:
    for name in ("b", "a", "c"):
        (own_directory / "results" / name).mkdir(parents=True)
        (own_directory / "results" / name / "result.json").write_text("{}")
    for folders, order in ((["c", "a"], "cab"), (None, "abc"), ("cab", "abc"), ([1, "b"], "bac")):
        (own_directory / "comparison.json").write_text(json.dumps({"folders": folders}))
        assert "".join(path.name for path in members(own_directory)) == order
    (own_directory / "comparison.json").write_text("damaged")
    assert "".join(path.name for path in members(own_directory)) == "abc"


def test_confidence_interval_of_two_values_is_hidden() -> None:
    """The half width for 1, 2, 3 is 4.303 / sqrt(3); for two values t would be 12.7."""
    assert shown_half_width([1, 2, 3]) == half_width([1, 2, 3]) == pytest.approx(4.303 / 3**0.5)
    assert shown_half_width([1, 2]) == float("inf")


@pytest.mark.parametrize("name, mean, half, shown", [
    ("flow_mean_ps", 5.31e6, 160e3, "5.31 us ± 160 ns"),
    ("lost_share", 0.336, 0.158, "33.6 % ± 16 points"),
    ("flow_mean_ps", 5.31e6, None, "5.31 us"),
    ("lost_share", 0.0, 0.0123, "0 % ± 1.2 points"),
])  # fmt: skip
def test_interval_in_a_cell_is_absolute_and_has_a_unit(name, mean, half, shown) -> None:
    high = None if half is None else mean + half
    assert cell_of(name, {name: mean, f"{name}_high": high, f"{name}_count": 3, "runs": 3}) == shown


@pytest.mark.parametrize("values, bottom", [((2, 10), 0), ((8, 10), None), ((-1, 10), None)])
def test_figure_axis_starts_at_zero_as_on_the_page(values, bottom) -> None:
    """The axis starts at zero unless the smallest value exceeds 0.6 of the largest, as in chart.js."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.plot([0, 1], values)
    before = axes.get_ylim()[0]
    begin_at_zero(axes)
    assert axes.get_ylim()[0] == (before if bottom is None else bottom)


def test_report_counts_trimmed_packets() -> None:
    entry = SimpleNamespace(dropped=0, retransmitted=2014, trimmed=2014, data_packets=9)
    (line,) = _losses(None, entry, "NSCC")  # type: ignore[arg-type]
    assert line == "NSCC: no packet was dropped; 2,014 were trimmed to their headers, 2,014 were retransmitted."
    entry.trimmed = entry.retransmitted = 0
    assert [*_losses(None, entry, "DCTCP")] == ["DCTCP: no packet was dropped; 0 were retransmitted."]  # type: ignore[arg-type]


def test_breakdown_parts_have_the_same_label_everywhere() -> None:
    assert [PART_LABELS[part].removeprefix("waiting: ") for part in PARTS] == list(PARTS)
