"""Plans the runs that claims need, and keys each by its contents, so that shared runs occur once.

A run's key is a SHA-256 over its resolved scenario, its traces and the simulator (version and sources): a stored Result
is reused for exactly the same run only. The key of a training run is over its settings, the version of torch,
`TRAINING_VERSION` and that of its model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gradwire.analysis.source_digests import engine_digest, testbed_digest
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.load import build_scenario, load_tables
from gradwire.scenarios.schema.policy import overlay
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.policies import POLICIES, apply_policy, with_seed

TRAINING_VERSION = 2
"""Version of the outcome of training with the same settings: to be raised when it changes. Training runs take hours, so
a changed comment does not invalidate them, unlike simulations."""
MODEL_VERSIONS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("resnet8", "resnet20", "resnet110", "vgg11-quarter"), 1)
)
"""Versions of single models that changed; 0 if absent."""
NO_DATA: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class PlannedRun:
    """One simulation, emulation or training run: a scenario under a policy with a seed. `name` is a label; `target`,
    `rates` and `computing` as in `Setting`. `is_emulated`: on the testbed."""

    key: str
    name: str
    setting: str
    policy: str
    seed: int
    scenario: Scenario
    target: float = 0.0
    rates: tuple[str, ...] = ()
    computing: str = "0ps"
    is_emulated: bool = False

    @property
    def trained(self) -> bool:
        """True for a training run."""
        return self.scenario.training is not None


def runs_of_claim(
    claim: Claim, seeds: int, full: bool, data: Mapping[str, str] = NO_DATA, device: str = "cpu"
) -> list[PlannedRun]:
    """Return the runs of a claim. For training, `data` : locations of "pictures" and "text"; `device` : to compute on.
    Raises `ScenarioError` if a scenario is invalid, or its data are missing."""
    return [
        _run(setting, _with_data(setting, data), policy, seed, device)
        for setting in claim.settings
        if full or not setting.full_only
        for policy in (setting.policies if full else setting.quick_policies or setting.policies)
        for seed in range(1, seeds + 1)
    ]


def testbed_runs(claim: Claim, seeds: int, full: bool, data: Mapping[str, str] = NO_DATA) -> list[PlannedRun]:
    """Return the runs of a claim in the settings that fit the testbed, each simulated and emulated. TCP is the kernel's
    in both."""
    return [
        _run(setting, dict(setting.changes), policy, seed, "cpu", is_emulated)
        for setting in claim.settings
        if setting.testbed_policies and (full or not setting.full_only)
        for policy in setting.policies
        if policy in setting.testbed_policies
        for seed in range(1, seeds + 1)
        for is_emulated in (False, True)
    ]


def _with_data(setting: Setting, data: Mapping[str, str]) -> Json:
    if not setting.data:
        return dict(setting.changes)
    if setting.data not in data:
        expected = {
            "pictures": "--pictures and a folder with CIFAR-10, or synthetic",
            "text": "--text and a file, or synthetic",
        }
        raise ScenarioError(f"requires data: {setting.data}", setting.name, expected[setting.data])
    return overlay(dict(setting.changes), {"training": {"data": data[setting.data]}})


def planned_part(claim: Claim, runs: Sequence[PlannedRun]) -> Claim:
    """Return a claim with the settings, policies and expectations that the runs have."""
    ones = {(run.setting, run.policy): 1.0 for run in runs}
    settings = {run.setting for run in runs}

    def is_known(expect: Expect) -> bool:
        try:
            expect.value(lambda setting, policy, measure: ones[setting, policy])
        except KeyError:
            return False
        return settings.issuperset(expect.settings)

    chosen = tuple(
        replace(setting, policies=tuple(policy for policy in setting.policies if (setting.name, policy) in ones))
        for setting in claim.settings
        if setting.name in settings
    )
    return replace(claim, settings=chosen, expects=tuple(filter(is_known, claim.expects)))


def claim_on_testbed(claim: Claim, runs: Sequence[PlannedRun]) -> Claim:
    """Return the part of a claim that the testbed has; its remark describes the settings there."""
    part = planned_part(claim, runs)
    words = "; ".join(f"{setting.name}: {setting.testbed_words}" for setting in part.settings)
    return replace(part, remark=f"On the testbed. {words}. TCP is the kernel's.")


def all_runs(plans: Sequence[Sequence[PlannedRun]]) -> list[PlannedRun]:
    """Return every run once, those with most hosts first, so that long runs do not finish last. Of equal training runs,
    one whose time is needed is chosen, if there is any."""
    run_by_key: dict[str, PlannedRun] = {}
    for run in (run for runs in plans for run in runs):
        if run.key not in run_by_key or run.target or run.rates:
            run_by_key[run.key] = run
    return sorted(run_by_key.values(), key=_size, reverse=True)


def _size(run: PlannedRun) -> int:
    return sum(job.workers * job.iterations for job in run.scenario.job)


def _run(
    setting: Setting, changes: Json, policy: str, seed: int, device: str, is_emulated: bool | None = None
) -> PlannedRun:
    """Return a run. `is_emulated`: None for one by the simulator's own rules, else one beside the testbed's or its."""
    name = setting.scenario
    tables = {key: value for key, value in load_tables(name).items() if key != "policy"}
    chosen = POLICIES[policy]
    tables = apply_policy(overlay(tables, changes), chosen)
    if is_emulated is not None:
        tables = overlay(tables, dict(setting.testbed))
    tables |= {"seed": seed, "name": name}
    if "training" in tables:
        tables = with_seed(tables, seed)
        if device != "cpu":  # keeps the keys of runs on the CPU
            tables = overlay(tables, {"training": {"device": device}})
    scenario = build_scenario(tables, f"{name}, {policy}")
    if is_emulated is not None:
        scenario = scenario.with_kernels_tcp()
    if scenario.training is not None:
        labels = ("name", "description")
        settings = {key: value for key, value in tables.items() if key not in labels}
        edition = MODEL_VERSIONS.get(scenario.training.model or "", 0)
        key = _hash([settings, (TRAINING_VERSION, edition) if edition else TRAINING_VERSION, _learner()])
    else:
        sources = testbed_digest() if is_emulated else engine_digest()
        key = _hash((scenario.digest(), *(job.trace for job in scenario.job), sources))
    words = f"{setting.name}, {chosen.label}, seed {seed}{', on the testbed' if is_emulated else ''}"
    times = setting.target, setting.rates, setting.computing
    return PlannedRun(key, words, setting.name, policy, seed, scenario, *times, bool(is_emulated))


def _hash(inputs: object) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]


def _learner() -> str:
    """Return the version of torch."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
