"""Policies that claims compare: DLCP's settings, and baselines with suitable switches.

Each overlays a scenario, with `job` and `traffic` only where the scenario has any. TCP-like baselines exist with both
minimum time-outs, 2 ms (the DCTCP experiments') and 10 ms: most claims against them are about time-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradwire.scenarios.json_data import Json, JsonView

BOUND = 0.1
"""Loss bound of the papers' evaluations [notes]."""

DCTCP = ("dctcp-2ms", "dctcp-10ms")
PERSISTENT_DCTCP = ("dctcp-kept-2ms", "dctcp-kept-10ms")
"""DCTCP with one persistent connection per pair of hosts, as in training frameworks; the others open a fresh one, with
slow start, for each message, as the papers' simulations of flows do."""
PIAS = ("pias-2ms", "pias-10ms")
"""PIAS with both minimum time-outs."""

PIAS_THRESHOLDS = [f"{128 * step}KiB" for step in range(1, 8)]
"""Eighths of the demo's partition (our choice): the published ones start at 1.5 MB, longer than any message here."""

MTU_PACKETS_8 = "33232B"
"""Eight full packets: NDP's trimming threshold."""


@dataclass(frozen=True)
class PolicyOverlay:
    """`label`, and overlays: `set` of the scenario, `job` of each of its jobs, `traffic` of each of its traffic
    tables."""

    label: str
    set: JsonView
    job: JsonView = field(default_factory=dict)
    traffic: JsonView = field(default_factory=dict)


# Traffic has no magnitudes: all of its packets are droppable under DLCP, or its bound would have no effect.

RELIABLE: Json = {"push_bound": 0.0, "pull_bound": 0.0, "tagging": {"layer_priority": False}}
FIFO: Json = {"queues": 1, "selective_drop": False}
PRIORITY: Json = {"queues": 8, "selective_drop": False}
TAGS: Json = {"layer_priority": True, "magnitude": True, "important_fraction": 0.5}


PER_LAYER: Json = {"bucket": "16KiB", "blocking": True}
"""One all-reduce per layer, in sequence, as in Lee et al.'s baselines. A kernel or matrix closes a bucket, which also
contains the vectors after it."""
ALL_REDUCES = {"ring": "ring", "halving_doubling": "halving and doubling", "transpose": "two all-to-alls"}
"""Algorithms that a library may use; which one it chooses is unknown."""
TO_SWITCHES: Json = {"send_order": "sequential", "stop_policy": "on_probe", "important_must_arrive": False}

NOTHING: JsonView = MappingProxyType({})


def _dlcp(
    label: str,
    transport: JsonView = NOTHING,
    balancing: str = "spray_random",
    switch: JsonView = NOTHING,
    job: JsonView = NOTHING,
    traffic: JsonView = NOTHING,
) -> PolicyOverlay:
    return PolicyOverlay(
        label,
        {
            "transport": {"kind": "dlcp", **transport},
            "load_balancing": balancing,
            "switch": {"queues": 8, "selective_drop": True, **switch},
        },
        {
            "order": "fifo",  # at once: network queues order the messages
            "push_bound": BOUND,
            "pull_bound": 0.0,
            "pull_important": True,
            "tagging": TAGS,
            **job,
        },
        {"bound": BOUND, "droppable": True, "priority": 1, **traffic},
    )


def _dctcp(label: str, min_rto: str, connections: str = "fresh") -> PolicyOverlay:
    return PolicyOverlay(
        f"{label}, RTOmin {min_rto[:-2]} ms",
        {
            "transport": {"kind": "dctcp", "min_rto": min_rto, "connections": connections},
            "load_balancing": "ecmp",
            "switch": FIFO,
        },
        {**RELIABLE, "order": "fifo"},
    )


def _prioritised(label: str, min_rto: str) -> PolicyOverlay:
    """Return DCTCP with switches that serve front layers first."""
    plain = _dctcp(label, min_rto)
    return PolicyOverlay(
        plain.label, {**plain.set, "switch": PRIORITY}, {**plain.job, "tagging": {"layer_priority": True}}
    )


def _ordered(label: str, min_rto: str, partition: str) -> PolicyOverlay:
    """Return layer order in the hosts over TCP with persistent connections and without switch priorities. This is the
    design of user-space schedulers."""
    return PolicyOverlay(
        f"{label}, RTOmin {min_rto[:-2]} ms",
        {
            "transport": {"kind": "cubic", "min_rto": min_rto, "connections": "persistent"},
            "load_balancing": "ecmp",
            "switch": FIFO,
        },
        {**RELIABLE, "order": "layer", "exchange": {"partition": partition}},
    )


def _both(key: str, make: Callable[..., PolicyOverlay], *more: object) -> dict[str, PolicyOverlay]:
    return {f"{key}-{rto}": make(more[0], rto, *more[1:]) for rto in ("2ms", "10ms")}


