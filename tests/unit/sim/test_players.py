"""The engine's player of programs against SimPy's: the same Results, whoever plays, with any number of threads."""

from __future__ import annotations

import pytest
from sim_cases import make_trace, ps_job, ring_job, scenario

from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import StallError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.sim.simulate import packet_fabric, simulate
from gradwire.testing.scenario_comparison import FabricWithoutPrograms

TRACE = make_trace([[3000], [40_000, 500], [90_001]], iterations=3, skew=777_777, optimizer=10_000)
SWITCH = {"queues": 8, "buffer": "60KB", "ecn_threshold": "20KB", "selective_drop": True}
TAGGED = {"push_bound": 0.3, "pull_bound": 0.1, "pull_important": False, "tagging": {"magnitude": True}}
LAYERS = {"push_bound": 0.3, "tagging": {"magnitude": True, "layer_priority": True}}
FEW = {"iterations": 3, "jitter": 0.1}


def by_simpy(*given):
    return FabricWithoutPrograms(packet_fabric(*given))


def assert_equal(one, other):
    for name in TABLES:
        assert getattr(one, name).equals(getattr(other, name)), name
    assert one.summary == other.summary


def both(case, trace=TRACE):
    """Run by both players; returns the Result."""
    one = simulate(case, trace)
    assert_equal(one, simulate(case, trace, fabric=by_simpy))
    assert_equal(one, simulate(case, trace, threads=2))
    return one


@pytest.mark.parametrize(
    ("job", "transport"),
    [
        (ps_job(4, **FEW), "dctcp"),
        (ps_job(4, **FEW, order="layer"), "dctcp"),
        (ps_job(4, **FEW, **TAGGED), "dlcp"),
        (ps_job(4, **FEW, **LAYERS, order="layer"), "dlcp"),
        (ps_job(4, **FEW, **LAYERS, order="layer", credit_per="destination", credit=2), "dlcp"),
        (ps_job(4, **FEW, exchange={"pull": "barrier", "server_rate": "20Gbps"}), "dctcp"),
        (ring_job(2, **FEW), "dctcp"),
        (ring_job(3, **FEW, **TAGGED, bucket="100KB"), "dlcp"),
        (ring_job(8, **FEW, **LAYERS, bucket="100KB", order="layer"), "dlcp"),
        ({"workers": 5, "exchange": {"kind": "halving_doubling", "forward": "layerwise"}, **FEW, **TAGGED}, "dlcp"),
        (
            {"workers": 4, "exchange": {"kind": "transpose"}, **FEW, "scheduler": {"kind": "p3", "slice": "40kB"}},
            "dlcp",
        ),
        ({"workers": 5, "exchange": {"kind": "double_tree", "bucket": "100KB", "chunks": 3}, **FEW}, "dctcp"),
        ({"workers": 4, "exchange": {"kind": "overlapped", "batch": 3}, **FEW}, "dctcp"),
        ({"workers": 4, "exchange": {"kind": "ring", "blocking": True, "bucket": "50KB"}, **FEW}, "dctcp"),
        (ps_job(3, **FEW, exchange={"shards": "split", "split_above": "40kB"}, servers=2, scheduler="tictac"), "dctcp"),
    ],
)
def test_engine_and_simpy_players_agree_on_jobs(job, transport):
    result = both(scenario(job, transport=transport, switch=SWITCH | {"selective_drop": transport == "dlcp"}))
    assert result.summary["totals"]["finished"] and result.iterations.num_rows == job["workers"] * 3


@pytest.mark.parametrize("transport", ["dctcp", "dlcp"])
def test_engine_and_simpy_players_agree_with_several_nics_per_host(transport):
    topology = {"kind": "rail", "hosts": 4, "cards": 3, "spines": 2}
    job = ring_job(4, bucket="100KB", **FEW, **(TAGGED if transport == "dlcp" else {}))
    result = both(
        scenario(job, topology=topology, transport=transport, switch=SWITCH | {"selective_drop": transport == "dlcp"})
    )
    nics = {(row["src"].split(".")[1], row["dst"].split(".")[1]) for row in result.messages.to_pylist()}
    assert nics == {(f"nic{card}",) * 2 for card in range(3)}


