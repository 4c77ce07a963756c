"""Traffic through the packet engine: times that can be worked out, ends of runs, transports side by side, equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_cases import make_trace, ps_job, ring_job, rows
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.comparison.compare import compare
from gradwire.analysis.flows import flow_times
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import StallError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate
from gradwire.topology import build_network
from gradwire.topology.placement import place_jobs

US, MS = 10**6, 10**9
FRAME = 80 * (4096 + 66)  # picoseconds of a full packet at 100 Gbps
TRACE = make_trace([[100_000], [400_000]], iterations=2, forward=20 * US, backward=20 * US)


def case(*traffic: dict[str, Any], **fields: Any) -> Any:
    return build_scenario(
        {
            "name": "case",
            "topology": {"kind": "star", "hosts": 8},
            "switch": {"ecn_threshold": "96KiB"},
            "traffic": [{"name": f"t{number}", **table} for number, table in enumerate(traffic)],
            **fields,
        }
    )


def flow_file(tmp_path: Path, *flows: tuple[int, int, int, int]) -> dict[str, Any]:
    """A table of flows: (src, dst, bytes, start in microseconds)."""
    path = tmp_path / "flows.txt"
    lines = [f"{src} {dst} 3 100 {nbytes} {start * 1e-6:.9f}" for src, dst, nbytes, start in flows]
    path.write_text("\n".join([str(len(flows)), *lines]) + "\n")
    return {"kind": "flows", "file": str(path)}


def test_isolated_flows_take_their_ideal_time(tmp_path):
    """Times are exact to the picosecond over all link rates, up to the initial window of 10 packets."""
    sizes = [1, 4096, 4097, 3 * 4096, 40_000, 10 * 4096, 9 * 4096 + 1]
    pairs = [(0, 1), (0, 2), (3, 0), (2, 3), (1, 2)]
    flows = [(a, b, n, 500 * i) for i, (n, (a, b)) in enumerate((n, p) for n in sizes for p in pairs)]
    scenario = case(
        flow_file(tmp_path, *flows),
        topology={"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1, "uplink_rate": "25Gbps"},
        link_override=[{"between": ["h0", "leaf0"], "rate": "10Gbps", "latency": "3us"},
                       {"between": ["h3", "leaf1"], "rate": "400Gbps"}],
    )  # fmt: skip
    result = simulate(scenario)
    found = rows(result.messages)
    ideal = result.flows["ideal_ps"].to_pylist()
    assert [row["end_ps"] - row["start_ps"] for row in found] == ideal
    assert [row["start_ps"] for row in found] == [500 * US * number for number in range(len(flows))]
    # h0 -> h1, 40,000 bytes: ten packets at 10 Gbps, the last one (3136 + 66 bytes) once more at 100 Gbps
    row = next(row for row in found if (row["src"], row["dst"], row["bytes"]) == ("h0", "h1", 40_000))
    assert row["end_ps"] - row["start_ps"] == 9 * 10 * FRAME + 11 * 80 * 3202 + 4 * US


@pytest.mark.parametrize("beside", ["a job", "a program"])
def test_flows_within_the_first_software_latency_start_on_time(beside):
    """Jobs and other traffic tables that begin at time 0 do not delay the flows."""
    one = {"kind": "incast", "fan_in": 1, "size": "5kB", "rounds": 1}
    tables = [one | {"hosts": ["h4", "h5"], "start": "100ns"}, one | {"hosts": ["h6", "h7"], "start": "500ns"}]
    if beside == "a job":
        placement = {"workers": ["h0"], "servers": ["h1"]}
        job = {"name": "job", "trace": "none", "iterations": 1, **ps_job(1), "placement": placement}
    else:
        job = {"name": "job", "trace": "none", "iterations": 1, **ring_job(2)}
    trace = make_trace([[100_000]], forward=0, backward=0)
    result = simulate(case(*tables, job=[job]), trace)
    flows = [row for row in rows(result.messages) if row["kind"] == "flow"]
    assert [row["start_ps"] for row in flows] == [100_000, 500_000]
    assert [row["end_ps"] - row["start_ps"] for row in flows] == result.flows["ideal_ps"].to_pylist()


def test_message_and_flow_tables_describe_each_flow(tmp_path):
    scenario = case(
        flow_file(tmp_path, (0, 1, 5000, 3), (2, 1, 300, 0)), transport={"kind": "dctcp", "payload": "1000B"}
    )
    result = simulate(scenario)
    first, second = rows(result.messages)
    assert (first["src"], first["part"], second["src"], second["part"]) == ("h2", 1, "h0", 0)
    assert second["kind"] == "flow" and second["job"] == "t0" and second["tensor"] == -1
    assert (second["packets"], second["sent_packets"], second["received_bytes"]) == (5, 5, 5000)
    assert result.summary["totals"]["finished"] and result.summary["totals"]["simulated_ps"] == second["end_ps"]
    assert result.flows["message"].to_pylist() == result.messages["message"].to_pylist() == [0, 1]


def test_traffic_matrix_runs_in_trigger_order(tmp_path):
    """A flow starts one software latency (2 us) after delivery of the last flow it waits for."""
    (tmp_path / "a.cm").write_text(
        "Nodes 4\nConnections 4\nTriggers 2\n3->0 id 14 trigger 7 size 5000\n"
        "0->1 id 11 start 0 size 2000 recv_done_trigger 1\n2->1 id 12 start 50000000 size 3000 recv_done_trigger 1\n"
        "1->3 id 13 trigger 1 size 4000 recv_done_trigger 7\ntrigger id 1 barrier 2\ntrigger id 7 oneshot\n"
    )
    result = simulate(case({"kind": "matrix", "file": str(tmp_path / "a.cm"), "start_unit": "ps"}))
    found = {row["part"]: row for row in rows(result.messages)}
    assert (found[11]["start_ps"], found[12]["start_ps"]) == (0, 50 * US)
    assert found[13]["start_ps"] == found[12]["end_ps"] + 2 * US
    assert found[14]["start_ps"] == found[13]["end_ps"] + 2 * US
    ideal = dict(zip(result.messages["part"].to_pylist(), result.flows["ideal_ps"].to_pylist(), strict=True))
    assert {part: row["end_ps"] - row["start_ps"] for part, row in found.items()} == ideal


def test_all_to_all_in_shifts_never_shares_a_link():
    """Every host sends one flow at a time and receives one: all take their ideal time, one after the other."""
    result = simulate(case({"kind": "all_to_all", "size": "20kB", "order": "shifts", "rounds": 2, "period": "90us"}))
    taken = result.messages["end_ps"].to_numpy() - result.messages["start_ps"].to_numpy()
    assert len(taken) == 112 and (taken == result.flows["ideal_ps"].to_numpy()).all()
    starts = np.unique(result.messages["start_ps"].to_numpy())
    step = int(taken[0]) + 2 * US
    assert starts.tolist() == [begin + shift * step for begin in (0, 90 * US) for shift in range(7)]


def test_incast_flows_share_the_receiver_link():
    """The flows together take at most 10 % longer than their bytes on the receiver's link."""
    result = simulate(case({"kind": "incast", "size": "1MB", "fan_in": 7, "receiver": "h0"}))
    end = int(result.messages["end_ps"].to_numpy().max())
    least = 7 * 244 * FRAME + 7 * 80 * (1_000_000 - 244 * 4096 + 66) + 2 * US
    assert least < end < 1.1 * least
    (everything, _) = flow_times(result, "t0")
    assert everything.count == 7 and 5 < everything.slowdown.mean < 7.7


