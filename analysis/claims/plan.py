"""Plan: the runs that claims need, each once, however many claims share it.

A run is known by its key, a SHA-256 over its resolved scenario, the traces it replays and what the simulator is (its
version and sources): a kept Result is used again for exactly the same run only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gradwire.analysis.claims.claim import Claim
from gradwire.analysis.claims.policies import POLICIES, laid_over
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.load import build_scenario, load_tables
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.schema.scenario import Scenario

SOURCES = ("components", "experiment", "scenarios", "sim", "traces")
"""Rooms whose Python decides what a run gives."""


@dataclass(frozen=True)
class Run:
    """One simulation: a scenario under a policy with a seed. `name` is for people."""

    key: str
    name: str
    setting: str
    policy: str
    seed: int
    scenario: Scenario


def planned(claim: Claim, seeds: int, full: bool) -> list[Run]:
    """The runs of a claim. Raises `ScenarioError` if a scenario of it is none."""
    return [
        _run(setting.name, setting.scenario, dict(setting.changes), policy, seed)
        for setting in claim.settings
        if full or not setting.full_only
        for policy in setting.policies
        for seed in range(1, seeds + 1)
    ]


def all_runs(plans: Sequence[Sequence[Run]]) -> list[Run]:
    """Every run once, those with most hosts first: the long ones should not be what all others wait for."""
    found = {run.key: run for runs in plans for run in runs}
    return sorted(found.values(), key=_size, reverse=True)


def _size(run: Run) -> int:
    return sum(job.workers * job.iterations for job in run.scenario.job)


def _run(setting: str, name: str, changes: Json, policy: str, seed: int) -> Run:
    tables = {key: value for key, value in load_tables(name).items() if key != "policy"}
    chosen = POLICIES[policy]
    tables = laid_over(overlay(tables, changes), chosen) | {"seed": seed, "name": name}
    scenario = build_scenario(tables, f"{name}, {policy}")
    asked = (scenario.digest(), *(job.trace for job in scenario.job), engine())
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
    return Run(key, f"{setting}, {chosen.label}, seed {seed}", setting, policy, seed, scenario)


@cache
def engine() -> str:
    """What the simulator is: its version, and a digest of its sources."""
    import gradwire

    root = Path(gradwire.__file__).parent
    total = hashlib.sha256(gradwire.__version__.encode())
    for room in SOURCES:
        for path in sorted((root / room).resolve().rglob("*.py")):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()
