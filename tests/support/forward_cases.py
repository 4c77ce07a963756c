"""Scenarios of jobs that go on for a while, simulated with fast-forward and without."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.scenario import Scenario
from tests.soak.drawn import Scenarios

REMEMBERS = ("connections", "preset", "loss_detection", "tail_probes", "frto", "slow_start", "pacing", "timers")
"""Keys of transports with which messages are not by themselves, or go by the time of day."""
LASTS = {
    "tcp_newreno": {"connections": "persistent"}, "cubic": {"connections": "persistent"},
    "dlcp": {"send_order": "sequential"},
}  # fmt: skip
"""Keys with which something outlives messages that may stand as it did before."""
LEFT_OUT = " iterations not simulated again"


def difference(one: Result, other: Result) -> list[str]:
    """The tables, or the summary, in which two Results differ."""
    found = [name for name in TABLES if not getattr(one, name).equals(getattr(other, name))]
    return found + (["summary"] if one.summary != other.summary else [])


def left_out(result: Result) -> int:
    """How many iterations were not simulated."""
    said = str(result.timing["fast_forward"])
    return int(said.removesuffix(LEFT_OUT)) if said.endswith(LEFT_OUT) else 0


def long_jobs(made: Scenarios, seed: int, folder: Path, lasts: bool = False) -> Scenario | None:
    """A drawn scenario whose jobs have a dozen iterations or two, mostly with nothing beside them; None if it has no
    job. `lasts`: something outlives its messages, mostly, and has time to settle."""
    rng = Random(seed)
    tables: dict[str, Any] = made.tables(seed)
    if not tables.get("job"):
        return None
    for job in tables["job"]:
        job["iterations"] = rng.randint(40, 80) if lasts else rng.randint(6, 30)
        for key in ("jitter", "bound_per", "phase"):
            if rng.random() < 0.9:
                job.pop(key, None)
        if rng.random() < 0.8:
            job["compute_scale"] = rng.choice((5.0, 20.0, 100.0))
    if rng.random() < 0.7:
        tables.pop("traffic", None)
    if rng.random() < 0.6:
        tables.pop("fault", None)
    if rng.random() < 0.7:
        tables["link"] = {**tables.get("link", {}), "loss": 0.0}
        tables.pop("link_override", None)
    senders = (*tables["job"], *tables.get("traffic", ()))
    for transport in (tables["transport"], *(each.get("transport", {}) for each in senders)):
        if rng.random() < 0.8:
            for key in REMEMBERS:
                transport.pop(key, None)
        if lasts and rng.random() < 0.9:
            transport.update(LASTS.get(transport.get("kind", ""), {}))
    for key in ("queue_samples", "sample_ports", "packet_log"):
        tables["output"].pop(key, None)
    return build_scenario(made._settled(tables)).at(folder)
