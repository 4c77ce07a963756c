"""Pictures of comparisons: every curve its own, nothing clipped, p99 to be seen, and the format that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_cases import messages, ports, small_result
from matplotlib.figure import Figure
from test_analysis_like_with_like import run_of, two_jobs
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.comparison.compare import compare
from gradwire.analysis.comparison.plots import completion_time, iteration_time, line_style, retransmissions
from gradwire.analysis.comparison.tables import whole_networks
from gradwire.result_store.result import Result


def runs_of(*results: Result) -> list[Any]:
    comparison = compare(results)
    return [(result, entry) for result, own in zip(results, comparison.metrics, strict=True) for entry in own]


def many_messages(times: list[int]) -> dict[str, Any]:
    """Pushes that take `times` picoseconds."""
    columns = {name: [values[0]] * len(times) for name, values in messages().items()}
    return columns | {"message": list(range(len(times))), "start_ps": [0] * len(times), "end_ps": times}


def inside(figure: Figure) -> None:
    """Nothing of a figure is outside of it."""
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()  # inches
    assert min(drawn.x0, drawn.y0) >= -0.02, drawn
    assert drawn.x1 <= figure.get_figwidth() + 0.02 and drawn.y1 <= figure.get_figheight() + 0.02, drawn


def test_line_styles_of_56_curves_are_distinct():
    looks = [(each["color"], str(each["linestyle"])) for each in map(line_style, range(56))]
    assert len(set(looks)) == 56


def test_legend_names_curves_of_all_panels():
    push = small_result(messages(kind=["push"] * 5), label="Pushes")
    ring = small_result(messages(kind=["all_gather"] * 5), label="Ring")
    figure = completion_time(runs_of(push, ring))
    assert figure is not None and len(figure.axes) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Pushes", "Ring"]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_figures_are_not_clipped(count: int):
    results = [small_result(label=f"a policy with a long name, {number}") for number in range(count)]
    runs = runs_of(*results)
    for figure in (iteration_time(runs), completion_time(runs), retransmissions([entry for _, entry in runs])):
        assert figure is not None
        inside(figure)
        assert figure.get_figwidth() == 7.16


def test_completion_plot_shows_the_tail_on_log_axes():
    """The curve of 200 messages ends at the share of the slowest message, 0.5 %."""
    times = [n * 5_000_000 for n in range(1, 199)] + [7_000_000_000, 9_000_000_000]
    figure = completion_time(runs_of(small_result(many_messages(times))))
    assert figure is not None
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    x, y = axes.lines[0].get_data()
    assert (x[0], y[0], x[-1], y[-1]) == (0.005, 100, 9, 0.5)
    late = axes.lines[1].get_data()
    assert (late[0][0], late[1][0]) == (0.99, 1.5)  # the 198th of 200; three took so long or longer
    assert "p99" in axes.get_title(loc="left")


def test_completion_plot_marks_no_p99_for_few_messages():
    figure = completion_time(runs_of(small_result()))
    assert figure is not None
    assert not [axes for axes in figure.axes if "p99" in axes.get_title(loc="left")]
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]


def test_completion_plot_of_equal_times_is_one_point():
    figure = completion_time(runs_of(small_result(many_messages([4_000_000_000] * 150))))
    assert figure is not None
    x, y = figure.axes[0].lines[0].get_data()
    assert (list(x), list(y)) == ([4], [100])


def test_bars_average_the_steady_state_and_dots_show_every_iteration():
    milliseconds = [n * 1_000_000_000 for n in (5, 10, 20, 90)]
    figure = iteration_time(runs_of(small_result(iteration_columns=run_of(milliseconds))))
    assert figure is not None
    axes = figure.axes[0]
    assert axes.patches[1].get_x() + axes.patches[1].get_width() == pytest.approx(15)
    steady, hollow = (np.asarray(line.get_xdata()).tolist() for line in axes.lines)
    assert (steady, hollow) == ([10, 20], [5, 90])


def test_drops_of_a_shared_network_are_drawn_once():
    metrics = compare([two_jobs(1, 2), two_jobs(3, 4, policy="b", label="B")]).metrics
    figure = retransmissions(whole_networks(metrics))
    assert figure is not None
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["Policy", "B"]
    tail = figure.axes[0].patches[0]
    assert tail.get_width() == pytest.approx(100 * sum(ports()["drops_tail"]) / 50)  # of 50 packets in all


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_compare_writes_figures_in_the_requested_format(kind: str, magic: bytes, own_directory: Path):
    small_result().write("one")
    done = CliRunner().invoke(cli.app, ["compare", "one", "--plots", kind, "--out", "out"])
    assert done.exit_code == 0, done.output
    pictures = sorted(path.name for path in Path("out").iterdir() if path.suffix[1:] in ("png", "pdf", "svg"))
    assert pictures == [f"{name}.{kind}" for name in ("completion_time", "iteration_time", "packets_again")]
    assert Path(f"out/iteration_time.{kind}").read_bytes().startswith(magic)
    assert f"[iteration_time.{kind}](iteration_time.{kind})" in Path("out/report.md").read_text()


def test_write_alone_puts_figures_beside_result_tables(own_directory: Path):
    folder = compare([small_result()]).write_alone("out", "svg")
    assert (folder / "iteration_time.svg").exists()
    assert Result.read(folder).messages.equals(small_result().messages)
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_unknown_plot_format_is_refused_before_the_run(own_directory: Path):
    for command in (["compare", "demo"], ["run", "demo"], ["demo"]):
        done = CliRunner().invoke(cli.app, [*command, "--plots", "gif", "--out", "out"])
        assert done.exit_code == 2
        assert "--plots gif: is not a format of plots" in done.output and "png, pdf, svg" in done.output
        assert not Path("out").exists()
    done = CliRunner().invoke(cli.app, ["run", "demo", "--plots", "pdf"])
    assert done.exit_code == 2 and "--out" in done.output
