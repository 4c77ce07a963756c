"""Reducers: what they refuse, and what becomes of gradients that are empty, constant or no numbers."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from reducer_cases import drawn, info_of, one  # noqa: E402

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.training.backward.flat_gradients import FlatGradients  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.networks.builtin_networks import Random  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.state import State, zero_nonfinite  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402

ALL: dict[str, Reducer] = {
    "none": Dense(), "fp16": Half(), "topk": TopK(ratio=0.1), "randomk": RandomK(ratio=0.1), "dgc": DGC(ratio=0.1),
    "randomk unbiased": RandomK(ratio=0.25, unbiased=True), "qsgd": QSGD(), "terngrad": TernGrad(), "signsgd": SignSGD(),
    "signsgd bare": SignSGD(scale="none"), "powersgd": PowerSGD(rank=2),
    "topk, fed back": MomentumCorrection(reducer=ErrorFeedback(reducer=TopK(ratio=0.1))),
}  # fmt: skip
NAN, INF = math.nan, math.inf
SHORT = ["training.steps=2", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2"]


def tiny(*more: str):
    return load_scenario("train-tiny", set=[*SHORT, *more], policy="dctcp")


# what cannot be made


@pytest.mark.parametrize(("make", "words"), [
    (lambda: TopK(ratio=0), r"TopK: invalid arguments, 1 error:\n  ratio: is out of range \(got 0\); expected a number above 0"),
    (lambda: QSGD(levels=128, bucket=0), r"(?s)2 errors:.*levels: .*at most 127.*bucket: .*at least 1"),
    (lambda: PowerSGD(rank=0), "rank: is out of range"),
    (lambda: TopK(ratoi=0.1), 'ratoi: unknown key; expected "ratio"'),
    (lambda: Half(format="float8"), 'format: is unknown'),
    (lambda: ErrorFeedback(reducer=TopK(), decay=2.0), "decay: is out of range"),
    (lambda: ErrorFeedback(reducer=5), "reducer: is of the wrong type"),
])  # fmt: skip
def test_invalid_reducer_arguments_are_explained(make, words: str) -> None:
    with pytest.raises(ScenarioError, match=words) as caught:
        make()
    assert caught.value.mistakes


def test_invalid_reducer_table_of_scenario_is_explained() -> None:
    with pytest.raises(ScenarioError, match=r"(?s)invalid scenario, 1 error:.*training.reducer.ratio: is out of range"):
        tiny('training.reducer={kind="topk", ratio=0.0}')


@pytest.mark.parametrize(("make", "words"), [
    (lambda: ErrorFeedback(reducer=DGC()), "dgc keeps what it does not send"),
    (lambda: ErrorFeedback(reducer=RandomK(unbiased=True)), "randomk is unbiased"),
    (lambda: ErrorFeedback(reducer=MomentumCorrection(reducer=RandomK(unbiased=True))), "randomk is unbiased"),
    (lambda: ErrorFeedback(reducer=ErrorFeedback(reducer=TopK())), "topk already has error feedback"),
    (lambda: ErrorFeedback(reducer=MomentumCorrection(reducer=ErrorFeedback(reducer=TopK()))), "already has error feedback"),
    (lambda: MomentumCorrection(reducer=DGC()), "dgc has its own momentum"),
    (lambda: MomentumCorrection(reducer=MomentumCorrection(reducer=TopK())), "topk already has momentum correction"),
    (lambda: MomentumCorrection(reducer=ErrorFeedback(reducer=MomentumCorrection(reducer=TopK()))), "already has momentum correction"),
])  # fmt: skip
def test_nested_feedback_and_momentum_are_rejected(make, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        make()


PLAIN = "training.optimizer.momentum=0.0"


@pytest.mark.parametrize(("settings", "words"), [
    (['training.reducer={kind="dgc"}', "training.error_feedback=true"], "training.error_feedback: dgc keeps what it does not send"),
    (['training.reducer={kind="randomk", unbiased=true}', "training.error_feedback=true"], "randomk is unbiased"),
    (['training.reducer={kind="dgc"}', PLAIN, "training.momentum_correction=0.5"], "momentum_correction: dgc has its own momentum"),
    (['training.reducer={kind="dgc"}'], r"training.reducer.momentum: duplicates .*optimizer.momentum = 0"),
    (["training.error_feedback=true"], "training.error_feedback: has nothing to feed back.*feed_back = true"),
    (["training.error_feedback=true", 'training.reducer={kind="none"}'], "has nothing to feed back"),
])  # fmt: skip
def test_scenario_rejects_redundant_feedback_and_momentum(settings: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        tiny(*settings)


@pytest.mark.parametrize("settings", [
    ['training.reducer={kind="dgc"}', PLAIN], ['training.reducer={kind="dgc", momentum=0.0}'],
    ["training.error_feedback=true", "training.feed_back=true"],
])  # fmt: skip
def test_scenario_accepts_consistent_feedback_and_momentum(settings: list[str]) -> None:
    assert tiny(*settings).training is not None


@pytest.mark.parametrize(("reducer", "fits", "words"), [
    ('kind="qsgd", bucket=5000', "bucket=4092", r"qsgd: a unit of 5004 bytes .*at most 4096 bytes \(bucket \+ 4\)"),
    ('kind="powersgd", rank=17', "rank=16", r"powersgd: a unit of 68 bytes .*at most 64 bytes \(4 rank\)"),
])  # fmt: skip
def test_units_larger_than_packet_are_rejected_before_first_step(reducer: str, fits: str, words: str) -> None:
    more = ['training.network="ideal"', f'transport.payload="{64 if "rank" in reducer else 4096}B"']
    asked = tiny(f"training.reducer={{{reducer}}}", *more)
    with pytest.raises(ScenarioError, match=f"training.reducer: {words}"):
        trainer_of(asked, data_of(asked.training))
    kind = reducer.split(",")[0]
    asked = tiny(f"training.reducer={{{kind}, {fits}}}", *more)
    trainer_of(asked, data_of(asked.training)).step()


def test_oversized_units_of_some_tensors_are_rejected() -> None:
    """The largest tensor is sent as it is, a smaller one as factors."""
    with pytest.raises(ScenarioError, match="a unit of 8 bytes"):
        Exchange(PowerSGD(rank=2), [info_of(1000), info_of(10, 10)], 1, payload=4)
    Exchange(PowerSGD(rank=2), [info_of(1000), info_of(2, 2)], 1, payload=4)


# gradients and masks that do not fit


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_wrong_size_or_type_are_rejected(name: str) -> None:
    with pytest.raises(ScenarioError, match="gradient of t: has 6 elements; expected 12"):
        ALL[name].compress(torch.ones(2, 3), info_of(3, 4), State(0, 0, 0))
    with pytest.raises(ScenarioError, match=r"gradient of t: has elements of torch\.complex64; expected real ones"):
        ALL[name].compress(torch.ones(3, 4, dtype=torch.complex64), info_of(3, 4), State(0, 0, 0))
    assert ALL[name].compress(torch.ones(12, dtype=torch.float64), info_of(3, 4), State(0, 0, 0)).units


@pytest.mark.parametrize("name", ALL)
def test_masks_of_wrong_length_are_rejected(name: str) -> None:
    reducer, info = ALL[name], info_of(60, 40)
    encoded = reducer.compress(drawn((60, 40), 1), info, State(0, 0, 0))
    for count in (0, 1, encoded.units - 1, encoded.units + 1, 9_999):
        with pytest.raises(ValueError, match=rf"a mask of \({count},\) for {encoded.units} units"):
            reducer.decode(encoded, info, torch.ones(count, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
@pytest.mark.parametrize("name", ALL)
def test_empty_tensors_send_nothing(name: str, shape: tuple[int, ...]) -> None:
    reducer, info = ALL[name], info_of(*shape)
    encoded = reducer.compress(torch.zeros(shape), info, State(0, 0, 0))
    assert encoded.nbytes() == 0 and encoded.to_packets() == []
    assert reducer.decode(encoded, info).shape == (0,)
    assert reducer.decode(encoded, info, torch.ones(0, dtype=torch.bool)).shape == (0,)
    exchange = Exchange(reducer, [info, info_of(20, 3)], 2, payload=160)
    for step in range(2):
        (nothing, rest), sent = exchange.step(
            [[torch.zeros(shape), drawn((20, 3), worker)] for worker in range(2)], step, Random(0.3)
        )
        assert nothing.shape == shape and rest.shape == (20, 3) and sent.nbytes[0] > 0


# no numbers


def steps_of(reducer: Reducer, first: torch.Tensor, count: int = 3) -> list[torch.Tensor]:
    """What is decoded in steps of which only the first has such a gradient."""
    exchange = Exchange(reducer, [info_of(*first.shape)], 1, seed=3)
    return [exchange.step([[drawn(tuple(first.shape), step) if step else first]], step)[0][0] for step in range(count)]


def spoiled(value: float) -> torch.Tensor:
    x = drawn((60, 40), 7)
    x[30, 20] = value
    return x


SHOWS = {**{name: each for name, each in ALL.items() if "randomk" not in name}, "bf16": Half(format="bfloat16"),
         "dgc unmasked": DGC(ratio=0.1, masking=False), "dgc of few": DGC(ratio=0.01, sample=0.9),
         **{f"{name}, fed back": MomentumCorrection(reducer=ErrorFeedback(reducer=ALL[name]))
            for name in ("none", "fp16", "signsgd", "signsgd bare", "powersgd", "qsgd", "terngrad")}}  # fmt: skip


@pytest.mark.parametrize("name", SHOWS)
def test_nan_gradient_affects_only_its_step(name: str) -> None:
    first, *later = steps_of(SHOWS[name], spoiled(NAN))
    assert first.isnan().any()
    assert all(each.isfinite().all() and each.any() for each in later)


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("name", SHOWS)
def test_infinite_gradient_affects_only_its_step(name: str, value: float) -> None:
    """float16 sends its largest number instead, and a sign is a sign: they hide infinity."""
    first, *later = steps_of(SHOWS[name], spoiled(value))
    hidden = name.startswith(("fp16", "bf16", "signsgd bare"))
    assert bool(first.isfinite().all()) is hidden
    assert all(each.isfinite().all() for each in later)
    if name.startswith("fp16"):
        assert float(first[30, 20]) == math.copysign(65504, value) and later[-1].abs().max() < 1000


@pytest.mark.parametrize("fed_back", [False, True])
def test_randomk_does_not_remember_undrawn_nan(fed_back: bool) -> None:
    reducer: Reducer = RandomK(ratio=0.1)
    found = steps_of(ErrorFeedback(reducer=reducer) if fed_back else reducer, spoiled(NAN), 40)
    assert all(each.isfinite().all() for each in found[1:])


def test_one_nan_makes_all_signs_nan() -> None:
    """One more unit marks NaN, unless it is lost."""
    reducer, info = SignSGD(scale="none"), info_of(9)
    x = torch.tensor([1.0] * 8 + [NAN])
    encoded = reducer.compress(x, info, State(0, 0, 0))
    assert encoded.nbytes() == 3 and reducer.compress(torch.ones(9), info, State(0, 0, 0)).nbytes() == 2
    assert reducer.decode(encoded, info).isnan().all()
    there = torch.tensor([True, False, False])
    assert reducer.decode(encoded, info, there).tolist() == [1] * 8 + [0]
    assert reducer.covered(encoded, info, there).tolist() == [True] * 8 + [False]


def test_powersgd_restarts_after_nan() -> None:
    """It starts from the random matrix of the step's seed, as without warm start."""
    steps = steps_of(PowerSGD(rank=2), spoiled(NAN), 2)
    cold = Exchange(PowerSGD(rank=2, warm_start=False), [info_of(60, 40)], 1, seed=3)
    assert torch.equal(steps[1], cold.step([[drawn((60, 40), 1)]], 1)[0][0])


