"""Keys without effect: every declaration of a need is tried in runs, and every key of the schema is classified."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradwire.result_store.digest import content_digest
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.schema.network.hosts_in_use import hosts_of_jobs
from gradwire.scenarios.validation.effect import keys_without_effect, preconditions_of
from gradwire.scenarios.validation.scenario import remarks
from gradwire.sim.simulate import simulate
from gradwire.workload.prerequisites import find_prerequisites

ALWAYS = Path(__file__).with_name("keys_that_matter.txt")
"""Keys that matter whatever the rest says, or of which the scenario alone does not tell: Table.key, one a line."""


def _tables() -> list[type[ScenarioTable]]:
    for place in COMPONENT_PACKAGES:
        components(place)
    importlib.import_module("gradwire.training.reducers.feedback")  # chosen by keys of their own, not by name

    def below(table: type[ScenarioTable]) -> Iterator[type[ScenarioTable]]:
        for each in table.__subclasses__():
            yield each
            yield from below(each)

    rooms = tuple(
        f"gradwire.{room}." for room in ("scenarios", "protocols", "topology", "workload", "training", "traces", "emu")
    )
    return [each for each in set(below(ScenarioTable)) if each.__module__.startswith(rooms)]


def _keys() -> dict[str, bool]:
    """Every key by the table that declares it; whether its need is declared."""
    return {
        f"{table.__name__}.{key}": key in preconditions_of(table)
        for table in _tables() for key in table.model_fields if key in table.__annotations__
    }  # fmt: skip


def test_every_key_is_classified() -> None:
    """Every key declares its precondition or is in the list of keys that always matter."""
    always = set(ALWAYS.read_text().split())
    keys = _keys()
    declared = {key for key, needs in keys.items() if needs}
    assert set(keys) - declared - always == set(), "keys without a declared need that are not in the list"
    assert always - set(keys) == set() and always & declared == set()


INCAST = {"name": "t", "kind": "incast", "fan_in": 3, "size": "200kB", "rounds": 2, "period": "100us"}
TREES = {"name": "t", "kind": "tree_chunks", "size": "20kB", "chunks": 4}
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

TWO_PATHS: dict[str, Any] = {
    "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2}, "traffic.0.fan_in": 3,
}  # fmt: skip
RING = {**WITH_JOB, "transport": "dctcp", "job.0.exchange.kind": "ring", "job.0.servers": 0, "link.loss": 0.0}
TWO_SERVERS = {**WITH_JOB, "job.0.workers": 2, "job.0.servers": 2}
SUMMED = {
    **RING, "job.0.exchange.kind": "in_network", "switch.aggregation_slots": 64, "transport": "tcp_newreno",
}  # fmt: skip
FOUR = {**WITH_JOB, "topology.hosts": 6}
SLOW = {"kind": "host_slow", "host": "h5", "at": "0ps", "factor": 9.0}

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
    "HostTable.scale_up_rate": ("host.scale_up_rate", {}, {"host.gpus": 2}, ("20Gbps", "1Gbps")),
    "HostTable.scale_up_latency": ("host.scale_up_latency", {}, {"host.gpus": 2}, ("1us", "900ns")),
    "HostTable.pcie_rate": ("host.pcie_rate", {}, {"host.gpus": 2}, ("20Gbps", "1Gbps")),
    "HostTable.pcie_latency": ("host.pcie_latency", {}, {"host.gpus": 2}, ("1us", "900ns")),
    "Job.credit": ("job.0.credit", WITH_JOB, {**WITH_JOB, "job.0.order": "layer"}, (1, 2)),
    "Job.credit_per": ("job.0.credit_per", WITH_JOB, {**WITH_JOB, "job.0.order": "layer", "job.0.credit": 1, "job.0.workers": 2, "job.0.servers": 2}, ("destination",)),
    "Job.push_bound": ("job.0.push_bound", WITH_JOB, TAGGED, (0.3,)),
    "Job.pull_bound": ("job.0.pull_bound", TAGGED, {**TAGGED, "job.0.pull_important": False}, (0.3,)),
    "Job.bound_per": ("job.0.bound_per", TAGGED, {**BOUNDED, "transport": {"kind": "dlcp", "stop_policy": "on_probe"}}, ("step",)),
    "Job.bound_most": ("job.0.bound_most", {**BOUNDED, "job.0.push_bound": 0.6, "job.0.bound_per": "step"}, {**BOUNDED, **DROPS, "job.0.bound_per": "step", "transport": {"kind": "dlcp", "stop_policy": "on_probe"}}, (0.25, 1.0)),
    "Job.fill": ("job.0.fill", BOUNDED, {}, ()),
    "Job.pull_fill": ("job.0.pull_fill", BOUNDED, {}, ()),
    "Job.pull_important": ("job.0.pull_important", WITH_JOB, {**TAGGED, "job.0.pull_bound": 0.3}, (False,)),
    "Tagging.priorities": ("job.0.tagging.priorities", WITH_JOB, {**WITH_JOB, "job.0.tagging.layer_priority": True}, ([0, 1], [3])),
    "Tagging.magnitude": ("job.0.tagging.magnitude", {**WITH_JOB, "transport": "dctcp"}, {**WITH_JOB, "job.0.push_bound": 0.2}, (True,)),
    "Tagging.important_fraction": ("job.0.tagging.important_fraction", WITH_JOB, {**BOUNDED, **DROPS}, (0.1, 0.9)),
    "Tagging.important_rises": ("job.0.tagging.important_rises", WITH_JOB, {**BOUNDED, **DROPS}, (True,)),
    "Tagging.important_last_layers": ("job.0.tagging.important_last_layers", WITH_JOB, {**BOUNDED, **DROPS}, (10,)),
    "Tagging.ewma": ("job.0.tagging.ewma", WITH_JOB, {**BOUNDED, **DROPS, "job.0.iterations": 3}, (0.1, 0.5)),
    "Tagging.sample": ("job.0.tagging.sample", WITH_JOB, {**BOUNDED, **DROPS}, (1.0, 0.5)),
    "Bound.front_part": ("job.0.push_bound.front_part", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {**TAGGED, "job.0.push_bound": {"front": 0.4, "back": 0.01}}, (0.9, 0.1)),
    "Bound.critical": ("job.0.push_bound.critical", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {}, (0.3,)),
    "Bound.change": ("job.0.push_bound.change", {**TAGGED, "job.0.push_bound": {"share": 0.2}}, {**TAGGED, "job.0.push_bound": {"share": 0.4, "critical": 0.01}, "job.0.iterations": 3}, (0.001, 900.0)),
    "TrafficTable.bound": ("traffic.0.bound", DLCP, {**DLCP, "traffic.0.droppable": True}, (0.3,)),
    "TrafficTable.droppable": ("traffic.0.droppable", DLCP, {**DLCP, "traffic.0.bound": 0.3}, (True,)),
    "Dlcp.stop_policy": ("transport.stop_policy", DLCP, {**DLCP, "traffic.0.bound": 0.3, "traffic.0.droppable": True}, ("eager", "on_probe")),
    "Dlcp.important_must_arrive": ("transport.important_must_arrive", DLCP, {**DLCP, "traffic.0.bound": 0.3}, (False,)),
    "Dlcp.g": ("transport.g", DLCP, {**DLCP, "switch.ecn_threshold": "10KiB"}, (1.0, 0.5)),
    **{f"Dlcp.{key}": (f"transport.{key}", DLCP, {"transport": {"kind": "dlcp", "rate_control": "delay"}}, values)
       for key, values in (("t_low", ("5us", "20us")), ("t_high", ("60us",)), ("beta", (0.1,)), ("ewma", (0.1,)), ("add_rate", ("1Gbps",)))},
    "MarkBased.g": ("transport.g", {"transport": {"kind": "dctcp"}}, {"transport": {"kind": "dctcp"}, "switch.ecn_threshold": "10KiB"}, (1.0,)),
    "Cubic.ecn": ("transport.ecn", {"transport": {"kind": "cubic"}}, {"transport": {"kind": "cubic"}, "switch.ecn_threshold": "10KiB"}, (True,)),
    "TcpNewReno.ecn": ("transport.ecn", {"transport": {"kind": "tcp_newreno"}}, {"transport": {"kind": "tcp_newreno"}, "switch.ecn_threshold": "10KiB"}, (True,)),
    "Nscc.qa_gate": ("transport.qa_gate", {"transport": {"kind": "nscc", "trimming": False, "quick_adapt": False}}, {"transport": {"kind": "nscc"}, "switch.trim_threshold": "12KiB", "switch.buffer": "20KiB", "traffic.0.size": "1MB"}, (0, 1, 16)),
    "Switch.queues": ("switch.queues", {"switch.ecn_threshold": "10KiB"}, {"transport": {"kind": "pias"}, "traffic.0.size": "10MB", "traffic.0.rounds": 1}, (2, 3)),
    "Scenario.transport": ("transport", {"transport": "dctcp", "traffic.0.transport": "cubic"}, {}, ({"kind": "dctcp", "initial_window": 3},)),
    "Scenario.load_balancing": ("load_balancing", {}, TWO_PATHS, ("spray_random", "least_queue")),
    "Switch.path_entropies": ("switch.path_entropies", {"load_balancing": "source_random"}, {**TWO_PATHS, "load_balancing": "source_random"}, (1, 2)),
    "Job.jitter": ("job.0.jitter", {**WITH_JOB, "job.0.compute_scale": 0}, WITH_JOB, (0.5,)),
    "Job.optimizer": ("job.0.optimizer", {**WITH_JOB, "job.0.iterations": 3}, RING, ("1ms",)),
    "ParameterServer.pull": ("job.0.exchange.pull", {**WITH_JOB, "job.0.iterations": 1}, {**WITH_JOB, "job.0.order": "layer", "job.0.credit": 1}, ("barrier",)),
    "ParameterServer.staleness": ("job.0.exchange.staleness", {**WITH_JOB, "job.0.iterations": 1}, {**WITH_JOB, "job.0.iterations": 3}, (1,)),
    "ParameterServer.shards": ("job.0.exchange.shards", WITH_JOB, TWO_SERVERS, ("round_robin", "split")),
    "ParameterServer.split_above": ("job.0.exchange.split_above", TWO_SERVERS, {**TWO_SERVERS, "job.0.exchange.shards": "split"}, ("1kB", "40kB")),
    "InNetwork.pull": ("job.0.exchange.pull", {**SUMMED, "job.0.iterations": 1}, SUMMED, ("barrier",)),
    "StagedTable.forward": ("job.0.exchange.forward", {**RING, "job.0.iterations": 1}, RING, ("layerwise",)),
    "Fifo.forward": ("job.0.scheduler.forward", {**RING, "job.0.scheduler.kind": "fifo", "job.0.iterations": 1}, {**RING, "job.0.scheduler.kind": "fifo"}, ("layerwise",)),
    "Ddp.rebuild": ("job.0.scheduler.rebuild", {**RING, "job.0.scheduler": {"kind": "ddp", "bucket": "100kB"}, "job.0.iterations": 1}, {**RING, "job.0.scheduler": {"kind": "ddp", "bucket": "100kB"}}, (False,)),
    "TreeChunks.window": ("traffic.0.window", {"traffic": [TREES]}, {"traffic": [{**TREES, "chunks": 20}]}, (6, 2)),
    "RepeatedTraffic.period": ("traffic.0.period", {"traffic.0.rounds": 1}, {}, ("50us",)),
    "Output.missing": ("output.missing", {}, {**DLCP, "traffic.0.bound": 0.3, "traffic.0.droppable": True}, (False,)),
    "LossBasedTcp.recovery": ("transport.recovery", {"transport": {"kind": "cubic", "preset": "linux"}}, {"transport": {"kind": "cubic"}}, ("prr",)),
    **{f"Ltp.{key}": (f"transport.{key}", {"transport": {"kind": "ltp"}}, {"transport": {"kind": "ltp", "threshold": 0.1, "deadline": 8.0}, "traffic.0.bound": 0.3, "traffic.0.size": "600kB"}, values)
       for key, values in (("threshold", (2.0, 0.5)), ("deadline", (3.0, 0.2)), ("fraction", (0.99, 0.6)))},
    "Ltp.critical_must_arrive": ("transport.critical_must_arrive", {"transport": {"kind": "ltp"}}, {**BOUNDED, "transport": {"kind": "ltp"}, "job.0.push_bound": 0.5, "link.loss": 0.05}, (False,)),
    **{f"Nscc.{key}": (f"transport.{key}", {"transport": {"kind": "nscc", "control": "receiver", "trimming": False}, "switch.ecn_threshold": "10KiB"}, {"transport": {"kind": "nscc", "trimming": False}, "switch.ecn_threshold": "10KiB", "traffic.0.size": "1MB", "link.loss": 0.0}, values)
       for key, values in (("target_delay", ("2us", "50us")), ("alpha", (40.0, 0.1)), ("fi", (50.0, 500.0)), ("fi_scale", (2.5, 25.0)), ("eta", (15.0, 150.0)), ("gamma", (0.1, 1.0)), ("adjust_packets", (1, 100)), ("max_md_jump", (0.0, 1.0)), ("averaging", ("samples",)))},
    **{f"Nscc.{key}": (f"transport.{key}", {"transport": {"kind": "nscc", "control": "receiver", "trimming": False}}, {"transport": {"kind": "nscc", "trimming": key == "quick_adapt", "qa_gate": 0}, **more, "traffic.0.size": "1MB"}, values)
       for key, more, values in (("quick_adapt", {"switch.trim_threshold": "12KiB", "switch.buffer": "20KiB"}, (False,)), ("qa_threshold", {"switch.buffer": "512KiB"}, ("5us",)))},
    "HostFault.host": ("fault.0.host", {"fault": [{"kind": "host_paused", "host": "h3", "at": "10us", "until": "60us"}], "traffic.0.hosts": ["h0..h2"], "traffic.0.fan_in": 2}, {"fault": [{"kind": "host_paused", "host": "h0", "at": "10us", "until": "60us"}], "traffic.0.hosts": ["h0..h2"], "traffic.0.fan_in": 2}, ("h1", "h2")),
    "HostSlow.host": ("fault.0.host", {**FOUR, "fault": [SLOW]}, {**FOUR, "fault": [SLOW]}, ("h1", "h2")),
    "HostSlow.factor": ("fault.0.factor", {**WITH_JOB, "job.0.compute_scale": 0, "fault": [{**SLOW, "host": "h0"}]}, {**WITH_JOB, "fault": [{**SLOW, "host": "h0"}]}, (3.0,)),
    "LinkFault.between": ("fault.0.between", {**FOUR, "fault": [{"kind": "link_degraded", "between": ["h5", "s0"], "at": "1us", "rate": "1Gbps"}]}, {**FOUR, "fault": [{"kind": "link_degraded", "between": ["h5", "s0"], "at": "1us", "rate": "1Gbps"}]}, (["h1", "s0"],)),
    "PortOverride.ecn": ("switch.override.0.ecn", {"switch.override": [{"ports": "*->*", "buffer": "50KiB"}]}, {"switch.ecn_threshold": "10KiB", "switch.override": [{"ports": "*->*", "buffer": "50KiB"}]}, (False,)),
    "PortOverride.ecn_threshold": ("switch.override.0.ecn_threshold", {"transport": "cubic", "switch.ecn_threshold": "10KiB", "switch.override": [{"ports": "*->*", "buffer": "50KiB"}]}, {"switch.ecn_threshold": "10KiB", "switch.override": [{"ports": "*->*", "buffer": "50KiB"}]}, ("20KiB",)),
    "PortOverride.buffer": ("switch.override.0.buffer", {"switch.pfc": True, "switch.ecn_threshold": "10KiB", "switch.override": [{"ports": "*->*", "ecn": False}]}, {"switch.ecn_threshold": "10KiB", "switch.override": [{"ports": "*->*", "ecn": False}]}, ("20KiB", "40KiB")),
    "LinkOverride.between": ("link_override.0.between", {**FOUR, "link_override": [{"between": ["h5", "s0"], "rate": "1Gbps"}]}, {**FOUR, "link_override": [{"between": ["h5", "s0"], "rate": "1Gbps"}]}, (["h1", "s0"],)),
    "Fault.at": ("fault.0.at", {"duration": "100us", "fault": [{"kind": "link_down", "between": ["h1", "s0"], "at": "150us"}]}, {"duration": "100us", "fault": [{"kind": "link_down", "between": ["h1", "s0"], "at": "150us"}]}, ("50us", "20us")),
}  # fmt: skip
NOT_RUN = {
    # of the testbed, which no simulation shows, and of trainings: see tests/unit/training/test_effect_training.py
    "Job.iterations", "Job.compute_scale", "Training.compute", "Training.resync", "Optimizer.rise",
    "Output.packet_log", "Output.queue_samples", "Scenario.link", "Scenario.link_override", "Scenario.switch",
    "MIPD.smoothing", "SlimDP.every", "SlimDP.gradient_weight", "SlimDP.keys",
    "Job.start", "Job.phase", "Emulation.loss_recovery", "Emulation.host_queue", "Emulation.side_channel",
    *(f"RandomLoss.{key}" for key in ("layers", "magnitudes", "burst", "quota", "last", "way", "worker", "seed")),
}  # fmt: skip
UNMET_VALUES: dict[str, Any] = {
    "Fault.at": "170us", "Job.fill": "rescaled", "Job.pull_fill": "zero", "Bound.critical": 0.3,
    "Switch.pfc_classes": [0], "HostFault.host": "h3", "HostSlow.host": "h4", "LinkFault.between": ["h4", "s0"],
    "LinkOverride.between": ["h4", "s0"],
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


def test_every_declared_precondition_has_a_test_case() -> None:
    declared = {key for key, needs in _keys().items() if needs}
    assert declared == set(CASES) | NOT_RUN


@pytest.mark.parametrize("key", CASES)
def test_key_with_unmet_precondition_has_no_effect_and_is_noted(key: str) -> None:
    """The tables are byte-identical with the key and without; the note names the key's path."""
    place, unmet, _, values = CASES[key]
    value = UNMET_VALUES.get(key, values[0] if values else None)
    with_it = _with(unmet, {place: value})
    where = ".".join(place.split(".")).replace(".0.", "[0].")
    notes = keys_without_effect(build_scenario(with_it))
    assert [note for note in notes if re.match(rf"{re.escape(where)} has no effect( on the run)?: ", note)], notes
    assert _digest(with_it) == _digest(_with(unmet))


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case[3] and case[2]])
def test_key_with_met_precondition_changes_the_result_without_a_note(key: str) -> None:
    """At least one of several values gives another Result than the default."""
    place, _, met, values = CASES[key]
    plain = _digest(_with(met))
    where = place.replace(".0.", "[0].")
    for value in values:
        with_it = _with(met, {place: value})
        assert not [note for note in keys_without_effect(build_scenario(with_it)) if note.startswith(f"{where} has")]
        if _digest(with_it) != plain:
            return
    pytest.fail(f"no value of {values} changes the Result")


