"""The program of a scenario, run by the scripts of its hosts, against the simulator's jobs and traffic: the same
messages and iterations at the same picoseconds, on a network that both have alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ideal_fabric import IdealFabric
from program_cases import Scripts, simulated
from sim_cases import MS, US, make_trace, ps_job, ring_job, scenario

from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.simulate import simulate
from gradwire.traces.trace import Trace
from gradwire.workload.resolve import resolve


def compare(case, trace=None, random=False):
    """Run both and hold every row equal; returns the scripts. `random`: a case of Hypothesis's, which is left if something
    in it is not decided."""
    made = []

    def fabric(scenario, network, routing, threads):
        made.append(IdealFabric(lookahead=scenario.host.software_latency))
        return made[0]

    result = simulate(case, trace, fabric=fabric)
    resolved = resolve(case, trace)
    scripts = Scripts(resolved.program, latency=case.host.software_latency)
    scripts.run()
    assert scripts.done and scripts.workers_done
    payloads = [transport.payload for transport in case.transports]
    if random:
        assume(not undecided(scripts.messages(resolved.network.names, payloads), case))
    assert scripts.iterations() == [tuple(row.values()) for row in result.iterations.to_pylist()]
    wanted, found = simulated(result, made[0]), scripts.messages(resolved.network.names, payloads)
    if case.job and case.traffic:  # the last job ends the simulation, wherever traffic is by then
        jobs = {job.name for job in case.job}
        wanted = {key: row for key, row in wanted.items() if key[0] in jobs or row[-1] >= 0}
        found = {key: row for key, row in found.items() if key[0] in jobs or key in wanted}
    assert found == wanted
    return scripts


def undecided(rows, case):
    """Whether a flow of shifts begins at its host at the very picosecond at which another message does: deliveries have
    released both, and neither world says which of these comes first."""
    shifts = {table.name for table in case.traffic if getattr(table, "order", "") == "shifts"}
    begun = Counter((key[5], row[-2]) for key, row in rows.items())
    return any(key[0] in shifts and begun[key[5], row[-2]] > 1 for key, row in rows.items())


TRACE = make_trace(
    [[300, 5000], [40_000, 7], [90_001], [12]],
    iterations=3,
    skew=777_777,
    optimizer=10_000,
    forward=MS // 50,
    backward=MS // 30,
)


def uneven(trace, seed=1):
    """The same, with gradients that are ready in another order in every iteration, and forward passes of any length."""
    rng = np.random.default_rng(seed)
    captured = []
    for iteration in trace.iterations:
        late = int(rng.integers(0, 3 * MS // 50))
        ends = iteration.forward_end_ps + late
        ready = rng.integers(int(ends.max()), iteration.backward_end_ps + late, len(trace.tensors))
        total = iteration.backward_end_ps + late
        captured.append(
            replace(
                iteration,
                forward_end_ps=ends,
                ready_ps=ready,
                backward_end_ps=total,
                end_ps=total + iteration.optimizer_ps,
            )
        )
    return Trace(trace.manifest, trace.layers, trace.tensors, captured, trace._mean, trace._max)


DLCP = {"kind": "dlcp", "payload": "1024B"}
TAGS = {"layer_priority": True, "magnitude": True, "priorities": [2, 4, 5]}


@pytest.mark.parametrize(
    "job",
    [
        ps_job(1, iterations=2),
        ps_job(3, 2, iterations=3),
        ps_job(3, 2, iterations=3, exchange={"pull": "barrier"}),
        ps_job(4, 3, iterations=2, exchange={"colocated": True, "partition": "16KiB"}),
        ps_job(4, 4, iterations=2, exchange={"colocated": True, "partition": "16KiB", "server_rate": "5Gbps"}, order="layer"),
        ps_job(3, 1, iterations=3, exchange={"server_rate": "1Gbps", "partition": "10000B"}, jitter=0.2),
        ps_job(2, 2, iterations=3, order="layer", exchange={"partition": "4KiB"}, compute_scale=0.1, start="123us"),
        ps_job(3, 2, tagging=TAGS, push_bound=0.1, pull_bound=0.05, pull_important=False),
        ps_job(2, 1, iterations=2, compute_scale=0.0),
        ring_job(2),
        ring_job(3, bucket="100KB", iterations=3, jitter=0.3),
        ring_job(4, bucket="10KB", iterations=2, order="layer", start="5us"),
        ring_job(3, bucket="60KB", tagging=TAGS, push_bound=0.1, pull_important=False, jitter=0.1),
        ring_job(3, iterations=2, scheduler={"kind": "p3", "slice": "30kB"}, jitter=0.1),
        ring_job(3, iterations=3, scheduler={"kind": "ddp", "bucket": "100kB"}, jitter=0.1),
        ring_job(3, iterations=2, scheduler="barrier"),
        {"workers": 5, "exchange": {"kind": "halving_doubling", "forward": "layerwise"}, "iterations": 3, "jitter": 0.1},
        {"workers": 5, "exchange": {"kind": "double_tree", "bucket": "60KB", "chunks": 3}, "iterations": 2},
        {"workers": 6, "exchange": {"kind": "hierarchical", "bucket": "60KB", "group": 3}, "iterations": 2},
        {"workers": 4, "exchange": {"kind": "transpose", "bucket": "60KB"}, "iterations": 2, "jitter": 0.1},
        {"workers": 5, "exchange": {"kind": "tree", "bucket": "60KB"}, "iterations": 2},
        ps_job(3, 2, iterations=3, scheduler="tictac", jitter=0.1),
        {"workers": 4, "exchange": {"kind": "halving_doubling", "bucket": "60KB", "blocking": True}, "iterations": 2},
        {"workers": 3, "exchange": {"kind": "overlapped", "batch": 2}, "iterations": 3, "jitter": 0.1},
        {"workers": 3, "exchange": {"kind": "overlapped", "batch": 2}, "iterations": 2, "scheduler": "barrier"},
        ps_job(3, 2, iterations=3, scheduler={"kind": "bytescheduler", "partition": "20kB", "credit": "50kB"}),
    ],
    ids=lambda job: "-".join(str(value) for value in (job["exchange"]["kind"], job["workers"], *job.keys())),
)  # fmt: skip
def test_host_scripts_match_the_simulator_for_one_job(job):
    compare(scenario(job, transport=DLCP), TRACE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "job",
    [
        ps_job(3, 2, iterations=4, exchange={"colocated": True, "partition": "8KiB"}),
        ps_job(3, 3, iterations=4, exchange={"colocated": True, "partition": "8KiB", "server_rate": "20Gbps"}, order="layer"),
        ring_job(3, iterations=4, bucket="20KB"),
    ],
    ids=["servers", "adders", "ring"],
)  # fmt: skip
def test_host_scripts_match_the_simulator_for_varying_gradient_order(job, seed):
    compare(scenario(job), uneven(TRACE, seed))


def test_message_larger_than_the_credit_is_sent_alone():
    program = resolve(scenario(ps_job(1, 1, order="layer", exchange={"partition": "16KiB"})), TRACE).program
    tables = tuple(table._replace(credit=5000) for table in program.tables)
    net = Scripts(replace(program, tables=tables), latency=US).run()
    assert net.done
    rows = program.messages
    large = [number for number in range(len(rows)) if rows.kind[number] == 0 and rows.nbytes[number] > 5000]
    spans = sorted((net.entered[number], net.ends[number]) for number in large)
    assert len(large) > 20 and all(before[1] <= after[0] for before, after in pairwise(spans))


def test_host_scripts_match_the_simulator_for_jobs_with_traffic():
    named = {"workers": ["h0", "h1", "h2"], "servers": ["h1"]}
    jobs = [
        ps_job(3, iterations=3, placement=named, order="layer", exchange={"server_rate": "8Gbps"}),
        ring_job(3, iterations=3, placement={"workers": ["h2", "h0", "h1"]}, bucket="60KB", jitter=0.1, start="31us"),
    ]
    traffic = [
        {"name": "shifts", "kind": "all_to_all", "order": "shifts", "size": "1001B", "start": "3us", "period": "100us", "rounds": 3},
        {"name": "burst", "kind": "incast", "fan_in": 3, "size": "3kB", "droppable": True, "bound": 0.1, "priority": 3, "transport": DLCP},
    ]  # fmt: skip
    scripts = compare(scenario(*jobs, hosts=5, traffic=traffic), TRACE)
    assert scripts.program.tables[2].transport != scripts.program.tables[3].transport


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "poisson", "load": 0.4, "sizes": "web_search", "flows": 40},
        {"kind": "permutation", "size": "10kB", "period": "10us", "rounds": 3},
        {"kind": "all_to_all", "size": "10kB"},
        {"kind": "all_to_all", "size": "10kB", "order": "shifts", "period": "77us", "rounds": 2, "start": "1us"},
        {"kind": "incast", "fan_in": 3, "size": "10kB", "period": "3us", "stop": "20us"},
        *(
            {
                "kind": "storage",
                "operation": operation,
                "storage": ["h4", "h5"],
                "size": "50kB",
                "stripe": "7kB",
                "window": 2,
                "spread": "40us",
                "period": "100us",
                "rounds": 2,
            }
            for operation in ("read", "write")
        ),
    ],
    ids=lambda table: table["kind"],
)
def test_host_scripts_match_the_simulator_for_traffic_alone(table):
    compare(scenario(hosts=6, traffic=[{"name": "flows", **table}]))


def test_triggered_flow_starts_one_software_latency_after_its_trigger(tmp_path):
    (tmp_path / "m.cm").write_text(
        "Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 0 size 2000 recv_done_trigger 1\n"
        "2->1 id 2 start 1000 size 2000 recv_done_trigger 1\n1->3 id 3 trigger 1 size 1000\n"
        "trigger id 1 barrier 2\n"
    )
    case = scenario(
        hosts=4, traffic=[{"name": "m", "kind": "matrix", "file": str(tmp_path / "m.cm"), "start_unit": "ps"}]
    )
    scripts = compare(case)
    ends = [scripts.ends[number] for number in range(3)]
    assert ends[2] == max(ends[:2]) + 2 * US + 1000 * 80 + US


# --- at random ------------------------------------------------------------------------------------


@st.composite
def jobs(draw):
    common = {
        "iterations": draw(st.integers(1, 4)),
        "order": draw(st.sampled_from(["fifo", "layer"])),
        "jitter": draw(st.sampled_from([0.0, 0.3])),
        "compute_scale": draw(st.sampled_from([1.0, 0.01, 0.0])),
        "start": draw(st.sampled_from(["0us", "7us"])),
        "placement": draw(st.sampled_from(["packed", "random"])),
        "tagging": draw(st.sampled_from([{}, TAGS])),
        "pull_important": draw(st.booleans()),
        "push_bound": 0.1,
    }
    if draw(st.booleans()):
        return ring_job(draw(st.integers(2, 4)), bucket=draw(st.sampled_from(["1KB", "20KB", "1MB"])), **common)
    workers = draw(st.integers(1, 4))
    exchange = {
        "pull": draw(st.sampled_from(["layerwise", "barrier"])),
        "colocated": draw(st.booleans()),
        "partition": draw(st.sampled_from(["4KiB", "24KiB", "1MiB"])),
        **draw(st.sampled_from([{}, {"server_rate": "2Gbps"}, {"server_rate": "80Gbps"}])),
    }
    servers = draw(st.integers(1, workers if exchange["colocated"] else 3))
    return ps_job(workers, servers, exchange=exchange, **common)


@st.composite
def cases(draw):
    layers = draw(st.lists(st.lists(st.integers(1, 9000), min_size=0, max_size=3), min_size=1, max_size=5))
    if not any(layers):
        layers[0] = [77]
    trace = make_trace(
        layers, iterations=draw(st.integers(1, 3)), skew=draw(st.sampled_from([0, 999])),
        forward=draw(st.sampled_from([0, 3 * US, 3001])), backward=draw(st.sampled_from([US, 500 * US])),
        optimizer=draw(st.sampled_from([0, 5 * US])),
    )  # fmt: skip
    if draw(st.booleans()):
        trace = uneven(trace, draw(st.integers(1, 9)))
    traffic = draw(st.sampled_from([[], [{"name": "shifts", "kind": "all_to_all", "order": "shifts", "size": "991B", "start": "3009ns"}]]))  # fmt: skip
    return scenario(*draw(st.lists(jobs(), min_size=1, max_size=2)), hosts=16, seed=draw(st.integers(1, 99)), transport=DLCP, traffic=traffic), trace  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_host_scripts_match_the_simulator_for_random_scenarios(case):
    compare(*case, random=True)


# --- what it is -----------------------------------------------------------------------------------


def test_messages_are_numbered_by_job_and_earliest_ready_time():
    program = resolve(scenario(ps_job(2, iterations=2), ring_job(2)), TRACE).program
    rows = program.messages
    assert (sorted(rows.table) == rows.table).all()
    first = rows.table == 0
    assert (sorted(rows.iteration[first]) == rows.iteration[first]).all()
    sent = Scripts(program, latency=2 * US, rate=10**15, wire=1).run()
    starts = [sent.scripts[int(rows.src[number])].starts[number] for number in range(len(rows))]
    assert sorted(starts[: first.sum()]) == starts[: first.sum()]


def test_program_refuses_endless_traffic_and_hosts_with_several_nics():
    traffic = [{"name": "on", "kind": "poisson", "load": 0.1, "sizes": "1kB"}]
    with pytest.raises(ScenarioError, match="on has no end"):
        resolve(scenario(ps_job(1), traffic=traffic), TRACE)
    resolve(scenario(ps_job(1), traffic=traffic, duration="1ms"), TRACE)
    topology = {"kind": "rail", "hosts": 4, "cards": 2, "hosts_per_group": 2, "spines": 2}
    with pytest.raises(ScenarioError, match="has 2 NICs"):
        resolve(scenario(ps_job(1), topology=topology), TRACE)


# --- clocks ---------------------------------------------------------------------------------------


def test_nanosecond_clock_rounds_up_without_accumulating_errors():
    case = scenario(ps_job(2, iterations=3, exchange={"colocated": True}, jitter=0.1), ring_job(2, jitter=0.1))
    program = resolve(case, TRACE).program
    exact, rounded = (Scripts(program, latency=2 * US, tick=tick).run() for tick in (1, 1000))
    assert len(exact.iterations()) == len(rounded.iterations()) == 8
    for fine, coarse in zip(exact.iterations(), rounded.iterations(), strict=True):
        assert fine[:3] == coarse[:3] and fine[7] == coarse[7]
        differences = [b - a for a, b in zip(fine[3:7], coarse[3:7], strict=True)]
        assert all(0 <= each <= 40 * 1000 for each in differences), differences  # one ns per delivery and timer


def test_late_timers_do_not_accumulate_delay():
    """Timers fire up to 40 us late, but computation alone still takes its scheduled time."""
    program = resolve(scenario(ps_job(1, iterations=4, exchange={"colocated": True})), TRACE).program
    net = Scripts(program, latency=0)
    rng, at = np.random.default_rng(1), net.clock.at
    net.clock.at = lambda time, call: at(time + int(rng.integers(0, 40 * US)), call)
    rows = net.run().iterations()
    assert [row[-1] for row in rows] == [0] * 4
    assert rows[-1][6] == sum(row[7] for row in rows) <= net.clock.now() < rows[-1][6] + 40 * US


def test_stalled_scripts_report_awaited_and_in_flight_messages():
    program = resolve(scenario(ps_job(2, iterations=2)), TRACE).program
    net = Scripts(program, latency=2 * US)
    deliver = net.deliver
    net.deliver = lambda message: None if program.messages.kind[message] == 1 else deliver(message)
    net.run()
    assert not net.done and not net.workers_done
    lines = [line for script in net.scripts.values() for line in script.waiting()]
    assert any("worker 0 waits for message" in line for line in lines)
    assert any("messages in flight" in line for line in lines)