def test_engine_and_simpy_players_agree_on_jobs_traffic_and_faults():
    """Two jobs, traffic with dependencies and a slow host run together, complete and cut short."""
    jobs = [ps_job(3, **FEW, name="a"), ring_job(4, **FEW, name="b", start="1ms")]
    traffic = [
        {"kind": "all_to_all", "name": "x", "size": "20kB", "order": "shifts", "rounds": 3, "period": "1ms"},
        {"kind": "incast", "name": "y", "size": "30kB", "fan_in": 3, "receiver": "h0", "start": "500us"},
    ]
    faults = [{"kind": "host_slow", "host": "h1", "factor": 2.5, "at": "1ms", "until": "4ms"}]
    case = scenario(*jobs, traffic=traffic, fault=faults, switch=SWITCH | {"selective_drop": False})
    whole = both(case)
    assert whole.summary["totals"]["ended_by"] == "done"
    last = max(row["start_ps"] for row in whole.messages.to_pylist() if row["iteration"] == 1 and row["job"] == "b")
    cut = both(case.model_copy(update={"duration": last + 3_000_000}))
    assert 0 < cut.summary["totals"]["messages_under_way"] < cut.messages.num_rows


@pytest.mark.slow
def test_engine_and_simpy_players_agree_on_traffic_after_job_end(tmp_path):
    """The network runs one software latency longer; all tables contain the packets sent in that time."""
    traffic = [{"kind": "poisson", "name": "x", "load": 0.5, "sizes": "20kB"}]
    case = scenario(ps_job(3), traffic=traffic, host={"software_latency": "50us"}, output={"packet_log": True})
    result = both(case, make_trace([[3000], [40_000]], iterations=1))
    end, messages = result.summary["totals"]["simulated_ps"], result.messages.to_pylist()
    assert end == max(row["end_ps"] for row in messages if row["job"] != "x")
    assert (
        end < max(row["start_ps"] for row in messages) <= max(result.packets["start_ps"].to_pylist()) < end + 50_000_000
    )
    assert set(result.packets["message"].to_pylist()) <= {row["message"] for row in messages}
    assert Result.read(result.write(tmp_path / "r")).flows.equals(result.flows)


def test_traffic_without_flows_ends_at_time_zero():
    """The run has no messages and takes no simulated time."""
    case = build_scenario({
        "name": "none", "topology": {"kind": "star", "hosts": 4},
        "traffic": [{"kind": "poisson", "name": "x", "load": 1e-6, "sizes": "20kB", "start": "77us", "stop": "78us"}],
    })  # fmt: skip
    result = both(case, None)
    assert (result.messages.num_rows, result.summary["totals"]["simulated_ps"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["dctcp", "dlcp"])
def test_engine_and_simpy_players_agree_on_the_demo(policy):
    case = load_scenario("demo", set=["job.iterations=2"], policy=policy)
    both(case, None)


def test_slow_host_computes_longer_while_fault_is_active():
    """Of three iterations the second one is slow in part."""
    trace = make_trace([[1]], iterations=1)
    plain = simulate(scenario(ps_job(1, iterations=3)), trace).iterations.to_pylist()
    length = plain[0]["compute_ps"]
    begin = plain[1]["start_ps"]
    fault = {"kind": "host_slow", "host": "h0", "factor": 3.0, "at": f"{begin - 1000}ps", "until": f"{begin + 1000}ps"}
    slow = simulate(scenario(ps_job(1, iterations=3), fault=[fault]), trace).iterations.to_pylist()
    assert slow[0]["compute_ps"] == length and slow[2]["compute_ps"] == length
    assert slow[1]["compute_ps"] == 2 * length, "forward, one of two equal halves, takes three times as long"


@pytest.mark.parametrize("fabric", [None, by_simpy])
def test_stall_error_names_missing_collective_step(fabric):
    """The links lose all packets."""
    job = {"workers": 3, "exchange": {"kind": "ring", "bucket": "100KB"}}
    case = scenario(job, transport="dlcp", link={"rate": "100Gbps", "latency": "1us", "loss": 0.9999999})
    with pytest.raises(StallError, match=r"worker 0 on h0 waits for .*reduce_scatter of part .* \(under way\)"):
        simulate(case, make_trace([[1000]]), fabric=fabric)
