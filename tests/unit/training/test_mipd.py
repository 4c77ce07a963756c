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
    """Against a million draws of the distribution itself."""
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


def test_a_bit_by_hand() -> None:
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


def test_the_better_fit_is_taken() -> None:
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


def test_packed_by_hand() -> None:
    """Codes 1, 2, 3 of 3 bits: 011 010 001 from the right, 0b11010001 and nothing."""
    assert packed(torch.tensor([1, 2, 3]), 3).tolist() == [[0b11010001, 0, 0]]


def test_values_that_are_all_alike() -> None:
    assert dequantise(quantise(torch.full((5,), 3.0), 4), 4, 5).tolist() == [3] * 5
    assert dequantise(quantise(torch.zeros(3), 2), 2, 3).tolist() == [0] * 3


@given(numel=st.integers(1, 300), share=st.floats(0, 1), seed=st.integers(0, 99))
@budget(0.4)
def test_keys_are_bits_or_indices(numel: int, share: float, seed: int) -> None:
    places = (torch.rand(numel, generator=torch.Generator().manual_seed(seed)) < share).nonzero().view(-1)
    encoded = encode_positions(places, numel)
    (units,) = encoded.fields
    decoded = units if units.dtype == torch.int32 else unpack(units, 1, numel).nonzero().view(-1)
    assert torch.equal(decoded.long(), places)
    assert encoded.nbytes() == min(4 * len(places), -(-numel // 8))


# what is sent


def test_significance_by_hand() -> None:
    w, g = torch.tensor([2.0, -1.0]), torch.tensor([-3.0, 4.0])
    assert [SIGNIFICANCE[name](w, g).tolist() for name in ("taylor", "fisher", "magnitude")] == [
        [6, 4],
        [9, 16],
        [3, 4],
    ]


def test_ratios_by_hand() -> None:
    """Sums 16, 4, 1 of three layers of 100: to the power of 1/2 they are as 4 to 2 to 1; the first meets the ceiling of 1/2,
    the last the floor of 1/10; then the second has what is left of 30 %."""
    assert ratios_of([16, 4, 1], [100] * 3, 0.3, 0.5, 0.0, 1.0) == pytest.approx([0.9 * 4 / 7, 0.9 * 2 / 7, 0.9 / 7])
    assert ratios_of([16, 4, 1], [100] * 3, 0.3, 0.5, 0.15, 0.5) == pytest.approx([0.5, 0.25, 0.15])
    assert ratios_of([16, 4, 1], [100, 200, 300], 0.3, 0.0, 0.0, 1.0) == pytest.approx([0.3] * 3)
    assert ratios_of([0, 0], [10, 10], 0.2, 0.5, 0.0, 1.0) == pytest.approx([0.2] * 2)
    assert ratios_of([5, 0], [10, 10], 0.9, 0.5, 0.1, 1.0) == pytest.approx([1.0, 0.1]), "as much as the floor allows"


def test_what_matters_is_sent_and_stays_until_it_is_looked_at_again() -> None:
    """w = (1, 10, 1, 0), g = (3, 1, 2, 9): |w g| = (3, 10, 2, 0): the second and the first of four; by |g| the last and the
    first."""
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


def test_small_tensors_go_in_full_and_everything_at_first() -> None:
    """Of plain(): 216 and 2880 weights, 8 and 10 biases. For two turns all; then 2880 are large, and 216 are not."""
    recipe = Recipe(workers=1, batch=8, steps=6)
    trainer = MipdTrainer(plain(), DATA, recipe, MIPD(ratio=0.1, small=216, warmup=2, refresh=2, floor=0.0))
    seen = []
    for _ in range(4):
        trainer.step()
        seen.append([len(each) for each in trainer.places[0]])
    assert seen == [[216, 8, 2880, 10]] * 2 + [[216, 8, 288, 10]] * 2


@pytest.mark.parametrize(("warmup", "refresh"), [(1, 20), (5, 3), (3, 3), (0, 4), (7, 2)])
def test_everything_is_sent_for_as_many_turns_as_said(warmup: int, refresh: int) -> None:
    """Whenever significance is worked out anew; a new choice is told with its places."""
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


def test_old_significance_fades() -> None:
    rules = MIPD(ratio=0.5, significance="magnitude", decay=0.5, refresh=1, bits=0)
    trainer = line(rules, [4.0, 0.0], rate=0.0001)
    trainer.step()
    trainer.dealer.data.points = torch.tensor([[0.0, 3.0]])
    trainer._dealt.clear()
    trainer.batches[0] = 1
    trainer.step()
    assert trainer.matters[0][0].tolist() == [2, 1.5] and trainer.places[0][0].tolist() == [0]


# the server


def test_dropped_gradients_are_stood_in_for_by_hand() -> None:
    """One worker, a = 1/2, everything updated. Element 0 has the gradient 8 in the first push and is dropped then:
    smoothed 4, then 4 stands in for it, fades to 2, and so on: moved by 8, 4, 2, 1."""
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


def test_halves_by_hand() -> None:
    """Four elements in two blocks, gradients (1 2 3 4), one worker: the first half is updated in its first turn; the second in
    the second, of both gradients; and what is pulled is that half."""
    rules = MIPD(ratio=1.0, bits=0, block=2, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 2.0, 3.0, 4.0])
    expected = [[-1, -2, 0, 0], [-1, -2, -6, -8], [-3, -6, -6, -8], [-3, -6, -12, -16]]
    for values in expected:
        row = trainer.step()
        assert trainer.model.w.tolist() == values == trainer.copies.values[0][0].tolist()
        assert row.pulled_bytes == 8


def test_the_half_that_matters_has_more_turns_with_a_longer_rotation() -> None:
    rules = MIPD(ratio=1.0, bits=0, block=1, rotation=3, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 1.0])
    seen = []
    for _ in range(6):
        trainer.step()
        seen.append(trainer.model.w.tolist())
    assert seen == [[-1, 0], [-2, 0], [-2, -3], [-4, -3], [-5, -3], [-5, -6]]