def test_duration_ends_unbounded_traffic():
    table = {"kind": "poisson", "load": 0.3, "sizes": "web_search"}
    short, long = (simulate(case(table, duration=duration)) for duration in ("1ms", "2ms"))
    totals = short.summary["totals"]
    assert totals["finished"] and totals["simulated_ps"] == MS and 0 < totals["messages_under_way"]
    starts = short.messages["start_ps"].to_numpy()
    assert starts.max() < MS and short.messages["end_ps"].to_numpy().max() <= MS
    # a longer run is the same run, longer
    there = [row for row in rows(long.messages) if row["start_ps"] < MS]
    assert len(there) == len(starts)
    ended = [(row["message"], row["end_ps"]) for row in there if row["end_ps"] <= MS]
    assert [(row["message"], row["end_ps"]) for row in rows(short.messages) if row["end_ps"] >= 0] == [
        pair for pair in ended if pair[1] >= 0
    ]


@pytest.mark.parametrize(
    "transport",
    [{"kind": "dctcp", "min_rto": "100us"}, {"kind": "dctcp", "connections": "persistent"}, {"kind": "dlcp"}],
    ids=["fresh", "persistent", "bounded"],
)
def test_received_bytes_of_unfinished_flows_equal_the_delivered_payload(transport):
    """The received bytes are the payload of packets that crossed their last link before the end."""
    tables = [{"kind": "incast", "size": size, "fan_in": 7, "receiver": "h0"} for size in ("300kB", "500kB")]
    small = {"buffer": "64KiB", "ecn_threshold": "32KiB"}
    result = simulate(case(*tables, transport=transport, switch=small, duration="300us", output={"packet_log": True}))
    messages = {row["message"]: row for row in rows(result.messages)}
    across: dict[int, dict[int, int]] = {number: {} for number in messages}
    for row in rows(result.packets):
        if row["kind"] == "data" and row["port"] == "s0->h0" and row["start_ps"] + 80 * row["bytes"] + US < 300 * US:
            across[row["message"]][row["packet"]] = row["bytes"] - result.summary["transports"]["t0"]["overhead"]
    under_way = [row for row in messages.values() if row["end_ps"] < 0]
    assert len(under_way) > 6 and result.drops.num_rows > 0
    for row in under_way:
        assert row["received_bytes"] == sum(across[row["message"]].values()) and row["lost_bytes"] == 0
    assert sum(row["received_bytes"] for row in under_way) > 10 * 4096


