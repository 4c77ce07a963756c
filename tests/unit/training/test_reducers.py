"""Reducers: what they promise of error, of bytes and of lost packets, and cases worked by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from budgets import budget  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from reducer_cases import SHAPES, distance_after, drawn, info_of, one  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.exchange.exchange_stats import answer_bytes  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Random, Replay  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.omnireduce import OmniReduce  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.state import State  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402

ALL: dict[str, Reducer] = {
    "none": Dense(),
    "fp16": Half(),
    "bf16": Half(format="bfloat16"),
    "topk": TopK(ratio=0.1),
    "randomk": RandomK(ratio=0.1),
    "randomk unbiased": RandomK(ratio=0.25, unbiased=True),
    "dgc": DGC(ratio=0.1),
    "qsgd": QSGD(),
    "qsgd 4 levels": QSGD(levels=4, bucket=33),
    "terngrad": TernGrad(),
    "signsgd": SignSGD(),
    "signsgd bare": SignSGD(scale="none"),
    "powersgd": PowerSGD(rank=2),
    "omnireduce": OmniReduce(block=33),
    "omnireduce tenth": OmniReduce(block=33, ratio=0.1),
}


# of all: bytes, packets, masks


@pytest.mark.parametrize("name", ALL)
@budget(0.25)
@given(shape=SHAPES, seed=st.integers(0, 1000), payload=st.integers(140, 700), lost=st.integers(0, 2**32))
def test_decoding_accepts_any_missing_packets(
    name: str, shape: tuple[int, ...], seed: int, payload: int, lost: int
) -> None:
    """Bytes are those of the serialised form. Decoding the packets that arrived equals decoding with their mask: an
    element has its value of the complete decoding, or zero."""
    reducer, info = ALL[name], info_of(*shape)
    encoded = reducer.compress(drawn(shape, seed), info, State(seed, 0, 0))
    packets = encoded.to_packets(payload)
    assert len(packets) == encoded.packets(payload) and sum(map(len, packets)) == encoded.nbytes(payload)
    assert all(len(packet) <= payload for packet in packets)
    mask = torch.tensor([bool(lost >> (number % 32) & 1) for number in range(len(packets))], dtype=torch.bool)
    there = encoded.arrived(mask, payload)
    read, found = encoded.from_packets([each if ok else None for each, ok in zip(packets, mask, strict=True)], payload)
    assert torch.equal(found, there)
    whole, part = reducer.decode(encoded, info), reducer.decode(encoded, info, there)
    assert torch.equal(part, reducer.decode(read, info, found))
    assert torch.isfinite(part).all() and part.shape == whole.shape
    assert ((part == whole) | (part == 0)).all(), "an element is what it is, or zero"
    if reducer.places == "fixed":
        covered = reducer.covered(encoded, info, there)
        assert torch.equal(part, whole.where(covered, torch.zeros(())))
    assert torch.equal(reducer.decode(encoded, info, torch.ones_like(there)), whole)


@pytest.mark.parametrize("name", ALL)
def test_encoded_bytes_match_closed_form(name: str) -> None:
    """The tensor has 1000 x 30 float32 elements."""
    n, info = 30_000, info_of(1000, 30)
    expected = {
        "none": 4 * n, "fp16": 2 * n, "bf16": 2 * n, "topk": 8 * n // 10, "randomk": 4 * n // 10, "randomk unbiased": n,
        "qsgd": -(-n // 128) * (128 + 4), "qsgd 4 levels": -(-n // 33) * (33 + 4), "terngrad": n // 4 + 4 * 2,
        "signsgd": n // 8 + 4, "signsgd bare": n // 8, "powersgd": (1000 + 30) * 2 * 4,
        "omnireduce": -(-n // 33) * (4 * 33 + 4), "omnireduce tenth": 91 * (4 * 33 + 4),
    }  # fmt: skip
    exchange = Exchange(ALL[name], [info], 1)
    _, sent = exchange.step([[drawn((1000, 30), 5)]], 0)
    if name == "dgc":
        assert 8 * n // 10 * 0.8 <= sent.nbytes[0] <= 8 * n // 10 * 1.3
    else:
        assert sent.nbytes[0] == expected[name]


def test_packet_smaller_than_a_unit_is_rejected() -> None:
    encoded = QSGD().compress(drawn((300,), 1), info_of(300), State(1, 0, 0))
    with pytest.raises(ValueError, match="a unit of 132 bytes and a head of 0 do not fit a packet of 100"):
        encoded.packets(100)


# of each: its promise


def test_half_rounds_to_nearest_finite_value() -> None:
    got = one(Half(), torch.tensor([1e6, -1e6, 1.0009765625, 3e-8]))
    assert got.tolist() == [65504, -65504, 1.0009765625, pytest.approx(5.96e-8, rel=1e-3)]


def test_topk_matches_hand_computation() -> None:
    got = one(TopK(ratio=0.4), torch.tensor([[0.1, -3.0, 2.0], [0.0, 2.5, -0.2]]))
    assert got.tolist() == [[0, -3, 0], [0, 2.5, 0]]


def test_omnireduce_sends_nonzero_blocks_exactly() -> None:
    """Blocks of 4 elements: the first is zero, the last has two elements; of two, the larger in norm is kept."""
    x = torch.tensor([0.0, 0, 0, 0, 0, 1, -2, 0, 1.5, 2])
    exchange = Exchange(OmniReduce(block=4), [info_of(10)], 1)
    (mean,), sent = exchange.step([[x]], 0)
    assert torch.equal(mean, x) and sent.nbytes == [2 * (4 * 4 + 4)]
    _, sent = exchange.step([[torch.zeros(10)]], 1)
    assert sent.nbytes == [0]
    assert one(OmniReduce(block=4, ratio=0.4), x).tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1.5, 2]


@budget(0.3)
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_topk_is_a_contraction(shape: tuple[int, ...], seed: int) -> None:
    """|x - C(x)|^2 <= (1 - k/n) |x|^2 (Stich et al., lemma A.1)."""
    x, info = drawn(shape, seed), info_of(*shape)
    kept = max(1, int(info.numel * 0.1))
    assert (x - one(TopK(ratio=0.1), x)).norm() ** 2 <= (1 - kept / info.numel) * x.norm() ** 2 * (1 + 1e-5)


def test_randomk_indices_are_equal_across_workers_and_differ_by_step() -> None:
    info, reducer = info_of(1000), RandomK(ratio=0.1)
    seen = [
        reducer.compress(torch.ones(1000), info, State(7, w, 3, step=s)).known["indices"]
        for w, s in ((0, 0), (5, 0), (0, 1))
    ]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert len(seen[0].unique()) == 100


X = drawn((257,), 3)


def rounding(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The variance of rounding at random to multiples of a step, without bias."""
    share = (values.abs() / step) % 1
    return step**2 * share * (1 - share)


