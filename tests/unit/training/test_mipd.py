"""MIPD: quantiles and ratios against their definitions, pushes worked by hand, bytes, limits, and that it learns."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from budgets import budget  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import Random, RecordingNetwork  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous, LinkTiming  # noqa: E402
from gradwire.training.parameter_server.mipd_encoding import (  # noqa: E402
    GAUSSIAN,
    LAPLACE,
    SIGNIFICANCE,
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
from gradwire.training.trainer import Recipe, Score  # noqa: E402
from tests.support.training_cases import Points, plain, with_loss  # noqa: E402

DATA = images("synthetic", 8, limit=400)
ALL = MIPD(ratio=1.0, bits=0, compensate=False, update="all", floor=0.0)
"""Everything is sent as it is, and updated at once."""


class Line(nn.Module):
    """Parameters w, whose gradient a test chooses: the sample."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def slope(model, inputs, targets):
    return (model.w * inputs[0]).sum(dim=1)


def line(
    rules: MIPD, *points: list[float], start=None, network=None, rate: float = 1.0, payload: int = 4096
) -> MipdTrainer:
    recipe = Recipe(len(points), 1, 50, rate, "constant", momentum=0.0, weight_decay=0.0, payload=payload)
    rules = rules.model_copy(update={"small": 0, "warmup": 0})
    trainer = MipdTrainer(Line(*(start or [0.0] * len(points[0]))), Points(*points), recipe, rules, network)
    return with_loss(trainer, slope)


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
    """w = (1, 10, 1, 0), g = (3, 1, 2, 9), |w g| = (3, 10, 2, 0). By |w g| the first two of four are sent, by |g|
    the last and the first."""
    for rule, places in (("taylor", [0, 1]), ("magnitude", [0, 3]), ("fisher", [0, 3])):
        rules = MIPD(ratio=0.5, bits=0, significance=rule, refresh=3, compensate=False, update="all")
        trainer = line(rules, [3.0, 1.0, 2.0, 9.0], start=[1.0, 10.0, 1.0, 0.0], rate=0.001)
        rows = [trainer.step() for _ in range(4)]
        assert trainer.places[0][0].tolist() == places
        assert [row.sent_bytes for row in rows] == [8 + 1, 8, 8, 8 + 1], (
            "two values, and a byte of four bits for their places"
        )
        moved = torch.tensor([1.0, 10.0, 1.0, 0.0]) - trainer.model.w.detach()
        assert moved.nonzero().view(-1).tolist() == places


def test_small_tensors_and_warmup_turns_are_sent_in_full() -> None:
    """plain() has 216 and 2880 weights, 8 and 10 biases. Two turns send all of them; then only the 2880 are
    reduced."""
    recipe = Recipe(workers=1, batch=8, steps=6)
    trainer = MipdTrainer(plain(), DATA, recipe, MIPD(ratio=0.1, small=216, warmup=2, refresh=2, floor=0.0))
    seen = []
    for _ in range(4):
        trainer.step()
        seen.append([len(each) for each in trainer.places[0]])
    assert seen == [[216, 8, 2880, 10]] * 2 + [[216, 8, 288, 10]] * 2


@pytest.mark.parametrize(("warmup", "refresh"), [(1, 20), (5, 3), (3, 3), (0, 4), (7, 2)])
def test_warmup_turns_send_all_elements(warmup: int, refresh: int) -> None:
    """The warmup does not depend on the refresh period; each new choice is sent with its positions."""
    rules = MIPD(ratio=0.1, warmup=warmup, refresh=refresh, floor=0.0)
    trainer = MipdTrainer(plain(), DATA, Recipe(workers=1, batch=8, steps=9), rules)
    seen, told, encode = [], [], trainer.encode

    def watched(worker, gradients):
        found = encode(worker, gradients)
        told.append(found[5].units > 0)
        return found

    trainer.encode = watched
    for _ in range(9):
        trainer.step()
        seen.append(len(trainer.places[0][2]))
    assert seen == [2880] * warmup + [288] * (9 - warmup)
    assert told == [turn % refresh == 0 or turn == warmup for turn in range(9)]


def test_significance_decays_over_turns() -> None:
    rules = MIPD(ratio=0.5, significance="magnitude", decay=0.5, refresh=1, bits=0)
    trainer = line(rules, [4.0, 0.0], rate=0.0001)
    trainer.step()
    trainer.dealer.data.points = torch.tensor([[0.0, 3.0]])
    trainer._dealt.clear()
    trainer.batches[0] = 1
    trainer.step()
    assert trainer.matters[0][0].tolist() == [2, 1.5] and trainer.places[0][0].tolist() == [0]