def test_stop_time_lets_started_flows_finish():
    result = simulate(case({"kind": "poisson", "load": 0.3, "sizes": "100kB", "stop": "500us"}))
    assert result.summary["totals"]["messages_under_way"] == 0 and result.summary["totals"]["finished"]
    assert result.messages["start_ps"].to_numpy().max() < 500 * US


def test_traffic_without_any_flow_gives_empty_tables():
    result = simulate(case({"kind": "poisson", "load": 0.001, "sizes": "1GB", "stop": "1us"}))
    assert result.messages.num_rows == result.flows.num_rows == 0 and result.summary["totals"]["finished"]


def test_run_ends_with_the_job_and_background_traffic_slows_the_job():
    job = [{"name": "job", "trace": "none", "iterations": 2, **ps_job(3)}]
    alone = simulate(case(job=job), TRACE)
    beside = simulate(case({"kind": "poisson", "load": 0.7, "sizes": "1MB"}, job=job), TRACE)
    ends = [int(result.iterations["end_ps"].to_numpy().max()) for result in (alone, beside)]
    assert ends[1] > 1.05 * ends[0]
    assert beside.summary["totals"]["simulated_ps"] == ends[1] and beside.summary["totals"]["finished"]
    kinds = {(row["job"], row["kind"]) for row in rows(beside.messages)}
    assert kinds == {("job", "push"), ("job", "pull"), ("t0", "flow")}
    flows = {row["message"] for row in rows(beside.messages) if row["job"] == "t0"}
    assert set(beside.flows["message"].to_pylist()) == flows
    assert alone.flows.num_rows == 0


MIXED = {
    "job": [
        {
            "name": "job", "trace": "none", "iterations": 2, **ps_job(3), "transport": "dlcp", "push_bound": 0.2,
            "tagging": {"magnitude": True}, "pull_important": False, "placement": "random",
        },
        {"name": "ring", "trace": "none", "iterations": 2, **ring_job(3, bucket="200kB"), "transport": "dlcp"},
    ],
    "switch": {"queues": 8, "buffer": "64KiB", "ecn_threshold": "20KiB", "selective_drop": True},
    "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2},
    "load_balancing": "spray_random",
}  # fmt: skip
BACKGROUND = (
    {"kind": "poisson", "load": 0.4, "sizes": "facebook"},
    {"kind": "incast", "fan_in": 5, "size": "30kB", "period": "70us", "priority": 3, "transport": {"kind": "dctcp", "payload": "1000B"}},
    {"kind": "permutation", "size": "100kB", "period": "400us", "transport": "dlcp", "bound": 0.3, "droppable": True, "priority": 5},
)  # fmt: skip