@pytest.mark.parametrize(("reducer", "variance"), [
    (RandomK(ratio=0.25, unbiased=True), X**2 * (257 / 64 - 1)),
    (QSGD(bucket=257), rounding(X, X.norm() / 127)),
    (QSGD(bucket=257, levels=4), rounding(X, X.norm() / 4)),
    (TernGrad(clip=0), rounding(X, X.abs().max())),
], ids=["randomk", "qsgd", "qsgd 4 levels", "terngrad"])  # fmt: skip
def test_unbiased_reducers_have_zero_mean_error_and_stated_variance(reducer: Reducer, variance: torch.Tensor) -> None:
    """The mean of many draws is the tensor, within five standard errors; the summed variance is as stated."""
    info, draws = info_of(257), 600
    seen = [reducer.decode(reducer.compress(X, info, State(1, 0, 0, step=s)), info) - X for s in range(draws)]
    errors = torch.stack(seen)
    assert (errors.mean(dim=0).abs() <= 5 * (variance / draws).sqrt() + 1e-6).all()
    assert float(errors.square().sum()) == pytest.approx(float(variance.sum()) * draws, rel=0.1)


def test_qsgd_variance_is_bounded() -> None:
    """min(d/s^2, sqrt(d)/s) |x|^2 for each bucket (lemma 3.1)."""
    x, info, reducer = drawn((66,), 8), info_of(66), QSGD(levels=4, bucket=33)
    draws = [reducer.decode(reducer.compress(x, info, State(1, 0, 0, step=s)), info) - x for s in range(200)]
    found = torch.stack(draws).view(-1, 2, 33).square().sum(dim=2).mean(dim=0)
    bound = min(33 / 16, math.sqrt(33) / 4) * x.view(2, 33).square().sum(dim=1)
    assert (found <= bound * 1.05).all()


