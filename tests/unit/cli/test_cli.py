"""The command line: what it prints, how it exits, how fast it starts, what it leaves behind.

Commands run in processes of their own, because exit codes are what is tested; what they import, in new ones. What they
call in other rooms has its own tests; where a command only passes things on, a stand-in takes that room's place.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from output_cases import gradwire_command, run
from typer.testing import CliRunner

import gradwire
from gradwire import cli
from gradwire.result_store.result import Result, summarise
from gradwire.sim.progress import ProgressReport
from gradwire.sim.simulate import Stalled

ROOT = Path(gradwire.__file__).resolve().parents[1]


def imported(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    script = f"import sys\n{code}\nprint('|'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split("|"))


HEAVY = {"numba", "pyarrow", "matplotlib", "simpy", "torch", "networkx", "numpy"}


def test_import_gradwire_loads_no_heavy_package():
    assert not imported("import gradwire") & (HEAVY | {"pydantic"})
    assert not imported("import gradwire; gradwire.load_scenario('demo')") & HEAVY
    assert not imported("import gradwire; gradwire.Result") & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["check", "demo"]])
def test_help_and_check_load_no_engine(arguments: list[str]):
    # Both promise an answer within a second; what would break the promise is loading one of these.
    code = f"from gradwire import cli\nsys.argv = ['gradwire', *{arguments!r}]\ntry:\n    cli.main()\nexcept SystemExit:\n    pass"
    assert not imported(code) & {"numba", "matplotlib", "simpy", "torch", "networkx", "pandas"}


def test_help_names_every_command():
    shown = run("--help").stdout
    for command in ("demo", "run", "compare", "check", "schema", "new", "telemetry", "capture", "trace", "bench"):
        assert command in shown


def cost_line(text: str) -> str:
    """The line on the cost, whose figures other tests check."""
    (line,) = (line for line in text.splitlines() if line.startswith("cost: "))
    return line


def test_check_prints_policies_network_and_notes():
    checked = run("check", "demo")
    assert checked.stdout == (
        "demo is valid: dctcp, dctcp-priority, dlcp\n"
        "network: 16 hosts, 8 switches, 32 cables, base round trips of 4.67 us to 9.35 us\n"
        f"{cost_line(checked.stdout)}\n"
        "note: dlcp: the thresholds of the 7 queues that carry data are 672KiB together, more than switch.buffer, "
        "512KiB: low classes can crowd high ones out (switch.buffer_share reserves space for them)\n"
    )
    done = run("check", "demo", "--set", 'switch.ecn_threshold="600KiB"', "--set", "switch.buffer=8MiB", "--json")
    about = json.loads(done.stdout)
    assert len(about.pop("costs")) == 3
    assert about == {
        "name": "demo",
        "policies": ["dctcp", "dctcp-priority", "dlcp"],
        "networks": [
            {
                "policies": ["dctcp", "dctcp-priority", "dlcp"], "hosts": 16, "cards": 16, "switches": 8, "cables": 32,
                # under a leaf by DLCP, over a spine by TCP, at 100 Gbps and 1 us
                "base_rtt_ps": [2 * 80 * (4154 + 60) + 4 * 10**6, 4 * 80 * (4162 + 66) + 8 * 10**6],
                "machines": 0,
            }
        ],
        "notes": [],
    }  # fmt: skip


def test_check_of_one_policy_accepts_the_same_scenarios_as_run(tmp_path: Path):
    """Overrides apply to that policy, other policies may be invalid, and messages equal those of `run`."""
    assert run("check", "demo", "--policy", "dctcp").stdout.splitlines() == [
        "demo is valid: dctcp", "network: 16 hosts, 8 switches, 32 cables, base round trips of 4.68 us to 9.35 us",
        cost_line(run("check", "demo", "--policy", "dctcp").stdout),
    ]  # fmt: skip
    lossy = ("demo", "--policy", "dlcp", "--set", "job.push_bound=0.2")  # of which the others are refused
    assert run("check", *lossy).stdout.startswith("demo is valid: dlcp\n")
    base = tmp_path / "base.toml"
    base.write_text(
        'name = "base"\n[topology]\nkind = "star"\nhosts = 2\n'
        '[[job]]\nname = "j"\ntrace = "resnet20"\nworkers = 3\nexchange = { kind = "ring" }\n'
        '[[policy]]\nname = "two"\nset = { job = { workers = 2 } }\n'
    )
    assert run("check", str(base)).returncode == 2
    assert json.loads(run("check", str(base), "--policy", "two", "--json").stdout)["policies"] == ["two"]
    for wrong in (
        ("demo", "--policy", "other"), ("ring", "--policy", "dlcp"), ("demo", "--policy", "dctcp", *lossy[3:]),
        (str(base), "--policy", "two", "--set", "job.workers=4"),
    ):  # fmt: skip
        checked, ran = (run(command, *wrong) for command in ("check", "run"))
        assert (checked.returncode, checked.stdout) == (ran.returncode, ran.stdout) == (2, "")
        assert checked.stderr == ran.stderr


def test_check_refuses_a_missing_trace():
    missing = run("check", "demo", "--trace", "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no such trace" in missing.stderr


@pytest.mark.parametrize(
    "command", ["demo", "run", "compare", "check", "schema", "new", "capture", "trace info", "bench fabric"]
)
def test_help_of_every_command_has_an_example(command: str):
    done = CliRunner().invoke(cli.app, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert f"Example: gradwire {command}" in done.output


def test_version_is_printed_by_a_fresh_process():
    done = subprocess.run(gradwire_command("--version"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gradwire {gradwire.__version__}\n", "")


def test_public_names_are_importable():
    assert set(gradwire.__all__) <= set(dir(gradwire))
    assert gradwire.Result is Result
    assert gradwire.load_scenario("demo").name == "demo"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradwire.nonsense


def test_schema_command_prints_json():
    done = run("schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "Scenario"


BAD = 'name = "bad"\ntopology = { kind = "star", hosts = 2 }\n[link]\nrate = "3Gb"\nlatncy = "1us"\n'


def test_invalid_scenario_yields_one_message_and_exit_code_2(own_directory: Path):
    Path("bad.toml").write_text(BAD)
    done = run("check", "bad.toml")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "gradwire: bad.toml: invalid scenario, 3 errors:"
    assert [line.split(":")[0] for line in lines[1:]] == ["  link.rate", "  link.latncy", "  job"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "nowhere.toml"], "no such file"),
        (["check", "nowhere"], "one of the library: accelerators, aggregation, agreement, agreement-tcp"),
        (["check", "demo", "--set", "link.rate"], "is not an override"),
        (["run", "demo", "--policy", "none"], "expected dctcp, dctcp-priority, dlcp"),
        (["run", "demo", "--out", "."], "exists already"),
        (["compare", "demo", "--out", "."], "exists already"),
        (["demo", "--out", "."], "exists already"),
    ],
)
def test_invalid_arguments_are_refused_without_traceback_or_files(
    arguments: list[str], words: str, own_directory: Path
):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("gradwire: ") == 1
    assert list(own_directory.iterdir()) == []


def test_usage_errors_exit_with_2():
    assert run("run").returncode == 2
    assert run("demo", "--threads", "0").returncode == 2


# What follows replaces the rooms behind the door with stand-ins.


class Comparison:
    """Stands in for what `gradwire.analysis.comparison.compare.compare` returns."""

    def __init__(self, results: list[Result], violations: list[str]) -> None:
        self.results, self.violations = results, violations
        self.cut_short = [result.summary["policy"] for result in results if "ended_by" in result.summary["totals"]]

    def print(self, details: bool = False) -> None:
        print("table of", [result.summary["policy"] for result in self.results])

    def as_dict(self) -> dict[str, Any]:
        return {"policies": [result.summary["policy"] for result in self.results]}

    def write(self, directory: Path, plots: str = "png", page: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ("report.html" if page else "report.md")).touch()


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stand-ins for sim and analysis; `simulate` may be replaced, `violations` filled, `calls` read."""
    state = types.SimpleNamespace(calls=[], violations=[], limits=[])

    def simulate(scenario: Any, *, threads: int, progress: Any, max_wall_s: float | None, **_: Any) -> Result:
        progress(ProgressReport(1, 2, 0.25, 10**9, 1000))
        state.calls.append((scenario.policy_name, threads, [job.trace for job in scenario.job]))
        state.limits.append(max_wall_s)
        iterations = {name: [0] for name in ("worker", "iteration", "start_ps", "forward_end_ps", "end_ps")}
        iterations |= {name: [0] for name in ("backward_end_ps", "compute_ps", "exposed_ps")}
        return Result.build(summarise(scenario, "", {}, {}), {"iterations": {"job": ["j"], **iterations}})

    state.simulate = state.made = simulate
    sim = types.ModuleType("gradwire.sim.simulate")
    sim.simulate = lambda *a, **k: state.simulate(*a, **k)  # type: ignore[attr-defined]
    sim.check_uncompiled = lambda scenarios: None  # type: ignore[attr-defined]
    sim.Stalled = Stalled  # type: ignore[attr-defined]
    compare = types.ModuleType("gradwire.analysis.comparison.compare")
    compare.compare = lambda results, parts=False, other_seeds=(): Comparison(results, state.violations)  # type: ignore[attr-defined]
    compare.result_folders = lambda results: [result.summary["policy"] for result in results]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradwire.sim.simulate", sim)
    monkeypatch.setitem(sys.modules, "gradwire.analysis.comparison.compare", compare)
    return state


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def test_run_passes_policy_threads_and_trace_and_writes_a_result(rooms: Any, own_directory: Path):
    done = invoke("run", "demo", "--policy", "dlcp", "--threads", "2", "--trace", "/other", "--out", "deep/out")
    assert done.exit_code == 0, done.output
    assert rooms.calls == [("dlcp", 2, ["/other"])]
    assert Result.read("deep/out").summary["policy"] == "dlcp"
    assert "table of ['dlcp']" in done.stdout