@pytest.mark.parametrize("reducer", [
    DGC(ratio=0.02), DGC(ratio=0.02, masking=False), MomentumCorrection(reducer=ErrorFeedback(reducer=TopK(ratio=0.02))),
])  # fmt: skip
def test_flat_gradients_treat_nonfinite_values_as_single_tensors_do(reducer: Reducer) -> None:
    """A GPU uses such flat rows."""
    infos = [info_of(60, 40), info_of(30)]
    exchange, rows = Exchange(reducer, infos, 2, seed=3), FlatGradients(infos, 2, 3, torch.device("cpu"))
    for step in range(4):
        spoilt = [
            [spoiled(NAN if worker and not step else INF if step == 1 else 0.0), drawn((30,), step)]
            for worker in range(2)
        ]
        rows.step = step
        whole = reducer.whole(torch.stack([torch.cat([each.view(-1) for each in mine]) for mine in spoilt]), rows)
        reducer.settle_whole(whole.sent, rows)
        means, sent = exchange.step(spoilt, step)
        alone = torch.cat([each.view(-1) for each in means])
        assert torch.equal(alone.nan_to_num(7.0), ((whole.sent[0] + whole.sent[1]) / 2).nan_to_num(7.0))
        assert sent.nbytes == whole.nbytes and bool(alone.isfinite().all()) is (step > 1)


def test_zero_nonfinite_leaves_finite_values_unchanged() -> None:
    x = torch.tensor([-0.0, 1e-42, 3e38, -3e38, NAN, INF, -INF])
    assert zero_nonfinite(x).tolist() == [0, x[1].item(), x[2].item(), x[3].item(), 0, 0, 0]
    assert math.copysign(1, zero_nonfinite(x)[0].item()) == -1


def test_terngrad_leaves_constant_tensors_unchanged() -> None:
    """The standard deviation of a constant tensor is zero."""
    for value in (3.0, -0.1):
        assert torch.equal(one(TernGrad(), torch.full((1000,), value)), torch.full((1000,), value))
    assert not one(TernGrad(), torch.zeros(10)).any()
    apart = torch.full((1000,), 3.0) + 0.01 * drawn((1000,), 2)
    assert float(one(TernGrad(), apart).abs().max()) == pytest.approx(2.5 * float(apart.std(correction=0)), rel=1e-5)