def test_qsgd_both_ways_quantises_the_mean_that_comes_back() -> None:
    """The same draws for all workers; unbiased over steps; bytes of codes instead of float32."""
    x, info, reducer = drawn((66,), 8), info_of(66), QSGD(levels=4, bucket=33, both_ways=True)
    states = [State(1, worker, 0, 4, step) for step in range(400) for worker in (0, 3)]
    back = [reducer.restore(x, info, state) for state in states]
    assert all(torch.equal(one, other) for one, other in zip(back[::2], back[1::2], strict=True))
    assert torch.allclose(torch.stack(back[::2]).mean(dim=0), x, atol=4 * float(x.norm()) / 4 / math.sqrt(400))
    assert not torch.equal(back[0], x) and torch.equal(QSGD().restore(x, info, states[0]), x)
    encoded = reducer.compress(x, info, states[0])
    assert reducer.answered(encoded, info) == 2 * (33 + 4) and QSGD().answered(encoded, info) is None


def test_terngrad_matches_hand_computation() -> None:
    """The largest value stays, zero stays zero, and signs stay; values beyond 2.5 sigma are clipped."""
    x = torch.tensor([4.0, -4.0, 0.0, 1.0])
    for seed in range(20):
        got = one(TernGrad(clip=0), x, State(seed, 0, 0))
        assert got[:3].tolist() == [4, -4, 0] and float(got[3]) in (0, 4)
    spike = torch.cat([torch.ones(99), torch.tensor([100.0])])
    assert float(one(TernGrad(), spike).max()) == pytest.approx(2.5 * float(spike.std(correction=0)), rel=1e-5)


def test_signsgd_matches_hand_computation() -> None:
    x = torch.tensor([3.0, -1.0, 0.0, -2.0, 0.5, 0.5, 0.5, 0.5, -8.0])
    assert one(SignSGD(scale="none"), x).tolist() == [1, -1, 1, -1, 1, 1, 1, 1, -1]
    mean = float(x.abs().mean())
    assert one(SignSGD(), x).tolist() == pytest.approx([mean, -mean, mean, -mean, mean, mean, mean, mean, -mean])


def test_majority_vote_decides_signs() -> None:
    """Three and four workers vote: a tie is plus, a bit comes back for each, and NaN stays NaN."""
    info = [TensorInfo("t", (9,), 9, "float32", 0)]
    votes = [
        [1, 1, -1, -1, 1, -1, 1, -1, -1],
        [1, -1, 1, -1, 1, -1, 1, -1, 1],
        [1, -1, -1, 1, 1, -1, -1, -1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, -1],
    ]
    gradients = [[torch.tensor([0.1 * each for each in row])] for row in votes]
    for count, expected in ((3, [1, -1, -1, -1, 1, -1, 1, -1, 1]), (4, [1, 1, 1, 1, 1, -1, 1, -1, 1])):
        (found,), sent = Exchange(SignSGD(scale="none", vote=True), info, count).step(gradients[:count], 0)
        assert found.tolist() == expected
        assert sent.pulled_bytes == sum(sent.nbytes) == 2 * count
    mean, sent = Exchange(SignSGD(scale="none"), info, 4).step(gradients, 0)
    assert mean[0].tolist()[:2] == [1, 0] and sent.pulled_bytes == 4 * 36
    gradients[1][0][3] = torch.nan
    (found,), _ = Exchange(SignSGD(scale="none", vote=True), info, 4).step(gradients, 0)
    assert found.isnan().all()
    with pytest.raises(ScenarioError, match=r'vote: needs signs without.*expected scale = "none"'):
        SignSGD(vote=True)


def test_powersgd_is_exact_for_matrices_of_its_rank() -> None:
    """The first step is exact already; vectors always are."""
    u, v = drawn((20, 2), 1), drawn((30, 2), 2)
    assert torch.allclose(one(PowerSGD(rank=2), u @ v.T), u @ v.T, atol=1e-5)
    assert torch.equal(one(PowerSGD(rank=2), drawn((9,), 4)), drawn((9,), 4))