def test_run_without_a_policy_uses_the_scenario_as_written(rooms: Any):
    assert json.loads(invoke("run", "demo", "--json").stdout) == {"policies": ["base"]}


def test_compare_checks_all_sources_before_simulating(rooms: Any):
    done = invoke("compare", "demo", "nosuch")
    assert done.exit_code == 2 and "no such scenario" in done.stderr
    assert rooms.calls == []


def test_compare_refuses_overrides_for_results_alone(rooms: Any):
    assert invoke("run", "demo", "--out", "one").exit_code == 0
    done = invoke("compare", "one", "--set", "seed=2")
    assert done.exit_code == 2 and "overrides have no effect on it; expected gradwire run one --set" in done.stderr
    assert invoke("compare", "one", "demo", "--set", "seed=2").exit_code == 0


def test_compare_expands_a_comparison_folder(rooms: Any):
    for name in ("a", "b"):
        assert invoke("run", "demo", "--out", f"several/results/{name}").exit_code == 0
    assert json.loads(invoke("compare", "several", "--json").stdout) == {"policies": ["base", "base"]}


def test_compare_runs_all_policies_and_reads_results(rooms: Any, own_directory: Path):
    assert invoke("run", "ring", "--out", "ring-result").exit_code == 0
    done = invoke("compare", "demo", "ring-result", "--out", "out", "--json")
    assert json.loads(done.stdout) == {"policies": ["dctcp", "dctcp-priority", "dlcp", "base"]}
    assert Path("out").is_dir()


