"""MIPD: quantiles and ratios against their definitions, pushes worked by hand, bytes, limits, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from budgets import budget  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random, RecordingNetwork  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import LinkTiming  # noqa: E402
from gradwire.training.parameter_server.mipd_encoding import (  # noqa: E402
    GAUSSIAN,
    LAPLACE,
    SIGNIFICANCE,
    add_moves,
    add_smoothed_moves,
    bins,
    dequantise,
    encode_positions,
    fit_distribution,
    packed,
    quantise,
    ratios_of,
    unpack,
)
from gradwire.training.parameter_server.mipd_trainer import MipdTrainer  # noqa: E402
from gradwire.training.systems.mipd import MIPD  # noqa: E402
from gradwire.training.trainer import Recipe, Score, Trainer  # noqa: E402
from tests.support.training_cases import Points, close, plain, resumes_exactly, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)
ALL = MIPD(ratio=1.0, bits=0, compensate=False, update="all", look_ahead=False)
"""Everything is sent as it is, and updated at once."""


class Line(nn.Module):
    """Parameters w, whose gradient a test chooses: the sample."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def slope(model, inputs, targets):
    return (model.w * inputs[0]).sum(dim=1)


def line(
    rules: MIPD, *points: list[float], start=None, network=None, loss=slope, computing=(0,), **more
) -> MipdTrainer:
    plan = {"rate": 1.0, "momentum": 0.0, "weight_decay": 0.0, "steps": 50, **more}
    recipe = Recipe(workers=len(points), batch=1, schedule="constant", **plan)
    rules = rules.model_copy(update={"small": 0})
    trainer = MipdTrainer(
        Line(*(start or [0.0] * len(points[0]))), Points(*points), recipe, rules, network, pace=LinkTiming(computing)
    )
    return with_loss(trainer, loss)


# codes


@pytest.mark.parametrize("bits", [1, 3, 4, 8])
@pytest.mark.parametrize("distribution", [GAUSSIAN, LAPLACE])
def test_bins_are_equally_likely_and_decode_to_their_means(distribution: int, bits: int) -> None:
    """The reference is a million draws of the distribution itself."""
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(1_000_000, generator=generator)
    if distribution == LAPLACE:
        shares = torch.rand(1_000_000, generator=generator, dtype=torch.float64) - 0.5
        draws = (-shares.sign() * (1 - 2 * shares.abs()).log()).float()
    edges, means = bins(distribution, bits)
    codes = torch.bucketize(draws, edges)
    counts = torch.bincount(codes, minlength=2**bits)
    assert counts.float().div(1e6).sub(2**-bits).abs().max() < 5 * math.sqrt(2**-bits / 1e6)
    found = torch.zeros(2**bits).index_add_(0, codes, draws) / counts
    assert torch.allclose(found, means, atol=0.05)
    assert float(means.mean()) == pytest.approx(0, abs=1e-6)


def test_one_bit_quantisation_matches_hand_computation() -> None:
    """Halves of a Gaussian have the means +-sqrt(2/pi), those of a Laplace distribution +-1."""
    assert bins(GAUSSIAN, 1)[1].tolist() == pytest.approx([-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)])
    assert bins(LAPLACE, 1)[1].tolist() == pytest.approx([-1, 1])
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])  # mean 3, deviation sqrt(3.5); median 2, mean distance 1.5
    distribution, centre, scale = fit_distribution(values)
    gaussian = -0.5 * math.log(2 * math.pi * math.e * 3.5)
    assert (
        gaussian > -math.log(3) - 1
        and (distribution, centre) == (GAUSSIAN, 3)
        and scale == pytest.approx(math.sqrt(3.5))
    )
    far = math.sqrt(2 / math.pi) * math.sqrt(3.5)
    assert dequantise(quantise(values, 1), 1, 4).tolist() == pytest.approx([3 - far, 3 - far, 3 - far, 3 + far])


