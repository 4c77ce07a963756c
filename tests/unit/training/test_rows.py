"""All workers and tensors at once: the bits of one after the other, whatever is remembered in between."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.backward.flat_gradients import FlatGradients, StackedGradients, matrix_of  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.networks.builtin_networks import Ideal, Random  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402

SHAPES = ((64, 3, 5), (7,), (40, 60), (1,), (1300,))
INFOS = [TensorInfo(f"t{n}", shape, torch.Size(shape).numel(), "float32", n) for n, shape in enumerate(SHAPES)]
WORKERS = 3
REDUCERS: dict[str, Reducer] = {
    "dense": Dense(),
    "topk": TopK(ratio=0.03),
    "topk, fed back": ErrorFeedback(reducer=TopK(ratio=0.03)),
    "topk, decaying": ErrorFeedback(reducer=TopK(ratio=0.03), decay=0.7),
    "topk, momentum": MomentumCorrection(reducer=ErrorFeedback(reducer=TopK(ratio=0.03)), momentum=0.9),
    "topk, masked": MomentumCorrection(reducer=TopK(ratio=0.03), momentum=0.9, masking=True),
    "randomk": RandomK(ratio=0.1),
    "randomk, unbiased": RandomK(ratio=0.1, unbiased=True),
    "randomk, fed back": ErrorFeedback(reducer=RandomK(ratio=0.1)),
    "dgc": DGC(ratio=0.02),
    "dgc, small sample": DGC(ratio=0.01, sample=0.3),
    "dgc, warmed up": DGC(ratio=0.01, warmup=1, masking=False, momentum=0.5),
}


def gradients(step: int, workers: int = WORKERS, scale: float = 1.0) -> list[list]:
    """Some that are heavy in the tails, other ones in each step."""
    draws = torch.Generator().manual_seed(step)
    return [[scale * torch.randn(shape, generator=draws) ** 3 for shape in SHAPES] for _ in range(workers)]


def exchanges(reducer: Reducer, **more) -> tuple[Exchange, Exchange]:
    """One that goes one by one, as on the CPU, and one that does all at once."""
    one, whole = (Exchange(reducer, INFOS, WORKERS, seed=4, **more) for _ in range(2))
    assert not one.in_rows
    whole.in_rows = True
    return one, whole


def alike(one: dict, other: dict) -> bool:
    """Whether checkpoints remember the same bits."""
    pairs = [(a, b) for x, y in zip(one["states"], other["states"], strict=True) for a, b in zip(x, y, strict=True)]
    return all(
        a["step"] == b["step"] and set(a["values"]) == set(b["values"])
        and all(torch.equal(value, b["values"][name]) for name, value in a["values"].items())
        for a, b in pairs
    )  # fmt: skip


@pytest.mark.parametrize("name", REDUCERS)
def test_flat_reduction_equals_per_tensor_reduction(name: str) -> None:
    one, whole = exchanges(REDUCERS[name])
    assert whole.reducer.in_rows
    for step in range(5):
        (means, sent), (ours, told) = (each.step(gradients(step), step) for each in (one, whole))
        assert all(torch.equal(a, b) and a.shape == b.shape for a, b in zip(means, ours, strict=True))
        assert (told.nbytes, told.pulled_bytes, told.lost) == (sent.nbytes, sent.pulled_bytes, sent.lost)
        assert whole.rows is not None and one.rows is None
    assert alike(one.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", REDUCERS)
def test_lossy_steps_between_flat_steps_share_reducer_state(name: str) -> None:
    """Lossy steps run tensor by tensor with the same reducer state; so does a checkpoint."""
    one, whole = exchanges(REDUCERS[name])
    for step in range(6):
        network = Random(0.4) if step in (1, 2, 4) else Ideal()
        means, ours = (each.step(gradients(step), step, network)[0] for each in (one, whole))
        assert all(torch.equal(a, b) for a, b in zip(means, ours, strict=True))
        assert (whole.rows is not None) == (step not in (1, 2, 4))
        if step == 3:
            saved = copy.deepcopy(whole.state_dict())
            assert alike(one.state_dict(), saved)
            _, whole = exchanges(REDUCERS[name])
            whole.load_state_dict(saved)


@pytest.mark.parametrize("tries", [9, 10])
@pytest.mark.parametrize("name", [name for name in REDUCERS if "dgc" in name])
def test_dgc_sends_largest_elements_if_no_threshold_fits(
    name: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All elements are nearly equal: a threshold ends below all of them or above, and the largest are sent."""
    monkeypatch.setattr("gradwire.training.reducers.dgc.TRIES", tries)
    one, whole = exchanges(REDUCERS[name])
    for step in range(4):
        mine = [[1 + 1e-3 * each for each in worker] for worker in gradients(step, scale=0.1)]
        (means, sent), (ours, told) = (each.step(mine, step) for each in (one, whole))
        assert all(torch.equal(a, b) for a, b in zip(means, ours, strict=True)) and sent.nbytes == told.nbytes


@settings(max_examples=30)
@given(st.sampled_from(sorted(REDUCERS)), st.integers(0, 2**16), st.floats(1e-6, 1e6))
def test_flat_reduction_equals_per_tensor_reduction_for_any_gradients(name: str, seed: int, scale: float) -> None:
    one, whole = exchanges(REDUCERS[name])
    for step in range(2):
        mine = gradients(seed + step, scale=scale)
        (means, sent), (ours, told) = (each.step(mine, step) for each in (one, whole))
        assert all(torch.equal(a, b) for a, b in zip(means, ours, strict=True)) and sent.nbytes == told.nbytes


@pytest.mark.parametrize("more", [{"fill": "stale"}, {"encode_time": "measured"}, {"encode_time": 2.0}])
def test_flat_reduction_is_disabled_for_unsupported_settings(more: dict) -> None:
    """It is enabled on another device, except for these settings, rings, and reducers without support."""
    there = torch.device("cuda")
    assert Exchange(Dense(), INFOS, WORKERS, device=there).in_rows
    assert not Exchange(Dense(), INFOS, WORKERS, device=there, **more).in_rows
    for reducer in (QSGD(), DGC(clip=1.0), ErrorFeedback(reducer=TopK())):
        assert Exchange(reducer, INFOS, WORKERS, device=there).in_rows == isinstance(reducer, ErrorFeedback)
    assert not Exchange(Dense(), INFOS, WORKERS, device=there, collective="ring").in_rows


def test_stacked_gradients_equal_worker_gradients() -> None:
    mine = gradients(1)
    matrix = matrix_of(mine)
    stacked = StackedGradients(matrix, [torch.Size(shape) for shape in SHAPES])
    assert len(stacked) == WORKERS and matrix_of(stacked) is matrix
    assert all(torch.equal(a, b) for x, y in zip(stacked, mine, strict=True) for a, b in zip(x, y, strict=True))


def test_flat_gradients_count_and_repeat_per_tensor() -> None:
    rows = FlatGradients(INFOS, WORKERS, 0, torch.device("cpu"))
    chosen = torch.rand(2, rows.bounds[-1][1], generator=torch.Generator().manual_seed(1)) < 0.3
    expected = [[int(row[a:b].sum()) for a, b in rows.bounds] for row in chosen]
    assert rows.counts(chosen).tolist() == expected
    numbers = torch.arange(10.0).view(2, 5)
    assert [len(set(rows.repeat_per_element(numbers)[1, a:b].tolist())) for a, b in rows.bounds] == [1] * 5
    assert rows.repeat_per_element(numbers)[:, [a for a, _ in rows.bounds]].tolist() == numbers.tolist()