POLICIES: dict[str, PolicyOverlay] = {
    "dlcp": _dlcp("DLCP"),
    "mlt": _dlcp("MLT (DLCP, rate by delay)", {"rate_control": "delay", "stop_policy": "eager"}),
    # ablations: one mechanism removed
    "dlcp-ecmp": _dlcp("DLCP without spraying", balancing="ecmp"),
    "dlcp-fifo": _dlcp("DLCP without layer priority", job={"tagging": {**TAGS, "layer_priority": False}}),
    "dlcp-lossless": _dlcp("DLCP, bound 0", job={"push_bound": 0.0}, traffic={"bound": 0.0}),
    # losses are exactly the switches' drops: everything is sent in order, and delivered with whatever arrived
    "dlcp-chosen": _dlcp("DLCP, loss left to switches", TO_SWITCHES),
    "dlcp-chosen-no-drop": _dlcp("... without selective drop", TO_SWITCHES, switch={"selective_drop": False}),
    # by phase: little loss while gradients change fast, and 40 points more otherwise (DBLP [notes])
    "dlcp-phases": _dlcp("DLCP, 41 %, 1 % in critical steps", job={"push_bound": {"share": 0.41, "critical": 0.01}}),
    # baselines
    **_both("dctcp", _dctcp, "DCTCP"),
    **_both("dctcp-priority", _prioritised, "DCTCP, layer priority"),
    **_both("dctcp-kept", _dctcp, "DCTCP, connections kept", "persistent"),
    **_both("p3", _ordered, "P3-like", "200kB"),  # slices of 50,000 parameters
    **_both("bytescheduler", _ordered, "ByteScheduler-like", "4MB"),  # 1 M parameters
    **{
        f"pias-{rto}": PolicyOverlay(
            f"PIAS, RTOmin {rto[:-2]} ms",
            {
                "transport": {"kind": "pias", "min_rto": rto, "thresholds": PIAS_THRESHOLDS},
                "load_balancing": "ecmp",
                "switch": PRIORITY,
            },
            {**RELIABLE, "order": "fifo"},
        )
        for rto in ("2ms", "10ms")
    },
    "pfabric": PolicyOverlay(
        "pFabric",
        {
            "transport": {"kind": "pfabric"},
            "load_balancing": "spray_random",
            "switch": {**FIFO, "shortest_first": True, "ecn_threshold": None},
        },
        {**RELIABLE, "order": "fifo"},
    ),
    "ndp": PolicyOverlay(
        "NDP",
        {
            "transport": {"kind": "ndp"},
            "load_balancing": "spray_random",
            "switch": {**PRIORITY, "trim_threshold": MTU_PACKETS_8, "ecn_threshold": None},
        },
        {**RELIABLE, "order": "fifo"},
        {"priority": 1},
    ),
    "nscc": PolicyOverlay(
        "NSCC with trimming",
        {
            "transport": {"kind": "nscc"},
            "load_balancing": "spray_random",
            "switch": {**PRIORITY, "trim_threshold": "192KiB"},
        },
        {**RELIABLE, "order": "fifo"},
        {"priority": 1},
    ),
    "swift": PolicyOverlay(
        "Swift",
        {"transport": {"kind": "swift"}, "load_balancing": "ecmp", "switch": FIFO},
        {**RELIABLE, "order": "fifo"},
    ),
    "overlapped": PolicyOverlay("overlapped averaging", {}),
    "overlapped-gradients": PolicyOverlay(
        "overlapped averaging, gradients of all layers", {}, {"exchange": {"dense": "gradients"}}
    ),
    **{
        f"allreduce-{kind}": PolicyOverlay(
            f"all-reduce per layer ({words}), overlapped", {}, {"exchange": {"kind": kind, **PER_LAYER}}
        )
        for kind, words in ALL_REDUCES.items()
    },
    "allreduce-barrier": PolicyOverlay(
        "all-reduce per layer (two all-to-alls)",
        {},
        {"exchange": {"kind": "transpose", **PER_LAYER}, "scheduler": "barrier"},
    ),
    **{
        f"scheduler-{key}": PolicyOverlay(label, {"transport": {"kind": "dctcp"}}, {"scheduler": scheduler})
        for key, label, scheduler in (
            ("barrier", "no scheduling", "barrier"),
            ("fifo", "as ready", {"kind": "fifo", "forward": "layerwise"}),
            ("p3", "P3", "p3"),
            ("bytescheduler", "ByteScheduler", "bytescheduler"),
            ("tuned", "ByteScheduler, tuned", {"kind": "bytescheduler", "partition": "768KiB", "credit": "4448kB"}),
            ("tictac", "TicTac", "tictac"),
        )
    },
}


def rto_min(key: str) -> str:
    """Return the minimum time-out at the end of a policy's key as text: "RTOmin 2 ms" for "dctcp-2ms"."""
    return f"RTOmin {key.rpartition('-')[2].removesuffix('ms')} ms"


def apply_policy(tables: Json, policy: PolicyOverlay) -> Json:
    """Return a scenario's tables under a policy; a value of None removes a key."""
    from gradwire.scenarios.schema.policy import overlay

    result: Json = overlay(tables, dict(policy.set))
    for key, more in (("job", policy.job), ("traffic", policy.traffic)):
        if result.get(key) and more:
            result[key] = overlay(result[key], dict(more))
    return _without_none(result)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