def test_distribution_with_better_fit_is_chosen() -> None:
    generator = torch.Generator().manual_seed(3)
    gaussian = torch.randn(5000, generator=generator) * 2 + 1
    shares = torch.rand(5000, generator=generator) - 0.5
    laplace = -shares.sign() * (1 - 2 * shares.abs()).log() * 3
    assert fit_distribution(gaussian) == (GAUSSIAN, pytest.approx(1, abs=0.1), pytest.approx(2, rel=0.05))
    assert fit_distribution(laplace) == (LAPLACE, pytest.approx(0, abs=0.15), pytest.approx(3, rel=0.05))
    errors = [float((dequantise(quantise(gaussian, b), b, 5000) - gaussian).square().mean()) for b in range(1, 9)]
    assert errors == sorted(errors, reverse=True) and errors[0] == pytest.approx(4 * (1 - 2 / math.pi), rel=0.05)


@given(bits=st.integers(1, 8), count=st.integers(1, 60), seed=st.integers(0, 99))
@budget(0.4)
def test_codes_are_packed_without_gaps(bits: int, count: int, seed: int) -> None:
    codes = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(seed))
    units = packed(codes, bits)
    assert units.shape == (-(-count // 8), bits) and torch.equal(unpack(units, bits, count), codes)
    encoded = quantise(codes.float(), bits)
    assert encoded.nbytes(100) == sum(map(len, encoded.to_packets(100))) == bits * len(units) + 9 * encoded.packets(100)


def test_packed_codes_match_hand_computation() -> None:
    """Codes 1, 2, 3 of 3 bits are 011 010 001 from the right: 0b11010001 and two zero bytes."""
    assert packed(torch.tensor([1, 2, 3]), 3).tolist() == [[0b11010001, 0, 0]]


def test_equal_values_are_quantised_exactly() -> None:
    assert dequantise(quantise(torch.full((5,), 3.0), 4), 4, 5).tolist() == [3] * 5
    assert dequantise(quantise(torch.zeros(3), 2), 2, 3).tolist() == [0] * 3


@given(numel=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 99))
@budget(0.4)
def test_positions_are_encoded_as_bitmap_or_indices(numel: int, share: float, seed: int) -> None:
    places = (torch.rand(numel, generator=torch.Generator().manual_seed(seed)) < share).nonzero().view(-1)
    encoded = encode_positions(places, numel)
    (units,) = encoded.fields
    decoded = units if units.dtype == torch.int32 else unpack(units, 1, numel).nonzero().view(-1)
    assert torch.equal(decoded.long(), places)
    assert encoded.nbytes() == min(4 * len(places), -(-numel // 8))


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_compiled_update_of_a_half_equals_torch(share: float) -> None:
    """In one pass: moves where they have arrived, smoothed ones elsewhere, nothing outside of the half."""
    generator = torch.Generator().manual_seed(5)
    vector, smoothed = torch.randn(40, generator=generator), torch.randn(40, generator=generator)
    positions = torch.tensor([10, 11, 17, 29])
    values, others = torch.randn(4, generator=generator), [at for at in range(10, 30) if at not in positions]
    expected, fading = vector.clone(), smoothed.clone()
    expected[positions] += 0.25 * values
    expected[others] += 0.25 * smoothed[others]
    fading[positions], fading[others] = torch.lerp(smoothed[positions], values, share), smoothed[others] * (1 - share)
    update = (vector[10:30].numpy(), smoothed[10:30].numpy(), (positions - 10).numpy(), values.numpy())
    add_smoothed_moves(*update, *map(np.float32, (0.25, share, 1 - share)))
    assert torch.allclose(vector, expected, atol=1e-6) and torch.allclose(smoothed, fading, atol=1e-6)
    before = vector.clone()
    add_moves(vector.numpy(), positions.numpy(), values.numpy(), np.float32(0.5))
    assert torch.allclose(vector - before, torch.zeros(40).index_copy(0, positions, values / 2), atol=1e-6)


@pytest.mark.parametrize("bits", range(1, 9))
def test_compiled_decoding_equals_torch(bits: int) -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(bits))
    encoded = quantise(values, bits)
    (centre, scale), kind = encoded.head[0], int(encoded.head[1])
    codes = unpack(encoded.fields[0], bits, 1001)
    assert torch.allclose(dequantise(encoded, bits, 1001), centre + scale * bins(kind, bits)[1][codes], atol=1e-6)


# what is sent


def test_significance_rules_match_hand_computation() -> None:
    w, g = torch.tensor([2.0, -1.0]), torch.tensor([-3.0, 4.0])
    assert [SIGNIFICANCE[name](w, g).tolist() for name in ("taylor", "fisher", "magnitude")] == [
        [6, 4],
        [9, 16],
        [3, 4],
    ]


def test_layer_ratios_match_hand_computation() -> None:
    """Three layers of 100 have the sums 16, 4, 1; their square roots are as 4 to 2 to 1. With limits, the first
    meets the ceiling, the last the floor, and the second has what is left of 30 %."""
    assert ratios_of([16, 4, 1], [100] * 3, 0.3, 0.5, 0.0, 1.0) == pytest.approx([0.9 * 4 / 7, 0.9 * 2 / 7, 0.9 / 7])
    assert ratios_of([16, 4, 1], [100] * 3, 0.3, 0.5, 0.15, 0.5) == pytest.approx([0.5, 0.25, 0.15])
    assert ratios_of([16, 4, 1], [100, 200, 300], 0.3, 0.0, 0.0, 1.0) == pytest.approx([0.3] * 3)
    assert ratios_of([0, 0], [10, 10], 0.2, 0.5, 0.0, 1.0) == pytest.approx([0.2] * 2)
    assert ratios_of([5, 0], [10, 10], 0.9, 0.5, 0.1, 1.0) == pytest.approx([1.0, 0.1]), "as much as the floor allows"


def test_significant_positions_are_sent_until_next_refresh() -> None:
    """w = (1, 10, 1, 0) moves by (-3, -1, -2, -9) thousandths; by |w m| the first two of four are sent, by |m| the last
    and the first. What is not sent grows: after three pushes it is the more significant."""
    for rule, places, later in (("taylor", [0, 1], [1, 2]), ("magnitude", [0, 3], [2, 3]), ("fisher", [0, 3], [2, 3])):
        rules = MIPD(ratio=0.5, bits=0, significance=rule, refresh=3, compensate=False, update="all", decay=0.0)
        trainer = line(rules, [3.0, 1.0, 2.0, 9.0], start=[1.0, 10.0, 1.0, 0.0], rate=0.001)
        rows = [trainer.step() for _ in range(3)]
        assert trainer.places[0][0][0].tolist() == places
        rows.append(trainer.step())
        assert trainer.places[0][0][0].tolist() == later
        assert [row.sent_bytes for row in rows] == [8 + 1, 8, 8, 8 + 1], (
            "two values, and a byte of four bits for their places"
        )


def test_small_tensors_are_sent_in_full() -> None:
    """plain() has 216 and 2880 weights, 8 and 10 biases; half of its 3114 is in the second matrix."""
    recipe = Recipe(workers=1, batch=8, steps=6)
    trainer = MipdTrainer(plain(), DATA, recipe, MIPD(ratio=0.1, small=216, floor=0.0))
    seen = []
    for _ in range(2):
        trainer.step()
        seen.append([len(each) for each in trainer.places[0][trainer.half[0]]])
    assert seen == [[216, 8, 133, 0], [0, 0, 154, 10]]
    assert [[part.stop - part.start for part in half] for half in trainer.parts] == [
        [216, 8, 1333, 0],
        [0, 0, 1547, 10],
    ]


def test_significance_decays_over_refreshes() -> None:
    """The first element has moved by 4 and is sent; then the second one moves by 3."""
    rules = MIPD(ratio=0.5, significance="magnitude", decay=0.5, refresh=1, bits=0, update="all", compensate=False)
    trainer = line(rules, [4.0, 0.0])
    trainer.step()
    trainer.dealer.data.points = torch.tensor([[0.0, 3.0]])
    trainer._dealt.clear()
    trainer.batches[0] = 1
    trainer.step()
    assert trainer.matters[0][0][0].tolist() == [2, 1.5] and trainer.places[0][0][0].tolist() == [0]


# workers and server


def test_alternating_halves_match_hand_computation() -> None:
    """Four elements have the gradients (1 2 3 4) of one worker. The first turn pushes the first half, the second turn
    the other half, with both moves."""
    trainer = line(MIPD(ratio=1.0, bits=0, compensate=False), [1.0, 2.0, 3.0, 4.0])
    expected = [[-1, -2, 0, 0], [-1, -2, -6, -8], [-3, -6, -6, -8], [-3, -6, -12, -16]]
    for values in expected:
        row = trainer.step()
        assert trainer.model.w.tolist() == values and row.pulled_bytes == 8
    assert trainer.copies.values[0][0].tolist() == [-4, -8, -12, -16], "its own steps are all there"


def test_workers_push_opposite_halves_and_pull_them() -> None:
    """Two workers with gradients 1 and 3: each half of the server moves by half of what one of them pushes, and that
    one goes on from there, with its other half as it is."""
    trainer = line(MIPD(ratio=1.0, bits=0, compensate=False), [1.0, 1.0], [3.0, 3.0], rate=2.0)
    trainer.step()
    assert trainer.model.w.tolist() == [-1, -3]
    assert [row[0].tolist() for row in trainer.copies.values] == [[-1, -2], [-6, -3]]


@pytest.mark.parametrize(
    "more", [{"momentum": 0.0}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"optimizer": "adamw"}]
)
def test_one_worker_that_sends_everything_equals_plain_training(more) -> None:
    recipe = Recipe(workers=1, batch=8, steps=5, rate=0.05, **more)
    ours, theirs = MipdTrainer(plain(), DATA, recipe, ALL), Trainer(plain(), DATA, recipe)
    for _ in range(5):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-5)
    assert close(ours.model, theirs.model, 1e-5) and ours.server_ns > 0
    ahead = MipdTrainer(plain(), DATA, recipe, ALL.model_copy(update={"look_ahead": True}))
    for _ in range(5):
        ahead.step()
    assert close(ahead.model, theirs.model, 1e-5) is (more.get("momentum") != 0.9 or "nesterov" in more)