def test_powersgd_converges_to_best_low_rank_matrix() -> None:
    """With warm starts and a constant matrix, its error falls to that of the singular value decomposition."""
    left, _ = torch.linalg.qr(drawn((40, 40), 1))
    right, _ = torch.linalg.qr(drawn((30, 30), 2))
    sizes = torch.tensor([8.0, 4.0, 1.0] + [0.5] * 27)
    matrix = left[:, :30] * sizes @ right.T
    best = float(sizes[2:].norm())
    exchange = Exchange(PowerSGD(rank=2), [info_of(40, 30)], 3, seed=4)
    errors = [float((exchange.step([[matrix]] * 3, step)[0][0] - matrix).norm()) for step in range(30)]
    assert errors[0] > best * 1.001 and errors[-1] == pytest.approx(best, rel=1e-4)


def test_powersgd_over_workers_equals_powersgd_of_their_mean() -> None:
    """PowerSGD is linear in the matrix."""
    each = [drawn((12, 10), seed) for seed in range(4)]
    together = Exchange(PowerSGD(rank=2), [info_of(12, 10)], 4, seed=9).step([[m] for m in each], 0)[0][0]
    alone = Exchange(PowerSGD(rank=2), [info_of(12, 10)], 1, seed=9).step([[sum(each) / 4]], 0)[0][0]
    assert torch.allclose(together, alone, atol=1e-5)


def test_dgc_matches_hand_computation() -> None:
    """With momentum 0.5 and one element of four per step, u and v follow algorithm 4 of the paper."""
    reducer, info = DGC(ratio=0.25, momentum=0.5), info_of(4)
    exchange = Exchange(reducer, [info], 1)
    first, _ = exchange.step([[torch.tensor([4.0, 1.0, 2.0, 0.0])]], 0)
    assert first[0].tolist() == [4, 0, 0, 0]  # u = v = (4 1 2 0); after it u = v = (0 1 2 0)
    second, _ = exchange.step([[torch.tensor([1.0, 1.0, 1.0, 0.0])]], 1)
    # u = (1 1.5 2 0), v = (1 2.5 4 0): the third goes
    assert second[0].tolist() == [0, 0, 4, 0]
    values = exchange.states[0][0].values
    assert values["momentum"].tolist() == [1, 1.5, 0, 0] and values["total"].tolist() == [1, 2.5, 0, 0]
    bare = Exchange(DGC(ratio=0.25, momentum=0.5, masking=False), [info], 1)
    bare.step([[torch.tensor([4.0, 1.0, 2.0, 0.0])]], 0)
    assert bare.states[0][0].values["momentum"].tolist() == [4, 1, 2, 0]


def test_dgc_clips_and_warms_up() -> None:
    reducer = DGC(ratio=0.001, warmup=10)
    assert [reducer.ratio_at(step) for step in (0, 9, 10, 29, 39, 40, 10**6)] == [
        0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001,
    ]  # fmt: skip
    x = torch.tensor([3.0, 4.0])
    state = State(0, 0, 0, workers=4)
    DGC(ratio=1.0, clip=2.0, momentum=0.0).compress(x, info_of(2), state)
    encoded = DGC(ratio=1.0, clip=2.0, momentum=0.0).compress(x, info_of(2), State(0, 0, 0, workers=4))
    assert float(encoded.fields[0].norm()) == pytest.approx(1.0)  # 2 / sqrt(4)


def test_dgc_sends_about_its_target_share() -> None:
    """The threshold comes from a sample of one in a hundred of 100,000 elements with a heavy tail."""
    reducer, info = DGC(ratio=0.01), info_of(100_000)
    for seed in range(5):
        encoded = reducer.compress(drawn((100_000,), seed), info, State(seed, 0, 0))
        assert 800 <= encoded.units <= 1300


# error feedback and momentum


