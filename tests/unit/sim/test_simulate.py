"""simulate: coupling, placement, determinism, and every way in which a run is refused or ends early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ideal_fabric import IdealFabric
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario

from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.sim.simulate import Interrupted, simulate
from gradwire.topology import LinkSpec, fat_tree, leaf_spine, star
from gradwire.topology.placement import host_sequence, place_jobs

LINK = LinkSpec(10**11, US)
TRACE = make_trace([[2000], [90_000]], iterations=3, skew=3 * US)


def same(one, two):
    return all(getattr(one, name).equals(getattr(two, name)) for name in ("iterations", "messages")) and (
        one.summary == two.summary
    )


def used(result):
    return {row["src"] for row in rows(result.messages)} | {row["dst"] for row in rows(result.messages)}


# --- coupling -------------------------------------------------------------------------------------


class CautiousFabric(IdealFabric):
    """Stops as soon as it may instead of as late as it may."""

    def __init__(self, **options):
        super().__init__(**options)
        self.lookahead = 1


@pytest.mark.parametrize("job", [ps_job(3, 2, iterations=3, jitter=0.1), ring_job(4, iterations=3)])
def test_results_do_not_depend_on_fabric_stop_times(job):
    cases = scenario(job, ring_job(2, iterations=4, order="layer", bucket="8000B"))
    eager = simulate(cases, TRACE, fabric=Ideal())
    cautious = simulate(cases, TRACE, fabric=lambda *_: CautiousFabric())
    assert same(eager, cautious)


def test_message_enters_network_after_software_latency():
    ideal = Ideal()
    case = scenario(ps_job(2), host={"software_latency": "7us"})
    messages = rows(simulate(case, TRACE, fabric=ideal).messages)
    assert [sent[0] - row["start_ps"] for sent, row in zip(ideal.made.sent, messages, strict=True)] == [7 * US] * 8


def test_repeated_simulation_gives_equal_results():
    case = scenario(ps_job(3, 2, iterations=3, jitter=0.2), ring_job(3))
    assert same(simulate(case, TRACE, fabric=Ideal()), simulate(case, TRACE, fabric=Ideal()))


def test_results_do_not_depend_on_hash_seed():
    code = """