@pytest.mark.slow
def test_dlcp_and_dctcp_run_side_by_side_within_loss_bounds(tmp_path):
    """A DLCP job and droppable flows lose data within their bounds, DCTCP flows lose none. Runs on 1 and 2 threads
    write the same bytes."""
    scenario = case(*BACKGROUND, **MIXED)
    assert [transport.kind for transport in scenario.transports] == ["dlcp", "dctcp", "dctcp"]
    results = [simulate(scenario, TRACE, threads=threads) for threads in (1, 2)]
    for number, result in enumerate(results):
        result.write(tmp_path / str(number))
    for name in (
        "result.json",
        *(f"{table}.parquet" for table in ("iterations", "messages", "flows", "drops", "ports")),
    ):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes(), name
    found = rows(results[0].messages)
    assert not check_loss_invariant(results[0])
    lost = {name: sum(row["lost_bytes"] for row in found if row["job"] == name) for name in ("job", "t0", "t1", "t2")}
    assert lost["t2"] > 0 and lost["t0"] == lost["t1"] == 0
    assert {row["packets"] for row in found if row["job"] == "t1"} == {30}
    assert {row["packets"] for row in found if row["job"] == "t2"} == {25}
    dropped = results[0].drops
    assert not all(dropped["important"].to_pylist())


@pytest.mark.slow
def test_stalled_job_is_reported_while_other_traffic_continues():
    """A job waits for a cut link while other traffic continues; the run ends with a stall error."""
    job = [{"name": "job", "trace": "none", **ps_job(1), "placement": {"workers": ["h0"], "servers": ["h1"]}}]
    scenario = case(
        {"kind": "incast", "fan_in": 1, "size": "1kB", "hosts": ["h2", "h3"], "period": "200ms"},
        job=job,
        fault=[{"kind": "link_down", "at": "0ms", "between": ["h0", "s0"]}],
    )
    with pytest.raises(StallError, match="jobs have received nothing since") as caught:
        simulate(scenario, TRACE)
    assert "job job: worker 0 on h0 waits for" in str(caught.value)


def test_random_placement_uses_each_host_once_and_depends_on_the_seed():

    def places(seed: int) -> list[Any]:
        jobs = [{"name": name, "trace": "none", **ps_job(3), "placement": "random"} for name in ("a", "b")]
        scenario = case(job=jobs, seed=seed)
        network = build_network(scenario.topology, scenario.link, scenario.link_override)
        return place_jobs(scenario.job, network, scenario.seed)

    taken = [host for job in places(1) for host in (*job.workers, *job.servers)]
    assert sorted(taken) == list(range(8)) and taken != list(range(8))
    assert places(1) == places(1) != places(2)


