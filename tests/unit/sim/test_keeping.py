"""How messages are kept: stretches by length, what messages have in common, what they draw, records under way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from transport_bench import star_of

from gradwire.jit import counter_rng
from gradwire.jit.records.constants import ARENA_CLASSES, FAILED_ARENA
from gradwire.jit.records.header import State
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.memory import stretch_allocator
from gradwire.sim.engine.memory.records import group_rows
from gradwire.testing import transport
from gradwire.topology.routing import build_routing


@pytest.fixture(scope="module")
def fabric():
    network = star_of(3)
    return Fabric(network, build_routing(network), switch=Switch(), transports=[transport("dctcp")])


def test_arena_size_classes_waste_at_most_a_quarter():
    lengths = sorted({*range(1, 200), *(2**n + d for n in range(8, 31) for d in (-1, 0, 1, 2**n // 3))})
    rows = [(each, stretch_allocator._class_of.numba(each), stretch_allocator._longest.numba(each)) for each in lengths]
    for length, which, longest in rows:
        assert length <= longest <= max(8, length * 5 // 4 + 1) and which < ARENA_CLASSES
    for (_, one, longest), (length, other, _) in itertools.pairwise(rows):
        assert (one == other) == (length <= longest) and one <= other


def test_arena_blocks_are_zeroed_disjoint_and_reused(fabric):
    arena, state = fabric.flows.arena, fabric.memory.state
    bases = [arena.allocate(words) for words in (3, 11, 12, 100)]
    beyond = arena.used
    for base, words in zip(bases, (3, 11, 12, 100), strict=True):
        assert not state[base : base + words].any()
        state[base : base + words] = -1
    assert all(a + n <= b for a, b, n in zip(bases, bases[1:], (3, 11, 12), strict=False))
    arena.free(100, bases[3])
    arena.free(11, bases[1])
    again = arena.allocate(12), arena.allocate(97)  # other lengths of the same classes
    assert again == (bases[1], bases[3]) and arena.used == beyond
    assert not state[again[0] : again[0] + 12].any() and not state[again[1] : again[1] + 97].any()


def test_full_arena_raises_an_error(fabric):
    state = fabric.memory.state
    end = int(state[State.arena_end.offset])
    state[State.arena_end.offset] = state[State.arena_next.offset] + 10
    try:
        with pytest.raises(GradwireError, match="too many packets together"):
            fabric.flows.arena.allocate(5_000)
        assert state[State.failure.offset] == FAILED_ARENA
    finally:
        state[State.arena_end.offset], state[State.failure.offset] = end, 0


def test_group_rows_gives_equal_rows_one_kind():
    draw = np.random.default_rng(1)
    columns = [
        draw.integers(0, 3, 500), np.full(500, 7), draw.choice([0.0, 0.29, 0.5], 500), draw.choice([-(2**40), 5, 2**50], 500)
    ]  # fmt: skip
    of, first = group_rows(*columns)
    rows = list(zip(*(each.tolist() for each in columns), strict=True))
    assert len(first) == len(set(rows)) == of.max() + 1
    assert all(rows[first[kind]] == row for kind, row in zip(of.tolist(), rows, strict=True))
    assert all(int(np.flatnonzero(of == kind)[0]) == row for kind, row in enumerate(first.tolist()))
    assert [len(each) for each in group_rows(np.zeros(0, dtype=np.int64))] == [0, 0]


@pytest.mark.parametrize("seed", [1, 2**31 - 1, 2**40 + 3])
def test_compiled_flow_entropy_equals_python(seed):
    key = counter_rng.kind_key(seed, counter_rng.FLOW_ENTROPY)
    numbers = [0, 1, 77, 2**26 - 1]
    assert (
        [counter_rng.flow_entropy.numba(key, each) for each in numbers]
        == [counter_rng.key_of(seed, counter_rng.FLOW_ENTROPY, each) & 0xFFFF for each in numbers]
        == counter_rng.draw_entropy(seed, np.array(numbers)).tolist()
    )
