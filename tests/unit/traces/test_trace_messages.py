"""Packets' statistics, priorities and tags, against slow references that look at every element."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import small_trace

from gradwire.scenarios.schema.policy import Tagging
from gradwire.traces.tagging import SMALLEST_SAMPLE, Tagger, layer_priorities, packet_statistics
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace


def slow_statistics(
    mean: list[float], largest: list[float], per_packet: int, first: int, count: int
) -> tuple[list[float], list[float]]:
    """The definition, element by element: every element stands for its chunk's mean and maximum."""
    means, maxima = [], []
    for start in range(first, first + count, per_packet):
        elements = range(start, min(start + per_packet, first + count))
        means.append(sum(mean[e // CHUNK_ELEMENTS] for e in elements) / len(elements))
        maxima.append(max(largest[e // CHUNK_ELEMENTS] for e in elements))
    return means, maxima


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(numel, first element, elements, elements per packet), aligned to chunks now and then."""
    numel = draw(st.integers(1, 3_000))
    first = draw(st.one_of(st.integers(0, numel - 1), st.just(0), st.just(numel // 512 * 256)))
    first = min(first, numel - 1)
    count = draw(st.one_of(st.just(numel - first), st.integers(1, numel - first)))
    per_packet = draw(st.one_of(st.integers(1, 1_200), st.sampled_from([256, 512, 1024])))
    return numel, first, count, per_packet


@given(case=ranges(), seed=st.integers(0, 1000))
def test_packet_statistics_match_the_definition(case: tuple[int, int, int, int], seed: int) -> None:
    numel, first, count, per_packet = case
    draw = np.random.default_rng(seed)
    chunks = -(-numel // CHUNK_ELEMENTS)
    mean = draw.lognormal(0, 3, chunks).astype(np.float16)
    largest = (mean * 3).astype(np.float16)
    got = packet_statistics(mean, largest, numel, per_packet, first_element=first, n_elements=count)
    want = slow_statistics(mean.astype(float).tolist(), largest.astype(float).tolist(), per_packet, first, count)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    np.testing.assert_array_equal(got[1], want[1])


def test_packet_means_of_small_values_beside_large_values_are_exact() -> None:
    """A prefix sum would cancel here: 2**15 in one chunk, the smallest float16 in the next."""
    mean = np.array([2.0**15, 2.0**-24] * 50, dtype=np.float16)
    got, _ = packet_statistics(mean, mean, 100 * 256, 256)
    np.testing.assert_array_equal(got, mean.astype(np.float64))


@pytest.mark.parametrize(("first", "count", "per_packet"), [(0, 301, 10), (-1, 5, 10), (300, 1, 10), (0, 1, 0)])
def test_packet_statistics_rejects_invalid_element_ranges(first: int, count: int, per_packet: int) -> None:
    chunks = np.ones(2, dtype=np.float16)
    with pytest.raises(ValueError, match="elements"):
        packet_statistics(chunks, chunks, 300, per_packet, first_element=first, n_elements=count)


def layered_trace(sizes: list[list[int]], iterations: int = 1) -> Trace:
    """A trace whose layer l has tensors of `sizes[l]` elements; magnitudes are random."""
    infos = [
        TensorInfo(f"{layer}.{n}", (size,), size, "float32", layer)
        for layer, tensors in enumerate(sizes)
        for n, size in enumerate(tensors)
    ]
    times = np.zeros(len(sizes), dtype=np.int64)
    ready = np.ones(len(infos), dtype=np.int64)
    captured = [
        Iteration(i, "early" if i < 3 else "late", i, 1.0, times, times, ready, 1, 0, 1) for i in range(iterations)
    ]
    chunks = sum(info.chunks for info in infos)
    mean = np.random.default_rng(0).lognormal(0, 1, (iterations, chunks)).astype(np.float16)
    return Trace({"name": "layered"}, [f"layer{n}" for n in range(len(sizes))], infos, captured, mean, mean)


# Priorities ---------------------------------------------------------------------------------------------------


def test_equal_layers_fill_priority_classes_evenly() -> None:
    trace = layered_trace([[90, 10]] * 8)
    assert layer_priorities(trace, [1, 2, 3, 4]).tolist() == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4


def test_large_last_layer_gets_the_priority_class_of_its_byte_midpoint() -> None:
    trace = layered_trace([[10], [10], [10], [970]])
    # The middle of the large layer lies at 515 of 1000 bytes: class 3 of 7; the front is class 1.
    assert layer_priorities(trace, [1, 2, 3, 4, 5, 6, 7]).tolist() == [1, 1, 1, 4]


@given(
    sizes=st.lists(st.lists(st.integers(1, 5_000), min_size=1, max_size=3), min_size=1, max_size=12),
    classes=st.integers(1, 8),
)
def test_priority_class_never_decreases_from_front_to_back_layers(sizes: list[list[int]], classes: int) -> None:
    trace = layered_trace(sizes)
    got = layer_priorities(trace, list(range(classes)))
    by_layer: dict[int, set[int]] = {}
    for tensor, priority in zip(trace.tensors, got.tolist(), strict=True):
        by_layer.setdefault(tensor.layer, set()).add(priority)
    assert all(len(group) == 1 for group in by_layer.values())
    order = [by_layer[layer].pop() for layer in sorted(by_layer)]
    assert order == sorted(order)
    assert all(0 <= priority < classes for priority in order)
    # No class gets more than its share and the layer that crosses its end.
    bytes_of = [4 * sum(layer) for layer in sizes]
    for group in set(order):
        members = [size for size, priority in zip(bytes_of, order, strict=True) if priority == group]
        assert sum(members) <= sum(bytes_of) / classes + max(members)


# Tags ----------------------------------------------------------------------------------------------------------


def tag(trace: Trace, iteration: int, tensor: int, per_packet: int = 256, **fields: object) -> np.ndarray:
    tagger = Tagger(trace, Tagging.model_validate({"magnitude": True, **fields}), 1)
    return tagger.important(iteration, tensor, 0, trace.tensors[tensor].numel, 4 * per_packet)


def test_all_packets_are_important_without_magnitude_tagging() -> None:
    trace = small_trace()
    tagger = Tagger(trace, Tagging(), 1)
    assert tagger.important(0, 1, 0, trace.tensors[1].numel, 1024).all()


def test_threshold_equals_hand_computed_moving_average() -> None:
    """Four packets of one chunk each, f = 0.5, ewma = 0.5: the threshold is the averaged median."""
    times, ready = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    captured = [
        Iteration(i, phase, i, 1.0, times, times, ready, 1, 0, 1) for i, phase in enumerate(["early", "early", "late"])
    ]
    mean = np.array([[1, 2, 4, 8], [10, 20, 40, 80], [1, 1, 0, 5]], dtype=np.float16)
    info = TensorInfo("t", (1024,), 1024, "float32", 0)
    trace = Trace({"name": "hand"}, ["layer"], [info], captured, mean, mean)
    tagger = Tagger(trace, Tagging(magnitude=True, important_fraction=0.5, ewma=0.5), 1)
    assert tagger.threshold(0, 0, 256) == 3.0
    assert tagger.threshold(1, 0, 256) == 0.5 * 3 + 0.5 * 30
    assert tagger.threshold(2, 0, 256) == 1.0  # a new phase starts afresh
    assert tagger.important(0, 0, 0, 1024, 1024).tolist() == [False, False, True, True]
    assert tagger.important(1, 0, 0, 1024, 1024).tolist() == [False, True, True, True]
    assert tagger.important(2, 0, 0, 1024, 1024).tolist() == [True, True, False, True]
    # Packets of two chunks have means 1.5 and 6, so the threshold is 3.75; a partition sees the same threshold.
    assert tagger.important(0, 0, 0, 1024, 2048).tolist() == [False, True]
    assert tagger.important(0, 0, 512, 512, 2048).tolist() == [True]
    assert tagger.important(0, 0, 256, 512, 2048).tolist() == [False]  # (2 + 4) / 2 = 3


def test_tags_do_not_depend_on_query_order() -> None:
    trace = layered_trace([[100_000], [50_000]], iterations=6)
    forwards = [tag(trace, i, t).tolist() for i in range(6) for t in range(2)]
    tagger = Tagger(trace, Tagging(magnitude=True), 1)
    backwards = [
        tagger.important(i, t, 0, trace.tensors[t].numel, 1024).tolist()
        for i in reversed(range(6))
        for t in reversed(range(2))
    ]
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
def test_share_of_important_packets_matches_important_fraction(fraction: float) -> None:
    trace = layered_trace([[2_000_000]])
    share = tag(trace, 0, 0, important_fraction=fraction).mean()
    # The quantile of 78 sampled packets: its share has standard deviation sqrt(f (1 - f) / 78), at most 0.057.
    assert abs(share - fraction) < 0.2
    everything = tag(trace, 0, 0, important_fraction=fraction, sample=1.0).mean()
    assert abs(everything - fraction) < 0.03


@pytest.mark.parametrize(("fraction", "answer"), [(0.0, False), (1.0, True)])
def test_important_fractions_0_and_1_tag_no_and_all_packets(fraction: float, answer: bool) -> None:
    trace = layered_trace([[10_000]], iterations=3)
    for iteration in range(3):
        assert (tag(trace, iteration, 0, important_fraction=fraction) == answer).all()


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("random", [False, True])
def test_important_share_rises_over_layers_with_the_right_mean(fraction: float, random: bool) -> None:
    """Ten layers of equal bytes have their middles at 0.05, 0.15, ..., 0.95."""
    trace = layered_trace([[400_000]] * 10)
    shares = [
        tag(trace, 0, t, important_rises=True, important_fraction=fraction, sample=1.0, random=random).mean()
        for t in range(10)
    ]
    assert shares == pytest.approx([(0.05 + 0.1 * n) ** (1 / fraction - 1) for n in range(10)], abs=0.05)
    assert np.mean(shares) == pytest.approx(fraction, abs=0.03)


def test_all_packets_of_important_last_layers_are_important() -> None:
    trace = layered_trace([[20_000]] * 4)
    whole = [bool(tag(trace, 0, t, important_last_layers=2).all()) for t in range(4)]
    assert whole == [False, False, True, True]


def test_threshold_of_a_rank_ignores_gradients_of_other_ranks() -> None:
    """The threshold of a rank is equal with and without the other rank in the trace."""
    both = small_trace(iterations=4, ranks=2)
    rows = len(both.iterations) // 2
    alone = Trace(both.manifest, both.layers, both.tensors, both.iterations[:rows], both._mean[:rows], both._max[:rows])
    merged, single = (Tagger(trace, Tagging(magnitude=True), 1) for trace in (both, alone))
    assert [merged.threshold(i, 0, 256) for i in range(rows)] == [single.threshold(i, 0, 256) for i in range(rows)]
    # The second rank starts afresh, with the quantile of its own first iteration.
    assert merged.threshold(rows, 0, 256) == merged._sampled_quantile(rows, 0, 256)


def test_packets_of_zero_gradients_are_droppable() -> None:
    trace = layered_trace([[5_000]])
    zeros = np.zeros_like(trace._mean)
    trace = Trace(trace.manifest, trace.layers, trace.tensors, trace.iterations, zeros, zeros)
    assert not tag(trace, 0, 0).any()


def test_important_packets_have_the_largest_magnitudes() -> None:
    trace = layered_trace([[300_000]])
    important = tag(trace, 0, 0)
    mean = trace.chunk_mean(0, 0)
    assert mean[important].min() >= mean[~important].max()


def test_random_tags_match_important_fraction_and_ignore_magnitude() -> None:
    trace = layered_trace([[2_000_000]])
    important = tag(trace, 0, 0, random=True, important_fraction=0.3)
    assert abs(important.mean() - 0.3) < 0.03  # 7,813 packets: four standard deviations are 0.021
    mean = trace.chunk_mean(0, 0).astype(float)
    assert abs(mean[important].mean() / mean.mean() - 1) < 0.15
    assert (important == tag(trace, 0, 0, random=True, important_fraction=0.3)).all()


def test_threshold_uses_one_percent_sample_of_packets() -> None:
    """The threshold of 10,000 packets uses 1 % of them; changing an unsampled packet has no effect."""
    trace = layered_trace([[2_560_000]])
    tagger = Tagger(trace, Tagging(magnitude=True), 1)
    before = tagger.threshold(0, 0, 256)
    changed = 0
    for chunk in range(0, 10_000, 50):
        mean = np.array(trace._mean)
        mean[0, chunk] = 60_000
        moved = Trace(trace.manifest, trace.layers, trace.tensors, trace.iterations, mean, mean)
        changed += Tagger(moved, Tagging(magnitude=True), 1).threshold(0, 0, 256) != before
    assert changed <= 10  # of 200 probed packets, 2 are expected in a sample of 1 %
    assert SMALLEST_SAMPLE == 32


def test_tagger_returns_cached_read_only_array() -> None:
    trace = small_trace()
    tagger = Tagger(trace, Tagging(magnitude=True), 1)
    numel = trace.tensors[0].numel
    answer = tagger.important(0, 0, 0, numel, 256)
    assert answer is tagger.important(0, 0, 0, numel, 256)
    assert len(answer) == -(-4 * numel // 256)
    with pytest.raises(ValueError, match="read-only"):
        answer[0] = True


@pytest.mark.parametrize("payload", [0, 2, 1022])
def test_payloads_without_whole_elements_are_rejected(payload: int) -> None:
    trace = small_trace()
    with pytest.raises(ValueError, match="payload"):
        Tagger(trace, Tagging(), 1).important(0, 0, 0, 8, payload)


def test_tagging_a_resnet50_sized_iteration_takes_under_500_ms() -> None:
    """The iteration has 25.6 M elements in 161 tensors; the target is 50 ms, the limit 500 ms."""
    trace = layered_trace([[2_359_296], [1_048_576, 2048, 2048]] * 7 + [[36_864, 64, 64]] * 45)
    tagger = Tagger(trace, Tagging(magnitude=True), 1)
    start = time.perf_counter()
    for number, tensor in enumerate(trace.tensors):
        tagger.important(0, number, 0, tensor.numel, 4096)
    assert time.perf_counter() - start < 0.5
