"""gradwire.paced: a model's computing takes what a trace has recorded, on a clock that goes on only where it is slept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.emu.planning.user_programs import timetable
from gradwire.studies import compute_replay, iteration_markers

torch = pytest.importorskip("torch")
US = 1000


class Clock:
    """Time that goes on only in sleep."""

    def __init__(self) -> None:
        self.now = 7_000

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += round(seconds * 1e9)


def table(**more: Any) -> dict[str, Any]:
    times = {"forward_end": [10 * US, 30 * US], "ready": [90 * US, 90 * US, 50 * US, 40 * US], "backward_end": 95 * US,
             "optimizer": 5 * US}  # fmt: skip
    names = [["0.weight", 12], ["0.bias", 3], ["2.weight", 6], ["2.bias", 2]]
    return {"tensors": names, "layers": ["0", "2"], "iterations": [[times]], **more}


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(compute_replay, "time", found)
    monkeypatch.setattr(iteration_markers, "time", found)
    monkeypatch.setattr(compute_replay, "_loaded", [])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(compute_replay.TIMETABLE_VARIABLE, str(tmp_path / "times.json"))
    monkeypatch.setenv(iteration_markers.FILE, str(tmp_path / "marks"))
    (tmp_path / "times.json").write_text(json.dumps(table()))
    return found


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def marks(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "marks").read_text().splitlines()]


def test_paced_gradients_are_ready_at_the_trace_times(clock: Clock, tmp_path: Path):
    model = net()
    seen: dict[str, int] = {}
    gradwire.paced(model)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.update({name: clock.now}))
    gradwire.mark()
    began = clock.now
    ends = {}
    model[0].register_forward_hook(lambda *_: ends.update(first=clock.now - began))
    output = model(torch.ones(5, 4))
    assert (ends["first"], clock.now - began) == (10 * US, 30 * US)
    clock.sleep(1e-3)  # something else is waited for between the passes: the backward pass begins later, and is as long
    output.sum().backward()
    after = {name: at - began - 1_000_000 for name, at in seen.items()}
    assert after == {"0.weight": 90 * US, "0.bias": 90 * US, "2.weight": 50 * US, "2.bias": 40 * US}
    gradwire.mark(0)
    assert clock.now - began == 1_000_000 + 100 * US
    last = marks(tmp_path)[-1]
    assert last["computed_ns"] == 100 * US
    assert (last["forward_ns"], last["backward_ns"]) == (30 * US, 1_000_000 + 90 * US)


def test_mark_sleeps_the_whole_iteration_without_a_paced_model(clock: Clock, tmp_path: Path):
    gradwire.mark()
    began = clock.now
    gradwire.mark(0)
    gradwire.mark(1)
    assert clock.now - began == 200 * US
    assert [mark.get("computed_ns") for mark in marks(tmp_path)] == [None, 100 * US, 100 * US]


def test_gradient_accumulation_takes_the_time_of_both_passes(clock: Clock, tmp_path: Path):
    model = gradwire.paced(net())
    gradwire.mark()
    began = clock.now
    for _ in range(2):
        model(torch.ones(5, 4)).sum().backward()
    gradwire.mark(0)
    assert clock.now - began == 90 * US + 100 * US
    assert marks(tmp_path)[-1]["computed_ns"] == 190 * US


def test_paced_evaluation_takes_no_time(clock: Clock, tmp_path: Path):
    model = gradwire.paced(net())
    gradwire.mark()
    began = clock.now
    with torch.no_grad():
        model(torch.ones(5, 4))
    model.eval()(torch.ones(5, 4))
    gradwire.mark()
    assert clock.now == began
    assert marks(tmp_path)[-1]["computed_ns"] == 0


def test_paced_accepts_wrapped_and_renamed_modules(clock: Clock):
    gradwire.paced(torch.nn.ModuleDict({"module": net()}))
    gradwire.paced(torch.nn.ModuleDict({"other": net()}))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: torch.nn.Linear(4, 3), "learns 2 parameters, and the trace has 4 tensors"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)), "1.weight has 9 elements where"),
    ],
)
def test_paced_refuses_a_model_that_differs_from_the_trace(clock: Clock, model: Any, words: str):
    with pytest.raises(ValueError, match=words):
        gradwire.paced(model())


def test_timetable_holds_scaled_trace_times(monkeypatch: pytest.MonkeyPatch):
    trace = gradwire.load_trace("resnet50-v100")
    found = json.loads(timetable(trace, 0.5))
    assert found["layers"] == trace.layers
    assert found["tensors"] == [[tensor.name, tensor.numel] for tensor in trace.tensors]
    (rank,) = found["iterations"]
    assert len(rank) == len(trace.iterations)
    times = trace.iterations[-1]
    assert rank[-1]["backward_end"] == round(times.backward_end_ps / 2000)
    assert rank[-1]["ready"] == [round(int(each) / 2000) for each in times.ready_ps]


def test_paced_outside_exec_returns_the_model_unchanged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(compute_replay.TIMETABLE_VARIABLE, raising=False)
    model = net()
    assert gradwire.paced(model) is model
    assert not model._forward_pre_hooks
