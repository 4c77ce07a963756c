"""Traffic as it is drawn, before any packet: arrivals, sizes, partners. Statistical bounds are wide enough that a right
generator fails one test in about a million seeds; seeds are fixed, so none fails by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwire.scenarios.loading.load import build_scenario
from gradwire.topology import build_network
from gradwire.workload.traffic import base
from gradwire.workload.traffic.base import Flows
from gradwire.workload.traffic.poisson import DISTRIBUTIONS, distribution
from gradwire.workload.traffic.tables import flows_of

US, MS = 10**6, 10**9
KS = 2.7  # sqrt(n) times the largest distance of a distribution's n draws from it exceeds this once in a million


def tables(*traffic: dict[str, Any], hosts: int = 8, **fields: Any) -> dict[str, Any]:
    named = [{"name": f"t{number}", **table} for number, table in enumerate(traffic)]
    return {"name": "case", "topology": {"kind": "star", "hosts": hosts}, "traffic": named, **fields}


def batches(table: dict[str, Any], **fields: Any) -> list[Flows]:
    scenario = build_scenario(tables(table, **fields))
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    return list(flows_of(scenario, 0, network))


def drawn(table: dict[str, Any], **fields: Any) -> Flows:
    """All flows of a table as one batch."""
    parts = batches(table, **fields)
    names = ("src", "dst", "nbytes", "start_ps", "round", "flow")
    return Flows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def distance(values: np.ndarray, below: np.ndarray, upto: np.ndarray) -> float:
    """sqrt(n) times the Kolmogorov-Smirnov distance of sorted values, whose shares are `below` before and `upto` at
    each value."""
    n = len(values)
    first = np.searchsorted(values, values, side="left") / n
    last = np.searchsorted(values, values, side="right") / n
    return float(
        np.sqrt(n) * max((below - last).max(), (first - upto).max(), (upto - last).max(), (first - below).max())
    )


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "largest"),
    [
        # the trapezoids below the points, worked out by hand from the files
        ("web_search", 1_711_250.0, 30_000_000),
        ("data_mining", 12_658_198.6, 1_000_000_000),
        ("facebook", 342.2351, 1_000_000),
    ],
)
def test_bundled_size_distributions_have_hand_computed_means(name, mean, largest):
    sizes = distribution(name)
    assert sizes.mean == pytest.approx(mean, rel=1e-9)
    assert sizes.at(np.array([0.0]))[0] == 1 and sizes.at(np.array([1 - 1e-12]))[0] == largest


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_drawn_sizes_follow_the_distribution(name):
    sizes = distribution(name)
    values = np.sort(drawn({"kind": "poisson", "load": 0.5, "sizes": name, "flows": 50_000}).nbytes)
    # a whole number of bytes stands for half a byte to both sides; the smallest for everything below
    share = [np.interp(values + half, sizes.size, sizes.share) for half in (-0.5, 0.5)]
    share[0][values == 1] = 0.0
    assert distance(values, *share) < KS
    assert values.mean() == pytest.approx(sizes.mean, rel=0.25)


def test_size_distribution_file_sets_mean_and_quantiles(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text("# percentages, and one size in ten exactly 100\n100 10\n200 60\n\n1000 100\n")
    sizes = distribution(str(path))
    assert sizes.share.tolist() == [0.1, 0.6, 1.0]
    assert sizes.mean == pytest.approx(0.1 * 100 + 0.5 * 150 + 0.4 * 600)
    assert sizes.at(np.array([0.0, 0.05, 0.1, 0.35, 0.6, 0.8])).tolist() == [100, 100, 100, 150, 200, 600]
    values = drawn({"kind": "poisson", "load": 0.1, "sizes": str(path), "flows": 20_000}).nbytes
    assert abs((values == 100).mean() - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 20_000)


def test_fixed_size_applies_to_every_poisson_flow():
    assert set(drawn({"kind": "poisson", "load": 0.1, "sizes": "3kB", "flows": 99}).nbytes.tolist()) == {3000}


# --- arrivals -----------------------------------------------------------------------------------------------------------


def test_poisson_traffic_has_the_configured_load():
    """Each of 8 hosts of 100 Gbps at 40 % load sends 50,000 flows of 10 kB in 100 ms. Their number is Poisson."""
    flows = drawn({"kind": "poisson", "load": 0.4, "sizes": "10kB"}, duration="100ms")
    per_host = 0.4 * 100e9 / 8 / 10e3 * 100e-3
    assert abs(len(flows) - 8 * per_host) < 5 * np.sqrt(8 * per_host)
    for count in np.bincount(flows.src, minlength=8):
        assert abs(count - per_host) < 5.5 * np.sqrt(per_host)
    gaps = np.sort(np.diff(flows.start_ps, prepend=0))
    share = 1 - np.exp(-gaps * 8 * per_host / (100 * MS))
    assert distance(gaps, share, share) < KS


def test_poisson_flow_rate_is_proportional_to_the_host_link_rate():
    """A host at a quarter of the rate sends a quarter of the flows."""
    override = [{"between": ["h2", "s0"], "rate": "25Gbps"}]
    flows = drawn({"kind": "poisson", "load": 0.4, "sizes": "100kB", "flows": 40_000}, hosts=4, link_override=override)
    counts = np.bincount(flows.src)
    wanted = 40_000 * np.array([4, 4, 1, 4]) / 13
    assert (np.abs(counts - wanted) < 5 * np.sqrt(wanted)).all()


def test_poisson_source_and_destination_pairs_are_uniform():
    flows = drawn({"kind": "poisson", "load": 0.4, "sizes": "1kB", "flows": 56_000, "hosts": ["h1", "h3..h5"]})
    pairs = np.zeros((8, 8), dtype=np.int64)
    np.add.at(pairs, (flows.src, flows.dst), 1)
    taking = [1, 3, 4, 5]
    off = pairs[np.ix_(taking, taking)]
    assert off.sum() == 56_000 and not off.diagonal().any()
    wanted = 56_000 / 12
    assert (np.abs(off[~np.eye(4, dtype=bool)] - wanted) < 5 * np.sqrt(wanted)).all()


def test_poisson_starts_are_sorted_and_stop_only_truncates():
    """A stop time leaves earlier flows unchanged for any batching."""
    table = {"kind": "poisson", "load": 0.5, "sizes": "10kB", "start": "7us"}
    parts = batches({**table, "flows": 100_000})
    assert len(parts) > 3 and max(map(len, parts)) <= base.BATCH_FLOWS
    whole = drawn({**table, "flows": 100_000})
    assert (np.diff(whole.start_ps) >= 0).all() and whole.start_ps[0] >= 7 * US
    assert whole.flow.tolist() == list(range(100_000))
    for stop in (8, 100, 1000):
        cut = drawn({**table, "stop": f"{stop}us"})
        count = int((whole.start_ps < stop * US).sum())
        assert 0 < count == len(cut)
        for name in ("src", "dst", "nbytes", "start_ps"):
            assert (getattr(cut, name) == getattr(whole, name)[:count]).all()


def test_traffic_draws_depend_on_seed_and_table_name():
    table = {"kind": "poisson", "load": 0.5, "sizes": "web_search", "flows": 100}
    one = drawn(table)
    assert (drawn(table).start_ps == one.start_ps).all()
    assert (drawn(table, seed=2).start_ps != one.start_ps).any()
    assert (drawn({**table, "name": "other"}).start_ps != one.start_ps).any()
    assert (drawn({**table, "priority": 1}).start_ps == one.start_ps).all()


# --- patterns -----------------------------------------------------------------------------------------------------------


def test_permutation_rounds_are_periodic_derangements():
    flows = drawn({"kind": "permutation", "size": "1MB", "rounds": 40, "period": "3us", "start": "5us"})
    assert len(flows) == 320 and set(flows.nbytes.tolist()) == {10**6}
    rounds = flows.dst.reshape(40, 8)
    assert (np.sort(rounds, axis=1) == np.arange(8)).all() and (rounds != np.arange(8)).all()
    assert len({tuple(row) for row in rounds.tolist()}) > 35
    assert flows.start_ps.reshape(40, 8)[:, 0].tolist() == [5 * US + 3 * US * number for number in range(40)]
    assert flows.round.reshape(40, 8)[:, 7].tolist() == list(range(40))


def test_permutation_draws_every_derangement_equally_often():
    """Four hosts have nine derangements."""
    flows = drawn({"kind": "permutation", "size": "1kB", "rounds": 9000, "period": "1us"}, hosts=4)
    counts = np.unique(flows.dst.reshape(-1, 4), axis=0, return_counts=True)[1]
    assert len(counts) == 9 and (np.abs(counts - 1000) < 5 * np.sqrt(1000)).all()


def test_permutation_by_shift_sends_to_the_shifted_host():
    flows = drawn({"kind": "permutation", "size": "1kB", "shift": 3, "hosts": ["h2..h5"]})
    assert flows.src.tolist() == [2, 3, 4, 5] and flows.dst.tolist() == [5, 2, 3, 4]


def test_incast_draws_receivers_and_distinct_senders_uniformly():
    flows = drawn({"kind": "incast", "size": "1kB", "fan_in": 5, "period": "1us", "rounds": 800})
    src, dst = flows.src.reshape(-1, 5), flows.dst.reshape(-1, 5)
    assert (dst == dst[:, :1]).all() and (src != dst).all()
    assert all(len(set(row)) == 5 for row in src.tolist())
    assert (np.abs(np.bincount(dst[:, 0]) - 100) < 50).all()
    assert (np.abs(np.bincount(flows.src) - 500) < 110).all()


def test_incast_with_a_fixed_receiver_uses_all_listed_senders():
    flows = drawn({"kind": "incast", "size": "1kB", "fan_in": 3, "receiver": "h7", "hosts": ["h0..h2"]})
    assert flows.src.tolist() == [0, 1, 2] and flows.dst.tolist() == [7, 7, 7]


@pytest.mark.parametrize("stop", ["10us", "10.000001us"])
def test_traffic_rounds_end_before_the_stop_time(stop):
    """A round whose start equals `stop` is left out."""
    flows = drawn({"kind": "incast", "size": "1kB", "fan_in": 1, "period": "2us", "stop": stop})
    assert flows.start_ps.tolist() == [2 * US * number for number in range(5 if stop == "10us" else 6)]


def test_all_to_all_sends_every_pair_once_per_round(monkeypatch):
    monkeypatch.setattr("gradwire.workload.traffic.all_to_all.BATCH_FLOWS", 20)
    monkeypatch.setattr("gradwire.workload.traffic.base.BATCH_FLOWS", 20)
    parts = batches({"kind": "all_to_all", "size": "1kB", "rounds": 2, "period": "9us"})
    assert len(parts) > 2
    flows = drawn({"kind": "all_to_all", "size": "1kB", "rounds": 2, "period": "9us"})
    pairs = list(zip(flows.round.tolist(), flows.src.tolist(), flows.dst.tolist(), strict=True))
    assert sorted(pairs) == [(r, a, b) for r in range(2) for a in range(8) for b in range(8) if a != b]
    assert flows.flow.tolist() == list(range(112))


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_all_to_all_shift_waits_for_the_previous_shift_to_arrive(hosts):
    (flows,) = batches({"kind": "all_to_all", "size": "1kB", "order": "shifts"}, hosts=hosts)
    assert len(flows) == hosts * (hosts - 1) and len(set(zip(flows.src, flows.dst, strict=True))) == len(flows)
    assert len(flows.edges) == hosts * (hosts - 2)
    for before, after in flows.edges.tolist():
        assert flows.dst[before] == flows.src[after]
        shift = [(flows.dst[flow] - flows.src[flow]) % hosts for flow in (before, after)]
        assert shift[1] == shift[0] + 1