IDLE: dict[str, dict[str, Any]] = {
    "fault[0].host": {"fault": [{"kind": "host_paused", "host": "h5", "at": "1us", "until": "100us"}]},
    "fault[0].between": {"fault": [{"kind": "link_down", "between": ["h5", "leaf1"], "at": "1us", "until": "80us"}]},
    "link_override[0].between": {"link_override": [{"between": ["leaf1", "h5"], "rate": "1Gbps", "latency": "9us"}]},
}  # fmt: skip
TWO_RACKS = {
    **WITH_JOB, "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 3, "spines": 2},
    "job.0.placement": "spread", "job.0.compute_scale": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["dlcp", "dctcp"])
@pytest.mark.parametrize("where", IDLE)
def test_fault_of_idle_host_has_no_effect_and_is_noted(where: str, kind: str) -> None:
    """Three workers and a server, spread over two racks of three hosts, take h0, h3, h1, h4. Host h5 is idle."""
    with_it = _with(TWO_RACKS, {"transport": {"kind": kind}}, IDLE[where])
    assert [note.split(" has ")[0] for note in keys_without_effect(build_scenario(with_it))] == [where]
    assert _digest(with_it) == _digest(_with(TWO_RACKS, {"transport": {"kind": kind}}))
    busy = eval(repr(with_it).replace("h5", "h4"))
    assert keys_without_effect(build_scenario(busy)) == [] and _digest(busy) != _digest(with_it)


