"""What fidelity shows and leaves behind, how its command ends, and the scenario's table of tolerances."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from fidelity_cases import SIM, later, result, tables
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pydantic import ValidationError
from star_cases import star_scenario
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.comparison.plots import logarithmic
from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.analysis.fidelity.fidelity_plot import draw_fidelity
from gradwire.analysis.fidelity.fidelity_report import MOST_PORTS, compare_runs, fidelity_grids, write_report
from gradwire.cli.commands import testbed as testbed_cli
from gradwire.emu.control.supervisor import EmulationInterrupted
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.fidelity import Fidelity
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate


def scenario(**fidelity: Any) -> Scenario:
    return star_scenario(fidelity=fidelity)


def test_report_prints_a_table_and_writes_files(tmp_path, capsys):
    changed = tables()
    later(1.5)(changed)
    emu = result(changed)
    shown = compare_runs([SIM], [emu], Fidelity())
    write_report(shown, tmp_path / "out")
    printed = capsys.readouterr().out
    assert not shown.passed and shown.lines[-1] == "case: FAILED, 5 of 8 figures within their tolerances"
    line = next(line for line in printed.splitlines() if line.startswith("completion, mean of train, push"))
    assert [cell.strip() for cell in line.split("|")[1:]] == ["110 us", "164 us", "+50.00 %", "10 %", "MISSED"]
    assert max(map(len, printed.splitlines())) <= 100
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "fidelity.json", "fidelity.csv", "fidelity.png", "results",
    }  # fmt: skip
    data = json.loads((tmp_path / "out" / "fidelity.json").read_text())
    assert data == json.loads(json.dumps(shown.data)) and data["passed"] is False
    assert data["emulated_over_simulated"]["p50"] == pytest.approx(1.5)
    assert data["ports"][1]["drops_tail"] == [1000, 1000]
    assert (tmp_path / "out" / "fidelity.csv").read_text().count("\n") == 1 + len(data["measures"])
    assert Result.read(tmp_path / "out" / "results" / "emulated").messages.equals(emu.messages)
    assert (tmp_path / "out" / "fidelity.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ResultError, match="exists already"):
        write_report(shown, tmp_path / "out")


def test_quiet_comparison_prints_nothing(capsys):
    assert compare_runs([SIM], [SIM], Fidelity(), quiet=True).passed
    assert capsys.readouterr().out == ""


def test_comparison_uses_the_given_tolerances():
    changed = tables()
    later(1.05)(changed)
    emu = result(changed)
    assert compare_runs([SIM], [emu], Fidelity(), quiet=True).passed
    assert not compare_runs([SIM], [emu], Fidelity(completion_mean=0.02), quiet=True).passed


def test_ports_with_the_largest_differences_are_shown():
    changed = tables()
    ports = {name: [0] * 20 for name in TABLES["ports"]} | {
        "port": [f"s0->h{i}" for i in range(20)],
        "marks": [100] * 20,
    }
    changed["ports"] = ports
    other = deepcopy(changed)
    other["ports"]["marks"] = [100 + i for i in range(20)]
    found = agreement(result(changed), result(other), Fidelity(marks="off"))
    table = fidelity_grids(found)[1]
    assert table.title == f"ports: the {MOST_PORTS} largest differences of 20"
    assert [row[0] for row in table.rows] == [f"marks of s0->h{i}" for i in range(19, 11, -1)]


def nothing_delivered(seed: int) -> Result:
    changed = tables()
    changed["messages"]["end_ps"] = [-1] * len(changed["messages"]["end_ps"])
    return result(changed, seed=seed)


def slower(factor: float, seed: int) -> Result:
    changed = tables()
    later(factor)(changed)
    return result(changed, seed=seed)


def test_seed_without_deliveries_is_excluded_from_the_mean_difference(capsys):
    simulated = [result(seed=seed) for seed in (1, 2, 3)]
    shown = compare_runs(simulated, [slower(1.1, 1), nothing_delivered(2), slower(1.3, 3)], Fidelity())
    printed = capsys.readouterr().out
    assert shown.data["seeds"][1] == {"seed": 2, "sim": None, "emu": None, "difference": None}
    lines = {line.split("|")[0].strip(): line for line in printed.splitlines() if "|" in line}
    assert "none in both" in lines["2"]
    assert "+20.0 % ± 127.06" in lines["mean difference"]  # of +10 and +30 %
    said = shown.data["mean_difference"]
    assert said == pytest.approx({"mean": 0.2, "low": 0.2 - 1.2706, "high": 0.2 + 1.2706, "seeds": 2})


def test_mean_difference_requires_several_seeds_and_deliveries():
    assert compare_runs([SIM], [slower(1.1, 1)], Fidelity(), quiet=True).data["mean_difference"] is None
    nothing = [nothing_delivered(seed) for seed in (1, 2)]
    assert compare_runs(nothing, nothing, Fidelity(), quiet=True).data["mean_difference"] is None


def test_mean_difference_of_one_delivering_seed_has_no_interval(capsys):
    simulated = [result(seed=seed) for seed in (1, 2)]
    shown = compare_runs(simulated, [slower(1.1, 1), nothing_delivered(2)], Fidelity())
    assert shown.data["mean_difference"] == {"mean": pytest.approx(0.1), "low": None, "high": None, "seeds": 1}
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mean difference"))
    assert "+10.0 %" in line and "±" not in line


@pytest.mark.parametrize("simulated, emulated, words", [
    ([], [], "0 simulated and 0 emulated"), ([SIM, SIM], [SIM], "2 simulated and 1 emulated"), ([SIM, SIM], [SIM, SIM], "seeds are not distinct"),
])  # fmt: skip
def test_unpaired_runs_are_refused(simulated, emulated, words):
    with pytest.raises(ResultError, match=words):
        compare_runs(simulated, emulated, Fidelity(), quiet=True)


def test_iteration_plot_overlays_several_seeds(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    monkeypatch.setattr(
        "gradwire.analysis.fidelity.fidelity_plot.save_figure", lambda figure, *_, **__: drawn.append(figure)
    )
    runs = [result(seed=seed) for seed in (1, 2)]
    for simulated in (runs, runs[:1]):
        shown = compare_runs(simulated, simulated, Fidelity(), quiet=True)
        draw_fidelity(shown.found, shown.simulated, shown.emulated, tmp_path / "picture.png")
    panels = [next(each for each in figure.axes if "iterations" in each.get_title(loc="left")) for figure in drawn]
    assert [panel.lines[0].get_xdata().tolist() for panel in panels] == [[0, 1, 2]] * 2
    assert [panel.get_title(loc="left").split("(")[1] for panel in panels] == [
        "band: all workers and seeds)",
        "band: all workers)",
    ]


def test_scenario_tolerances_are_read_without_changing_the_digest(tmp_path):
    plain = star_scenario()
    assert plain.fidelity == Fidelity() and plain.fidelity.completion_mean == 0.10
    given = scenario(completion_p99="off", marks=0.5, drops_packets=3)
    assert (given.fidelity.completion_p99, given.fidelity.marks, given.fidelity.drops_packets) == (None, 0.5, 3)
    assert given.digest() == plain.digest()
    again = Scenario.model_validate(json.loads(json.dumps(given.as_written())))
    assert again.fidelity == given.fidelity
    assert given.variants()[0].fidelity == given.fidelity


@pytest.mark.parametrize("value", [-0.1, "2%", True, float("inf"), float("nan"), "on", [0.1]])
def test_invalid_tolerances_are_refused(value):
    with pytest.raises(ValidationError):
        Fidelity(completion_mean=value)


def test_unknown_fidelity_keys_are_refused():
    with pytest.raises(ValidationError):
        Fidelity(speed=0.1)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A function that runs `gradwire fidelity` where real sockets give what a simulation of another scenario gives."""
    tables = {
        "name": "case", "topology": {"kind": "star", "hosts": 3}, "link": {"rate": "1Gbps", "latency": "10us"},
        "host": {"software_latency": "50us"}, "switch": {"buffer": "64KiB"}, "transport": {"kind": "constant_rate", "payload": "1400B"},
        "traffic": [{"kind": "incast", "name": "in", "size": "20kB", "fan_in": 2, "receiver": "h0"}],
    }  # fmt: skip

    def run(
        *arguments: str,
        engine: dict[str, Any] | None = None,
        rate: str = "1Gbps",
        interrupted=False,
        late=None,
        stop=KeyboardInterrupt,
        **fidelity: Any,
    ):
        def emulate(scenario, trace, request, on_progress):
            if engine is None:
                raise KeyboardInterrupt
            if late is not None and scenario.seed == late:
                raise stop
            assert (scenario.seed > 1) == bool(scenario.link_override), "cables of later seeds are longer"
            slower = build_scenario({**tables, "link": {"rate": rate, "latency": "10us"}, "seed": scenario.seed})
            found = simulate(slower)
            of = {"scenario_hash": scenario.digest()}
            about = {
                "kind": "emulation",
                "clock": "wall",
                "switch": "bpf",
                "kernel": "6",
                "substitutions": [],
                **engine,
            }
            made = Result(**{**vars(found), "summary": {**found.summary, **of, "engine": about}})
            if interrupted:
                raise EmulationInterrupted(made)
            return made

        monkeypatch.setattr(testbed_cli, "emulate", emulate)
        monkeypatch.setattr(
            "gradwire.scenarios.loading.load.load_scenario",
            lambda *a, **b: build_scenario({**tables, "fidelity": fidelity}),
        )
        return CliRunner().invoke(cli.app, ["fidelity", "case", *arguments])

    return run


