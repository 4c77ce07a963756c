"""Comparisons hold like against like, and figures say what they are of."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from analysis_cases import iterations, messages, small_result

from gradwire.analysis.comparison.compare import compare
from gradwire.analysis.comparison.markdown_report import report
from gradwire.analysis.comparison.tables import TableRow
from gradwire.analysis.measurement_window import IterationSpan
from gradwire.analysis.metrics import measure
from gradwire.result_store.result import Result


def run_of(times: list[int], workers: int = 1, job: str = "j") -> dict[str, list[Any]]:
    """Iterations that take `times` picoseconds, 10 of each computing, of workers alike."""
    ends = [sum(times[: n + 1]) for n in range(len(times))]
    count = len(times) * workers
    starts = [end - time for end, time in zip(ends, times, strict=True)] * workers
    return {
        "job": [job] * count,
        "worker": [worker for worker in range(workers) for _ in times],
        "iteration": list(range(len(times))) * workers,
        "start_ps": starts,
        "forward_end_ps": starts,
        "backward_end_ps": starts,
        "end_ps": ends * workers,
        "compute_ps": [10] * count,
        "exposed_ps": [time - 10 for time in times] * workers,
    }


def two_jobs(vision: int, text: int, **summary: str) -> Result:
    """Jobs `vision` and `text` whose two iterations take so long each, on one network."""
    jobs = ["vision", "vision", "text", "text"]
    times = iterations(
        job=jobs, start_ps=[0] * 4, end_ps=[vision, vision, text, text], compute_ps=[0] * 4,
        exposed_ps=[vision, vision, text, text],
    )  # fmt: skip
    return small_result(messages(job=["vision"] * 3 + ["text"] * 2), times, **summary)


def row(rows: list[TableRow], label: str) -> list[str]:
    (found,) = (each.cells for each in rows if each.label.strip() == label)
    return found


def test_steady_state_excludes_first_and_last_iteration():
    found = measure(small_result(iteration_columns=run_of([50, 100, 120, 140, 900], workers=2)))[0]
    assert found.steady == IterationSpan(1, 3, 5)
    assert (found.iteration.count, found.iteration.mean_ps, found.iteration.max_ps) == (6, 120, 140)
    assert (found.exposed.mean_ps, found.exposed_share) == (110, pytest.approx(110 / 120))


@pytest.mark.parametrize(
    ("count", "words"), [(0, "none"), (1, "all of 0"), (2, "all of 0-1"), (3, "1 of 0-2"), (5, "1-3 of 0-4")]
)
def test_iteration_span_names_its_iterations(count: int, words: str):
    assert str(IterationSpan.steady(count)) == words


@pytest.mark.parametrize(("samples", "p99"), [(99, None), (100, 99), (101, 100)])
def test_p99_requires_100_samples(samples: int, p99: int | None):
    found = measure(small_result(iteration_columns=run_of([1, *range(1, samples + 1), 999])))[0]
    assert (found.iteration.count, found.iteration.p99_ps) == (samples, p99)
    words = "iteration time, " + ("max" if p99 is None else "p99")
    (table,) = compare([small_result(iteration_columns=run_of([1, *range(1, samples + 1), 999]))]).tables
    assert row(table.rows, words) == ["99 ps (99 samples)" if p99 is None else f"{p99} ps"]


def test_table_shows_maxima_if_one_run_has_too_few_samples_for_p99():
    many, few = (small_result(iteration_columns=run_of([1, *[7] * n, 9])) for n in (100, 3))
    (table,) = compare([many, few]).tables
    assert row(table.rows, "iteration time, max") == ["7 ps (100 samples)", "7 ps (3 samples)"]


def test_jobs_are_compared_with_the_same_job():
    (jobs, _) = compare([two_jobs(100, 200), two_jobs(50, 300, policy="other", label="Other")]).tables
    assert jobs.names == ["Policy, vision", "Policy, text", "Other, vision", "Other, text"]
    assert row(jobs.rows, "against the first") == ["-", "-", "-50.0 %", "+50.0 %"]


def test_iteration_times_of_unlike_workloads_or_spans_are_not_compared():
    scenario = '[[job]]\nname = "j"\ntrace = "{}"\n'
    first, other = small_result(), small_result()
    first = Result(**vars(first) | {"scenario": scenario.format("resnet50")})
    other = Result(**vars(other) | {"scenario": scenario.format("vgg16")})
    (table,) = compare([first, other, first]).tables
    assert row(table.rows, "against the first") == ["-", "-", "+0.0 %"]
    (table,) = compare([small_result(), small_result(iteration_columns=run_of([1, 2, 3]))]).tables
    assert row(table.rows, "against the first") == ["-", "-"]


def test_drops_of_a_network_shared_by_jobs_are_shown_once(capsys: pytest.CaptureFixture[str]):
    comparison = compare([two_jobs(100, 200), two_jobs(50, 300, policy="other", label="Other")])
    (jobs, network) = comparison.tables
    assert not [each for each in jobs.rows if "drops" in each.label]
    assert network.names == ["Policy", "Other"]
    assert row(network.rows, "drops: tail") == ["3", "3"]
    comparison.print()
    assert capsys.readouterr().out.count("drops: tail") == 1


def test_drops_are_not_attributed_to_a_job_that_runs_beside_traffic():
    kinds = messages(job=["j", "j", "web", "web", "web"], kind=["push", "push", "flow", "flow", "flow"])
    (jobs, network) = compare([small_result(kinds)]).tables
    assert jobs.names == network.names == ["Policy"]
    assert "jobs and traffic together" in network.title
    assert row(jobs.rows, "retransmissions") == ["1"]


def test_report_separates_jobs_from_networks(tmp_path: Path):
    runs = [two_jobs(100, 200), two_jobs(50, 300, policy="other", label="Other")]
    text = (compare(runs).write(tmp_path / "out") / "report.md").read_text(encoding="utf-8")
    assert "vision: Other is fastest: 50 ps per iteration, 50.0 % less than Policy." in text
    assert "text: Policy is fastest: 200 ps per iteration, 33.3 % less than Other." in text
    assert "Policy: 19 packets were dropped" in text
    assert text.count("| drops: tail |") == 1
    lines = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert [(line["first_iteration"], line["last_iteration"]) for line in lines] == [("0", "1")] * 4


def test_completion_times_exclude_first_and_last_iteration():
    """The pushes of the first and the last of five iterations take longest and do not count."""
    sent = messages(iteration=[0, 1, 2, 3, 4], kind=["push"] * 5, start_ps=[0] * 5, end_ps=[10**9, 10, 20, 30, 10**9])
    found = measure(small_result(sent, run_of([100] * 5)))[0].completion["push"]
    assert (found.count, found.mean_ps, found.max_ps) == (3, 20, 30)
    found = measure(small_result(sent, run_of([100] * 2)))[0].completion["push"]
    assert (found.count, found.max_ps) == (5, 10**9), "without a steady state all of them count"


def test_loss_bound_is_checked_for_messages_of_all_iterations():
    """Three of five iterations are the steady state; the report counts the messages of all five."""
    sent = messages(iteration=[0, 1, 2, 3, 4], end_ps=[15, 25, 35, 45, 55], received_bytes=[1000, 950, 970, 1000, 1000])
    text = report(compare([small_result(sent, run_of([100] * 5))]), [], ["one"])
    assert "No message of 5 was delivered with more loss than its bound." in text
