"""What a report can be made of, small: runs, a comparison, a sweep, claims, trainings, and how two worlds agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fidelity_cases import STRICT, compared_result, later, tables
from fidelity_cases import result as simulated
from sweep_cases import sweep_tables

import gradwire
from gradwire.analysis.fidelity.fidelity_report import compare_runs
from gradwire.analysis.fidelity.fidelity_report import write_report as write_fidelity
from gradwire.result_store.training_result import TrainingResult
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claims_page import as_dict
from gradwire.studies.reproduce.run_plan import runs_of_claim
from gradwire.studies.reproduce.verdicts import judge

SHORT = ("job.iterations=4", "job.workers=2", "job.servers=1", "output.queue_samples=20us")
"""The demo, small enough for a test; with a policy that drops packets."""
PLOTS: list[dict[str, Any]] = [
    {"name": "mean", "kind": "lines", "x": "load", "y": "slowdown_mean", "by": "buffer"},
    {"name": "map", "kind": "heatmap", "x": "load", "y": "buffer", "value": "all_mean_ps"},
    {"name": "late", "kind": "tail", "by": "load", "where": "buffer == 1MiB"},
    {"name": "early", "kind": "cdf", "x": "slowdown", "panels": "load", "where": "buffer == 1MiB"},
    {"name": "front", "kind": "pareto", "x": "slowdown_mean", "y": "marks", "by": "load"},
]


def runs() -> Any:
    """A comparison of the demo's policies."""
    return gradwire.compare("demo", set=SHORT)


def sweep(folder: Path) -> Any:
    """A sweep with a plot of every kind, in a folder."""
    return gradwire.sweep(
        sweep_tables(plot=PLOTS, measures=["slowdown_mean", "all_mean_ps", "marks"]), out=folder, jobs=1
    )


def claims(folder: Path, names: Sequence[str] = ("fan-in 16",), figures_of_each: int = 1) -> Path:
    """A claim that does not show, in settings of these names, with figures of three seeds."""
    settings = tuple(Setting(name, "incast-mix", ("dlcp", "dctcp-10ms")) for name in names)
    first = names[0]
    expects = (
        Expect("p99 <of> DLCP", lambda at: at(first, "dlcp", "p99"), (first,), high=1e9, unit="time"),
    ) * figures_of_each
    claim = Claim("S1", "[ours]", "DLCP is faster & better.", "-50 %", settings, expects, "p99", "of `messages`")
    plan = runs_of_claim(claim, 3, False)
    figures = {run.key: {"p99": (2 + n) * 1e9, "mean": 1e9, "tail_timed_out": 0.0} for n, run in enumerate(plan)}
    folder.mkdir(parents=True)
    text = json.dumps({"command": "gradwire reproduce dlcp --claim S1", **as_dict([judge(claim, plan, figures)])})
    (folder / "claims.json").write_text(text)
    return folder


def trainings(folder: Path) -> Path:
    """Two trainings, of which one loses a tenth and learns less."""
    for name, lost in (("dctcp", 0.0), ("dlcp", 0.1)):
        place = folder / name
        place.mkdir(parents=True)
        steps = [
            {"step": n, "loss": 2.0 / (n + 1) + lost, "rate": 0.1, "sent_bytes": 1000, "lost": lost, "time_ps": 10**9,
             "clock_ps": (n + 1) * 10**9, "apart_max": 0.0, "apart_rms": 0.0, "lost_back": 0.0, "encode_ps": 0, "decode_ps": 0,
             "pulled_bytes": 0, "retransmitted": 0} for n in range(6)
        ]  # fmt: skip
        scores = [
            {"step": n, "loss": 1.0, "accuracy": 0.1 * n - lost / 10, "clock_ps": n * 10**9, "sent_bytes": 1000 * n, "pulled_bytes": 0}
            for n in (2, 4, 6)
        ]  # fmt: skip
        summary = {
            "name": "tiny",
            "policy": name,
            "label": name.upper(),
            "steps_done": 6,
            "steps": 6,
            "command": "gradwire train tiny",
        }
        TrainingResult(summary, {"steps": steps, "scores": scores, "lost": []}).write(place, 'name = "tiny"\n')
    (folder / "trainings.txt").write_text("trainings\n")
    return folder


def fidelity(folder: Path) -> Path:
    """An emulated run whose completion times are 1 % longer."""
    sim, emu = simulated(), compared_result(later(1.01))
    write_fidelity(compare_runs([sim], [emu], STRICT, quiet=True), folder)
    return folder


def fidelity_of_seeds(folder: Path) -> Path:
    """Two seeds of each world; those that are emulated are 1 % longer."""
    changed = tables()
    later(1.01)(changed)
    runs = [[simulated(each, seed=seed) for seed in (1, 2)] for each in (None, changed)]
    write_fidelity(compare_runs(*runs, STRICT, quiet=True), folder)
    return folder