VALID = {"valid": True, "disturbed": []}


def test_fidelity_command_exits_with_0_if_runs_agree(command):
    done = command("--json", engine=VALID)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["passed"] and data["engine"]["kind"] == "emulation"
    assert all(each["low"] is None for each in data["measures"])


def test_fidelity_command_exits_with_1_if_runs_differ_or_are_disturbed(command):
    done = command(engine=VALID, rate="500Mbps")
    assert done.exit_code == 1 and "FAILED" in done.stdout and "missed: completion, mean" in done.stdout
    done = command(engine={"valid": False, "disturbed": ["it stood still"]})
    assert done.exit_code == 1 and "invalid: it stood still" in done.stdout


def test_fidelity_command_measures_the_simulation_spread(command):
    done = command("--json", engine=VALID, spread=3)
    assert done.exit_code == 0, done.output
    mean = next(each for each in json.loads(done.stdout)["measures"] if each["what"] == "completion_mean")
    assert mean["low"] < mean["high"]


def test_fidelity_command_simulates_and_emulates_every_seed(command, tmp_path):
    done = command("--out", str(tmp_path / "out"), engine=VALID, seeds=3, rate="900Mbps", completion_mean=0.2)
    assert "seed by seed" in done.stdout and "mean difference" in done.stdout
    folders = {
        str(path.relative_to(tmp_path / "out" / "results")) for path in (tmp_path / "out").rglob("iterations.parquet")
    }
    assert folders == {
        f"seed-{seed}/{world}/iterations.parquet" for seed in (1, 2, 3) for world in ("simulated", "emulated")
    }
    data = json.loads((tmp_path / "out" / "fidelity.json").read_text())
    assert [row["seed"] for row in data["seeds"]] == [1, 2, 3] and data["messages"] == 6
    found = data["mean_difference"]
    half = f"± {100 * (found['high'] - found['mean']):.2f}"
    assert found["low"] < found["mean"] < found["high"] and found["seeds"] == 3 and half in done.stdout
    assert all(
        row["difference"] == pytest.approx(row["emu"] / row["sim"] - 1) and row["difference"] > 0.02
        for row in data["seeds"]
    )
    mean = next(each for each in data["measures"] if each["what"] == "completion_mean")
    assert mean["sim"] == pytest.approx(sum(row["sim"] for row in data["seeds"]) / 3)


