"""Storage traffic: which stripe lies where, what waits for what, how long a file takes, and whom it is in the way of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sim_cases import MS, US, make_trace, ring_job, rows, scenario

from gradwire.sim.simulate import simulate
from gradwire.topology import build_network
from gradwire.workload.traffic.base import Flows
from gradwire.workload.traffic.flow_part import flow_ends
from gradwire.workload.traffic.tables import flows_of

STRIPE, LAST, REQUEST = 8000, 3000, 100
LATENCY = 2 * US
"""Of software."""


def table(operation: str = "read", **fields: Any) -> dict[str, Any]:
    size = 6 * STRIPE + LAST
    return {
        "name": "files", "kind": "storage", "operation": operation, "storage": ["h5..h7"], "size": f"{size}B",
        "stripe": f"{STRIPE}B", "request": f"{REQUEST}B", "window": 3, **fields,
    }  # fmt: skip


def case(*tables: dict[str, Any], job: tuple[Any, ...] = (), **fields: Any) -> Any:
    return scenario(*job, traffic=list(tables), **{"hosts": 8, "transport": "dctcp", **fields})


def batches(made: Any) -> list[Flows]:
    network = build_network(made.topology, made.link, made.link_override)
    return list(flows_of(made, 0, network))


def flow(batch: Flows, number: int) -> tuple[int, int, int]:
    return int(batch.src[number]), int(batch.dst[number]), int(batch.nbytes[number])


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("window", [1, 3, 7, 50])
def test_file_stripes_rotate_over_servers_within_the_window(operation, window):
    (batch,) = batches(case(table(operation, window=window, hosts=["h1", "h3"])))
    edges = {(int(a), int(b)) for a, b in batch.edges}
    assert len(batch) == 2 * 14 and len(edges) == len(batch.edges)
    wanted = set()
    for number in range(2):
        begin = 14 * number
        client, first, _ = flow(batch, begin)
        assert client == (1, 3)[number] and batch.flow[begin : begin + 14].tolist() == list(range(begin, begin + 14))
        for k in range(7):
            there, back = flow(batch, begin + 2 * k), flow(batch, begin + 2 * k + 1)
            server, nbytes = 5 + (first - 5 + k) % 3, STRIPE if k < 6 else LAST
            assert there[:2] == (client, server) and back[:2] == (server, client)
            assert (there[2], back[2]) == ((REQUEST, nbytes) if operation == "read" else (nbytes, REQUEST))
            wanted.add((begin + 2 * k, begin + 2 * k + 1))
            if k >= window:
                wanted.add((begin + 2 * (k - window) + 1, begin + 2 * k))
    assert edges == wanted


def test_all_hosts_without_storage_are_clients_by_default():
    (batch,) = batches(case(table()))
    assert sorted(set(batch.src[::2].tolist())) == [0, 1, 2, 3, 4]


def test_servers_of_first_stripes_are_drawn_uniformly():
    """In 200 rounds of five files, each storage host has a third of the first stripes (five standard deviations)."""
    found = batches(case(table(size="1kB", rounds=200, period="1ms")))
    first = np.bincount(np.concatenate([batch.dst[::2] for batch in found]), minlength=8)[5:]
    assert first.sum() == 1000 and np.abs(first - 1000 / 3).max() < 5 * (1000 * 2 / 9) ** 0.5


def test_files_begin_within_the_spread_of_their_round():
    made = batches(case(table(size="1kB", rounds=100, period="1ms", spread="400us")))
    begin = np.concatenate([batch.start_ps for batch in made])
    late = begin - np.concatenate([batch.round for batch in made]) * MS
    assert (np.diff(begin) >= 0).all() and late.min() >= 0 and 390 * US < late.max() <= 400 * US
    # a stop takes files away and changes none
    cut = batches(case(table(size="1kB", rounds=100, period="1ms", spread="400us", stop="40200us")))
    for name in ("src", "dst", "start_ps", "flow"):
        whole = np.concatenate([getattr(batch, name) for batch in made])
        assert whole[begin < 40_200 * US].tolist() == np.concatenate([getattr(each, name) for each in cut]).tolist()


@pytest.mark.parametrize("operation", ["read", "write"])
def test_window_of_one_serialises_storage_operations(operation):
    """Every flow takes its ideal time, and all but the first wait one software latency: 2 K a + bytes."""
    result = simulate(case(table(operation, window=1, hosts=["h0"], storage=["h1"])))
    found = sorted(rows(result.messages), key=lambda row: row["part"])
    ideal = sorted(zip(result.messages["part"].to_pylist(), result.flows["ideal_ps"].to_pylist(), strict=True))
    assert [row["end_ps"] - row["start_ps"] for row in found] == [each for _, each in ideal]
    assert found[-1]["end_ps"] == sum(each for _, each in ideal) + 13 * LATENCY


def test_storage_window_limits_outstanding_requests():
    """Three requests leave at once; each later request leaves one software latency after a stripe arrives."""
    result = simulate(case(table(window=3, hosts=["h0"], storage=["h1"])))
    found = {row["part"]: row for row in rows(result.messages)}
    assert [found[2 * k]["start_ps"] for k in range(3)] == [0, 0, 0]
    for k in range(3, 7):
        assert found[2 * k]["start_ps"] == found[2 * (k - 3) + 1]["end_ps"] + LATENCY


def test_storage_operations_stay_on_one_card_and_use_all_cards():
    made = case(
        table(hosts=["h0", "h1"], storage=["h2", "h3"]), topology={"kind": "rail", "hosts": 4, "cards": 3, "spines": 0}
    )
    network = build_network(made.topology, made.link, made.link_override)
    (batch,) = flows_of(made, 0, network)
    src, dst = (np.array([network.names[each][-1] for each in side]) for side in flow_ends(batch, network.cards))
    assert (src == dst).all() and (dst[batch.edges[:, 0]] == src[batch.edges[:, 1]]).all()
    assert src.reshape(2, 7, 2).tolist() == [[["012"[k % 3]] * 2 for k in range(7)]] * 2
    assert simulate(made).summary["totals"]["finished"]


TRACE = make_trace([[100_000], [100_000]], iterations=2, forward=50 * US, backward=50 * US)


def test_storage_traffic_delays_a_job_only_on_shared_links():
    """File transfers on other links cost the job nothing; file reads by its workers delay it."""
    ring = ring_job(3, iterations=2, placement={"workers": ["h0", "h1", "h2"]})
    files = table(size="400kB", stripe="40kB", period="200us")
    alone = simulate(case(job=(ring,)), TRACE)
    apart = simulate(case(files | {"hosts": ["h3", "h4"]}, job=(ring,)), TRACE)
    beside = simulate(case(files | {"hosts": ["h0..h2"]}, job=(ring,)), TRACE)
    assert apart.iterations.equals(alone.iterations)
    ended = [max(row["end_ps"] for row in rows(result.iterations)) for result in (alone, beside)]
    least = 400_000 * 80  # of each worker's link, for a file that it reads meanwhile
    assert ended[1] > ended[0] + least // 2