@pytest.mark.parametrize("rules", [
    MIPD(compensate=False), MIPD(compensate=False, bits=0, ratio=0.1, refresh=3), MIPD(compensate=False, update="all", bits=8),
    MIPD(compensate=False, significance="magnitude", momentum="implied"),
], ids=["default", "sparse", "all", "magnitude"])  # fmt: skip
def test_moves_that_are_not_sent_are_conserved(rules: MIPD) -> None:
    """Gradients do not depend on the parameters: the server and the mean of the waiting moves, quantised or not, add up
    to the mean of all local steps, in whatever order workers come."""
    points = torch.randn(1, 500, generator=torch.Generator().manual_seed(4)).expand(3, 500)
    trainer = line(rules, *points.tolist(), rate=0.3, computing=(3, 4, 9))
    for _ in range(11):
        trainer.step()
    waiting = trainer.copies.flat - trainer.copies.common
    steps = torch.tensor(trainer.copies.turns, dtype=torch.float32)[:, None]
    assert waiting.abs().max() > 0.1 and len(set(trainer.copies.turns)) > 1
    expected = -(0.3 * steps * points).mean(dim=0)
    assert torch.allclose(trainer.model.w.detach() + waiting.mean(dim=0), expected, atol=2e-4)


def test_smoothed_moves_stand_in_for_unsent_ones() -> None:
    """One worker, smoothing 1/2, gradient 8 of element 0, which is sent in the first push only: the server moves by 8,
    and then by the smoothed move, 4, which halves."""
    rules = MIPD(ratio=0.5, bits=0, smoothing=0.5, significance="magnitude", refresh=100, update="all", floor=0.0)
    trainer = line(rules, [8.0, 0.0])
    trainer.step()
    trainer.places[0][0][0] = torch.tensor([1])
    seen = [trainer.vector[0].item()]
    for _ in range(3):
        trainer.flying[0]["got"] = {"places": torch.tensor([1]), "values": torch.zeros(1)}
        trainer.update(0, {"places": torch.tensor([1]), "values": torch.zeros(1)}, 1.0)
        seen.append(trainer.vector[0].item())
    assert seen == [-8, -12, -14, -15]


