"""`gradwire bench training`: what is timed are steps, by turns, and shares are of what they say."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from gradwire.benchmarks import training as bench  # noqa: E402
from gradwire.scenarios.errors import GradwireError  # noqa: E402


def test_training_benchmark_shares_match_hand_computed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 100, 120 or 150 ms per step. The first step of each takes a minute and does not count; in
    the second of three rounds all steps take twice as long."""
    now, made = [0.0], dict.fromkeys(("plain", "workers", "simulated"), 0)
    order: list[str] = []

    def step(name: str, seconds: float) -> None:
        made[name] += 1
        order.append(name)
        slow = 2.0 if made[name] in (4, 5) else 1.0
        now[0] += 60.0 if made[name] == 1 else slow * seconds

    monkeypatch.setattr("gradwire.benchmarks.training.time.process_time", lambda: now[0])
    steps = {
        name: (lambda n=name, s=s: step(n, s)) for name, s in (("plain", 0.1), ("workers", 0.12), ("simulated", 0.15))
    }
    plain, workers, simulated = bench.measure_steps(steps, 3, 2)
    assert [row["step_ms"] for row in (plain, workers, simulated)] == [100, 120, 150]
    assert plain["images_per_s"] == 1280 and (plain["of_plain"], workers["added"]) == (1, 0)
    assert (workers["of_plain"], simulated["of_plain"]) == (pytest.approx(0.833), pytest.approx(0.667))
    assert simulated["added"] == pytest.approx(0.25)
    assert order[3::6] == ["plain", "workers", "simulated"], "each is the first one in turn"


def test_training_benchmark_rows_train_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps all lossless rows have the parameters of the workers' mean gradient. Simulated rows lose some
    packets, of 4096 bytes and of 512."""
    seen = []
    trained = bench.measure_steps

    def one_round(steps, rounds, each):
        seen.append(steps)
        return trained(steps, 1, 1)

    monkeypatch.setattr(bench, "measure_steps", one_round)
    bench.bench_training(model="resnet8", as_json=False)
    (steps,) = seen
    workers, at_once, simulated, small = (
        steps[name].__self__ for name in ("workers", "at once", "simulated", "small packets")
    )
    assert workers.done == at_once.done == simulated.done == 2
    for mine, theirs in zip(workers.model.parameters(), at_once.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    assert simulated.clock_ps > 0 and small.clock_ps > 0 and workers.clock_ps == 0
    assert simulated.recipe.payload == 4096 and small.recipe.payload == 512


def test_bench_training_prints_rows_and_refuses_unknown_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        bench, "make_steps", lambda model: dict.fromkeys(("plain", "workers"), lambda: sum(range(20_000)))
    )
    bench.bench_training(model="resnet20", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "resnet20" and [row["row"] for row in found["rows"]] == ["plain", "workers"]
    with pytest.raises(GradwireError, match="no such model: resnet50"):
        bench.bench_training(model="resnet50", as_json=False)
