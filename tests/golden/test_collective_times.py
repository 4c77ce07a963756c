"""All-reduce in closed form: on an idle star, without acknowledgements, a message of m bytes takes a + m b, and each kind of
collective so many of those (see their modules)."""

from __future__ import annotations

import pytest
from sim_cases import US, make_trace, scenario

from gradwire.scenarios.wire import MIN_FRAME
from gradwire.sim.simulate import simulate

PAYLOAD, HEADERS, BYTE = 1000, 58, 80  # picoseconds a byte at 100 Gbps
PACKET = (PAYLOAD + HEADERS) * BYTE
A = 2 * US + 2 * US + PACKET
"""Of a message: software latency, two cables, and the last packet once more, from the switch."""
ANSWER = 2 * US + 2 * MIN_FRAME * BYTE
"""Of an acknowledgement."""
READY = 2 * US


def taken(exchange, workers, packets, **fields):
    """Picoseconds from when all gradients are ready to when everybody has the sum, of a bucket of so many packets."""
    job = {"workers": workers, "exchange": {"bucket": "1GB", **exchange}, **fields}
    trace = make_trace([[packets * PAYLOAD // 4]], forward=US, backward=US)
    case = scenario(
        job, hosts=workers, switch={"queues": 1, "buffer": "100MB"},
        transport={"kind": "constant_rate:ConstantRate", "payload": f"{PAYLOAD}B"},
    )  # fmt: skip
    result = simulate(case, trace)
    return max(result.iterations["end_ps"].to_pylist()) - READY


def steps(*packets):
    """So many messages, one after the other."""
    return sum(A + each * PACKET for each in packets)


@pytest.mark.parametrize("workers", [2, 5])
def test_ring_all_reduce_takes_two_n_minus_one_steps(workers):
    assert taken({"kind": "ring"}, workers, 20 * workers) == steps(*[20] * (2 * (workers - 1)))


@pytest.mark.parametrize("workers", [2, 8])
def test_halving_doubling_halves_message_sizes_per_step(workers):
    parts = [16 >> k for k in range(workers.bit_length() - 1)]
    assert taken({"kind": "halving_doubling"}, workers, 32) == 2 * steps(*parts)


def test_halving_doubling_with_six_workers_takes_two_more_steps():
    """Two workers beyond four need two more messages. Their traffic delays workers that need not wait for them, by at
    most half a bucket each way."""
    least = 2 * steps(32, 16, 8)
    assert least < taken({"kind": "halving_doubling"}, 6, 32) <= least + 32 * PACKET


@pytest.mark.parametrize("workers", [2, 5])
def test_transpose_takes_two_steps_at_shared_links(workers):
    """N - 1 messages share a link; no two workers send to the same one at a time."""
    assert taken({"kind": "transpose"}, workers, 20 * workers) == 2 * steps(20 * (workers - 1))


@pytest.mark.parametrize(("workers", "depth"), [(2, 1), (4, 2), (8, 3)])
def test_tree_time_grows_with_its_depth(workers, depth):
    """On the way down the root sends its last message when it knows that the earlier ones have arrived."""
    assert taken({"kind": "tree"}, workers, 20) == 2 * depth * steps(20) + (depth - 1) * ANSWER


def test_tree_time_of_five_workers_is_between_four_and_eight():
    assert taken({"kind": "tree"}, 4, 20) < taken({"kind": "tree"}, 5, 20) < taken({"kind": "tree"}, 8, 20)


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_reduce_scatter_and_all_gather_take_half_of_all_reduce(kind):
    found = {walk: taken({"kind": kind, "algorithm": walk}, 4, 32) for walk in ("ring", "all_to_all", "halving")}
    assert found == {"ring": steps(8, 8, 8), "all_to_all": steps(24), "halving": steps(16, 8)}


def test_broadcast_takes_two_steps_for_four_workers():
    assert taken({"kind": "broadcast"}, 4, 20) == 2 * steps(20) + ANSWER


def test_hierarchical_all_reduce_sums_group_and_cross_group_steps():
    assert taken({"kind": "hierarchical", "group": 2}, 6, 60) == steps(30, *[10] * 4, 30)
    assert taken({"kind": "hierarchical", "group": 3}, 6, 60) == steps(20, 20, 10, 10, 20, 20)


def test_hierarchical_all_reduce_with_halving_across_groups():
    assert taken({"kind": "hierarchical", "group": 2, "across": "halving"}, 8, 64) == steps(32, 16, 8, 8, 16, 32)


@pytest.mark.parametrize("packets", [1, 100])
@pytest.mark.parametrize(("workers", "depth"), [(2, 1), (4, 2), (8, 3)])
def test_double_tree_of_one_chunk_takes_depth_steps_each_way(workers, depth, packets):
    """The steps go up to the root and down again; packets of two children may share a link."""
    least, most = (2 * depth * steps(several * packets) for several in (1, 2))
    assert least <= taken({"kind": "double_tree", "chunks": 1}, workers, 2 * packets) <= most


@pytest.mark.parametrize("workers", [8, 15])
def test_double_tree_of_many_chunks_is_bandwidth_optimal(workers):
    """Chunks follow in a pipeline, for any number of workers. The lower bound of all-reduce is 2(N - 1)/N."""
    packets = 16_000
    found = taken({"kind": "double_tree", "chunks": 40}, workers, packets) / (packets * PACKET)
    assert 2 * (workers - 1) / workers <= found <= 2.6


@pytest.mark.parametrize("kind", ["ring", "halving_doubling", "transpose"])
def test_all_reduce_kinds_send_equal_bytes_in_different_rounds(kind):
    """4 workers with 8 packets each send 2(N - 1)/N of the bucket in 6, 4 and 2 rounds."""
    rounds = {"ring": 6, "halving_doubling": 4, "transpose": 2}[kind]
    assert taken({"kind": kind}, 4, 32) == rounds * A + 48 * PACKET


def test_all_to_all_takes_one_step():
    assert taken({"kind": "all_to_all"}, 4, 32) == steps(24)
