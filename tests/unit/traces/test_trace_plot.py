"""`gradwire trace plot`: what is drawn, by hand-made traces; that pictures appear whole or not at all."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from trace_cases import small_trace

from gradwire.scenarios.errors import TraceError
from gradwire.traces.tools.plot import (
    backward_spans,
    layer_quantiles,
    magnitude_figure,
    plot_trace,
    shorten_name,
    timeline_figure,
)
from gradwire.traces.trace import Iteration, TensorInfo, Trace

MS = 10**9


def three_layers(mean: np.ndarray | None = None) -> Trace:
    """Layer a, an activation without parameters, layer c; forward 1, 2 and 3 ms, c ready at 8 ms, a at 9 and 10 ms."""
    infos = [
        TensorInfo("a.w", (16, 64), 1024, "float32", 0, 2),
        TensorInfo("a.b", (16,), 16, "float32", 0, 2),
        TensorInfo("c.w", (3072,), 3072, "float32", 2, 2),
    ]
    start, end = np.array([0, 1, 3]) * MS, np.array([1, 3, 6]) * MS
    times = np.array([10, 9, 8]) * MS
    captured = [Iteration(0, "early", 4, 1.0, start, end, times, 11 * MS, 2 * MS, 13 * MS)]
    mean = np.ones((1, 17), dtype=np.float16) if mean is None else mean.astype(np.float16)
    return Trace({"name": "three"}, ["a", "relu", "c"], infos, captured, mean, 2 * mean)


def test_backward_spans_cover_the_time_between_ready_gradients() -> None:
    begin, end = backward_spans(three_layers(), 0)
    assert begin.tolist() == [8 * MS, -1, 6 * MS]
    assert end.tolist() == [10 * MS, -1, 8 * MS]


def test_backward_span_of_gradient_ready_during_forward_pass_is_empty() -> None:
    trace = three_layers()
    of_the_second = [*trace.tensors[:2], replace(trace.tensors[2], layer=1)]  # which runs until 3 ms
    early = replace(trace.iterations[0], ready_ps=np.array([10, 9, 5]) * MS)
    begin, end = backward_spans(Trace(trace.manifest, trace.layers, of_the_second, [early], trace._mean, trace._max), 0)
    assert (begin[1], end[1]) == (5 * MS, 5 * MS)
    assert (begin[0], end[0]) == (6 * MS, 10 * MS)


def bars(figure: Figure, panel: int, colour: str) -> list[tuple[float, float, float]]:
    """(row, left, width) of the horizontal bars of a colour, top row first."""
    from matplotlib.colors import to_rgba

    found = [
        (round(bar.get_y() + bar.get_height() / 2, 6), round(bar.get_x(), 6), round(bar.get_width(), 6))
        for bar in figure.axes[panel].patches
        if bar.get_facecolor() == to_rgba(colour)
    ]
    return sorted(found)


def test_timeline_shows_every_layer_in_milliseconds() -> None:
    figure = timeline_figure(three_layers(), 0)
    assert bars(figure, 0, "#0072B2") == [(0, 0, 1), (1, 1, 2), (2, 3, 3)]
    assert bars(figure, 0, "#E69F00") == [(0, 8, 2), (2, 6, 2)]
    ready = figure.axes[0].lines[0]
    assert list(zip(ready.get_xdata(), ready.get_ydata(), strict=True)) == [(10, 0), (9, 0), (8, 2)]
    assert [width for _, _, width in bars(figure, 1, "#595959")] == [1040 * 4 / 1024, 0, 12]  # KiB
    share = next(line for line in figure.axes[2].lines if len(line.get_xdata()) == 5)
    assert list(share.get_xdata()) == [0, 8, 9, 10, 13]
    assert np.allclose(share.get_ydata(), np.array([0, 3072, 3088, 4112, 4112]) / 41.12)
    assert "iteration 0 (early, step 4), 13 ms, 16.1 KiB of gradients" in figure.axes[0].get_title(loc="left")


def test_layer_quantiles_are_in_unscaled_gradient_units() -> None:
    # a: chunks of 4, 8, 12, 16 and, of the bias, 20 (stored; the gradient is a quarter); c: two thirds are zero
    stored = np.array([[4, 8, 12, 16, 20] + [0] * 8 + [40] * 4])
    quantiles, zero, top = layer_quantiles(three_layers(stored), [0])
    assert quantiles[:, 0].tolist() == pytest.approx([1.04, 2, 3, 4, 4.96])
    assert quantiles[:, 2].tolist() == [10] * 5
    assert zero[[0, 2]].tolist() == pytest.approx([0, 2 / 3])
    assert top[[0, 2]].tolist() == [10, 20]
    assert np.isnan(quantiles[:, 1]).all()
    assert np.isnan(zero[1])


def test_magnitude_figure_marks_layers_with_mostly_zero_gradients() -> None:
    figure = magnitude_figure(three_layers(np.array([[1, 1, 1, 0, 0] + [0] * 8 + [1] * 4])))  # 2 of 5, 8 of 12 are zero
    marked = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    assert [list(line.get_xdata()) for line in marked] == [[2]]
    assert any("zero" in text.get_text() for text in figure.legends[0].get_texts())
    assert not any("zero" in text.get_text() for text in magnitude_figure(three_layers()).legends[0].get_texts())


def test_magnitude_figure_labels_modelled_magnitudes_as_not_measured() -> None:
    trace = three_layers()
    assert "measured" in magnitude_figure(trace)._suptitle.get_text()
    manifest = {**trace.manifest, "magnitudes": {"source": "model", "model": "lognormal"}}
    modelled = Trace(manifest, trace.layers, trace.tensors, trace.iterations, trace._mean, trace._max)
    assert "from a lognormal model, not measured" in magnitude_figure(modelled)._suptitle.get_text()


def test_magnitude_figure_has_a_panel_per_phase_of_sampled_iterations() -> None:
    trace = small_trace(iterations=6)
    rows = np.array([0, 5])
    sparse = Trace(trace.manifest, trace.layers, trace.tensors, trace.iterations, trace._mean[rows], trace._max[rows],
                   None, [0, 5])  # fmt: skip
    titles = [axes.get_title(loc="left") for axes in magnitude_figure(sparse).axes]
    assert titles == ["early: training step 0", "late: training step 50"]


def test_figure_titles_of_merged_traces_name_the_ranks() -> None:
    trace = small_trace(iterations=4)
    captured = [replace(each, phase="early", step=each.index % 2, rank=each.index // 2) for each in trace.iterations]
    merged = Trace(trace.manifest, trace.layers, trace.tensors, captured, trace._mean, trace._max)
    assert magnitude_figure(merged).axes[0].get_title(loc="left") == "early: training steps 0, 1 of ranks 0, 1"
    assert "(early, step 0, rank 1)" in timeline_figure(merged, 2).axes[0].get_title(loc="left")


def test_magnitude_figure_shows_first_three_and_last_of_many_phases() -> None:
    trace = small_trace(iterations=6)
    captured = [replace(each, phase=f"p{each.index}") for each in trace.iterations]
    figure = magnitude_figure(Trace(trace.manifest, trace.layers, trace.tensors, captured, trace._mean, trace._max))
    assert [axes.get_title(loc="left")[:2] for axes in figure.axes] == ["p0", "p1", "p2", "p5"]
    assert "4 of 6 phases" in figure._suptitle.get_text()


@pytest.mark.parametrize("layers", [1, 107, 220])
def test_layer_labels_never_overlap(layers: int) -> None:
    trace = small_trace(tensors=2 * layers, largest=800, iterations=2)
    for figure, axis in ((timeline_figure(trace, 0), "y"), (magnitude_figure(trace), "x")):
        figure.draw_without_rendering()
        axes = figure.axes[0] if axis == "y" else figure.axes[-1]
        labels = axes.get_yticklabels() if axis == "y" else axes.get_xticklabels()
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) > min(layers, 30) / 2
        spans = sorted((box.y0, box.y1) if axis == "y" else (box.x0, box.x1) for box in boxes)
        assert all(low[1] <= high[0] + 1 for low, high in itertools.pairwise(spans))


def test_plot_trace_writes_timeline_and_magnitude_images(tmp_path: Path) -> None:
    made = plot_trace(small_trace(), tmp_path / "new" / "pictures", 3)
    assert [path.name for path in made] == ["timeline.png", "magnitudes.png"]
    for path in made:
        height, width, _ = imread(path).shape
        assert min(height, width) > 400
    assert sorted(path.name for path in made[0].parent.parent.iterdir()) == ["pictures"]


def test_rejected_plots_leave_no_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"small: no iteration 4; expected 0 to 3"):
        plot_trace(small_trace(), tmp_path / "out", 4)
    with pytest.raises(TraceError, match=r"exists already"):
        plot_trace(small_trace(), tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match=r"has a parent that is not a folder"):
        plot_trace(small_trace(), tmp_path / "file" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_shorten_name_drops_arguments_and_cuts_the_start() -> None:
    assert shorten_name("conv1") == "conv1"
    assert shorten_name("transformer.h.11.attention.self.query") == "…ormer.h.11.attention.self.query"
    assert len(shorten_name("x" * 100)) == 32
    assert shorten_name("node4 -- Conv2d(64, 64, kernel_size=(3, 3))") == "node4 -- Conv2d"
