"""What telemetry records, worked out again from the log of packets: queues, bytes sent, waiting times.

Where a packet arrives at a queue follows from the link before: the start of its transmission there, its length over the
rate, and the latency. Along one path packets of a message and direction keep their order where there is one queue, so
that the n-th of them on one link is the n-th on the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from sim_cases import MS, US, make_trace, ps_job, ring_job, rows

from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.wire import serialisation_ps
from gradwire.sim.preparation import check_variants
from gradwire.sim.simulate import simulate

RATE, LATENCY = 100 * 10**9, US
FORWARD = ("data", "probe")
TELEMETRY = ("samples", "delays", "packets")
PERIOD = 3 * US
ALL: dict[str, Any] = {"queue_samples": "3us", "delays": True, "packet_log": True}


def case(output: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Seven hosts send to one through two racks, more than the buffers hold; later two more flows."""
    tables: dict[str, Any] = {
        "name": "case",
        "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2},
        "link": {"rate": "100Gbps", "latency": "1us"},
        "switch": {"buffer": "128KiB", "ecn_threshold": "64KiB"},
        "transport": {"kind": "dctcp", "initial_window": 16, "min_rto": "200us"},
        "traffic": [
            {"name": "burst", "kind": "incast", "fan_in": 7, "receiver": "h7", "size": "200kB"},
            {"name": "late", "kind": "incast", "fan_in": 2, "receiver": "h0", "size": "90kB", "start": "4ms"},
        ],
        "output": output or {},
    }
    return build_scenario(tables | changes)


@cache
def recorded(threads: int = 1) -> Result:
    return simulate(case(ALL), threads=threads)


def forward(row: dict[str, Any]) -> bool:
    return row["kind"] in FORWARD