# the server


def test_dropped_gradients_are_replaced_by_smoothed_ones() -> None:
    """One worker with smoothing 1/2 updates every element. Element 0 has the gradient 8 in the first push and is
    dropped then. Its smoothed gradient 4 stands in for it and halves in each turn: it moves by 8, 4, 2, 1."""
    rules = MIPD(ratio=0.5, bits=0, smoothing=0.5, significance="magnitude", refresh=100, update="all", floor=0.0)
    trainer = line(rules, [8.0, 0.0])
    trainer.step()
    trainer.places[0][0] = torch.tensor([1])
    trainer._record_positions(0)
    seen = [float(trainer.model.w.detach()[0])]
    for _ in range(3):
        trainer.step()
        seen.append(float(trainer.model.w.detach()[0]))
    assert seen == [-8, -12, -14, -15]


def test_alternating_halves_match_hand_computation() -> None:
    """Four elements in two blocks have the gradients (1 2 3 4) of one worker. The first turn updates the first
    half, the second turn the other half, with both gradients; the worker pulls that half."""
    rules = MIPD(ratio=1.0, bits=0, block=2, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 2.0, 3.0, 4.0])
    expected = [[-1, -2, 0, 0], [-1, -2, -6, -8], [-3, -6, -6, -8], [-3, -6, -12, -16]]
    for values in expected:
        row = trainer.step()
        assert trainer.model.w.tolist() == values == trainer.copies.values[0][0].tolist()
        assert row.pulled_bytes == 8


def test_longer_rotation_updates_one_half_more_often() -> None:
    rules = MIPD(ratio=1.0, bits=0, block=1, rotation=3, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 1.0])
    seen = []
    for _ in range(6):
        trainer.step()
        seen.append(trainer.model.w.tolist())
    assert seen == [[-1, 0], [-2, 0], [-2, -3], [-4, -3], [-5, -3], [-5, -6]]


def test_workers_pull_only_the_half_their_push_updated() -> None:
    """Two equal workers update opposite halves in alternation."""
    rules = MIPD(ratio=1.0, bits=0, block=1, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 1.0], [1.0, 1.0], rate=2.0)
    trainer.step()
    assert trainer.turned == [0, 1] and trainer.model.w.tolist() == [-1, -2]
    assert [row[0].tolist() for row in trainer.copies.values] == [[-1, 0], [0, -2]]


def test_halves_are_chosen_by_significance() -> None:
    """Gradients are 1 in the first half and 5 in the second. After 3 turns the second is the significant one; the
    worker receives that in a byte of bits, once."""
    rules = MIPD(ratio=1.0, bits=0, block=2, significance="magnitude", refresh=3)
    trainer = line(rules, [1.0, 1.0, 5.0, 5.0])
    rows = [trainer.step() for _ in range(5)]
    assert [each.tolist() for each in trainer.halves] == [[1], [0]]
    assert [row.pulled_bytes for row in rows] == [8, 8, 8, 9, 8]


