"""Scenarios that differ from each other by nanoseconds only."""

from __future__ import annotations

import numpy as np

from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.wire import serialisation_ps
from gradwire.sim.perturbation import perturbed, reseeded_variants
from gradwire.sim.simulate import simulate
from gradwire.topology import build_network


def scenario(**more):
    return build_scenario(
        {
            "name": "shaken",
            "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2, "uplink_rate": "2Gbps"},
            "link": {"rate": "1Gbps", "latency": "10us", "loss": 0.001},
            "host": {"software_latency": "40us"},
            "switch": {"buffer": "64KiB", "ecn_threshold": "20KiB"},
            "transport": {"kind": "dctcp", "payload": "1400B"},
            "traffic": [{"kind": "all_to_all", "name": "all", "size": "200kB"}],
            **more,
        },
        "test",
    )


def network_of(each):
    return build_network(each.topology, each.link, each.link_override)


def test_perturbation_lengthens_cables_by_under_a_tenth_of_a_packet():
    plain = network_of(scenario())
    found = [network_of(each) for each in perturbed(scenario(), 5)]
    for network in found:
        more = network.link_latency - plain.link_latency
        assert (more > 0).all() and (more <= serialisation_ps(1466, 10**9) // 10).all()
        assert np.array_equal(network.link_rate, plain.link_rate)
        assert np.array_equal(network.link_loss, plain.link_loss)
        assert network.names == plain.names
        assert len(set(network.link_latency[::2].tolist())) == len(network.link_latency) // 2
        assert np.array_equal(network.link_latency[::2], network.link_latency[1::2])
    latencies = {tuple(network.link_latency.tolist()) for network in found}
    assert len(latencies) == 5
    again = [tuple(network_of(each).link_latency.tolist()) for each in perturbed(scenario(), 5)]
    assert set(again) == latencies
    assert {tuple(network_of(each).link_latency.tolist()) for each in perturbed(scenario(seed=2), 5)} != latencies


def test_perturbation_lengthens_every_cable_of_fast_networks():
    """A tenth of a packet's time at 10 Tbit/s is 117 ps; none of many draws may be 0."""
    fast = scenario(topology={"kind": "star", "hosts": 3}, link={"rate": "10Tbps", "latency": "10us"})
    plain = network_of(fast).link_latency
    more = [network_of(each).link_latency - plain for each in perturbed(fast, 100)]
    assert min(map(min, more)) >= 1 and max(map(max, more)) <= 117


def test_perturbed_simulations_differ_with_similar_means():
    runs = [simulate(each) for each in (scenario(), *perturbed(scenario(), 3))]
    ends = [run.messages["end_ps"].to_numpy() for run in runs]
    assert len({tuple(each.tolist()) for each in ends}) == 4
    means = [float(np.mean(each)) for each in ends]
    assert max(means) < 1.3 * min(means)


def test_reseeded_variants_wrap_around_the_largest_seed():
    found = list(reseeded_variants(scenario(seed=2**63 - 2), 4))
    assert [each.seed for each in found] == [2**63 - 2, 2**63 - 1, 0, 1]
    assert all(type(each).model_validate(each.as_written()).seed == each.seed for each in found)