def test_slow_host_without_worker_has_no_effect_and_is_noted() -> None:
    """One case slows an idle host, the other a host with traffic only; traffic computes nothing."""
    for tables in (_with(TWO_RACKS, {"job.0.compute_scale": 0.01}), _with()):
        with_it = {**tables, "fault": [SLOW | {"host": "h5" if "job" in tables else "h0"}]}
        assert [note.split(" has ")[0] for note in keys_without_effect(build_scenario(with_it))] == ["fault[0].host"]
        assert _digest(with_it) == _digest(tables)


@pytest.mark.parametrize("rule", ["packed", "spread"])
@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "star", "hosts": 9}, {"kind": "dumbbell", "left": 4, "right": 5},
        {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 3, "spines": 2},
    ],
)  # fmt: skip
def test_hosts_of_jobs_equal_placed_hosts(rule: str, topology: dict[str, Any]) -> None:
    """Two jobs are placed by the rule around one job with named hosts."""
    named = {**JOB, "name": "b", "workers": 2, "servers": 1, "placement": {"workers": ["h1", "h3"], "servers": ["h8"]}}
    jobs = [{**JOB, "workers": 2, "placement": rule}, named, {**JOB, "name": "c", "workers": 1, "placement": rule}]
    scenario = build_scenario(_with({"topology": topology, "traffic": [], "job": jobs, "transport": "dctcp"}))
    needs = find_prerequisites(scenario)
    used = {needs.network.names[each] for at in needs.places for each in (*at.workers, *at.servers)}
    assert hosts_of_jobs(scenario) == used


