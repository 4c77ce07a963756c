"""The beginning of a report: tiles, setting, the breakdown first, one colour per run, and folded lanes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import page_cases
import pytest
from analysis_cases import iterations, messages, small_result
from sim_cases import make_trace, ring_job, scenario

from gradwire.analysis.breakdown.breakdown import PARTS
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.comparison.compare import Comparison, compare
from gradwire.analysis.comparison.plots import STYLES, completion_time
from gradwire.analysis.palette import colour_and_dash, style_sheet
from gradwire.analysis.report import run_sections
from gradwire.analysis.report.charts import Axis
from gradwire.analysis.report.lanes import FOLDED_FROM, lanes_of
from gradwire.analysis.report.run_sections import charts, comparison_page, pareto_chart, pareto_charts, tail_chart
from gradwire.analysis.report.story import setting_card, tiles
from gradwire.analysis.verdict.difference import Samples
from gradwire.scenarios.readable import share_text, time_text
from gradwire.sim.simulate import simulate
from gradwire.studies.report.report_inputs import report

HOSTS = FOLDED_FROM + 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A ring with a slow host, at two rates."""
    trace = make_trace([[20_000]]).save(tmp_path_factory.mktemp("story") / "trace")
    job = {**ring_job(HOSTS), "trace": str(trace), "iterations": 3}
    fault = {"kind": "host_slow", "host": "h5", "at": "0s", "factor": 1.5}
    made = [scenario(job, hosts=HOSTS, link={"rate": rate}, fault=[fault]) for rate in ("10Gbps", "100Gbps")]
    results = [simulate(each) for each in made]
    for result, label in zip(results, ("slow links", "fast links"), strict=True):
        result.summary.update(policy=label, label=label)
    return compare(results)


def test_tiles_are_those_of_the_fastest_run(runs: Comparison) -> None:
    (verdict,) = runs.verdicts
    best = verdict.ranking[0]
    assert best.name == "fast links"
    text = tiles(runs.verdicts)
    assert text.count('class="tile"') == 3
    assert f"<b>{time_text(best.mean_ps)}</b>" in text and "against slow links" in text
    assert f"<b>{share_text(best.bottleneck.waiting_share)}</b>" in text and best.bottleneck.kind in text
    assert tiles([]) == ""
    assert tiles(runs.verdicts * 2).count('class="tiles"') == 2, "a row for each job"


def test_tiles_do_not_state_a_difference_that_counts_as_chance(runs: Comparison) -> None:
    """The same run twice, the second a tenth of a percent faster."""
    (verdict,) = runs.verdicts
    first = verdict.runs[0]
    values = {key: 0.999 * value for key, value in first.samples.values.items()}
    faster = replace(first, name="other", samples=Samples(values))
    text = tiles([replace(verdict, runs=[first, faster])])
    assert "other, no difference from slow links" in text and "against" not in text


def test_setting_names_job_network_and_the_keys_that_differ(runs: Comparison) -> None:
    text = setting_card(runs)
    assert f"<dt>job</dt><dd>job0: {HOSTS} workers, exchange ring</dd>" in text
    assert f"<p>star: {HOSTS} hosts, 1 switch. Busiest link: " in text and f">{HOSTS} × 10.0 Gbps</text>" in text
    assert "<dt>slow links</dt><dd>link.rate = 10Gbps</dd>" in text
    assert "<dt>fast links</dt><dd>link.rate = 100Gbps</dd>" in text
    assert "<dt>seed</dt><dd>1</dd>" in text


def test_breakdown_is_the_first_picture_and_replaces_iteration_times(runs: Comparison) -> None:
    page = comparison_page(runs, ["", ""])
    parts = ('class="card"', 'class="topology"', 'class="tiles"', "Breakdown of the mean", "<b>Exposed communication")
    place = [page.index(words) for words in (*parts, "<b>Completion of", 'class="timeline"', "<b>Typical against")]
    assert place == sorted(place)
    assert escape(runs.verdicts[0].text) in page and "<b>Iteration time</b>" not in page
    both = charts(runs, {"slow links": {**dict.fromkeys(PARTS, 0.0), "computing": 2e9, "queueing": 1e9}})
    whole, exposed, *_ = [bars.as_dict() for bars in both]
    assert len(whole["dots"]) == 1 and len(whole["dots"][0]) == 3 * HOSTS and whole["values"] == [[2.0, 1.0]]
    assert exposed["parts"] == ["waiting: queueing"] and exposed["values"] == [[1.0]] and exposed["runs"] == [0]


def test_runs_without_a_timeline_are_in_the_breakdown(runs: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_sections, "MOST_TIMELINES", 1)
    page = comparison_page(runs, ["", ""])
    assert "timelines are shown for the first 1 runs" in page and "<b>Iteration time</b>" not in page