def crossings(result: Result) -> dict[str, list[tuple[int, int, int]]]:
    """Per port of a switch: (arrival, start, bytes) of every packet that was sent there."""
    of_link: dict[str, dict[Any, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(result.packets):
        of_link[row["port"]][row["message"], forward(row)].append(row)
    dropped: dict[str, Counter[Any]] = defaultdict(Counter)
    for row in rows(result.drops):
        dropped[row["port"]][row["message"], row["packet"], row["time_ps"]] += 1
    found: dict[str, list[tuple[int, int, int]]] = {}
    for port, flows in of_link.items():
        node = port.split("->")[0]
        if node.startswith("h"):
            continue
        found[port] = []
        for key, sent in flows.items():
            before = [flows[key] for link, flows in of_link.items() if link.endswith(f"->{node}") and key in flows]
            assert len(before) == 1  # one path per message and direction
            arrivals = []
            for row in before[0]:
                arrival = row["start_ps"] + serialisation_ps(row["bytes"], RATE) + LATENCY
                if not dropped[port][row["message"], row["packet"], arrival]:
                    arrivals.append((arrival, row))
            for (arrival, came), left in zip(arrivals, sent, strict=False):
                assert came["packet"] == left["packet"] and came["kind"] == left["kind"]
                assert left["start_ps"] >= arrival
                found[port].append((arrival, left["start_ps"], left["bytes"]))
            late = [arrival for arrival, _ in arrivals[len(sent) :]]
            assert all(arrival > result.packets["start_ps"][-1].as_py() - 50 * US for arrival in late)
    return found


def test_telemetry_case_has_drops_queues_and_marks():
    result = recorded()
    causes = Counter(row["cause"] for row in rows(result.drops))
    assert causes["tail"] > 20
    assert max(result.samples["queue_bytes"].to_pylist()) > 100_000
    assert sum(result.messages["marked"].to_pylist()) > 20
    assert {row["kind"] for row in rows(result.packets)} == {"data", "ack"}


@pytest.mark.parametrize("what", ["traffic", "job"])
def test_telemetry_does_not_change_results(what: str):
    trace = None
    changes: dict[str, Any] = {}
    if what == "job":
        trace = make_trace([[10_000], [300_000]], forward=20 * US, backward=20 * US)
        changes = {"job": [{"name": "job", "trace": "none", "iterations": 2, **ps_job(6, 2)}], "traffic": []}
    plain = simulate(case(**changes), trace)
    watched = simulate(case(ALL, **changes), trace)
    for name in TABLES:
        if name in TELEMETRY:
            assert getattr(plain, name).num_rows == 0 and getattr(watched, name).num_rows > 0
        else:
            assert getattr(plain, name).equals(getattr(watched, name)), name
    assert plain.summary["totals"] == watched.summary["totals"]
    assert plain.summary["engine"] == watched.summary["engine"]


def test_telemetry_does_not_depend_on_threads():
    one, two = recorded(), recorded(2)
    for name in TABLES:
        assert getattr(one, name).equals(getattr(two, name)), name


def test_queue_samples_match_packet_log():
    """A packet is queued at t if it arrived before t and starts at t or later. Bytes started before t count as sent."""
    result = recorded()
    crossed = crossings(result)
    sent: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows(result.packets):
        sent[row["port"]].append((row["start_ps"], row["bytes"]))
    samples = rows(result.samples)
    assert {row["port"] for row in samples} == {
        row["port"] for row in rows(result.ports) if not row["port"].startswith("h")
    }
    deep = 0
    for port in {row["port"] for row in samples}:
        passed = np.array(crossed.get(port, np.zeros((0, 3))), dtype=np.int64).reshape(-1, 3)
        begun = np.array(sent[port], dtype=np.int64).reshape(-1, 2)
        for row in (row for row in samples if row["port"] == port):
            t = row["time_ps"]
            waiting = (passed[:, 0] < t) & (passed[:, 1] >= t)
            assert row["queue_bytes"] == passed[waiting, 2].sum(), row
            assert row["sent_bytes"] == begun[begun[:, 0] < t, 1].sum(), row
            assert row["rate_bps"] == RATE
            deep += row["queue_bytes"] > 0
    assert deep > 30


def test_queue_samples_are_omitted_while_network_is_idle():
    """A job computes for 6 ms before each exchange."""
    trace = make_trace([[10_000], [300_000]], forward=1 * MS, backward=2 * MS)
    job = {"name": "job", "trace": "none", "iterations": 2, **ps_job(6, 2)}
    result = simulate(case(ALL, job=[job], traffic=[]), trace)
    times = np.unique(result.samples["time_ps"].to_numpy())
    assert (times % PERIOD == 0).all()
    steps = np.diff(times)
    assert steps.min() == PERIOD and steps.max() > 1 * MS
    sampled = np.isin(result.packets["port"].to_pylist(), result.samples["port"].to_pylist())
    starts = result.packets["start_ps"].to_numpy()[sampled]
    busy = set((np.unique(starts // PERIOD + 1) * PERIOD).tolist())  # something was sent in the period that ends there
    waits = set(times[result.samples["queue_bytes"].to_numpy().reshape(len(times), -1).any(axis=1)].tolist())
    last = result.summary["totals"]["simulated_ps"]
    assert {time for time in busy | waits if time < last} == {time for time in times.tolist() if time < last}


def test_delay_histogram_matches_packet_log():
    result = recorded()
    counted: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows(result.delays):
        counted[row["port"]].append((row["from_ps"], row["to_ps"], row["packets"]))
    crossed = crossings(result)
    assert set(crossed) == {port for port in counted if not port.startswith("h")}
    wide = 0
    for port, passed in crossed.items():
        delays = np.array([start - arrival for arrival, start, _ in passed])
        assert sum(packets for _, _, packets in counted[port]) == len(delays)
        for begin, end, packets in counted[port]:
            assert ((delays >= begin) & (delays < end)).sum() == packets, (port, begin)
            assert begin == 0 or end / begin <= 1.25
        wide = max(wide, len(counted[port]))
    assert wide > 15


def test_sample_ports_accepts_port_and_node_names():
    table = simulate(case({"queue_samples": "3us", "sample_ports": ["leaf1", "h2->leaf0"]})).samples
    assert set(table["port"].to_pylist()) == {
        "h2->leaf0", "leaf1->h4", "leaf1->h5", "leaf1->h6", "leaf1->h7", "leaf1->spine0", "leaf1->spine1",
    }  # fmt: skip
    with pytest.raises(ScenarioError) as refused:
        simulate(case({"queue_samples": "3us", "sample_ports": ["leaf1", "leaf9", "h2->leaf1"]}))
    assert "leaf9" in str(refused.value) and "h2->leaf1" in str(refused.value)
    with pytest.raises(ScenarioError, match="leaf9"):
        check_variants([case({"queue_samples": "3us", "sample_ports": ["leaf9"]})])


def test_sample_ports_includes_all_parallel_cables(tmp_path: Any):
    """Two cables between the same switches have one name, which selects both."""
    from gradwire.sim.telemetry import find_ports
    from gradwire.topology import build_network

    scenario = case()
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    twice = np.flatnonzero(network.link_src == network.index["leaf0"])[-2:]
    network.link_dst[twice[1]] = network.link_dst[twice[0]]
    assert find_ports([network.link_name(twice[0])], network).tolist() == twice.tolist()


def test_packet_log_can_be_limited_to_one_traffic():
    output = {"packet_log": ["late"]}
    result = simulate(case(output))
    late = {row["message"] for row in rows(result.messages) if row["job"] == "late"}
    assert set(result.packets["message"].to_pylist()) == late
    everything = [row for row in rows(recorded().packets) if row["message"] in late]
    assert rows(result.packets) == everything


def test_messages_record_their_layer():
    trace = make_trace([[1000], [2000, 3000], [500]], forward=20 * US, backward=20 * US)
    of_tensor = {0: 0, 1: 1, 2: 1, 3: 2}
    servers = {"name": "ps", "trace": "none", "iterations": 1, **ps_job(3, 1)}
    result = simulate(case(job=[servers], traffic=[]), trace)
    assert {(row["tensor"], row["layer"]) for row in rows(result.messages)} == set(of_tensor.items())
    ring = {"name": "ring", "trace": "none", "iterations": 1, **ring_job(4)}
    assert set(simulate(case(job=[ring], traffic=[]), trace).messages["layer"].to_pylist()) == {-1}


def test_summary_lists_transport_of_each_traffic():
    late = {"name": "late", "kind": "permutation", "size": "9kB", "transport": {"kind": "dcqcn", "payload": "1kB"}}
    summary = simulate(case(traffic=[case().traffic[0].model_dump(mode="json", exclude_unset=True), late])).summary
    assert summary["transports"] == {
        "burst": {"kind": "dctcp", "payload": 4096, "overhead": 66, "wire": "tcp"},
        "late": {"kind": "dcqcn", "payload": 1000, "overhead": 58, "wire": "roce"},
    }
