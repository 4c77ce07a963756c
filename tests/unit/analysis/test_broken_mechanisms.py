"""A verdict needs every mechanism: the claims of DLCP at small size, with each mechanism whole and broken.

The expectations and policies are those of the claims. A mechanism is broken in the rules that implement it, not by a
policy, so that a claim whose figures ignored the rules could not be shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwire.jit import uncompiled as uncompiled_functions
from gradwire.jit.compiled import njit
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import is_important
from gradwire.protocols.load_balancers import ecmp, spray_random
from gradwire.protocols.queues import threshold
from gradwire.protocols.transports.dlcp import dlcp
from gradwire.protocols.transports.dlcp.records import DlcpParameters, DlcpReceiver
from gradwire.scenarios.schema.policy import overlay
from gradwire.sim.engine import specialization
from gradwire.sim.simulate import simulate
from gradwire.studies.reproduce import claims_of
from gradwire.studies.reproduce.measures import figures
from gradwire.studies.reproduce.run_plan import runs_of_claim
from gradwire.studies.reproduce.verdicts import NOT_SHOWN, SHOWN, judge
from gradwire.traces import tagging
from gradwire.traces.tagging import Tagger

Break = Callable[[Any, str, Any], None]

BURST: dict[str, Any] = {
    "topology": {"kind": "star", "hosts": 5},
    "traffic": {"fan_in": 4, "size": "400kB", "rounds": 1},
}
JOB: dict[str, Any] = {
    "topology": {"leaves": 3, "hosts_per_leaf": 2, "spines": 2},
    "link": {"rate": "10Gbps"},
    "job": {
        "trace": "resnet20", "compute_scale": 0.01, "iterations": 2, "workers": 4, "servers": 2,
        "exchange": {"partition": "64KiB"},
    },
}  # fmt: skip


@pytest.fixture
def break_rule(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Replace a rule of the engine, given its owner and name; for uncompiled runs, whose rules are rebuilt."""

    def forget() -> None:
        uncompiled_functions._rebuilt.clear()
        specialization._uncompiled.cache_clear()
        for name in [name for name in sys.modules if name.startswith("gradwire.sim.engine.core_")]:
            del sys.modules[name]

    def broken(owner: Any, name: str, rule: Any) -> None:
        monkeypatch.setattr(owner, name, rule)
        forget()

    forget()
    yield broken
    monkeypatch.undo()
    forget()


def verdict(claim_id: str, setting: str, small: dict[str, Any], broken: str = "") -> str:
    """Return the verdict on a claim of DLCP from one of its settings alone, at small size and with one seed. `broken`:
    the policy whose rules are broken; it is run uncompiled."""
    (claim,) = claims_of(["dlcp"], [claim_id])
    settings = [
        replace(each, changes=overlay(dict(each.changes), small)) for each in claim.settings if each.name == setting
    ]
    expects = tuple(each for each in claim.expects if set(each.settings) == {setting})
    claim = replace(claim, settings=tuple(settings), expects=expects)
    runs = runs_of_claim(claim, 1, True)
    results = {run.key: simulate(run.scenario, compiled=run.policy != broken) for run in runs}
    return judge(claim, runs, {key: figures(result) for key, result in results.items()}).verdict


@njit
def admit_all(port: Port, waiting: QueueClass, header: int) -> int:
    """Mark packets above the threshold, and drop none."""
    return threshold.MARK if waiting.nbytes >= waiting.threshold and is_important(header) else threshold.ACCEPT


@njit
def within_no_bound(params: DlcpParameters, receiver: DlcpReceiver) -> bool:
    """Deliver nothing before everything has arrived."""
    return receiver.received_bytes == receiver.nbytes


@njit
def any_loss(receiver: DlcpReceiver, lost: int) -> bool:
    """Afford any loss."""
    return True


def test_switches_that_drop_no_droppable_packets_flip_the_verdict(break_rule: Break) -> None:
    setting, one = "selective drop: what is lost", overlay(JOB, {"job": {"iterations": 1}})
    assert verdict("S9", setting, one) == SHOWN
    break_rule(threshold.Threshold, "admit", staticmethod(admit_all))
    assert verdict("S9", setting, one, "dlcp-chosen") == NOT_SHOWN


def test_tags_of_small_gradients_instead_of_large_ones_flip_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Tagger._decide
    setting = "selective drop: what is lost"
    assert verdict("S9", setting, JOB) == SHOWN
    monkeypatch.setattr(Tagger, "_decide", lambda tagger, *of: ~decide(tagger, *of))
    assert verdict("S9", setting, JOB) == NOT_SHOWN


def test_one_priority_for_all_layers_flips_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = "layer priority: servers' links just enough"
    assert verdict("S9", setting, JOB) == SHOWN
    monkeypatch.setattr(tagging, "layer_priorities", lambda trace, classes: np.zeros(len(trace.tensors), dtype=int))
    assert verdict("S9", setting, JOB) == NOT_SHOWN


def test_one_path_for_all_packets_of_a_flow_flips_the_verdict(break_rule: Break) -> None:
    setting, one = "spraying: uplinks just enough", overlay(JOB, {"job": {"iterations": 1}})
    assert verdict("S9", setting, one) == SHOWN
    break_rule(spray_random.SprayRandom, "select", staticmethod(ecmp.select))
    assert verdict("S9", setting, one, "dlcp") == NOT_SHOWN


def test_receivers_that_stop_only_when_everything_has_arrived_flip_the_verdict(break_rule: Break) -> None:
    setting = "bounded loss: fan-in 16"
    assert verdict("S9", setting, BURST) == SHOWN
    break_rule(dlcp, "_within_bound", within_no_bound)
    assert verdict("S9", setting, BURST, "dlcp") == NOT_SHOWN


def test_receivers_that_afford_any_loss_flip_the_verdict(break_rule: Break) -> None:
    setting = "fan-in 16, 512 kB"
    assert verdict("S10", setting, BURST) == SHOWN
    break_rule(dlcp, "is_affordable", any_loss)
    assert verdict("S10", setting, BURST, "dlcp") == NOT_SHOWN
