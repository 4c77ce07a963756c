"""Keys without effect of trainings: each declaration is tried in trainings of six steps, met and unmet."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.scenarios.validation.effect import keys_without_effect  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402

BASE: dict[str, Any] = {
    "name": "x", "topology": {"kind": "star", "hosts": 3}, "link": {"rate": "1Gbps"}, "transport": "dctcp",
    "job": [{"name": "j", "trace": "resnet20", "workers": 2, "servers": 1, "exchange": {"kind": "parameter_server"}}],
    "training": {"model": "resnet8", "samples": 60, "size": 8, "batch": 2, "steps": 4, "augment": False},
}  # fmt: skip
IDEAL = {"training.network": "ideal"}
LOSSY = {"training.network": {"loss": 0.3}}
RING = {"job.0.exchange.kind": "ring", "job.0.servers": 0}
MIPD = {**IDEAL, "training.system": {"kind": "mipd", "refresh": 1}, "training.optimizer.momentum": 0.0}
ALL = {"training.system.update": "all"}
SLIM = {**IDEAL, "training.system": {"kind": "slimdp"}}
NO_CORE = {"training.system.beta": 0.0}

Case = tuple[str, Any, dict[str, Any], dict[str, Any] | None]
CASES: dict[str, Case] = {
    # by Table.key: its place, a value, what is set where it has no effect, and where it has one, if a training shows it
    "Job.iterations": ("job.0.iterations", 2, {}, None),
    "Job.compute_scale": ("job.0.compute_scale", 30.0, {}, {"training.compute": "trace", "training.model": "resnet20", "training.size": None}),
    "Job.jitter": ("job.0.jitter", 0.5, {}, {"training.compute": "trace", "training.model": "resnet20", "training.size": None}),
    "Job.optimizer": ("job.0.optimizer", "200ms", {}, RING),
    "Job.fill": ("job.0.fill", "rescaled", IDEAL, LOSSY),
    "Job.pull_fill": ("job.0.pull_fill", "zero", IDEAL, {"training.network": {"loss": 0.3, "way": "pull"}}),
    "Training.compute": ("training.compute", "trace", {**IDEAL, "training.model": "resnet20", "training.size": None}, {"training.model": "resnet20", "training.size": None}),
    "Training.resync": ("training.resync", 2, IDEAL, {"training.network": {"loss": 0.3, "way": "pull"}}),
    "Optimizer.rise": ("training.optimizer.rise", 0.6, {**IDEAL, "training.optimizer.schedule": "constant"}, IDEAL),
    "RandomLoss.burst": ("training.network.burst", 4.0, {"training.network": {"loss": 0.3, "quota": True}}, LOSSY),
    "RandomLoss.quota": ("training.network.quota", True, {"training.network": {"loss": 0.3, "last": True}}, LOSSY),
    "Output.packet_log": ("output.packet_log", True, {}, None),
    "Output.queue_samples": ("output.queue_samples", "1us", {}, None),
    "Scenario.link": ("link.rate", "10Gbps", IDEAL, {}),
    "Scenario.link_override": ("link_override", [{"between": ["h0", "s0"], "rate": "100Mbps"}], IDEAL, {}),
    "Scenario.switch": ("switch.ecn_threshold", "10KiB", IDEAL, {}),
    "Scenario.load_balancing": ("load_balancing", "spray_random", IDEAL, None),
    "MIPD.smoothing": ("training.system.smoothing", 0.9, {**MIPD, **ALL, "training.system.compensate": False}, MIPD),
    "SlimDP.every": ("training.system.every", 2, {**SLIM, **NO_CORE}, SLIM),
    "SlimDP.gradient_weight": ("training.system.gradient_weight", 900.0, {**SLIM, **NO_CORE}, {**SLIM, "training.system.every": 1}),
    "SlimDP.keys": ("training.system.keys", False, SLIM, {**SLIM, "training.system.sets": "own"}),
}  # fmt: skip


def _with(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return the base with values at dotted places; None takes a key away."""
    tables = eval(repr(BASE))
    for change in changes:
        for place, value in change.items():
            *outer, last = place.split(".")
            at: Any = tables
            for step in outer:
                at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
            if value is None:
                at.pop(last, None)
            else:
                at[last] = eval(repr(value))
    return tables


def _trained(tables: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what came of a training."""
    return dict(train(build_scenario(tables)).tables)


@pytest.mark.parametrize("key", CASES)
def test_key_with_unmet_prerequisite_is_noted_and_has_no_effect(key: str) -> None:
    place, value, unmet, _ = CASES[key]
    with_it = _with(unmet, {place: value})
    where = place.replace(".0.", "[0].").removesuffix(".rate").removesuffix(".ecn_threshold")
    notes = keys_without_effect(build_scenario(with_it))
    assert [note for note in notes if note.startswith(f"{where} has no effect: ")], notes
    assert _trained(with_it) == _trained(_with(unmet))


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case[3] is not None])
def test_key_with_met_prerequisite_changes_training_without_note(key: str) -> None:
    place, value, _, met = CASES[key]
    assert met is not None
    with_it = _with(met, {place: value})
    where = place.replace(".0.", "[0].")
    assert not [note for note in keys_without_effect(build_scenario(with_it)) if note.startswith(f"{where} has")]
    assert _trained(with_it) != _trained(_with(met))
