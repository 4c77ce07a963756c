"""Keys without effect: every declaration of a need is tried in runs, and every key of the schema is classified."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradwire.scenarios.checks.effect import keys_without_effect, needs_of
from gradwire.scenarios.components import PLACES, components
from gradwire.scenarios.content import content_digest
from gradwire.scenarios.load import build_scenario
from gradwire.scenarios.schema.base import Table
from gradwire.sim.simulate import simulate

ALWAYS = Path(__file__).with_name("keys_that_matter.txt")
"""Keys that matter whatever the rest says, or of which the scenario alone does not tell: Table.key, one a line."""


def _tables() -> list[type[Table]]:
    for place in PLACES:
        components(place)

    def below(table: type[Table]) -> Iterator[type[Table]]:
        for each in table.__subclasses__():
            yield each
            yield from below(each)

    rooms = tuple(f"gradwire.{room}." for room in ("scenarios", "components", "experiment", "training", "traces", "emu"))
    return [each for each in set(below(Table)) if each.__module__.startswith(rooms)]


def _keys() -> dict[str, bool]:
    """Every key by the table that declares it; whether its need is declared."""
    return {
        f"{table.__name__}.{key}": key in needs_of(table)
        for table in _tables() for key in table.model_fields if key in table.__annotations__
    }  # fmt: skip


def test_every_key_is_classified() -> None:
    """A new key says what it needs, beside itself, or is added to the list of those that always matter."""
    always = set(ALWAYS.read_text().split())
    keys = _keys()
    declared = {key for key, needs in keys.items() if needs}
    assert set(keys) - declared - always == set(), "keys without a declared need that are not in the list"
    assert always - set(keys) == set() and always & declared == set()


INCAST = {"name": "t", "kind": "incast", "fan_in": 3, "size": "200kB", "rounds": 2, "period": "100us"}
BASE: dict[str, Any] = {
    "name": "x", "topology": {"kind": "star", "hosts": 4}, "link": {"rate": "10Gbps", "loss": 0.01},
    "switch": {"buffer": "60KiB"}, "transport": "dctcp", "traffic": [INCAST],
}  # fmt: skip
JOB: dict[str, Any] = {
    "name": "j", "trace": "resnet20", "workers": 3, "servers": 1, "iterations": 2, "compute_scale": 0.01,
    "exchange": {"kind": "parameter_server"},
}  # fmt: skip
DROPS = {"switch.ecn_threshold": "16KiB", "switch.selective_drop": True}
DLCP = {"transport": {"kind": "dlcp"}}
WITH_JOB = {"traffic": [], "job": [JOB], **DLCP}
TAGGED = {**WITH_JOB, "job.0.tagging.magnitude": True}
BOUNDED = {**TAGGED, "job.0.push_bound": 0.2}

Case = tuple[str, dict[str, Any], dict[str, Any], tuple[Any, ...]]
CASES: dict[str, Case] = {
    # by Table.key: its place, what is set where it has no effect, where it has one, and values one of which shows it
    "Switch.drr_quantum": ("switch.drr_quantum", {"switch.queues": 1}, {"switch.queues": 8, **DLCP, "job": [JOB], "job.0.tagging.layer_priority": True}, ("64B", "9kB")),
    "Switch.buffer": ("switch.buffer", {"switch.pfc": True}, {}, ("40KiB", "20KiB")),
    "Switch.buffer_alpha": ("switch.buffer_alpha", {}, {"switch.shared_buffer": "60KiB"}, (0.5, 0.25)),
    "Switch.buffer_share": ("switch.buffer_share", {"switch.pfc": True}, {}, (0.5, 0.3)),
    "Switch.ecn_threshold": ("switch.ecn_threshold", {"transport": "cubic"}, {}, ("10KiB", "20KiB")),
    "Switch.ecn_probability": ("switch.ecn_probability", {"switch.ecn_threshold": "10KiB"}, {"switch.ecn_threshold": "10KiB", "switch.ecn_ceiling": "50KiB"}, (0.5, 0.1)),
    "Switch.selective_drop": ("switch.selective_drop", {"switch.ecn_threshold": "10KiB"}, {"switch.ecn_threshold": "10KiB", "traffic.0.droppable": True}, (True,)),
    "Switch.trim_priority": ("switch.trim_priority", {}, {"transport": "ndp", "switch.trim_threshold": "33KiB"}, (1, 7)),
    "Switch.trim_size": ("switch.trim_size", {}, {"transport": "ndp", "switch.trim_threshold": "33KiB"}, ("100B", "500B")),
    "Switch.pfc_threshold": ("switch.pfc_threshold", {}, {"switch.pfc": True}, ("20KiB", "10KiB")),
    "Switch.pfc_hysteresis": ("switch.pfc_hysteresis", {}, {"switch.pfc": True, "switch.pfc_threshold": "20KiB"}, ("4KiB", "16KiB")),
    "Switch.pfc_headroom": ("switch.pfc_headroom", {}, {"switch.pfc": True, "switch.pfc_threshold": "8KiB"}, ("64B", "5KiB")),
    "Switch.pfc_classes": ("switch.pfc_classes", {}, {"switch.pfc": True}, ([3],)),
    "Switch.flowlet_gap": ("switch.flowlet_gap", {}, {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2}, "load_balancing": "flowlet"}, ("100ns", "1us")),
    "Switch.aggregation_slots": ("switch.aggregation_slots", {}, {"traffic": [], "job": [JOB], "job.0.exchange.aggregation": True}, (64,)),
    "Switch.aggregation_levels": ("switch.aggregation_levels", {}, {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1}, "traffic": [], "job": [JOB], "job.0.exchange.aggregation": True, "switch.aggregation_slots": 64}, (1,)),
    "Host.scale_up_rate": ("host.scale_up_rate", {}, {"host.gpus": 2}, ("20Gbps", "1Gbps")),
    "Host.scale_up_latency": ("host.scale_up_latency", {}, {"host.gpus": 2}, ("1us", "900ns")),
    "Host.pcie_rate": ("host.pcie_rate", {}, {"host.gpus": 2}, ("20Gbps", "1Gbps")),
    "Host.pcie_latency": ("host.pcie_latency", {}, {"host.gpus": 2}, ("1us", "900ns")),
    "Job.credit": ("job.0.credit", WITH_JOB, {**WITH_JOB, "job.0.order": "layer"}, (1, 2)),
    "Job.credit_per": ("job.0.credit_per", WITH_JOB, {**WITH_JOB, "job.0.order": "layer", "job.0.credit": 1, "job.0.workers": 2, "job.0.servers": 2}, ("destination",)),
    "Job.push_bound": ("job.0.push_bound", WITH_JOB, TAGGED, (0.3,)),
    "Job.pull_bound": ("job.0.pull_bound", TAGGED, {**TAGGED, "job.0.pull_important": False}, (0.3,)),
    "Job.bound_per": ("job.0.bound_per", TAGGED, {**BOUNDED, "transport": {"kind": "dlcp", "stop_policy": "on_probe"}}, ("step",)),
    "Job.bound_most": ("job.0.bound_most", BOUNDED, {**BOUNDED, **DROPS, "job.0.bound_per": "step", "transport": {"kind": "dlcp", "stop_policy": "on_probe"}}, (0.25, 1.0)),
    "Job.fill": ("job.0.fill", BOUNDED, {}, ()),
    "Job.pull_fill": ("job.0.pull_fill", BOUNDED, {}, ()),
    "Job.pull_important": ("job.0.pull_important", WITH_JOB, {**TAGGED, "job.0.pull_bound": 0.3}, (False,)),
    "Tagging.priorities": ("job.0.tagging.priorities", WITH_JOB, {**WITH_JOB, "job.0.tagging.layer_priority": True}, ([0, 1], [3])),
    "Tagging.magnitude": ("job.0.tagging.magnitude", {**WITH_JOB, "transport": "dctcp"}, {**WITH_JOB, "job.0.push_bound": 0.2}, (True,)),
    "Tagging.important_fraction": ("job.0.tagging.important_fraction", WITH_JOB, {**BOUNDED, **DROPS}, (0.1, 0.9)),
    "Tagging.important_last_layers": ("job.0.tagging.important_last_layers", WITH_JOB, {**BOUNDED, **DROPS}, (10,)),
    "Tagging.ewma": ("job.0.tagging.ewma", WITH_JOB, {**BOUNDED, **DROPS, "job.0.iterations": 3}, (0.1, 0.5)),
    "Tagging.sample": ("job.0.tagging.sample", WITH_JOB, {**BOUNDED, **DROPS}, (1.0, 0.5)),
    "Bound.front_part": ("job.0.push_bound.front_part", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {**TAGGED, "job.0.push_bound": {"front": 0.4, "back": 0.01}}, (0.9, 0.1)),
    "Bound.critical": ("job.0.push_bound.critical", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {}, (0.3,)),
    "Bound.change": ("job.0.push_bound.change", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {**TAGGED, "job.0.push_bound": {"share": 0.4, "critical": 0.01}, "job.0.iterations": 3}, (0.001, 900.0)),
    "Traffic.bound": ("traffic.0.bound", DLCP, {**DLCP, "traffic.0.droppable": True}, (0.3,)),
    "Traffic.droppable": ("traffic.0.droppable", DLCP, {**DLCP, "traffic.0.bound": 0.3}, (True,)),
    "Dlcp.stop_policy": ("transport.stop_policy", DLCP, {**DLCP, "traffic.0.bound": 0.3, "traffic.0.droppable": True}, ("eager", "on_probe")),
    "Dlcp.important_must_arrive": ("transport.important_must_arrive", DLCP, {**DLCP, "traffic.0.bound": 0.3}, (False,)),
    "Dlcp.g": ("transport.g", DLCP, {**DLCP, "switch.ecn_threshold": "10KiB"}, (1.0, 0.5)),
    **{f"Dlcp.{key}": (f"transport.{key}", DLCP, {"transport": {"kind": "dlcp", "rate_control": "delay"}}, values)
       for key, values in (("t_low", ("5us", "20us")), ("t_high", ("60us",)), ("beta", (0.1,)), ("ewma", (0.1,)), ("add_rate", ("1Gbps",)))},
    "ByMarks.g": ("transport.g", {"transport": {"kind": "dctcp"}}, {"transport": {"kind": "dctcp"}, "switch.ecn_threshold": "10KiB"}, (1.0,)),
    "Cubic.ecn": ("transport.ecn", {"transport": {"kind": "cubic"}}, {"transport": {"kind": "cubic"}, "switch.ecn_threshold": "10KiB"}, (True,)),
    "TcpNewReno.ecn": ("transport.ecn", {"transport": {"kind": "tcp_newreno"}}, {"transport": {"kind": "tcp_newreno"}, "switch.ecn_threshold": "10KiB"}, (True,)),
    "Nscc.qa_gate": ("transport.qa_gate", {"transport": {"kind": "nscc", "trimming": False, "quick_adapt": False}}, {"transport": {"kind": "nscc"}, "switch.trim_threshold": "12KiB", "switch.buffer": "20KiB", "traffic.0.size": "1MB"}, (0, 1, 16)),
    "Fault.at": ("fault.0.at", {"duration": "100us", "fault": [{"kind": "link_down", "between": ["h1", "s0"], "at": "150us"}]}, {"duration": "100us", "fault": [{"kind": "link_down", "between": ["h1", "s0"], "at": "150us"}]}, ("50us", "20us")),
}  # fmt: skip
NOT_RUN = {
    # of trainings and of the testbed, which no simulation shows
    "Job.start", "Job.phase", "Emulation.loss_recovery", "Emulation.host_queue", "Emulation.side_channel",
    *(f"RandomLoss.{key}" for key in ("layers", "magnitudes", "burst", "quota", "last", "way", "worker", "seed")),
}  # fmt: skip
UNMET_VALUES: dict[str, Any] = {
    "Fault.at": "170us", "Job.fill": "rescaled", "Job.pull_fill": "zero", "Job.bound_most": 0.1, "Bound.critical": 0.3,
    "Switch.pfc_classes": [0],
}  # fmt: skip


def _with(*changes: dict[str, Any]) -> dict[str, Any]:
    """The base with values at dotted places."""
    tables = copy.deepcopy(BASE)
    for change in changes:
        for place, value in change.items():
            *outer, last = place.split(".")
            at: Any = tables
            for step in outer:
                if isinstance(at, list):
                    at = at[int(step)]
                    continue
                if isinstance(at.get(step), str):
                    at[step] = {"kind": at[step]}
                at = at.setdefault(step, {})
            at[last] = copy.deepcopy(value)
    return {key: value for key, value in tables.items() if value != []}


@cache
def _came_out(text: str) -> str:
    return content_digest(simulate(build_scenario(eval(text))))  # of this file


def _digest(tables: dict[str, Any]) -> str:
    return _came_out(repr(tables))


def test_every_declaration_is_tried() -> None:
    declared = {key for key, needs in _keys().items() if needs}
    assert declared == set(CASES) | NOT_RUN


@pytest.mark.parametrize("key", CASES)
def test_a_key_whose_need_is_not_met_changes_nothing_and_is_named(key: str) -> None:
    """The same tables to the byte, with the key and without; the note has its place."""
    place, unmet, _, values = CASES[key]
    value = UNMET_VALUES.get(key, values[0] if values else None)
    with_it = _with(unmet, {place: value})
    where = ".".join(place.split(".")).replace(".0.", "[0].")
    notes = keys_without_effect(build_scenario(with_it))
    assert [note for note in notes if note.startswith(f"{where} has no effect: ")], notes
    assert _digest(with_it) == _digest(_with(unmet))


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case[3] and case[2]])
def test_a_key_whose_need_is_met_can_change_something_and_is_not_named(key: str) -> None:
    """One of some values, at least, gives another Result than the default."""
    place, _, met, values = CASES[key]
    plain = _digest(_with(met))
    where = place.replace(".0.", "[0].")
    for value in values:
        with_it = _with(met, {place: value})
        assert not [note for note in keys_without_effect(build_scenario(with_it)) if note.startswith(f"{where} has")]
        if _digest(with_it) != plain:
            return
    pytest.fail(f"no value of {values} changes the Result")