def test_a_run_keeps_its_colour_where_others_have_no_messages() -> None:
    """Only the second run has pulls: its line has the second colour, as in the plot of pushes."""
    pushes = messages(kind=["push"] * 5)
    both = compare([small_result(pushes), small_result(policy="other", label="Other")])
    lines = {chart.title: chart.as_dict() for chart in charts(both, {})}
    assert [series["colour"] for series in lines["Completion of push messages"]["series"]] == [0, 1]
    assert [series["colour"] for series in lines["Completion of pull messages"]["series"]] == [1]
    assert [series["dash"] for series in lines["Completion of push messages"]["series"]] == [0, 1]
    plain = tail_chart("", "", [("a", np.array([1, 2, 3]))], 5)
    assert plain.series[0].colour == -1


def test_jobs_of_a_run_share_its_colour_on_page_and_picture(runs: Comparison) -> None:
    """Of two runs with two jobs each, lines have the colours 0, 0, 1, 1, and differ in their dashes."""
    entries = [(run, job) for run in ("a", "b") for job in (1, 2)]
    looks = [colour_and_dash(entries, number) for number in range(4)]
    assert [colour for colour, _ in looks] == [0, 0, 1, 1] and len(set(looks)) == 4
    figure = completion_time([(result, entry) for result, (entry,) in zip(runs.results, runs.metrics, strict=True)])
    assert figure is not None
    drawn = [line.get_color() for line in figure.axes[0].lines if line.get_linestyle() != "None"][:2]
    variables = dict(re.findall(r"--(c\d):(#\w+)", style_sheet().split("\n")[0]))
    tails = next(chart.as_dict() for chart in charts(runs, {}) if chart.title.startswith("Completion"))
    assert drawn == [variables[f"c{series['colour']}"] for series in tails["series"]]


def test_dashes_are_the_same_on_page_and_picture() -> None:
    """A line of a page is two pixels wide; matplotlib counts in widths."""
    dashes = re.findall(r"--d\d:([\w ]+)", style_sheet())
    lengths = [[] if dash == "none" else [float(length) / 2 for length in dash.split()] for dash in dashes]
    assert lengths == [list(style[1]) if isinstance(style, tuple) else [] for style in STYLES] and len(lengths) == 7


def test_dominated_runs_are_dim_on_the_pareto_plot(runs: Comparison) -> None:
    (plot,) = (chart.as_dict() for chart in pareto_charts(runs))
    assert [(series["name"], series["dim"]) for series in plot["series"]] == [
        ("slow links", True),
        ("fast links", False),
        ("Pareto front", False),
    ]
    accuracy = pareto_chart(
        "", (Axis("time"), Axis("accuracy")), ["a", "b", "c"], [(1, 5), (2, 9), (3, 8)], [0, 1, 2], True
    )
    assert [series.dim for series in accuracy.series] == [False, False, True, False]


def test_lanes_of_many_hosts_are_folded_to_the_median_and_the_slowest(runs: Comparison) -> None:
    context = ResultContext(runs.results[1])
    hosts = lanes_of(context, 1)["hosts"]
    assert len(hosts) == HOSTS and sum(not host["folded"] for host in hosts) == 2
    rows = [row for row in runs.results[1].iterations.to_pylist() if row["iteration"] == 1]
    times = sorted((row["end_ps"] - row["start_ps"], row["worker"]) for row in rows)
    shown = {host["role"].rpartition(", ")[2]: host["name"] for host in hosts if not host["folded"]}
    assert shown == {"median": f"h{times[(HOSTS - 1) // 2][1]}", "slowest": f"h{times[-1][1]}"}
    few = lanes_of(context, 1, most=1)
    assert len(few["hosts"]) == 1 and not few["hosts"][0]["folded"], "the page keeps a typical host"


def test_pages_without_traces_have_the_rest_of_the_story(tmp_path: Path) -> None:
    page = comparison_page(compare([small_result(iteration_columns=iterations())]), [""])
    assert 'class="tiles"' in page and 'class="card"' in page and "<b>Iteration time</b>" in page


def test_training_runs_have_a_setting_tiles_and_a_pareto_plot(tmp_path: Path) -> None:
    """The first of two runs is more accurate, in equal time: the other is dominated."""
    folder = page_cases.trainings(tmp_path / "runs")
    text = """
[topology]
kind = "star"
hosts = 3
[[job]]
name = "tiny"
trace = "resnet20"
workers = 2
servers = 1
exchange = { kind = "parameter_server" }
[training]
model = "resnet8"
"""
    (folder / "dlcp" / "scenario.toml").write_text(f'name = "tiny"\ntransport = "dlcp"\n{text}')
    (folder / "dctcp" / "scenario.toml").write_text(f'name = "tiny"\ntransport = "dctcp"\n{text}')
    page = report(folder, out=tmp_path / "page.html").path.read_text()
    place = [
        page.index(words)
        for words in ('class="card"', 'class="topology"', 'class="tiles"', "<b>Accuracy against steps")
    ]
    assert place == sorted(place)
    assert "<dt>model</dt><dd>resnet8</dd>" in page and "<dt>DLCP</dt><dd>transport = dlcp</dd>" in page
    assert "<b>60.00 %</b>" in page and "3 hosts, 1 switch" in page
    plot = json.loads(re.findall(r"<b>Time against accuracy</b>.*?<script[^>]*>(.*?)</script>", page)[0])
    assert [(series["name"], series["dim"]) for series in plot["series"][:2]] == [("DCTCP", False), ("DLCP", True)]
