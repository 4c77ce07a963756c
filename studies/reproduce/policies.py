"""Reads the policies that claims compare and the arms of training runs, and applies one to a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.loading.toml import without_none
from gradwire.scenarios.schema.policy import overlay
from gradwire.studies.reproduce.declarations import expanded, read_declarations


@dataclass(frozen=True)
class PolicyOverlay:
    """A policy of a claim: its label, and what it sets.

    `set` overlays the scenario, `job` each of its jobs, `traffic` each of its traffic tables; `number` is the position
    of a training arm on an axis, if any. `ours` : its rules that are choices of this project, not the papers'.
    """

    label: str
    set: JsonView = field(default_factory=dict)
    job: JsonView = field(default_factory=dict)
    traffic: JsonView = field(default_factory=dict)
    number: float | None = None
    ours: str = ""


def _read() -> dict[str, PolicyOverlay]:
    policies = {"": PolicyOverlay("")}  # the base of an entry without one
    labels: dict[str, str] = {}
    for table in (table for name in ("policies", "arms") for table in read_declarations(name)["policy"]):
        for entry in expanded(table, {}, labels):
            key, base = entry.pop("key"), policies[entry.pop("base", "")]
            parts = {
                part: overlay(dict(getattr(base, part)), entry.get(part, {})) for part in ("set", "job", "traffic")
            }
            ours = entry.get("ours", base.ours)
            policies[key] = PolicyOverlay(entry["label"], number=entry.get("number"), ours=ours, **parts)
            labels[key] = entry["label"]
    del policies[""]
    return policies


POLICIES = _read()


def label_of(key: str) -> str:
    """Return the label of a policy or an arm. Raises `KeyError` if there is none."""
    return POLICIES[key].label


def apply_policy(tables: Json, policy: PolicyOverlay) -> Json:
    """Return a scenario's tables under a policy; a value of None removes a key."""
    result: Json = overlay(tables, dict(policy.set))
    for key, more in (("job", policy.job), ("traffic", policy.traffic)):
        if result.get(key) and more:
            result[key] = overlay(result[key], dict(more))
    plain: Json = without_none(result)
    return plain


def with_seed(tables: Json, seed: int) -> Json:
    """Return the tables with initial parameters, order of data and losses determined by a seed alone."""
    training = dict(tables["training"])
    training |= {"model_seed": seed, "data_seed": seed}
    if isinstance(training.get("network"), dict):
        training["network"] = {**training["network"], "seed": seed}
    return {**tables, "training": training}