def test_demo_writes_a_report_to_a_new_directory_each_time(rooms: Any, own_directory: Path):
    done = [invoke("demo") for _ in range(2)]
    assert [each.exit_code for each in done] == [0, 0]
    assert "to open in a browser: results/demo-002/report.html" in done[1].stdout.splitlines()
    assert Path("results/demo-002/report.html").is_file()
    assert sorted(path.name for path in Path("results").iterdir()) == ["demo-001", "demo-002"]


def test_loss_bound_violation_exits_with_1(rooms: Any):
    rooms.violations.append("message 3")
    done = invoke("run", "demo")
    assert done.exit_code == 1
    assert "loss bound broken: message 3" in done.stderr


def test_stalled_simulation_exits_with_1_and_keeps_the_result(rooms: Any):
    def stalled(*given: Any, **more: Any) -> Result:
        result = rooms.made(*given, **more)
        result.summary["totals"] = {"ended_by": "stall"}
        raise Stalled("h0 waits for h1", result)

    rooms.simulate = stalled
    done = invoke("run", "demo", "--out", "out")
    assert done.exit_code == 1
    assert "h0 waits for h1" in done.stderr
    assert (Path("out") / "result.json").exists(), "what had been seen is kept"


def test_internal_error_keeps_its_traceback(rooms: Any):
    def broken(*_: Any, **__: Any) -> Result:
        raise ZeroDivisionError

    rooms.simulate = broken
    assert isinstance(invoke("run", "demo").exception, ZeroDivisionError)