def test_note_names_default_overridden_by_preset() -> None:
    """Under the Linux preset, window reduction is proportional; the key `recovery` has no effect, not even its
    default."""
    tables = _with({"transport": {"kind": "cubic", "preset": "linux", "recovery": "pipe"}})
    (note,) = keys_without_effect(build_scenario(tables))
    assert note.startswith("transport.recovery has no effect: these rules reduce the window proportionally (prr); ")
    assert not keys_without_effect(build_scenario(_with({"transport": {"kind": "cubic", "recovery": "pipe"}})))


def test_note_lists_all_changes_that_make_a_key_matter() -> None:
    """With pfc and a shared buffer, switch.buffer matters only after two changes."""
    tables = _with({"switch.pfc": True, "switch.shared_buffer": "200KiB", "switch.buffer": "30KiB"})
    (note,) = keys_without_effect(build_scenario(tables))
    advice = "no switch.shared_buffer, and switch.pfc_classes without some queue"
    assert note == f"switch.buffer has no effect: shared_buffer replaces it; for it to matter: {advice}"
    del tables["switch"]["shared_buffer"]
    tables["switch"]["pfc_classes"] = [3]
    assert keys_without_effect(build_scenario(tables)) == []
    without = copy.deepcopy(tables)
    del without["switch"]["buffer"]
    assert _digest(tables) != _digest(without)


