"""Reducers: the error that each promises, beside what `test_reducers` holds of all of them, and convergence with and
without error feedback where that is not there."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from budgets import budget  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from reducer_cases import SHAPES, distance_after, drawn, info_of, one  # noqa: E402

from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.state import State  # noqa: E402


@budget(0.3)
@given(shape=SHAPES, seed=st.integers(0, 1000), scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e4]))
def test_dense_is_exact_and_half_formats_round_once(shape: tuple[int, ...], seed: int, scale: float) -> None:
    """Significands have 24, 11 and 8 bits (IEEE 754). The error is at most half a unit in the last place, or half
    of the smallest number."""
    x = drawn(shape, seed) * scale
    assert torch.equal(one(Dense(), x), x)
    for reducer, bits, least in ((Half(), 11, 2.0**-25), (Half(format="bfloat16"), 8, 2.0**-134)):
        assert ((one(reducer, x) - x).abs() <= (x.abs() * 2.0**-bits).clamp(min=least)).all()


def test_randomk_matches_hand_computation() -> None:
    """Two of four elements are sent, as they are or doubled. The mean square of the unsent part is half of all."""
    x = torch.tensor([1.0, -2.0, 3.0, 4.0])
    plain, unbiased = one(RandomK(ratio=0.5), x, seed=3), one(RandomK(ratio=0.5, unbiased=True), x, seed=3)
    sent = plain != 0
    assert int(sent.sum()) == 2 and torch.equal(plain, x * sent) and torch.equal(unbiased, 2 * x * sent)
    missed = [float((one(RandomK(ratio=0.5), x, seed=seed) - x).square().sum()) for seed in range(600)]
    assert sum(missed) / 600 == pytest.approx((1 - 0.5) * 30, rel=0.05)


def test_qsgd_matches_hand_computation() -> None:
    """Buckets have the norms 5 and 10; levels of a fifth of these meet all values without rounding. With one level,
    0.6 is rounded to 1 in three of five draws."""
    assert one(QSGD(levels=5, bucket=2), torch.tensor([3.0, -4.0, -6.0, 8.0])).tolist() == [3, -4, -6, 8]
    encoded = QSGD(levels=5, bucket=2).compress(torch.tensor([3.0, -4.0, -6.0]), info_of(3), State(0, 0, 0))
    assert encoded.fields[0].flatten().tolist() == [5, 6] and encoded.fields[1].tolist() == [[3, -4], [-5, 0]]
    draws = [one(QSGD(levels=1, bucket=2), torch.tensor([0.6, 0.8]), seed=seed)[0].item() for seed in range(400)]
    assert set(draws) == {0.0, 1.0} and sum(draws) / 400 == pytest.approx(0.6, abs=0.08)


@budget(0.3)
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_scaled_signs_are_a_contraction(shape: tuple[int, ...], seed: int) -> None:
    """|x - C(x)|^2 = (1 - |x|_1^2 / (n |x|^2)) |x|^2, exactly (Karimireddy et al., ICML '19, lemma 8)."""
    x = drawn(shape, seed).double().float()
    lost = float((one(SignSGD(), x) - x).double().square().sum())
    whole = float(x.double().square().sum())
    assert lost == pytest.approx(whole - float(x.double().abs().sum()) ** 2 / x.numel(), rel=1e-4, abs=1e-6 * whole)


@budget(0.3)
@given(shape=SHAPES, seed=st.integers(0, 1000), rank=st.integers(1, 4))
def test_powersgd_is_an_orthogonal_projection(shape: tuple[int, ...], seed: int, rank: int) -> None:
    """The error is orthogonal to P P^T M. Squared norms therefore add up, and the error is at most the whole."""
    x = drawn(shape, seed)
    got = one(PowerSGD(rank=rank), x)
    lost, kept, whole = (float(each.double().square().sum()) for each in (x - got, got, x))
    assert lost + kept == pytest.approx(whole, rel=1e-3, abs=1e-9) and lost <= whole * (1 + 1e-4)


def test_powersgd_matches_hand_computation() -> None:
    """The matrix has the rows 1 1 1 1, 0, 2 2 2 2, 0, and rank 1. P is (1 0 2 0) / sqrt(5), up to its sign, for
    every Q."""
    x = torch.tensor([[1.0] * 4, [0.0] * 4, [2.0] * 4, [0.0] * 4])
    exchange = Exchange(PowerSGD(rank=1), [info_of(4, 4)], 1)
    got, sent = exchange.step([[x]], 0)
    assert torch.allclose(got[0], x, atol=1e-6) and sent.nbytes == [4 * (4 + 4)]
    q = exchange.states[0][0].values["q"].flatten()
    assert torch.allclose(q.abs(), torch.full((4,), math.sqrt(5)), atol=1e-5)


@budget(0.2)
@given(seed=st.integers(0, 1000), ratio=st.sampled_from([0.01, 0.1, 0.5]), masking=st.booleans())
def test_dgc_conserves_gradient_sum(seed: int, ratio: float, masking: bool) -> None:
    """Without momentum, sent and accumulated values add up to the sum of the gradients."""
    exchange = Exchange(DGC(ratio=ratio, momentum=0.0, masking=masking), [info_of(40, 30)], 2, seed)
    sent, given_ = torch.zeros(40, 30), torch.zeros(40, 30)
    for step in range(5):
        gradients = [[drawn((40, 30), 10 * seed + 2 * step + worker)] for worker in range(2)]
        sent += exchange.step(gradients, step)[0][0]
        given_ += (gradients[0][0] + gradients[1][0]) / 2
    kept = sum(exchange.states[worker][0].values["total"] for worker in range(2)) / 2
    assert torch.allclose(sent.flatten() + kept, given_.flatten(), atol=1e-5)


@pytest.mark.parametrize(("reducer", "converges"), [
    (Half(), True), (ErrorFeedback(reducer=Half()), True), (DGC(ratio=0.1, momentum=0.0), True),
    (ErrorFeedback(reducer=Dense()), True), (SignSGD(scale="none"), False),
    (ErrorFeedback(reducer=SignSGD(scale="none")), False), (PowerSGD(rank=1), False),
    (ErrorFeedback(reducer=PowerSGD(rank=1)), True),
])  # fmt: skip
def test_least_squares_converges_for_expected_reducers(reducer: Reducer, converges: bool) -> None:
    """Four workers have different optima, as in `test_reducers`. DGC has built-in feedback; rank 1 is one direction
    of ten in every step; signs without a scale step as far at the optimum as far from it, with or without
    feedback."""
    error = distance_after(reducer)
    assert (error < 0.1) is converges, error