@pytest.mark.parametrize(
    "stop, code", [(KeyboardInterrupt, 130), (TestbedError("the runner is gone", "testbed", usage=False), 1)]
)
def test_fidelity_command_keeps_finished_seeds_if_emulation_stops(stop, code, command, tmp_path):
    done = command("--out", str(tmp_path / "out"), engine=VALID, seeds=2, late=2, stop=stop)
    assert done.exit_code == code and "not compared" in done.stderr
    assert (code == 1) == ("the runner is gone" in done.stderr)
    results = tmp_path / "out" / "results"
    assert sorted(str(each.relative_to(results)) for each in results.glob("*/*")) == [
        "seed-1/emulated", "seed-1/simulated", "seed-2/simulated",
    ]  # fmt: skip


def test_fidelity_command_keeps_finished_seeds_if_simulation_is_interrupted(command, tmp_path, monkeypatch):
    def interrupted(scenario):
        if scenario.seed == 3:
            raise KeyboardInterrupt
        return simulate(scenario)

    monkeypatch.setattr("gradwire.sim.simulate.simulate", interrupted)
    done = command("--out", str(tmp_path / "out"), engine=VALID, seeds=4)
    assert done.exit_code == 130 and "not compared" in done.stderr
    results = tmp_path / "out" / "results"
    assert sorted(str(each.relative_to(results)) for each in results.glob("*/*")) == [
        "seed-1/simulated",
        "seed-2/simulated",
    ]


def test_interrupted_fidelity_command_keeps_results_without_comparison(command, tmp_path):
    done = command("--out", str(tmp_path / "out"))
    assert done.exit_code == 130 and "not compared" in done.stderr
    assert [path.name for path in (tmp_path / "out" / "results").iterdir()] == ["simulated"]
    done = command("--out", str(tmp_path / "part"), engine=VALID, interrupted=True)
    assert done.exit_code == 130 and "not compared" in done.stderr
    assert {path.name for path in (tmp_path / "part" / "results").iterdir()} == {"simulated", "emulated"}


@pytest.mark.parametrize("low, high, shown", [(2.6, 80, ["5", "10", "20", "50"]), (0.5, 30000, None)])
def test_tick_labels_of_a_log_axis_do_not_overlap(low, high, shown):
    figure = Figure(figsize=(4, 3))
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([low, high], [0, 1])
    logarithmic(axes)
    canvas.draw()
    left, right = axes.get_xlim()
    ticks = [*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks()]
    seen = sorted(
        (tick.get_loc(), tick.label1) for tick in ticks if left <= tick.get_loc() <= right and tick.label1.get_text()
    )
    texts = [label.get_text() for _, label in seen]
    assert len(texts) >= 3 and "×" not in "".join(texts)
    assert shown is None or texts == shown
    boxes = [label.get_window_extent() for _, label in seen]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