def test_shared_buffer_with_pfc_pauses_senders_earlier() -> None:
    """With a shared buffer a queue pauses at alpha times the free space, before its threshold. Three hosts of a star
    send to one; nothing is dropped."""
    pauses = {}
    for name, more in (("own", {}), ("shared", {"switch.shared_buffer": "40KiB"})):
        tables = _with({"switch": {"pfc": True}, "link.loss": 0.0, "traffic.0.size": "600kB"}, more)
        assert keys_without_effect(build_scenario(tables)) == []
        ports = simulate(build_scenario(tables)).ports
        assert sum(ports["drops_tail"].to_pylist()) == 0
        pauses[name] = sum(ports["pauses"].to_pylist())
    assert pauses["shared"] > pauses["own"]


def test_bound_most_below_bound_differs_from_default_above_bound() -> None:
    """With a bound of 0.2, bound_most 0.1 acts as 0.2; the default of 0.5 lets messages use unspent budget."""
    place, _, met, _ = CASES["Job.bound_most"]
    tables = _with(met, {place: 0.1})
    assert keys_without_effect(build_scenario(tables)) == []
    assert _digest(tables) == _digest(_with(met, {place: 0.2})) != _digest(_with(met))
    (remark,) = [each for each in remarks(build_scenario(tables)) if "bound_most" in each]
    assert remark.startswith("job[0].bound_most is 0.1 but the bound is 0.2: it acts as the bound")


