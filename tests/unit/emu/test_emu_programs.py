"""Programs across the testbed, as far as no kernel is needed: who runs where and is told what, rules for packets, what
faults do to them, and what becomes of marks."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradwire
from gradwire.cli import app
from gradwire.emu.planning.capabilities import untagged_job_notes
from gradwire.emu.planning.plan import host_address
from gradwire.emu.planning.planner import check_scenario, make_plan, traffic_side_effects
from gradwire.emu.planning.user_programs import (
    ProgramRequest,
    check_clock,
    program_departures,
    programs_of,
    with_request,
)
from gradwire.emu.user_programs import marking_rules, outcome, rank_environment
from gradwire.emu.user_programs.programs import Programs, Rule
from gradwire.result_store.provenance import scenario_text
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import build_network
from gradwire.traces.trace import BUNDLED, load_trace
from gradwire.workload.resolve import resolve

MS = 10**6


def scenario_of(**more: object) -> Scenario:
    table = {"name": "x", "topology": {"kind": "star", "hosts": 4}, "host": {"software_latency": "1ms"},
             "switch": {"queues": 4}, "exec": {}}  # fmt: skip
    return build_scenario({**table, **more})


def made(command: tuple[str, ...] = ("true",), asked: dict[str, object] | None = None, **more: object) -> Programs:
    scenario = scenario_of(**more)
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    return programs_of(
        scenario, network, ProgramRequest(command, environment={"PATH": "/bin:/usr/bin"}, **(asked or {}))
    )  # type: ignore[arg-type]


def wrong(**more: object) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        made(**more)  # type: ignore[arg-type]
    return [mistake.path for mistake in caught.value.mistakes]


def test_ranks_are_numbered_consecutively_per_host():
    programs = made(asked={"hosts": ("h2", "h0"), "ranks_per_host": 2})
    assert [(r.number, r.host, r.local) for r in programs.ranks] == [
        (0, "h2", 0),
        (1, "h2", 1),
        (2, "h0", 0),
        (3, "h0", 1),
    ]
    assert {r.address for r in programs.ranks} == {host_address(2), host_address(0)}


def test_rank_environment_matches_torchrun():
    programs = made(("python3", "--at={rank}/{world}", "{host}:{address}", '{"a": {b}}'),
                    {"hosts": ("h1", "h3"), "ranks_per_host": 2})  # fmt: skip
    rank = programs.ranks[3]
    address, master = host_address(3), host_address(1)
    assert rank_environment.command_words(programs, rank) == ["python3", "--at=3/4", f"h3:{address}", '{"a": {b}}']
    found = rank_environment.environment(programs, rank, "p6", Path("/left"), "wall")
    wanted = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": master, "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "p6", "NCCL_SOCKET_IFNAME": "p6",
        "TP_SOCKET_IFNAME": "p6", "GRADWIRE_HOST": "h3", "GRADWIRE_HOSTS": "h1,h3", "GRADWIRE_MARKS": "/left/marks/3",
        "OMP_NUM_THREADS": "1", "PATH": "/bin:/usr/bin",
    }  # fmt: skip
    assert wanted.items() <= found.items()


def test_user_environment_overrides_defaults_but_not_rank_variables():
    programs = made()
    theirs = {"OMP_NUM_THREADS": "8", "RANK": "7"}
    found = rank_environment.environment(
        Programs(**{**vars(programs), "environment": theirs}), programs.ranks[1], "p0", Path("/left"), "virtual"
    )
    assert (found["OMP_NUM_THREADS"], found["RANK"], found["PYTHONHASHSEED"]) == ("8", "1", "0")


def test_hosts_file_lists_every_host_for_ipv4_and_ipv6():
    lines = rank_environment.hosts_file(made(asked={"hosts": ("h0",)})).splitlines()
    for node in range(4):  # those that run nothing, too
        assert f"{host_address(node)} h{node}" in lines
        assert f"::ffff:{host_address(node)} h{node}" in lines


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (Rule(priority=0), ["counter ip dscp set 56 accept"]),
        (Rule(priority=3, important=True), ["counter ip dscp set 32 ip ecn set ect0 accept"]),
        (Rule(important=False), ["counter ip ecn set not-ect accept"]),
        (Rule(to="10.0.0.2", below=200, priority=7), ["ip daddr 10.0.0.2 ip length < 200 counter ip dscp set 0 accept"]),
        (Rule(ports=(5, 5), priority=1), ["meta l4proto { tcp, udp } th sport 5 counter ip dscp set 48 accept",
                                          "meta l4proto { tcp, udp } th dport 5 counter ip dscp set 48 accept"]),
        (Rule(ports=(5, 9), protocol="udp", priority=1), ["meta l4proto udp th sport 5-9 counter ip dscp set 48 accept",
                                                          "meta l4proto udp th dport 5-9 counter ip dscp set 48 accept"]),
    ],
)  # fmt: skip
def test_marking_rules_translate_to_nftables(rule: Rule, lines: list[str]):
    assert marking_rules.lines_of(rule) == lines


def test_marking_rules_apply_to_their_hosts_in_order():
    mark = [{"rank": 1, "priority": 0}, {"host": "h0", "to": "h3", "important": True}, {"priority": 2}]
    programs = made(asked={"hosts": ("h3", "h2")}, exec={"mark": mark})
    assert [marking_rules.rules_of_node(programs.rules, node) for node in range(4)] == [[1, 2], [2], [0, 2], [2]]
    assert programs.rules[1].to == host_address(3)
    text = marking_rules.rules_text(programs.rules, 2)
    assert text.index('comment "0"') < text.index('comment "2"') and 'comment "1"' not in text
    assert marking_rules.rules_text((), 0) == ""


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"asked": {"hosts": ("h0", "h9")}}, "--hosts"),
        ({"asked": {"hosts": ("h0", "h0")}}, "--hosts"),
        ({"asked": {"ranks_per_host": 65}}, "exec.ranks_per_host"),
        ({"exec": {"mark": [{"rank": 4, "priority": 0}]}}, "exec.mark[0].rank"),
        ({"exec": {"ranks_per_host": 2, "mark": [{"rank": 0, "priority": 0}]}}, "exec.mark[0].rank"),
    ],
)
def test_request_that_does_not_fit_the_network_names_the_invalid_key(given: dict[str, object], where: str):
    assert wrong(**given) == [where]


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ({"mark": [{"port": 80}]}, "exec.mark[0]"),
        ({"mark": [{"port": 0, "priority": 0}]}, "exec.mark[0].port"),
        ({"mark": [{"port": "9-5", "priority": 0}]}, "exec.mark[0].port"),
        ({"mark": [{"host": "h0", "rank": 0, "priority": 0}]}, "exec.mark[0].rank"),
        ({"mark": [{"host": "h7", "priority": 0}]}, "exec.mark[0].host"),
        ({"mark": [{"priority": 4}]}, "exec.mark[0].priority"),
        ({"hosts": ["h0", "h0"]}, "exec.hosts"),
        ({"host": [{"name": "h9", "congestion": "reno"}]}, "exec.host[0].name"),
        ({"congestion": "Reno; rm"}, "exec.congestion"),
        ({"min_rto": "1500us"}, "exec.min_rto"),
        ({"min_rto": "100us"}, "exec.min_rto"),
        ({"memory": "64MiB"}, "exec.memory"),
    ],
)
def test_invalid_exec_table_is_rejected_on_load(table: dict[str, object], where: str):
    with pytest.raises(ScenarioError) as caught:
        scenario_of(exec=table)
    assert [mistake.path for mistake in caught.value.mistakes] == [where]


@pytest.mark.parametrize(
    ("word", "why"),
    [("no-such-program", "not in PATH"), ("./no-such-file", "no such program"), ("/tmp", "is a folder"), (__file__, "is not executable")],
)  # fmt: skip
def test_command_that_cannot_be_run_is_rejected(word: str, why: str):
    command = (word,)
    with pytest.raises(GradwireError, match=f"cannot be run: {why}"):
        made(command)


def test_jobs_and_unsupported_faults_are_rejected_for_programs():
    job = {"name": "j", "workers": 2, "exchange": {"kind": "ring"}, "trace": "resnet20"}
    fault = [{"kind": "link_degraded", "between": ["h0", "s0"], "rate": "1Mbps", "at": "1ms"},
             {"kind": "host_slow", "host": "h0", "factor": 2.0, "at": "1ms"},
             {"kind": "link_down", "between": ["h0", "s0"], "at": "1ms"}]  # fmt: skip
    with pytest.raises(ScenarioError) as caught:
        check_scenario(scenario_of(job=[job], fault=fault), programs=True)
    assert [mistake.path for mistake in caught.value.mistakes] == ["fault[0]", "fault[1]", "job[0]"]
    with pytest.raises(ScenarioError, match="gradwire exec"):
        check_scenario(scenario_of())  # nothing to emulate


def test_exec_table_does_not_change_the_scenario_digest():
    assert scenario_of(exec={"ecn": True}).digest() == scenario_of().digest()


# marks


def test_mark_appends_json_lines_to_the_marks_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gradwire.mark(1)  # nobody wants to know
    monkeypatch.setenv("GRADWIRE_MARKS", str(tmp_path / "0"))
    monkeypatch.setenv("RANK", "5")
    gradwire.mark()
    gradwire.mark(3, loss=0.5, phase="late")
    first, second = [json.loads(line) for line in (tmp_path / "0").read_text().splitlines()]
    assert (
        first["rank"] == second.pop("rank") == 5
        and set(first) == {"time_ns", "rank"}
        and first["time_ns"] <= second.pop("time_ns")
    )
    assert second == {"step": 3, "loss": 0.5, "phase": "late"}
    monkeypatch.setenv("GRADWIRE_MARKS", str(tmp_path / "no" / "folder"))
    gradwire.mark(4)  # a run is worth more


def test_mark_imports_no_heavy_packages():
    code = (
        "import sys, gradwire; gradwire.mark(0); print([m for m in ('numpy', 'pydantic', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def marks_file(left: Path, rank: int, *entries: object) -> None:
    (left / rank_environment.MARKS).mkdir(exist_ok=True)
    lines = [each if isinstance(each, str) else json.dumps(each) for each in entries]
    (left / rank_environment.MARKS / str(rank)).write_text("\n".join(lines) + "\n")


def test_iterations_span_consecutive_marks(tmp_path: Path):
    marks_file(tmp_path, 0, {"time_ns": 1100}, {"time_ns": 1250, "step": 7}, "no mark", {"step": 8},
               {"time_ns": 1400, "step": 9, "computed_ns": 30, "loss": 2.5})  # fmt: skip
    marks_file(tmp_path, 1, {"time_ns": 1000, "rank": 2}, {"time_ns": 1001, "rank": 2})  # without a number, another's
    marks, wrong = outcome.read_marks(tmp_path, 3, began_ns=1000)
    assert wrong == ["""rank 0: lines are not marks such as {"time_ns": 81234567}: 'no mark' and 1 more"""]
    table = outcome.iterations(marks, "train")
    assert table["job"] == ["train"] * 3
    rows = list(zip(*(table[key] for key in ("worker", "iteration", "start_ps", "end_ps", "compute_ps", "exposed_ps")), strict=True))  # fmt: skip
    assert rows == [
        (0, 7, 100_000, 250_000, 0, 150_000),
        (0, 9, 250_000, 400_000, 30_000, 120_000),
        (2, 0, 0, 1000, 0, 1000),
    ]
    outcome.write_marks(marks, tmp_path / "marks.csv")
    with (tmp_path / "marks.csv").open() as file:
        written = list(csv.DictReader(file))
    assert written[2] == {"rank": "0", "step": "9", "time_s": "0.000000400", "computed_ns": "30", "loss": "2.5"}


def test_failures_list_ranks_that_failed_unprompted_by_end_time():
    ranks = [
        {"rank": 0, "host": "h0", "status": -15, "ended_ps": 900, "made_to_end": True},
        {"rank": 1, "host": "h1", "status": -11, "ended_ps": 500, "made_to_end": False},
        {"rank": 2, "host": "h2", "status": 3, "ended_ps": 400, "made_to_end": False},
        {"rank": 3, "host": "h3", "status": 0, "ended_ps": 100, "made_to_end": False},
    ]
    assert outcome.failures(ranks) == ["rank 2 at h2 ended with status 3", "rank 1 at h1 was killed by SIGSEGV"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "has no command"),
        (("--ranks-per-host", "0", "--", "true"), "--ranks-per-host: is 0"),
        (("--compute", "guess", "--", "true"), "--compute: is 'guess'"),
        (("--hosts", "h0,,h1", "--", "true"), "--hosts: 'h0,,h1' has an empty name"),
        (("--at", "s0", "--", "true"), "--pcap FOLDER as well"),
        (("--clock", "sundial", "--", "true"), "unknown clock 'sundial'"),
    ],
)
def test_invalid_exec_arguments_yield_one_error_message(arguments: tuple[str, ...], words: str):
    done = CliRunner().invoke(app, ["exec", "four-hosts", *arguments])
    assert done.exit_code == 2 and words in done.stderr and done.stderr.count("gradwire: ") == 1


def test_exec_trace_and_compute_trace_require_each_other():
    for asked, table, path in (
        ({"compute": "trace"}, {}, "exec.trace"),
        ({"trace": "resnet20"}, {}, "--trace"),
        ({"trace": "resnet20"}, {"compute": "measured"}, "--trace"),
        ({}, {"compute": "trace"}, "exec.trace"),
    ):
        with pytest.raises(ScenarioError) as caught:
            made(asked=asked, exec=table)
        assert [mistake.path for mistake in caught.value.mistakes] == [path]
    with pytest.raises(GradwireError, match="nothing"):
        made(asked={"compute": "trace", "trace": "nothing"})
    with pytest.raises(ScenarioError, match="has no effect"):
        scenario_of(exec={"trace": "resnet20"})


def test_compute_trace_provides_and_reports_recorded_times():
    programs = made(asked={"trace": "resnet50-v100"}, exec={"compute": "trace", "compute_scale": 2.0})
    assert programs.trace == "resnet50-v100"
    assert json.loads(programs.times)["layers"]
    assert (
        rank_environment.environment(programs, programs.ranks[0], "p0", Path("/x/left"), "virtual")["GRADWIRE_TIMES"]
        == "/x/timetable.json"
    )
    assert "GRADWIRE_TIMES" not in rank_environment.environment(
        programs, programs.ranks[0], "p0", Path("/x/left"), "wall"
    )
    (said,) = program_departures(programs, "virtual")
    assert said == "computing takes 2 times the times recorded in the trace 'resnet50-v100'"


def test_compute_scale_applies_to_compute_mode_of_the_command_line():
    asked = {"compute": "trace", "trace": "resnet50-v100"}
    programs = made(asked=asked, exec={"compute_scale": 50.0})
    assert (programs.compute, programs.scale) == ("trace", 50.0)
    assert made(asked={"compute": "measured"}, exec={"compute_scale": 3.0}).scale == 3.0
    assert wrong(exec={"compute_scale": 50.0}) == ["exec.compute_scale"]
    assert wrong(asked={"compute": "none"}, exec={"compute": "measured", "compute_scale": 2.0}) == [
        "exec.compute_scale"
    ]


def test_scenario_in_the_result_reproduces_the_request():
    """Running the written scenario gives the same programs and trace."""
    trace, folder = load_trace("resnet50-v100"), str(BUNDLED / "resnet50-v100")
    asked = {"hosts": ("h2", "h0"), "compute": "trace", "trace": folder}
    scenario = scenario_of(exec={"compute_scale": 2.0, "grace": "1s"})
    ran = with_request(scenario, ProgramRequest(("true",), **asked))
    again = build_scenario(tomllib.loads(scenario_text(ran)))
    assert again.exec == ran.exec and ran.exec is not None and ran.exec.trace == folder
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    for each, more in ((scenario, asked), (again, {})):
        programs = programs_of(each, network, ProgramRequest(("true",), environment={"PATH": "/bin"}, cwd="/", **more))
        assert programs.trace_hash == trace.digest() and [rank.host for rank in programs.ranks] == ["h2", "h0"]
    none = with_request(again, ProgramRequest(("true",), compute="none"))
    assert none.exec is not None and none.exec.trace is None and "trace" not in none.exec.model_fields_set


def test_side_effects_of_traffic_on_programs_are_reported():
    traffic = {"kind": "incast", "name": "in", "fan_in": 2, "size": "5kB", "transport": {"kind": "cubic", "ecn": True}}

    def said(**more: object) -> list[str]:
        scenario = scenario_of(**more)
        found = resolve(scenario)
        asked = ProgramRequest(("true",), environment={"PATH": "/bin"})
        plan = make_plan(
            scenario, found, clock="virtual", switch="bpf", programs=programs_of(scenario, found.network, asked)
        )
        return traffic_side_effects(scenario, plan)

    assert said() == []
    size, tcp = said(traffic=[traffic])
    assert "up to 4148 bytes instead of 1500 (exec.mtu)" in size
    assert tcp.endswith("a minimum RTO of 2ms, an initial window of 10 packets, ECN")
    small = {**traffic, "transport": {"kind": "cubic", "payload": "1448B"}}
    (tcp,) = said(traffic=[small], exec={"min_rto": "200ms"})
    assert tcp.endswith("at their hosts: an initial window of 10 packets")


def test_untagged_packets_of_kernel_tcp_are_reported():
    said = {each.policy_name: untagged_job_notes(each) for each in load_scenario("testbed-wall").variants()}
    assert said["cubic"] == said["dlcp"] == []
    (line,) = untagged_job_notes(load_scenario("testbed-wall", policy="cubic", set=["job.tagging.magnitude=true"]))
    assert "packets of resnet20 are not tagged" in line and "(cubic)" in line


def test_transport_without_traffic_is_rejected_for_programs():
    with pytest.raises(ScenarioError) as caught:
        check_scenario(scenario_of(transport="dctcp"), programs=True)
    assert [mistake.path for mistake in caught.value.mistakes] == ["transport"]
    traffic = {"kind": "incast", "name": "in", "fan_in": 2, "size": "5kB"}
    check_scenario(scenario_of(transport="dctcp", traffic=[traffic]), programs=True)
    check_scenario(scenario_of(), programs=True)


def test_compute_modes_require_the_virtual_clock():
    """A command-line option is rejected on the wall clock; a scenario setting is reported as a departure."""
    for asked, option in (
        ({"trace": "resnet20", "compute": "trace"}, "--trace"),
        ({"compute": "measured"}, "--compute"),
    ):
        with pytest.raises(ScenarioError) as caught:
            check_clock(ProgramRequest(("true",), **asked), "wall")
        assert [mistake.path for mistake in caught.value.mistakes] == [option]
        check_clock(ProgramRequest(("true",), **asked), "virtual")
    check_clock(ProgramRequest(("true",), compute="none"), "wall")
    assert program_departures(made(), "wall") == []
    (said,) = program_departures(made(exec={"compute": "measured"}), "wall")
    assert said == 'computing takes real time: compute = "measured" is for the virtual clock'


def test_forward_and_backward_times_are_read_from_marks():
    marks = [{"rank": 0, "step": None, "time_ns": 1000},
             {"rank": 0, "step": 0, "time_ns": 9000, "computed_ns": 5000, "forward_ns": 2000, "backward_ns": 6000}]  # fmt: skip
    table = outcome.iterations(marks, "x")
    found = {key: values[0] for key, values in table.items()}
    assert (found["forward_end_ps"], found["backward_end_ps"]) == (3_000_000, 7_000_000)
    assert (found["compute_ps"], found["exposed_ps"]) == (5_000_000, 3_000_000)
