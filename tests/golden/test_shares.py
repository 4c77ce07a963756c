"""Who gets how much where long flows share links, in closed form.

Three results, for flows that always have something to send, with DCTCP between them and the ports:

* Ports that serve their flows by turns (deficit round robin, a queue per flow) give every flow its max-min fair share,
  whatever its path and its round trip, as long as its window keeps a packet waiting at its bottleneck. The shares are
  what progressive filling finds (Bertsekas and Gallager, Data Networks, 6.5): all rates rise together, and those on a
  link that is full stay.
* One queue for all that marks at random, each packet with the same odds p, gives all flows the same window: DCTCP takes
  one more packet a round trip and gives up a share p / 2 of W for the share p of its packets that are marked, so that
  W p stays where it is: windows are in inverse proportion to p. Rates are windows over round trips.
* A flow over m such ports beside one flow at each meets m times the marks and so has an m-th of their window. For
  windows like 1 / p that is proportional fairness (Kelly, Maulloo and Tan 1998), not max-min. A TCP that halves its
  window at a mark has W^2 p fixed instead (Mathis et al. 1997), and the long flow 1 / sqrt(m) of the others' window.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from measured import GBPS, MS, US, Seen, mean_and_error, network_of, watch

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.topology import Network

FRAME = 1066
DCTCP = Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"})
HALVING = Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "g": 1e-9})
"""Its alpha stays at 1, so that it does to marks what TCP does (RFC 3168)."""
BEYOND = 10**9  # bytes: more than any flow sends


def fill(paths: list[list[str]], rates: dict[str, float]) -> list[float]:
    """Max-min fair rates: `paths`: the links of each flow; `rates`: of the links."""
    shares = [0.0] * len(paths)
    rising = set(range(len(paths)))
    free = dict(rates)
    while rising:
        crowd = {link: sum(link in paths[flow] for flow in rising) for link in free}
        step = min(free[link] / crowd[link] for link in free if crowd[link])
        for flow in rising:
            shares[flow] += step
        for link in free:
            free[link] -= step * crowd[link]
        rising = {flow for flow in rising if all(free[link] > 1e-9 for link in paths[flow])}
    return shares


def parking_lot(line: list[int], flows: list[tuple[int, int, int]], access: int) -> tuple[Network, list[list[str]]]:
    """Switches in a row and flows along it. `line`: Gbps of the cables from switch to switch; `flows`: (from switch, to
    switch, Gbps of the sender's cable), each with two hosts of its own, ha0 and hb0 and so on, `access` ps away. Also
    the links of each flow, by the name of the cable."""
    cables = [(f"s{n}", f"s{n + 1}", rate * GBPS, US) for n, rate in enumerate(line)]
    paths = []
    for n, (begin, end, rate) in enumerate(flows):
        cables += [(f"ha{n}", f"s{begin}", rate * GBPS, access), (f"hb{n}", f"s{end}", 100 * GBPS, US)]
        paths.append([f"ha{n}", *(f"s{hop}" for hop in range(begin, end))])
    return network_of(cables), paths


def long_flows(
    network: Network, count: int, until: int, queues: int = 1, transport: Dctcp = DCTCP, seed: int = 1, **switch: object
) -> Seen:
    """A flow from ha0 to hb0 and so on; with several queues, each has one."""

    def send(fabric):
        for n in range(count):
            fabric.send(n * US, network.index[f"ha{n}"], network.index[f"hb{n}"], BEYOND, priority=n % queues)

    seen = watch(network, send, until, transport, seed, queues=queues, **switch)
    assert seen.lost == 0
    return seen


@pytest.mark.parametrize(("line", "flows"), [
    ([10], [(0, 1, 40)] * 2),
    ([10], [(0, 1, 1), (0, 1, 2), (0, 1, 40), (0, 1, 40), (0, 1, 40)]),  # 1, 2, 7/3, 7/3, 7/3
    ([10, 10, 10], [(0, 3, 40), (0, 1, 40), (1, 2, 40), (2, 3, 40)]),  # all 5
    ([10, 4, 25], [(0, 3, 40), (0, 1, 40), (1, 2, 40), (2, 3, 40)]),  # 2, 8, 2, 23
    ([12, 8], [(0, 2, 40), (0, 2, 40), (0, 1, 40), (1, 2, 40), (0, 1, 3)]),  # 8/3, 8/3, 11/3, 8/3, 3
    ([20, 9], [(0, 2, 40), (0, 2, 2), (0, 1, 40), (1, 2, 40), (0, 1, 5)]),  # 3.5, 2, 9.5, 3.5, 5
])  # fmt: skip
def test_round_robin_gives_max_min_fair_shares(line, flows):
    """Shares are exact within half a percent over 40 ms. The difference is the data queued at the start and the end,
    up to the queue that DCTCP keeps: some 100 packets of the 10,000 that the slowest flow sends in that time, nearly
    equal at both ends."""
    network, paths = parking_lot(line, flows, 20 * US)
    begin, end = 20 * MS, 60 * MS
    seen = long_flows(network, len(flows), end, 8, drr_quantum=f"{FRAME}B", ecn_threshold="60KB")
    arriving = seen.arriving().between(begin, end)
    got = np.bincount(arriving.message, arriving.size, len(flows)) * 8e12 / (end - begin) / GBPS
    rates = {f"ha{n}": rate for n, (_, _, rate) in enumerate(flows)}
    rates |= {f"s{n}": rate for n, rate in enumerate(line)}
    expected = fill(paths, rates)
    for n, rate in enumerate(line):
        assert sum(share for share, path in zip(expected, paths, strict=True) if f"s{n}" in path) == pytest.approx(rate)
    assert got == pytest.approx(expected, rel=0.005)


RAMP = {"ecn_threshold": "2KB", "ecn_ceiling": "400KB", "ecn_probability": 1.0}
"""Odds in proportion to the queue: some 10 packets for the odds of 1 to 3 percent here, a twentieth of a round trip."""


def windows(seen: Seen, count: int, back: list[int], begin: int, end: int) -> list[tuple[float, float]]:
    """The mean window of each flow, packets, and its standard error. By Little's law it is packets per time, times the mean
    round trip: from leaving the sender to leaving the last switch, which the log has, and `back` (ps) from there to the
    sender, which does not vary."""
    leaving, arriving = seen.leaving(), seen.arriving()
    found = []
    for flow in range(count):
        gone, come = (some.of(some.message == flow).start for some in (leaving, arriving))
        inside = (come >= begin) & (come < end)
        trips = (come - gone[: len(come)])[inside] + back[flow]  # nothing is lost and nothing overtakes
        # packets that come in a batch of time, and what their round trips add up to
        batch = (come[inside] - begin) * 40 // (end - begin)
        found.append(mean_and_error(np.bincount(batch, trips, 40) * 40 / (end - begin)))
    return found


def assert_ratio(one: tuple[float, float], other: tuple[float, float], expected: float) -> None:
    """Within 6 percent: what four standard errors may come to."""
    assert np.hypot(one[1] / one[0], other[1] / other[0]) < 0.015
    assert one[0] / other[0] == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("delays", [(20, 40), (25, 50, 100), (50, 200)])
def test_equal_marking_probability_gives_equal_windows(delays):
    """Round trips of 1 to 4: windows are alike, rates in inverse proportion to the round trips. Three runs have
    different marks, because one of them has errors of up to two percent."""
    cables = [("s0", "s1", 10 * GBPS, US)]
    for n, delay in enumerate(delays):
        cables += [(f"ha{n}", "s0", 40 * GBPS, delay * US), (f"hb{n}", "s1", 100 * GBPS, US)]
    begin, end = 100 * MS, 450 * MS
    runs = []
    for seed in (1, 2, 3):
        seen = long_flows(network_of(cables), len(delays), end, seed=seed, **RAMP)
        runs.append(windows(seen, len(delays), [(delay + 3) * US for delay in delays], begin, end))
    means, errors = np.moveaxis(np.array(runs), 2, 0)
    found = list(zip(means.mean(axis=0), np.hypot.reduce(errors) / len(runs), strict=True))
    for one, other in pairwise(found):
        assert_ratio(one, other, 1)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_flow_over_more_marking_ports_has_a_smaller_window(hops):
    """One flow crosses all of a row of ports, and one flow crosses each."""
    flows = [(0, hops, 40), *((n, n + 1, 40) for n in range(hops))]
    network, _ = parking_lot([10] * hops, flows, 50 * US)
    begin, end = 100 * MS, 300 * MS
    seen = long_flows(network, len(flows), end, **RAMP)
    back = [(50 + 1 + (flow[1] - flow[0])) * US for flow in flows]
    long, *short = windows(seen, len(flows), back, begin, end)
    for one in short:
        assert_ratio(one, long, hops)


def test_halving_window_falls_with_square_root_of_marks():
    """The halving law gives a ratio of 1.4 over two ports, not 2. A halved window takes some 50 round trips to grow
    back. So the marking probability has to be smaller and the queue longer for it not to empty, and there are fewer
    marks to average."""
    hops = 2
    flows = [(0, hops, 40), *((n, n + 1, 40) for n in range(hops))]
    network, _ = parking_lot([10] * hops, flows, 50 * US)
    begin, end = 100 * MS, 600 * MS
    seen = long_flows(network, len(flows), end, transport=HALVING, **RAMP | {"ecn_ceiling": "300MB"})
    back = [(50 + 1 + (flow[1] - flow[0])) * US for flow in flows]
    long, *short = windows(seen, len(flows), back, begin, end)
    for one in short:
        error = np.hypot(one[1] / one[0], long[1] / long[0])
        assert error < 0.06
        assert one[0] / long[0] == pytest.approx(hops**0.5, rel=4 * error)