def test_compare_reports_a_traffic_only_run(tmp_path):
    """`gradwire compare` prints the flow table as text and JSON, and writes its files."""
    path = tmp_path / "case.toml"
    path.write_text(
        'name = "case"\ntopology = { kind = "star", hosts = 8 }\n[switch]\necn_threshold = "96KiB"\n'
        '[[traffic]]\nname = "web"\nkind = "poisson"\nload = 0.3\nsizes = "web_search"\nflows = 200\n'
    )
    run = CliRunner().invoke(cli.app, ["compare", str(path), "--out", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    for words in ("case: flows of web", "slowdown, p99", "slowdown, max", "flows up to 10kB"):
        assert words in run.output
    assert "iteration time" not in run.output
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## Flows of web" in text and "flows.csv" in text
    lines = (tmp_path / "out" / "flows.csv").read_text().splitlines()
    assert lines[0].startswith("run,traffic,above_bytes,up_to_bytes,flows") and lines[1].split(",")[1:5] == [
        "web",
        "0",
        "",
        "200",
    ]
    again = CliRunner().invoke(cli.app, ["compare", str(tmp_path / "out" / "results" / "base"), "--json"])
    (run_,) = json.loads(again.output)["runs"]
    assert run_["flows"][0]["count"] == 200 and run_["flows"][0]["slowdown"]["p50"] >= 1


def test_flow_statistics_match_hand_computed_values():
    """Means, percentiles and slowdowns cover the delivered flows of two sizes; one flow is under way."""
    number = np.arange(6)
    columns: dict[str, Any] = dict.fromkeys(
        ("iteration", "tensor", "layer", "part", "priority", "lost_bytes"), number * 0
    )
    columns |= {"message": number, "job": ["t"] * 5 + ["u"], "kind": ["flow"] * 6, "src": ["a"] * 6, "dst": ["b"] * 6}
    columns |= {"bytes": np.array([10_000, 10_001, 5, 7, 9, 1]), "start_ps": number * 100}
    columns |= {"end_ps": np.array([40, 160, 210, 320, -1, 900]), "bound": number * 0.0, "share": number * 0.0}
    columns |= dict.fromkeys(
        ("packets", "received_bytes", "retransmitted", "sent_packets", "marked", "trimmed"), number
    )
    columns |= {"released_ps": columns["start_ps"], "timeouts": number * 0}
    flows = {"message": number, "ideal_ps": np.array([20, 40, 10, 10, 10, 10])}
    result = Result.build({"name": "r"}, {"messages": columns, "flows": flows})
    everything, small, larger = flow_times(result, "t")
    assert (everything.count, everything.under_way, everything.bytes) == (4, 1, 20_013)
    assert (everything.completion.mean, everything.completion.p50, everything.completion.p99) == (32.5, 20, None)
    assert (everything.slowdown.mean, everything.slowdown.p50, everything.slowdown.max) == (1.625, 1.5, 2.0)
    assert (small.up_to, small.count, small.under_way, small.completion.max) == (10_000, 3, 1, 40)
    assert (larger.above, larger.up_to, larger.count, larger.slowdown.p999) == (10_000, 100_000, 1, None)
    assert flow_times(result, "nobody") == []


def test_comparison_prints_separate_tables_for_jobs_and_traffic(capsys):
    """The main table shows the jobs; each traffic source has its own table with the runs as columns."""
    job = [{"name": "job", "trace": "none", "iterations": 1, **ps_job(2)}]
    table = {"kind": "incast", "fan_in": 2, "size": "1kB", "period": "20us"}
    comparison = compare([simulate(case(table, {**table, "size": "2kB"}, job=job), TRACE)])
    assert [(entry.job, entry.traffic) for entry in comparison.shown] == [("job", False)]
    assert {entry.job for entry in comparison.flat} == {"job", "t0", "t1"}
    comparison.print()
    text = capsys.readouterr().out
    assert [line.strip() for line in text.splitlines() if "flows of" in line] == [
        "case: flows of t0",
        "case: flows of t1",
    ]
    assert text.count("as written") == 4 and "as written, " not in text


DONE = """Nodes 4
Connections 4
Triggers 2
0->1 id 1 start 0 size 4000 send_done_trigger 1
2->0 id 2 start 50 size 4000 recv_done_trigger 1
0->3 id 3 trigger 1 size 1000 send_done_trigger 2
0->2 id 4 trigger 2 size 1000
trigger id 1 barrier 2
trigger id 2 oneshot
"""


def test_send_done_trigger_fires_on_the_last_acknowledgement(tmp_path):
    """Times by hand: one packet at 10 Gbps over two links of 1 us, and its acknowledgement back, on an empty network.

    A flow that waits starts one software latency of 2 us after what it waits for: flow 2's delivery, where it starts at
    50 us, else flow 1's acknowledgement.
    """
    (tmp_path / "a.cm").write_text(DONE)
    table = {"name": "m", "kind": "matrix", "file": str(tmp_path / "a.cm"), "start_unit": "us"}
    made = build_scenario({
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "link": {"rate": "10Gbps", "latency": "1us"},
        "host": {"software_latency": "2us"}, "transport": "dctcp", "traffic": [table],
    })  # fmt: skip
    rows = {row["part"]: row for row in simulate(made).messages.to_pylist()}

    def crossing(nbytes: int) -> int:
        return 2 * (1_000_000 + nbytes * 800)

    header, ack = 66, 66
    assert [rows[flow]["start_ps"] for flow in (1, 2)] == [0, 50_000_000]
    assert rows[2]["end_ps"] == 50_000_000 + crossing(4000 + header)
    assert rows[3]["start_ps"] == rows[2]["end_ps"] + 2_000_000
    done = rows[3]["start_ps"] + crossing(1000 + header) + crossing(ack)
    assert rows[4]["start_ps"] == done + 2_000_000
    (tmp_path / "a.cm").write_text(DONE.replace("start 50", "start 0"))
    rows = {row["part"]: row for row in simulate(made).messages.to_pylist()}
    assert rows[3]["start_ps"] - 2_000_000 == crossing(4000 + header) + crossing(ack) > rows[2]["end_ps"]
