"""Plan: the runs that claims need, each once, however many claims share it.

A run is known by its key, a SHA-256 over its resolved scenario, the traces it replays and what the simulator is (its
version and sources): a kept Result is used again for exactly the same run only. A training's is over what it is told,
the version of torch, `EDITION` and that of its model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gradwire.analysis.claims.arms import policy_of, seeded
from gradwire.analysis.claims.claim import Claim, Setting
from gradwire.analysis.claims.policies import laid_over
from gradwire.analysis.sources import engine
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.load import build_scenario, load_tables
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.schema.scenario import Scenario

EDITION = 1
"""Of what a training gives for the same settings: to be raised when that changes. Trainings take hours, so they are not
run again for a changed comment, as simulations are."""
EDITIONS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("resnet8", "resnet20", "resnet110", "vgg11-quarter"), 1)
)
"""The same by model, where only that of one model has changed; 0 if it is not here."""
NO_DATA: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Run:
    """One simulation, or training: a scenario under a policy with a seed. `name` is for people; `target`, `rates`
    and `computing` as in `Setting`."""

    key: str
    name: str
    setting: str
    policy: str
    seed: int
    scenario: Scenario
    target: float = 0.0
    rates: tuple[str, ...] = ()
    computing: str = "0ps"

    @property
    def trained(self) -> bool:
        """Whether it is a training."""
        return self.scenario.training is not None


def planned(
    claim: Claim, seeds: int, full: bool, data: Mapping[str, str] = NO_DATA, device: str = "cpu"
) -> list[Run]:
    """The runs of a claim. For trainings, `data`: where "pictures" and "text" are; `device`: what they compute on.

    Raises
    ------
    ScenarioError
        A scenario of it is none, or it learns from data that are not given.
    """
    return [
        _run(setting, _with_data(setting, data), policy, seed, device)
        for setting in claim.settings
        if full or not setting.full_only
        for policy in setting.policies
        for seed in range(1, seeds + 1)
    ]


def _with_data(setting: Setting, data: Mapping[str, str]) -> Json:
    if not setting.data:
        return dict(setting.changes)
    if setting.data not in data:
        expected = {
            "pictures": "--pictures and a folder with CIFAR-10, or synthetic",
            "text": "--text and a file, or synthetic",
        }
        raise ScenarioError(f"learns from {setting.data}, and none are given", setting.name, expected[setting.data])
    return overlay(dict(setting.changes), {"training": {"data": data[setting.data]}})


def all_runs(plans: Sequence[Sequence[Run]]) -> list[Run]:
    """Every run once, those with most hosts first: the long ones should not be what all others wait for. Of the same
    training one whose time is asked for, if it is by any."""
    found: dict[str, Run] = {}
    for run in (run for runs in plans for run in runs):
        if run.key not in found or run.target or run.rates:
            found[run.key] = run
    return sorted(found.values(), key=_size, reverse=True)


def _size(run: Run) -> int:
    return sum(job.workers * job.iterations for job in run.scenario.job)


def _run(setting: Setting, changes: Json, policy: str, seed: int, device: str) -> Run:
    name = setting.scenario
    tables = {key: value for key, value in load_tables(name).items() if key != "policy"}
    chosen = policy_of(policy)
    tables = laid_over(overlay(tables, changes), chosen) | {"seed": seed, "name": name}
    if "training" in tables:
        tables = seeded(tables, seed)
        if device != "cpu":  # what was kept of the CPU stays what it is
            tables = overlay(tables, {"training": {"device": device}})
    scenario = build_scenario(tables, f"{name}, {policy}")
    if scenario.training is not None:
        apart = ("name", "description")
        settings = {key: value for key, value in tables.items() if key not in apart}
        edition = EDITIONS.get(scenario.training.model or "", 0)
        key = _hash([settings, (EDITION, edition) if edition else EDITION, _learner()])
    else:
        key = _hash((scenario.digest(), *(job.trace for job in scenario.job), engine()))
    words = f"{setting.name}, {chosen.label}, seed {seed}"
    return Run(key, words, setting.name, policy, seed, scenario, setting.target, setting.rates, setting.computing)


def _hash(asked: object) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


def _learner() -> str:
    """The version of what computes in a training."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