def test_implied_momentum_is_the_mean_move_of_the_server() -> None:
    """Three workers with the gradient 2, of which one is three times as slow, push everything: whoever pulls, and
    however much later, the server has moved by 2 times the sum of the learning rates."""
    rules = ALL.model_copy(update={"momentum": "implied"})
    trainer = line(rules, [2.0], [2.0], [2.0], momentum=0.5, computing=(1, 1, 3))
    implied, adopt = [], trainer.adopt

    def watched(worker: int) -> None:
        before = trainer.copies.common[worker].item(), trainer.pulled_clock[worker][0]
        adopt(worker)
        moved, passed = before[0] - trainer.vector.item(), trainer.clock - before[1]
        implied.append((trainer.copies.first[worker].item(), moved / passed))

    trainer.adopt = watched
    for _ in range(9):
        trainer.step()
    assert len(set(trainer.copies.turns)) > 1 and trainer.clock == pytest.approx(9.0)
    assert all(velocity == pytest.approx(mean, rel=1e-5) for velocity, mean in implied)
    assert implied[0][0] == 2 and max(velocity for velocity, _ in implied) < 5, "momentum 1/2 doubles 2 in the end"


def test_implied_momentum_does_not_diverge_with_unequal_workers() -> None:
    """A slow worker makes one step while the others make many; their moves are not its momentum."""

    def distance(model, inputs, targets):
        return 0.5 * (model.w - inputs[0]).square().sum(dim=1)

    points = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)) * 3
    rules = MIPD(ratio=1.0, bits=0, compensate=False, momentum="implied")
    more = {"loss": distance, "rate": 0.05, "momentum": 0.9, "steps": 300}
    trainer = line(rules, *points.tolist(), computing=(10, 10, 20, 40), **more)
    for _ in range(300):
        trainer.step()
    assert trainer.copies.flat.abs().max() < 30