@pytest.mark.parametrize(
    "name", [name for name, each in ALL.items() if not each.remembers_error and "unbiased" not in name]
)
@budget(0.1)
@given(seed=st.integers(0, 1000), lost=st.sampled_from([0.0, 0.3, 1.0]), payload=st.sampled_from([160, 400]))
def test_error_feedback_conserves_gradient_sum(name: str, seed: int, lost: float, payload: int) -> None:
    """Sent values and residuals add up to the sum of the gradients, as lost packets are fed back."""
    shapes = [(40, 30), (17,)]
    exchange = Exchange(
        ErrorFeedback(reducer=ALL[name]), [info_of(*s) for s in shapes], 2, seed, payload=payload, feed_back=True
    )
    network = Random(lost, seed=seed)
    total = [torch.zeros(s) for s in shapes]
    whole = [torch.zeros(s) for s in shapes]
    for step in range(5):
        gradients = [[drawn(s, 1000 * seed + 100 * step + 10 * w + t) for t, s in enumerate(shapes)] for w in range(2)]
        means, _ = exchange.step(gradients, step, network)
        for t in range(2):
            total[t] += means[t]
            whole[t] += (gradients[0][t] + gradients[1][t]) / 2
    for t in range(2):
        kept = sum(exchange.states[w][t].values["residual"] for w in range(2)) / 2
        assert torch.allclose(total[t].flatten() + kept, whole[t].flatten(), atol=1e-4)


def test_lost_packets_are_fed_back_in_next_step() -> None:
    exchange = Exchange(ErrorFeedback(reducer=Dense()), [info_of(400)], 1, payload=400, feed_back=True)
    x = drawn((400,), 1)
    lose = Replay([[Answer([[torch.tensor([True, False, True, True])]])]])
    got, sent = exchange.step([[x]], 0, lose)
    assert got[0][100:200].abs().sum() == 0 and sent.lost == [[0.25]]
    again, _ = exchange.step([[torch.zeros(400)]], 1)
    assert torch.equal(again[0] + got[0], x)


def test_momentum_correction_without_compression_equals_momentum() -> None:
    """The optimiser would compute the same: u <- m u + g."""
    exchange, velocity = Exchange(MomentumCorrection(reducer=Dense(), momentum=0.9), [info_of(5)], 1), torch.zeros(5)
    for step in range(5):
        gradient = drawn((5,), step)
        velocity = 0.9 * velocity + gradient
        assert torch.allclose(exchange.step([[gradient]], step)[0][0], velocity)


def test_momentum_correction_with_error_feedback_equals_dgc() -> None:
    """With masking and an exact threshold both are algorithm 4 of the paper."""
    ours = MomentumCorrection(reducer=ErrorFeedback(reducer=TopK(ratio=0.25)), momentum=0.5, masking=True)
    a, b = Exchange(ours, [info_of(8)], 1), Exchange(DGC(ratio=0.25, momentum=0.5), [info_of(8)], 1)
    for step in range(6):
        gradient = drawn((8,), step)
        left, right = a.step([[gradient]], step)[0][0], b.step([[gradient]], step)[0][0]
        if int((right != 0).sum()) == 2:  # its threshold may let one more or less through
            assert torch.allclose(left, right)
        else:
            break
    assert step >= 2


def test_error_feedback_rejects_dgc_and_unbiased_randomk() -> None:
    with pytest.raises(ScenarioError, match="dgc keeps what it does not send"):
        ErrorFeedback(reducer=DGC())
    with pytest.raises(ScenarioError, match="randomk is unbiased"):
        ErrorFeedback(reducer=RandomK(unbiased=True))


@pytest.mark.parametrize(("reducer", "converges"), [
    (Dense(), True), (TopK(ratio=0.1), False), (SignSGD(), False), (RandomK(ratio=0.1), False),
    (ErrorFeedback(reducer=TopK(ratio=0.1)), True), (ErrorFeedback(reducer=SignSGD()), True),
    (ErrorFeedback(reducer=RandomK(ratio=0.1)), True), (ErrorFeedback(reducer=PowerSGD(rank=2)), True),
    (QSGD(), True), (TernGrad(clip=0), True),
])  # fmt: skip
def test_least_squares_converges_with_feedback_or_unbiased_reducers(reducer: Reducer, converges: bool) -> None:
    """Each worker has another optimum, so its gradient is large where the mean is zero. Sparse and signed gradients
    without feedback do not converge in this many steps; with it they do."""
    error = distance_after(reducer)
    assert (error < 0.1) is converges, error