def test_compare_continues_after_a_time_limit_and_exits_with_1(rooms: Any, own_directory: Path):
    works = rooms.simulate

    def second_is_late(scenario: Any, **options: Any) -> Result:
        result: Result = works(scenario, **options)
        if scenario.policy_name == "dctcp-priority":
            result.summary["totals"]["ended_by"] = "max_wall"
        return result

    rooms.simulate = second_is_late
    done = invoke("compare", "demo", "--max-wall", "1.5m", "--out", "out", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"policies": ["dctcp", "dctcp-priority", "dlcp"]}
    assert done.stderr == "time limit reached: dctcp-priority\n"
    assert rooms.limits == [90.0] * 3
    assert Path("out").is_dir()


@pytest.mark.parametrize("text", ["30", "5us", "0s", "-1s", "soon"])
def test_invalid_wall_clock_limits_are_refused(rooms: Any, text: str):
    done = invoke("run", "demo", f"--max-wall={text}")
    assert (done.exit_code, rooms.calls) == (2, [])
    assert done.stderr.startswith("gradwire: --max-wall: ")


def test_interrupted_compare_keeps_finished_runs(rooms: Any, own_directory: Path):
    works = rooms.simulate

    def second_is_interrupted(scenario: Any, **options: Any) -> Result:
        if scenario.policy_name == "dctcp-priority":
            raise KeyboardInterrupt
        result: Result = works(scenario, **options)
        return result

    rooms.simulate = second_is_interrupted
    done = invoke("compare", "demo", "--out", "out", "--json")
    assert done.exit_code == 130
    assert json.loads(done.stdout) == {"policies": ["dctcp"]}
    assert Path("out").is_dir()
    assert [call[0] for call in rooms.calls] == ["dctcp"]


def test_interrupted_run_writes_a_partial_result(rooms: Any, own_directory: Path):
    works = rooms.simulate

    def interrupted(scenario: Any, **options: Any) -> Result:
        stop = KeyboardInterrupt()
        stop.result = works(scenario, **options)  # type: ignore[attr-defined]
        raise stop

    rooms.simulate = interrupted
    assert invoke("run", "demo", "--out", "out").exit_code == 130
    assert Result.read("out").iterations.num_rows == 1


def test_interrupt_before_the_first_result_leaves_no_files(rooms: Any, own_directory: Path):
    def interrupted(*_: Any, **__: Any) -> Result:
        raise KeyboardInterrupt

    rooms.simulate = interrupted
    done = invoke("demo")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "interrupted" in done.stderr
    assert list(own_directory.iterdir()) == []