def test_workers_pull_what_their_push_updated_only() -> None:
    """Two alike workers, whose halves alternate against each other."""
    rules = MIPD(ratio=1.0, bits=0, block=1, compensate=False, refresh=100)
    trainer = line(rules, [1.0, 1.0], [1.0, 1.0], rate=2.0)
    trainer.step()
    assert trainer.turned == [0, 1] and trainer.model.w.tolist() == [-1, -2]
    assert [row[0].tolist() for row in trainer.copies.values] == [[-1, 0], [0, -2]]


def test_halves_are_chosen_by_what_matters() -> None:
    """Gradients 1 in the first half and 5 in the second: after 3 turns the second is the one that matters; the worker is told
    in a byte of bits, once."""
    rules = MIPD(ratio=1.0, bits=0, block=2, significance="magnitude", refresh=3)
    trainer = line(rules, [1.0, 1.0, 5.0, 5.0])
    rows = [trainer.step() for _ in range(5)]
    assert [each.tolist() for each in trainer.halves] == [[1], [0]]
    assert [row.pulled_bytes for row in rows] == [8, 8, 8, 9, 8]


def test_nothing_that_arrives_is_lost() -> None:
    """Parameters and what waits for its half are the sum of all that was sent, quantised or not."""
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
def test_everything_at_once_is_the_plain_asynchronous_server(momentum: float) -> None:
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


def test_bytes_are_those_of_the_serialised_packets() -> None:
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
def test_bytes_can_be_counted_by_hand(bits: int) -> None:
    """As docs/training.md has it, also of turns in which everything is sent, and in full means in codes."""
    rules = MIPD(ratio=0.1, refresh=3, warmup=2, floor=0.0, bits=bits, update="all")
    trainer = MipdTrainer(plain(), DATA, Recipe(workers=1, batch=8, steps=5, payload=256), rules)
    for turn in range(5):
        row, expected = trainer.step(), 0
        for places, info in zip(trainer.places[0], trainer.infos, strict=True):
            units = -(-len(places) // 8)
            expected += bits * units + 9 * -(-units // (247 // bits)) if bits else 4 * len(places)
            expected += min(4 * len(places), -(-info.numel // 8)) if turn in (0, 2, 3) else 0
        assert row.sent_bytes == expected and row.pulled_bytes == 4 * trainer.numel


def test_lost_packets_are_dropped_gradients() -> None:
    """A unit has 8 codes; of 64 values in 8 units, packets of 15 bytes hold 6 = one unit of 4 bytes beside the head of 9."""
    rules = MIPD(ratio=1.0, compensate=False, update="all", refresh=100)
    trainer = line(rules, [float(1 + e) for e in range(64)], network=Random(0.5, quota=True), payload=15)
    row = trainer.step()
    assert row.lost == 0.5 and int((trainer.model.w == 0).sum()) == 32
    assert (trainer.model.w.view(8, 8) == 0).all(dim=1).sum() == 4


def test_it_goes_on_from_a_checkpoint(tmp_path) -> None:
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


def test_it_learns() -> None:
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
def test_least_squares_of_four_workers(rules: MIPD, alike: bool, arrives: bool) -> None:
    """Workers that come one by one. If they agree, the optimum is found as long as what matters is looked at again and again;
    if they do not, what each finds small is dropped though it matters to the mean, as with Top-k without feedback."""
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


def test_a_floor_above_the_ceiling_is_refused() -> None:
    with pytest.raises(ValueError, match="is above the ceiling"):
        MIPD(floor=0.5, ceiling=0.2)