def test_sent_bytes_equal_serialised_packets() -> None:
    recorded = RecordingNetwork(Random(0.0))
    seen = []
    carry = recorded.carry
    recorded.carry = lambda pushed: (
        seen.append(sum(len(p) for e in pushed.encoded[0] for p in e.to_packets(256) if e.units)),
        carry(pushed),
    )[1]
    recipe = Recipe(workers=2, batch=4, steps=4, payload=256)
    trainer = MipdTrainer(plain(), DATA, recipe, MIPD(refresh=2), recorded)
    assert [trainer.step().sent_bytes for _ in range(4)] == [sum(seen[i : i + 2]) for i in (0, 2, 4, 6)]
    count = sum(info.numel for info in trainer.infos)
    assert count == 3114 and trainer.pulled_bytes < 0.7 * 4 * 4 * 2 * count


@pytest.mark.parametrize("bits", [4, 3, 0])
def test_sent_bytes_match_documented_formula(bits: int) -> None:
    """Codes in packets with a head of 9 bytes, and positions as a bit per element whenever they are chosen."""
    rules = MIPD(ratio=0.1, refresh=2, floor=0.0, bits=bits)
    trainer = MipdTrainer(plain(), DATA, Recipe(workers=1, batch=8, steps=6, payload=256), rules)
    for turn in range(6):
        row, expected = trainer.step(), 0
        half = trainer.half[0]
        for places, part in zip(trainer.places[0][half], trainer.parts[half], strict=True):
            units = -(-len(places) // 8)
            expected += bits * units + 9 * -(-units // (247 // bits)) if bits else 4 * len(places)
            expected += min(4 * len(places), -(-(part.stop - part.start) // 8)) if turn // 2 % 2 == 0 else 0
        assert row.sent_bytes == expected and row.pulled_bytes == 4 * 1557


def test_lost_packet_drops_whole_code_unit() -> None:
    """A unit has 8 codes. Packets of 15 bytes hold one unit of 4 bytes beside the head of 9."""
    rules = MIPD(ratio=1.0, compensate=False, update="all", refresh=100)
    for feed_back in (False, True):
        trainer = line(
            rules, [float(1 + e) for e in range(64)], network=Random(0.5, quota=True), payload=15, feed_back=feed_back
        )
        row = trainer.step()
        lost = trainer.model.w == 0
        assert row.lost == 0.5 and int(lost.sum()) == 32 and (trainer.model.w.view(8, 8) == 0).all(dim=1).sum() == 4
        waiting = (trainer.copies.flat - trainer.copies.common)[0]
        assert bool((waiting[lost].abs() > 0.5).all()) is feed_back, "kept by a worker that hears of the loss"


def test_mipd_run_resumes_from_checkpoint(tmp_path) -> None:
    recipe = Recipe(workers=3, batch=8, steps=8, payload=256)
    make = lambda: MipdTrainer(
        plain(),
        DATA,
        recipe,
        MIPD(refresh=2, momentum="implied"),
        Random(0.1),
        staleness=2,
        pace=LinkTiming((2, 5), 10**9),
    )
    whole, second = resumes_exactly(make, 8, 5, tmp_path)
    assert torch.equal(whole.vector, second.vector) and torch.equal(whole.copies.flat, second.copies.flat)


def test_mipd_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = MipdTrainer(plain(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1), MIPD()).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


def distance(model, inputs, targets):
    return 0.5 * (model.w - inputs[0]).square().sum(dim=1)


@pytest.mark.parametrize(("rules", "arrives"), [
    (MIPD(significance="magnitude", refresh=2, compensate=False), True), (MIPD(significance="fisher", refresh=2, bits=0, compensate=False), True),
    (MIPD(significance="magnitude", refresh=10_000, compensate=False), False), (MIPD(ratio=1.0, bits=0, compensate=False, refresh=10_000), True),
])  # fmt: skip
def test_least_squares_converges_if_positions_are_chosen_again(rules: MIPD, arrives: bool) -> None:
    """Four workers with different optima push one by one. What is not sent waits, so all of it arrives in the end."""
    points = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)) * 3
    recipe = Recipe(4, 1, 300, 0.2, "triangle", rise=0.01, momentum=0.0, weight_decay=0.0)
    trainer = MipdTrainer(
        Line(*[0.0] * 64),
        Points(*points.tolist()),
        recipe,
        rules.model_copy(update={"small": 0}),
        pace=LinkTiming((3, 4, 5)),
        staleness=2,
    )
    trainer.loss = distance
    for _ in range(300):
        trainer.step()
    mean = points.mean(dim=0)
    error = float((trainer.model.w.detach() - mean).norm() / mean.norm())
    assert (error < 0.15) is arrives, error


def test_floor_above_ceiling_is_rejected() -> None:
    with pytest.raises(ValueError, match="is above the ceiling"):
        MIPD(floor=0.5, ceiling=0.2)
