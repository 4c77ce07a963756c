"""The model of NCCL: closed forms of its tuning, what it chooses, and overrides."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.busbw.collectives import COLLECTIVES, collective_named, parse_test_size, sweep_sizes
from gradwire.studies.busbw.machine import Constants, FluidWire, HostSpec
from gradwire.studies.busbw.runner import parse_algorithms, parse_protocols
from gradwire.studies.busbw.time_model import Estimate, TimeModel, choose
from gradwire.studies.busbw.traffic_patterns import pattern_of

DGX = HostSpec(gpus=8, generation="hopper", nics=8, nic_gbytes=50.0)
PLAIN = Constants(
    launch_us=0, step_us=0, flush_us=0, efficiency=1, p2p_efficiency=1, peer_us=0, fill=0, nvlink_efficiency=1
)


def estimate(model: TimeModel, collective: str, algorithm: str, protocol: int, size: float) -> Estimate:
    found = [
        each for each in model.estimates(collective, [size]) if (each.algorithm, each.protocol) == (algorithm, protocol)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("hosts, latency", [(2, 25.2), (4, 35.2), (8, 45.2)])
def test_small_all_reduce_has_the_latency_of_nccls_tree(hosts: int, latency: float) -> None:
    """Tree, LL: 6.8 + 2 (7 x 0.6 + log2(N) x 5.0) us. Dell XE9680 measured 25 us on 2 hosts and 35 us on 4."""
    model = TimeModel(DGX, hosts, PLAIN, FluidWire(50.0))
    each = estimate(model, "all_reduce", "tree", 0, 8.0)
    assert each.nccl_us[0] == pytest.approx(latency, abs=0.01) and each.time_us[0] == pytest.approx(latency, abs=0.01)


def test_ring_latency_counts_steps_inside_and_between_hosts() -> None:
    model = TimeModel(DGX, 4, PLAIN, FluidWire(50.0))
    expected = 14.0 + (31 - 3) * 1.9 + 3 * 4.0  # LL128 all-gather: 28 steps inside, 3 between
    assert estimate(model, "all_gather", "ring", 1, 8.0).nccl_us[0] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_large_rings_reach_the_wire(collective: str) -> None:
    """busbw of a ring is the rate of the NICs together, less headers."""
    size = 2.0**38
    model = TimeModel(DGX, 8, PLAIN, FluidWire(50.0, payload_share=1.0))
    time = estimate(model, collective, "ring", 2, size).time_us[0]
    busbw = size / time / 1000 * COLLECTIVES[collective].factor(64)
    assert busbw == pytest.approx(DGX.nvlink_gbytes, rel=0.01)  # 370.8 GB/s inside, less than 400 between
    slow = TimeModel(HostSpec(8, "hopper", 4, 25.0), 8, PLAIN, FluidWire(25.0, payload_share=1.0))
    time = estimate(slow, collective, "ring", 2, size).time_us[0]
    assert size / time / 1000 * COLLECTIVES[collective].factor(64) == pytest.approx(100.0, rel=0.01)


def test_alltoall_is_bound_by_what_leaves_a_host() -> None:
    size, hosts = 2.0**36, 4
    model = TimeModel(DGX, hosts, PLAIN, FluidWire(50.0, payload_share=1.0))
    time = choose(model.estimates("alltoall", [size]))[0][0]
    leaving = size / 32 * 8 * 24  # bytes of eight ranks to 24 others
    assert time == pytest.approx(leaving / 400e3, rel=0.01)


def test_sendrecv_uses_the_nics_of_one_accelerator() -> None:
    model = TimeModel(DGX, 2, PLAIN, FluidWire(50.0, payload_share=1.0))
    assert choose(model.estimates("sendrecv", [2.0**34]))[0][0] == pytest.approx(2**34 / 50e3, rel=0.01)


def test_nccl_chooses_low_latency_for_small_and_bandwidth_for_large() -> None:
    model = TimeModel(DGX, 4, PLAIN, FluidWire(50.0))
    sizes = [2.0**power for power in range(3, 34)]
    times, names = choose(model.estimates("all_reduce", sizes))
    assert names[0] == "tree/LL" and names[-1] == "nvls_tree/Simple"
    protocols = [name.split("/")[1] for name in names]
    assert protocols == sorted(protocols, key=["LL", "LL128", "Simple"].index)  # thresholds rise
    assert (np.diff(times) > -0.15 * times[:-1]).all()


def test_ampere_has_neither_ll128_between_hosts_nor_nvls() -> None:
    host = HostSpec(gpus=8, generation="ampere", nics=8, nic_gbytes=25.0)
    several = {each.name for each in TimeModel(host, 2, PLAIN, FluidWire(25.0)).estimates("all_reduce", [1e6])}
    assert several == {"ring/LL", "ring/Simple", "tree/LL", "tree/Simple"}
    one = {each.name for each in TimeModel(host, 1, PLAIN, FluidWire(25.0)).estimates("all_reduce", [1e6])}
    assert "ring/LL128" in one and "nvls/Simple" not in one


def test_tuner_takes_the_fastest() -> None:
    model = TimeModel(DGX, 2, Constants(), FluidWire(50.0))
    estimates = model.estimates("all_reduce", [2.0**power for power in range(3, 34)])
    assert (choose(estimates, tuner=True)[0] <= choose(estimates)[0]).all()
    assert (choose(estimates, tuner=True)[0] == np.min([each.time_us for each in estimates], axis=0)).all()


@pytest.mark.parametrize("hosts", [2, 5, 8, 33])
def test_patterns_have_the_load_of_their_algorithm(hosts: int) -> None:
    assert pattern_of("ring", hosts).load == 1 and pattern_of("chain", hosts).load == 1
    assert pattern_of("all_pairs", hosts).load == hosts - 1
    assert pattern_of("double_tree", hosts).load <= 4  # halves: an inner node of one tree, a leaf of the other


def test_overrides_read_like_nccls() -> None:
    assert parse_algorithms("Ring,NVLSTree") == ("ring", "nvls_tree")
    assert parse_protocols("^LL128") == ("LL", "Simple")
    with pytest.raises(ScenarioError, match="Rng"):
        parse_algorithms("Rng")


@pytest.mark.parametrize("text, size", [("8", 8), ("64K", 65536), ("1.5G", 3 << 29), ("128M", 1 << 27), ("4KiB", 4096)])
def test_sizes_read_like_nccl_tests(text: str, size: int) -> None:
    assert parse_test_size(text, "-b") == size


@pytest.mark.parametrize("text", ["", "x", "-1", "8Q", "99999999T", "1e3"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="-b"):
        parse_test_size(text, "-b")


def test_sweeps_of_sizes() -> None:
    assert sweep_sizes(8, 64, 2.0) == [8, 16, 32, 64]
    assert sweep_sizes(10, 40, None, 15) == [10, 25, 40]
    for wrong in ((64, 8, 2.0, None), (8, 64, 1.0, None), (8, 1 << 40, None, 1)):
        with pytest.raises(ScenarioError):
            sweep_sizes(*wrong)


def test_counts_are_nccl_tests() -> None:
    """all_gather of 1 GiB on 8 ranks prints 33,554,432 float elements; all_reduce 268,435,456."""
    assert COLLECTIVES["all_gather"].count(1 << 30, 8, 4) == 33554432
    assert COLLECTIVES["all_reduce"].count(1 << 30, 8, 4) == 268435456
    assert COLLECTIVES["alltoall"].actual_size(1000, 8, 4) == 896
    assert collective_named("all_reduce_perf").name == "all_reduce"
    with pytest.raises(ScenarioError, match="did you mean"):
        collective_named("all_reduse")
