"""Clocks: pauses are left out, and CUDA events are recorded in hooks, read after one wait, and used again.

There may be no GPU where this runs. `FakeCuda` is a device that works behind the processor: an event's time is known
only once the device got there, and reading it before is an error, as with the real thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture records PyTorch training (extra: capture)")
from capture_cases import CountingClock, Tiny, images, train  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.traces.capture.clocks import CpuClock, CudaClock, Timeline  # noqa: E402


class FakeCuda:
    """Events on one stream; the device takes 3 ms from one event to the next, and does nothing until waited for."""

    def __init__(self) -> None:
        self.recorded = 0
        self.reached = 0
        self.made = 0
        self.waits = 0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                fake.made += 1
                self.place: int | None = None

            def record(self, stream: Any) -> None:
                assert stream == "the current stream"
                fake.recorded += 1
                self.place = fake.recorded

            def elapsed_time(self, later: Event) -> float:
                assert self.place is not None
                assert later.place is not None
                assert max(self.place, later.place) <= fake.reached, "read before the device got there"
                return 3.0 * (later.place - self.place)

        self.Event = Event

    def current_stream(self, device: Any) -> str:
        return "the current stream"

    def synchronize(self, device: Any) -> None:
        self.waits += 1
        self.reached = self.recorded


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Event", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr("gradwire.traces.capture.recorder.clock_for", lambda device: CudaClock(torch.device("cuda", 0)))
    return fake


def test_cuda_clock_reads_events_once_per_step_and_reuses_them(tmp_path: Path, cuda: FakeCuda) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    trace = train(model, tmp_path / "t", lambda: torch.randn(3, 4), {"early": range(1, 4)}, overhead_pairs=1)
    ms = 10**9
    for iteration in trace.iterations:
        # 3 ms from event to event, in the order of test_every_mark_of_an_iteration.
        assert iteration.forward_start_ps.tolist() == [6 * ms, 12 * ms]
        assert iteration.forward_end_ps.tolist() == [9 * ms, 15 * ms]
        assert iteration.ready_ps.max() == 30 * ms
        assert (iteration.backward_end_ps, iteration.optimizer_ps) == (33 * ms, 3 * ms)
    assert trace.manifest["clock"] == "CudaClock"
    assert trace.manifest["capture_overhead"]["plain_s"] == [pytest.approx(6e-3)]
    assert cuda.waits == 5  # once per recorded or measured step
    assert cuda.made == 14  # as many as the largest step needs: they are used again


def test_paused_time_is_excluded_from_the_timeline() -> None:
    clock = CountingClock()
    timeline = Timeline(clock)
    begin = timeline.mark()  # 1
    with timeline.pause():  # 2 to 1004
        clock.now += 1000
        with timeline.pause():  # part of it, no pause of its own
            inside = timeline.mark()  # 1003
    after = timeline.mark()  # 1005
    with timeline.pause():  # 1006 to 1007
        pass
    end = timeline.mark()  # 1008
    clock.settle()
    assert timeline.since(begin, after) == 1004 - 1002
    assert timeline.since(begin, end) == 1007 - 1002 - 1
    assert timeline.since(after, end) == 3 - 1
    assert timeline.since(begin, inside) == 1002  # a pause under way is not known yet
    assert timeline.with_pauses(begin, end) == 1007


def test_pause_ends_if_its_block_raises() -> None:
    clock = CountingClock()
    timeline = Timeline(clock)
    begin = timeline.mark()
    with pytest.raises(ZeroDivisionError), timeline.pause(), timeline.pause():
        raise ZeroDivisionError
    end = timeline.mark()
    clock.settle()
    assert timeline.since(begin, end) == 2


def test_cpu_clock_is_monotonic_and_counts_picoseconds() -> None:
    clock = CpuClock()
    marks = [clock.mark() for _ in range(100)]
    clock.settle()
    since = [clock.since(marks[0], mark) for mark in marks]
    assert since == sorted(since)
    assert since[-1] % 1000 == 0
    assert clock.since(0, 1) == 1000
    clock.release()


@pytest.mark.gpu
def test_cuda_times_lie_inside_the_iteration(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = Tiny().cuda()
    trace = train(model, tmp_path / "t", lambda: images().cuda(), {"early": range(5, 8)}, overhead_pairs=2)
    assert trace.manifest["clock"] == "CudaClock"
    for iteration in trace.iterations:
        assert (np.diff(iteration.forward_start_ps) > 0).all()
        assert iteration.forward_end_ps.max() <= iteration.ready_ps.min()
        assert iteration.ready_ps.max() <= iteration.backward_end_ps < iteration.end_ps


@pytest.mark.gpu
def test_magnitudes_computed_on_the_gpu_match_the_gradients(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = Tiny().cuda()
    kept: dict[int, list[np.ndarray]] = {}

    def keep(step: int) -> None:
        kept[step] = [p.grad.detach().cpu().numpy().reshape(-1) for p in model.parameters()]

    trace = train(model, tmp_path / "t", lambda: images().cuda(), {"early": range(2)}, on_gradients=keep)
    for index in trace.sampled:
        for number, gradient in enumerate(kept[trace.iterations[index].step]):
            runs = np.split(np.abs(gradient), range(256, gradient.size, 256))
            mean, largest = trace.magnitudes(index, number)
            np.testing.assert_allclose(mean, [run.mean() for run in runs], rtol=2e-3)
            np.testing.assert_allclose(largest, [run.max() for run in runs], rtol=2e-3)


@pytest.mark.gpu
def test_grad_scaler_scale_is_removed_from_gpu_magnitudes(tmp_path: Path) -> None:
    """The model runs under float16 autocast with a fused optimiser."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    import gradwire

    model = Tiny().cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    kept = {}
    with gradwire.capture(model, optimizer, out=tmp_path / "t", warmup=1, iterations=2) as cap:
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(images().cuda()).float().square().mean()
            scaler.scale(loss).backward()
            kept[step] = [p.grad.abs().max().item() / scaler.get_scale() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            cap.step(loss)
    trace = gradwire.load_trace(tmp_path / "t")
    for iteration in trace.iterations:
        largest = [trace.magnitudes(iteration.index, n)[1].max() for n in range(len(trace.tensors))]
        np.testing.assert_allclose(largest, kept[iteration.step], rtol=2e-3)