# lost packets and what stands for them


def test_fill_rules_match_hand_computation() -> None:
    """Two workers send two packets of two elements; the second worker's second packet is lost in step 1."""
    x = [[torch.tensor([2.0, 4.0, 6.0, 8.0])], [torch.tensor([4.0, 6.0, 10.0, 12.0])]]
    gone = Replay([[Answer([[None], [torch.tensor([True, step != 1])]])] for step in (0, 1)])
    expected = {"zero": [3, 5, 3, 4], "rescaled": [3, 5, 6, 8], "stale": [3, 5, 8, 10]}
    for fill, values in expected.items():
        exchange = Exchange(Dense(), [info_of(4)], 2, fill=fill, payload=8)
        exchange.step(x, 0, gone)
        got, sent = exchange.step(x, 1, gone)
        assert got[0].tolist() == values, fill
        assert sent.lost == [[0.0], [0.5]] and sent.nbytes == [16, 16]


def test_stale_fill_is_zero_in_first_step() -> None:
    exchange = Exchange(Dense(), [info_of(2)], 1, fill="stale", payload=4)
    got, _ = exchange.step([[torch.tensor([5.0, 7.0])]], 0, Replay([[Answer([[torch.tensor([False, True])]])]]))
    assert got[0].tolist() == [0, 7]


def test_rescaled_fill_rejects_topk() -> None:
    with pytest.raises(ValueError, match="needs to know which elements were lost, and topk sends them"):
        Exchange(TopK(), [info_of(4)], 2, fill="rescaled")


def test_reducer_state_resumes_from_checkpoint() -> None:
    """Saved and loaded state gives the same further steps."""
    reducer = MomentumCorrection(reducer=ErrorFeedback(reducer=PowerSGD(rank=1)), momentum=0.9)
    first = Exchange(reducer, [info_of(12, 10)], 1)
    for step in range(3):
        first.step([[drawn((12, 10), step)]], step)
    second = Exchange(reducer, [info_of(12, 10)], 1)
    second.states[0][0].load_state_dict(first.states[0][0].state_dict())
    assert torch.equal(first.step([[drawn((12, 10), 9)]], 3)[0][0], second.step([[drawn((12, 10), 9)]], 3)[0][0])


def test_server_answer_bytes_match_hand_computation() -> None:
    """Two workers push 1000 elements of one tensor. Dense means are float32, or half of it. The largest tenths of
    two workers, at different positions, come back as 200 elements with positions; a tenth that a seed has chosen
    for both comes back as 100 without."""
    from gradwire.training.exchange.encoded_tensors import Encoded

    info = [TensorInfo("t", (1000,), 1000, "float32", 0)]
    first, second = torch.zeros(1000), torch.zeros(1000)
    first[:100], second[500:600] = 1.0, 2.0
    for reducer, each in (
        (Dense(), 4000), (Half(), 2000), (QSGD(), 4000), (TopK(ratio=0.1), 200 * 8), (RandomK(ratio=0.1), 100 * 4),
        (TopK(ratio=0.9), 4000),
    ):  # fmt: skip
        dense = [torch.randn(1000), torch.randn(1000)] if each == 4000 else [first, second]
        _, sent = Exchange(reducer, info, 2).step([[dense[0]], [dense[1]]], 0)
        assert sent.pulled_bytes == 2 * each, reducer.kind
        assert sent.encode_ns > 0 and sent.server_ns > 0
    pair = Encoded((torch.ones(1), torch.zeros(1, dtype=torch.int32)))
    assert answer_bytes(3, pair, 1) == 8 and answer_bytes(3, pair, 2) == 12 == answer_bytes(3, pair)
    matrix = [TensorInfo("m", (40, 25), 1000, "float32", 0)]
    _, sent = Exchange(PowerSGD(rank=1), matrix, 2).step([[torch.randn(40, 25)], [torch.randn(40, 25)]], 0)
    assert sent.pulled_bytes == 2 * 4 * (40 + 25) == sum(sent.nbytes), "both factors, as long as they were pushed"