MORE_UNMET: dict[str, tuple[str, dict[str, Any], Any]] = {
    # further needs of keys of which one is tried above
    "flowlets over one path": ("switch.flowlet_gap", {"load_balancing": "flowlet"}, "100ns"),
    "turns of one class": ("switch.drr_quantum", {}, "4KiB"),
    "levels of one switch": ("switch.aggregation_levels", SUMMED, 1),
    "ewma of drawn tags": ("job.0.tagging.ewma", {**BOUNDED, **DROPS, "job.0.tagging.random": True}, 0.1),
    "sample of drawn tags": ("job.0.tagging.sample", {**BOUNDED, **DROPS, "job.0.tagging.random": True}, 1.0),
    "droppable anyway": ("traffic.0.droppable", {"transport": "tcp_newreno", "switch.ecn_threshold": "10KiB", "switch.selective_drop": True}, True),
    "droppable at a constant rate": ("traffic.0.droppable", {"transport": "constant_rate", "switch.ecn_threshold": "10KiB"}, True),
    "split over one server": ("job.0.exchange.split_above", {**WITH_JOB, "job.0.exchange.shards": "split"}, "1kB"),
    "quick adapt's gate": ("transport.qa_gate", {"transport": {"kind": "nscc", "control": "receiver", "trimming": False}}, 0),
    "quick adapt's threshold": ("transport.qa_threshold", {"transport": {"kind": "nscc", "trimming": False, "quick_adapt": False}}, "1us"),
    "two spines, one leaf": ("load_balancing", {"topology": {"kind": "leaf_spine", "leaves": 1, "hosts_per_leaf": 4, "spines": 2}}, "spray_random"),
    "one spine": ("load_balancing", {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1}}, "least_queue"),
    "a job in one rack": ("load_balancing", {**WITH_JOB, "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2}}, "spray_random"),
    "entropies in one rack": ("switch.path_entropies", {**WITH_JOB, "load_balancing": "source_random", "topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2}}, 2),
    "a dumbbell": ("load_balancing", {"topology": {"kind": "dumbbell", "left": 2}}, "reps"),
    "a fat tree of one uplink": ("load_balancing", {"topology": {"kind": "fat_tree", "k": 4, "tiers": 2, "oversubscription": 3.0}}, "spray_random"),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE_UNMET)
def test_further_unmet_preconditions_have_no_effect_and_are_noted(name: str) -> None:
    place, unmet, value = MORE_UNMET[name]
    with_it = _with(unmet, {place: value})
    where = place.replace(".0.", "[0].")
    assert [
        note for note in keys_without_effect(build_scenario(with_it)) if note.startswith(f"{where} has no effect: ")
    ]
    assert _digest(with_it) == _digest(_with(unmet))


LEAF_SPINE = {"topology": {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2}}
TRAINED = {
    **WITH_JOB, "transport": "dctcp", "job.0.trace": "resnet20", "job.0.iterations": 1,
    "training": {"model": "resnet8", "steps": 2, "network": "ideal"},
}  # fmt: skip
CRITICAL = {"share": 0.4, "critical": 0.01}
NOTED: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    # by case: the key, its value, tables where it has no effect, and where it has one. What these keys change is seen in
    # testbeds and training runs, or in the cases above with another of the key's preconditions
    "recovery of the kernel": ("emulation.loss_recovery", "classic", DLCP, {"transport": "cubic"}),
    "queue of the kernel": ("emulation.host_queue", "packet", DLCP, {"transport": "cubic"}),
    "side channel": ("emulation.side_channel", "udp", {"transport": "cubic"}, DLCP),
    "start of a training run": ("job.0.start", "1ms", TRAINED, WITH_JOB),
    "phase of a training run": ("job.0.phase", "late", TRAINED, {**TRAINED, "training.compute": "trace"}),
    "log of a training run": ("output.packet_log", True, TRAINED, {}),
    "a critical share": ("job.0.push_bound", CRITICAL, WITH_JOB, TAGGED),
    "most of single messages": ("job.0.bound_most", 1.0, BOUNDED, {**BOUNDED, "job.0.bound_per": "step"}),
    "way of no loss": ("training.network.way", "pull", {**TRAINED, "training.network": {"loss": 0.0}},
                       {**TRAINED, "training.network": {"loss": 0.3}}),
    "flowlets under ECMP": ("switch.flowlet_gap", "100ns", LEAF_SPINE, {**LEAF_SPINE, "load_balancing": "flowlet"}),
    "levels without sums": ("switch.aggregation_levels", 1, {**SUMMED, **LEAF_SPINE, "switch": {}, "link.loss": 0.0},
                            {**SUMMED, **LEAF_SPINE}),
    "period of one round": ("traffic.0.period", "50us", {"traffic.0.rounds": 1}, {}),
    "gain without ECN": ("transport.g", 1.0, {"switch.ecn_threshold": "10KiB", "transport": {"kind": "dctcp", "ecn": False}},
                         {"switch.ecn_threshold": "10KiB", "transport": {"kind": "dctcp"}}),
    "buffer beside a shared one": ("switch.buffer", "30KiB", {"switch.shared_buffer": "200KiB"}, {}),
    "buffer of unpaused classes": ("switch.buffer", "30KiB", {"switch.pfc": True},
                                   {"switch.pfc": True, "switch.pfc_classes": [3]}),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_note_depends_only_on_the_precondition(name: str) -> None:
    place, value, unmet, met = NOTED[name]
    where = place.replace(".0.", "[0].")
    named = [
        any(
            note.startswith(f"{where} has no effect")
            for note in keys_without_effect(build_scenario(_with(tables, {place: value})))
        )
        for tables in (unmet, met)
    ]
    assert named == [True, False]
    if isinstance(value, dict):
        notes = keys_without_effect(build_scenario(_with(met, {place: value})))
        assert not [note for note in notes if note.startswith(f"{where}.")]


def test_note_gives_single_queue_as_first_reason() -> None:
    notes = keys_without_effect(build_scenario(_with({"switch.queues": 1, "switch.drr_quantum": "4KiB"})))
    start = "switch.drr_quantum has no effect: one queue takes no turns; for it to matter: "
    assert next(note for note in notes if note.startswith("switch.drr_quantum")).startswith(start)