def test_updates_conserve_all_received_gradients() -> None:
    """Parameters and pending updates are the sum of all that was received, quantised or not."""
    generator = torch.Generator().manual_seed(4)
    points = torch.randn(3, 500, generator=generator).tolist()
    rules = MIPD(ratio=0.4, block=16, significance="magnitude", compensate=False, refresh=2)
    trainer = line(rules, *points, rate=0.3)
    sent = torch.zeros(500)
    update = trainer.update

    def watched(worker, received, rate):
        sent[received["places"]] += rate * received["values"]
        update(worker, received, rate)

    trainer.update = watched
    for _ in range(7):
        trainer.step()
    waits = trainer.pending.view(-1)[:500] * (0.3 / 3)
    assert waits.abs().sum() > 0
    assert torch.allclose(trainer.model.w.detach() - waits, -sent, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mipd_without_reduction_equals_asynchronous_server(momentum: float) -> None:
    recipe = Recipe(workers=3, batch=8, steps=5, rate=0.05, momentum=momentum, nesterov=momentum > 0)
    ours = MipdTrainer(plain(), DATA, recipe, ALL, pace=LinkTiming((3, 4)))
    theirs = Asynchronous(plain(), DATA, recipe, pace=LinkTiming((3, 4)))
    for _ in range(5):
        assert ours.step().loss == pytest.approx(theirs.step().loss, rel=1e-5)
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    )
    assert [t.worker for t in ours.log] == [t.worker for t in theirs.log] and ours.server_ns > 0
    less = MipdTrainer(plain(), DATA, recipe, MIPD(), pace=LinkTiming((3, 4)))
    for _ in range(5):
        less.step()
    assert not all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(less.model.parameters(), theirs.model.parameters(), strict=True)
    )


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
    """The formula of docs/training.md also covers warmup turns, which send codes of all elements."""
    rules = MIPD(ratio=0.1, refresh=3, warmup=2, floor=0.0, bits=bits, update="all")
    trainer = MipdTrainer(plain(), DATA, Recipe(workers=1, batch=8, steps=5, payload=256), rules)
    for turn in range(5):
        row, expected = trainer.step(), 0
        for places, info in zip(trainer.places[0], trainer.infos, strict=True):
            units = -(-len(places) // 8)
            expected += bits * units + 9 * -(-units // (247 // bits)) if bits else 4 * len(places)
            expected += min(4 * len(places), -(-info.numel // 8)) if turn in (0, 2, 3) else 0
        assert row.sent_bytes == expected and row.pulled_bytes == 4 * trainer.numel


def test_lost_packet_drops_whole_code_unit() -> None:
    """A unit has 8 codes. Packets of 15 bytes hold one unit of 4 bytes beside the head of 9."""
    rules = MIPD(ratio=1.0, compensate=False, update="all", refresh=100)
    trainer = line(rules, [float(1 + e) for e in range(64)], network=Random(0.5, quota=True), payload=15)
    row = trainer.step()
    assert row.lost == 0.5 and int((trainer.model.w == 0).sum()) == 32
    assert (trainer.model.w.view(8, 8) == 0).all(dim=1).sum() == 4


def test_mipd_run_resumes_from_checkpoint(tmp_path) -> None:
    recipe = Recipe(workers=3, batch=8, steps=8, payload=256)
    make = lambda: MipdTrainer(
        plain(), DATA, recipe, MIPD(refresh=2, block=64), Random(0.1), staleness=2, pace=LinkTiming((2, 5), 10**9)
    )
    whole, first, second = make(), make(), make()
    rows = [whole.step() for _ in range(8)]
    assert [first.step() for _ in range(5)] == rows[:5]
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(3)] == rows[5:]
    assert torch.equal(whole.vector, second.vector) and whole.chosen > 0
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_mipd_training_reaches_accuracy() -> None:
    data = images("synthetic", 8, augment=False, limit=2000)
    *_, last = MipdTrainer(plain(), data, Recipe(workers=4, batch=16, steps=90, rate=0.1), MIPD(block=64)).run()
    assert isinstance(last, Score) and last.accuracy > 0.4


def distance(model, inputs, targets):
    return 0.5 * (model.w - inputs[0]).square().sum(dim=1)


@pytest.mark.parametrize(("rules", "alike", "arrives"), [
    (MIPD(significance="magnitude", block=8, refresh=4), True, True),
    (MIPD(significance="fisher", block=8, refresh=4, bits=0, compensate=False), True, True),
    (MIPD(significance="magnitude", block=8, refresh=10_000), True, False),
    (MIPD(significance="magnitude", block=8, refresh=4), False, False),
    (MIPD(ratio=1.0, bits=0, block=8, refresh=10_000), False, True),
])  # fmt: skip
def test_least_squares_convergence_depends_on_refresh_and_agreement(rules: MIPD, alike: bool, arrives: bool) -> None:
    """Four workers push one by one. If they agree, repeated refreshes lead to the optimum. If they do not, elements
    small for each worker are dropped though they matter to the mean, as with Top-k without feedback."""
    points = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)) * 3
    points = points[:1].expand(4, 64) if alike else points
    recipe = Recipe(4, 1, 300, 0.2, "triangle", rise=0.01, momentum=0.0, weight_decay=0.0)
    rules = rules.model_copy(update={"small": 0, "warmup": 0})
    trainer = MipdTrainer(
        Line(*[0.0] * 64), Points(*points.tolist()), recipe, rules, pace=LinkTiming((3, 4, 5)), staleness=2
    )
    trainer.loss = distance
    for _ in range(300):
        trainer.step()
    mean = points.mean(dim=0)
    error = float((trainer.model.w.detach() - mean).norm() / mean.norm())
    assert (error < 0.1) is arrives, error


def test_floor_above_ceiling_is_rejected() -> None:
    with pytest.raises(ValueError, match="is above the ceiling"):
        MIPD(floor=0.5, ceiling=0.2)