from sim_cases import *
from gradwire.sim.simulate import simulate
case = scenario(ps_job(3, 2, iterations=3, jitter=.2, tagging={"magnitude": True}), ring_job(3, order="layer"))
result = simulate(case, make_trace([[2000], [90000]], iterations=2, skew=3 * US), fabric=Ideal())
print(rows(result.iterations), rows(result.messages), result.summary)
"""
    outputs = set()
    for seed in "12":
        root = Path(__file__).parents[3]
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root}/tests/support"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


def test_jobs_on_disjoint_hosts_are_independent_in_ideal_network():
    alone = simulate(scenario(ps_job(2, name="a")), TRACE, fabric=Ideal())
    both = simulate(scenario(ps_job(2, name="a"), ring_job(3, name="b")), TRACE, fabric=Ideal())
    assert [row for row in rows(both.iterations) if row["job"] == "a"] == rows(alone.iterations)


# --- the Result -----------------------------------------------------------------------------------


def test_summary_records_seed_hashes_and_totals():
    case = scenario(ps_job(2, iterations=2), seed=5)
    result = simulate(case, TRACE, fabric=Ideal())
    assert result.summary["seed"] == 5
    assert result.summary["scenario_hash"] == case.digest()
    assert result.summary["trace_hash"] == TRACE.digest()
    totals = result.summary["totals"]
    assert totals["finished"] and totals["iterations"] == totals["iterations_wanted"] == 4
    assert totals["messages"] == result.messages.num_rows == 2 * 2 * 2 * 2
    assert totals["simulated_ps"] == max(row["end_ps"] for row in rows(result.iterations))
    assert set(result.timing) >= {"run_s", "threads", "hops_per_s"}


def test_traces_are_loaded_by_name(tmp_path):
    path = TRACE.save(tmp_path / "t")
    case = scenario(ps_job(2, trace=str(path)), ring_job(2, trace=str(path)))
    assert same(simulate(case, fabric=Ideal()), simulate(case, TRACE, fabric=Ideal()))
    with pytest.raises(TraceError, match="nowhere"):
        simulate(scenario(ps_job(2, trace=str(tmp_path / "nowhere"))), fabric=Ideal())


def test_duration_ends_run_with_partial_result():
    full = rows(simulate(scenario(ps_job(2, iterations=3)), TRACE, fabric=Ideal()).iterations)
    cut = full[1]["end_ps"] + 1
    result = simulate(scenario(ps_job(2, iterations=3), duration=f"{cut}ps"), TRACE, fabric=Ideal())
    assert rows(result.iterations) == [row for row in full if row["end_ps"] < cut]
    assert not result.summary["totals"]["finished"]
    assert result.summary["totals"]["simulated_ps"] == cut
    # Cut while messages are on their way: 1 us after the first push was sent.
    result = simulate(scenario(ps_job(2), duration="3001us"), TRACE, fabric=Ideal())
    assert {row["end_ps"] for row in rows(result.messages)} == {-1}
    assert result.summary["totals"]["messages_under_way"] == result.messages.num_rows > 0


def test_progress_is_reported_and_ends_complete():
    seen = []
    simulate(scenario(ps_job(2, iterations=2)), TRACE, fabric=Ideal(), progress=seen.append)
    assert seen[-1].done == seen[-1].total == 2 and seen[-1].share == 1 and seen[-1].now_ps > 0


def test_ctrl_c_keeps_partial_results():
    class Interrupting(IdealFabric):
        def run(self, until_ps):
            if self.now > 6 * MS:
                raise KeyboardInterrupt
            return super().run(until_ps)

    with pytest.raises(KeyboardInterrupt) as error:
        simulate(scenario(ps_job(2, iterations=9)), TRACE, fabric=lambda *_: Interrupting())
    assert isinstance(error.value, Interrupted)
    assert 0 < error.value.result.iterations.num_rows < 18


# --- stalls ---------------------------------------------------------------------------------------


def test_stall_error_names_waiting_worker_and_missing_messages():
    case = scenario(ps_job(2, iterations=2))
    with pytest.raises(StallError) as error:
        simulate(case, TRACE, fabric=Ideal(swallow=lambda number: number == 1))
    text = str(error.value)
    assert "no progress at" in text
    assert "worker 0 on h0 waits for layer 1 of iteration 0: 2 messages: push of tensor 1 part 0, h1 -> h2" in text
    assert "(under way); pull of tensor 1 part 0, h2 -> h0 (not sent yet)" in text
    assert "message 1 of job job0: push of tensor 1 part 0, iteration 0, h1 -> h2" in text
    assert error.value.exit_code == 1


def test_stalled_ring_names_missing_segments():
    with pytest.raises(
        StallError, match=r"waits for all layers of iteration 0: \d+ messages: (reduce_scatter|all_gather) of"
    ):
        simulate(scenario(ring_job(4)), TRACE, fabric=Ideal(swallow=lambda number: number == 5))


def test_stall_error_quotes_reason_of_fabric():
    class Stuck(IdealFabric):
        idle = False

        @property
        def stalled(self):
            return "every packet of h0 is dropped" if self.now > 20 * MS else ""

    with pytest.raises(StallError, match="every packet of h0 is dropped"):
        simulate(scenario(ps_job(1)), TRACE, fabric=lambda *_: Stuck(swallow=lambda number: True))


def test_duration_ends_stuck_run_without_error():
    class Stuck(IdealFabric):
        idle = False

    case = scenario(ps_job(1), duration="1s")
    result = simulate(case, TRACE, fabric=lambda *_: Stuck(swallow=lambda number: True))
    assert not result.summary["totals"]["finished"]


# --- placement ------------------------------------------------------------------------------------


def names(network, hosts):
    return [network.names[host] for host in hosts]


def test_packed_fills_switches_and_spread_alternates_between_them():
    network = leaf_spine(3, 3, 1, LINK)
    assert names(network, host_sequence(network, "packed")) == [f"h{n}" for n in range(9)]
    assert names(network, host_sequence(network, "spread")) == [f"h{n}" for n in (0, 3, 6, 1, 4, 7, 2, 5, 8)]


def test_spread_placement_uses_as_many_switches_as_possible():
    network = fat_tree(4, LINK)
    first = host_sequence(network, "spread")[:8]
    assert len({network.edge_of[host] for host in first}) == 8


def test_placement_puts_workers_before_servers_on_separate_hosts():
    case = scenario(ps_job(3, 2), ring_job(3))
    (first, second) = place_jobs(case.job, star(8, LINK))
    assert (first.workers, first.servers) == ((0, 1, 2), (3, 4))
    assert (second.workers, second.servers) == ((5, 6, 7), ())


def test_placement_reserves_named_hosts():
    named = {"workers": ["h1", "h0"], "servers": ["h4"]}
    (first, second) = place_jobs(scenario(ring_job(4), ps_job(2, placement=named)).job, star(8, LINK))
    assert first.workers == (2, 3, 5, 6)
    assert (second.workers, second.servers) == ((1, 0), (4,))


def test_colocated_servers_are_spread_evenly_over_workers():
    job = ps_job(8, 4, exchange={"colocated": True})
    (places,) = place_jobs(scenario(job).job, star(8, LINK))
    assert places.workers == tuple(range(8)) and places.servers == (0, 2, 4, 6)


def test_worker_and_server_can_be_placed_on_one_host():
    job = ps_job(2, 1, placement={"workers": ["h0", "h1"], "servers": ["h1"]})
    result = simulate(scenario(job), TRACE, fabric=Ideal())
    assert used(result) == {"h0", "h1"} and result.summary["totals"]["finished"]


def graph_file(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text("alpha tor\nbeta tor\ngamma tor\n")
    return {"kind": "graph", "file": str(path)}


def test_placement_uses_host_names_of_graph_file(tmp_path):
    job = ps_job(2, placement={"workers": ["gamma", "alpha"], "servers": ["beta"]})
    assert used(simulate(scenario(job, topology=graph_file(tmp_path)), TRACE, fabric=Ideal())) == {
        "alpha",
        "beta",
        "gamma",
    }


def test_placement_error_names_all_invalid_hosts(tmp_path):
    topology = graph_file(tmp_path)
    job = ps_job(2, placement={"workers": ["gamma", "nobody"], "servers": ["tor"]})
    with pytest.raises(ScenarioError) as error:
        simulate(scenario(job, ring_job(3), topology=topology), TRACE, fabric=Ideal())
    text = str(error.value)
    assert 'job[0].placement.workers[1]: is not a node of the network (got "nobody")' in text
    assert 'job[0].placement.servers[0]: is a switch (got "tor")' in text
    assert "job[1].workers: too few free hosts: 3 workers need 3 hosts; expected at most 2 free hosts" in text
    assert "alpha, beta, gamma" in text


def test_more_workers_than_hosts_are_rejected(tmp_path):
    with pytest.raises(ScenarioError, match=r"3 workers and 1 servers need 4 hosts.*at most 3"):
        simulate(scenario(ps_job(3), topology=graph_file(tmp_path)), TRACE, fabric=Ideal())


# --- other refusals -------------------------------------------------------------------------------


def test_error_names_all_jobs_with_unknown_trace_phase():
    case = scenario(ps_job(2, phase="late"), ring_job(2), ring_job(2, phase="late"))
    with pytest.raises(ScenarioError) as error:
        simulate(case, TRACE, fabric=Ideal())
    assert [each.path for each in error.value.mistakes] == ["job[0].phase", "job[2].phase"]


def test_software_latency_below_link_latency_is_rejected(tmp_path):
    case = scenario(ps_job(2), topology=graph_file(tmp_path), host={"software_latency": "1us"})
    with pytest.raises(ScenarioError, match=r"host\.software_latency: 1us is below.*at least 1\.0048us"):
        simulate(case, TRACE, fabric=Ideal())


def test_importing_simulate_imports_neither_torch_nor_numba():
    code = "import sys, gradwire.sim.simulate; print(*({'torch', 'numba', 'pyarrow', 'networkx'} & set(sys.modules)))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
