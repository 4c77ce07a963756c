"""The policies that claims compare: DLCP's settings, and baselines with switches of their own kind.

The one place where they are written. Each is what is laid over a scenario, `job` and `traffic` only where it has any.
TCP-like baselines come with both minimum time-outs, 2 ms (the DCTCP experiments') and 10 ms: most of what is claimed
against them is about time-outs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradwire.scenarios.json_data import Json, JsonView

BOUND = 0.1
"""The loss bound of the papers' evaluations [notes]."""

DCTCP = ("dctcp-2ms", "dctcp-10ms")
KEPT = ("dctcp-kept-2ms", "dctcp-kept-10ms")
"""DCTCP that keeps one connection for each pair of hosts, as training frameworks do; the others begin a fresh one, with
its slow start, for each message, as the papers' simulations of flows do."""
PIAS = ("pias-2ms", "pias-10ms")
"""Those that come with both minimum time-outs."""

PIAS_THRESHOLDS = [f"{128 * step}KiB" for step in range(1, 8)]
"""Eighths of the demo's partition. Ours: the published ones are of 1.5 MB and more, longer than any message here."""

MTU_PACKETS_8 = "33232B"
"""Eight full packets: where NDP begins to trim."""


@dataclass(frozen=True)
class PolicyOf:
    """`label` for people; `set` of the scenario, `job` of each of its jobs, `traffic` of each of its traffic tables."""

    label: str
    set: JsonView
    job: JsonView = field(default_factory=dict)
    traffic: JsonView = field(default_factory=dict)


# Traffic has no magnitudes: all packets of DLCP's are droppable, or its bound would have no effect.

RELIABLE: Json = {"push_bound": 0.0, "pull_bound": 0.0, "tagging": {"layer_priority": False}}
FIFO: Json = {"queues": 1, "selective_drop": False}
PRIORITY: Json = {"queues": 8, "selective_drop": False}
TAGS: Json = {"layer_priority": True, "magnitude": True, "important_fraction": 0.5}


PER_LAYER: Json = {"bucket": "16KiB", "blocking": True}
"""An all-reduce for each layer, one after the other: as Lee et al.'s baselines. Buckets are closed by a kernel or a
matrix, with which the vectors behind it travel."""
ALL_REDUCES = {"ring": "ring", "halving_doubling": "halving and doubling", "transpose": "two all-to-alls"}
"""What a library may take for it; which one it takes is not known."""
TO_SWITCHES: Json = {"send_order": "sequential", "stop_policy": "on_probe", "important_must_arrive": False}

NOTHING: JsonView = MappingProxyType({})


def _dlcp(
    label: str,
    transport: JsonView = NOTHING,
    balancing: str = "spray_random",
    switch: JsonView = NOTHING,
    job: JsonView = NOTHING,
    traffic: JsonView = NOTHING,
) -> PolicyOf:
    return PolicyOf(
        label,
        {
            "transport": {"kind": "dlcp", **transport},
            "load_balancing": balancing,
            "switch": {"queues": 8, "selective_drop": True, **switch},
        },
        {
            "order": "fifo",  # at once: the queues of the network put messages in order
            "push_bound": BOUND,
            "pull_bound": 0.0,
            "pull_important": True,
            "tagging": TAGS,
            **job,
        },
        {"bound": BOUND, "droppable": True, "priority": 1, **traffic},
    )


def _dctcp(label: str, min_rto: str, connections: str = "fresh") -> PolicyOf:
    return PolicyOf(
        f"{label}, RTOmin {min_rto[:-2]} ms",
        {
            "transport": {"kind": "dctcp", "min_rto": min_rto, "connections": connections},
            "load_balancing": "ecmp",
            "switch": FIFO,
        },
        {**RELIABLE, "order": "fifo"},
    )


def _prioritised(label: str, min_rto: str) -> PolicyOf:
    """DCTCP whose switches serve front layers first."""
    plain = _dctcp(label, min_rto)
    return PolicyOf(plain.label, {**plain.set, "switch": PRIORITY}, {**plain.job, "tagging": {"layer_priority": True}})


def _ordered(label: str, min_rto: str, partition: str) -> PolicyOf:
    """Layer order in the hosts over TCP, without priorities in switches and over connections that are kept, as
    user-space schedulers have it."""
    return PolicyOf(
        f"{label}, RTOmin {min_rto[:-2]} ms",
        {
            "transport": {"kind": "cubic", "min_rto": min_rto, "connections": "persistent"},
            "load_balancing": "ecmp",
            "switch": FIFO,
        },
        {**RELIABLE, "order": "layer", "exchange": {"partition": partition}},
    )


def _both(key: str, make: Callable[..., PolicyOf], *more: object) -> dict[str, PolicyOf]:
    return {f"{key}-{rto}": make(more[0], rto, *more[1:]) for rto in ("2ms", "10ms")}


POLICIES: dict[str, PolicyOf] = {
    "dlcp": _dlcp("DLCP"),
    "mlt": _dlcp("MLT (DLCP, rate by delay)", {"rate_control": "delay", "stop_policy": "eager"}),
    # arms: one thing taken away
    "dlcp-ecmp": _dlcp("DLCP without spraying", balancing="ecmp"),
    "dlcp-fifo": _dlcp(
        "DLCP without layer priority", job={"tagging": {**TAGS, "layer_priority": False}}
    ),
    "dlcp-lossless": _dlcp("DLCP, bound 0", job={"push_bound": 0.0}, traffic={"bound": 0.0}),
    # what switches drop is what is lost: sent in order, all of it, and delivered with whatever has come
    "dlcp-chosen": _dlcp("DLCP, loss left to switches", TO_SWITCHES),
    "dlcp-chosen-no-drop": _dlcp(
        "... without selective drop", TO_SWITCHES, switch={"selective_drop": False}
    ),
    # by phase: hardly anything while gradients change fast, and 40 points more else (DBLP [notes])
    "dlcp-phases": _dlcp("DLCP, 41 %, 1 % in critical steps", job={"push_bound": {"share": 0.41, "critical": 0.01}}),
    # baselines
    **_both("dctcp", _dctcp, "DCTCP"),
    **_both("dctcp-priority", _prioritised, "DCTCP, layer priority"),
    **_both("dctcp-kept", _dctcp, "DCTCP, connections kept", "persistent"),
    **_both("p3", _ordered, "P3-like", "200kB"),  # slices of 50,000 parameters
    **_both("bytescheduler", _ordered, "ByteScheduler-like", "4MB"),  # 1 M parameters
    **{
        f"pias-{rto}": PolicyOf(
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
    "pfabric": PolicyOf(
        "pFabric",
        {
            "transport": {"kind": "pfabric"},
            "load_balancing": "spray_random",
            "switch": {**FIFO, "shortest_first": True, "ecn_threshold": None},
        },
        {**RELIABLE, "order": "fifo"},
    ),
    "ndp": PolicyOf(
        "NDP",
        {
            "transport": {"kind": "ndp"},
            "load_balancing": "spray_random",
            "switch": {**PRIORITY, "trim_threshold": MTU_PACKETS_8, "ecn_threshold": None},
        },
        {**RELIABLE, "order": "fifo"},
        {"priority": 1},
    ),
    "nscc": PolicyOf(
        "NSCC with trimming",
        {
            "transport": {"kind": "nscc"},
            "load_balancing": "spray_random",
            "switch": {**PRIORITY, "trim_threshold": "192KiB"},
        },
        {**RELIABLE, "order": "fifo"},
        {"priority": 1},
    ),
    "swift": PolicyOf(
        "Swift",
        {"transport": {"kind": "swift"}, "load_balancing": "ecmp", "switch": FIFO},
        {**RELIABLE, "order": "fifo"},
    ),
    "overlapped": PolicyOf("overlapped averaging", {}),
    "overlapped-gradients": PolicyOf(
        "overlapped averaging, gradients of all layers", {}, {"exchange": {"dense": "gradients"}}
    ),
    **{
        f"allreduce-{kind}": PolicyOf(
            f"all-reduce per layer ({words}), overlapped", {}, {"exchange": {"kind": kind, **PER_LAYER}}
        )
        for kind, words in ALL_REDUCES.items()
    },
    "allreduce-barrier": PolicyOf(
        "all-reduce per layer (two all-to-alls)", {},
        {"exchange": {"kind": "transpose", **PER_LAYER}, "scheduler": "barrier"},
    ),
    **{
        f"scheduler-{key}": PolicyOf(label, {"transport": {"kind": "dctcp"}}, {"scheduler": scheduler})
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
    """The minimum time-out that a key of a policy ends with, in words: "RTOmin 2 ms" of "dctcp-2ms"."""
    return f"RTOmin {key.rpartition('-')[2].removesuffix('ms')} ms"


def laid_over(tables: Json, policy: PolicyOf) -> Json:
    """A scenario's tables under a policy; a value of None takes a key away."""
    from gradwire.scenarios.schema.policy import overlay

    found: Json = overlay(tables, dict(policy.set))
    for key, more in (("job", policy.job), ("traffic", policy.traffic)):
        if found.get(key) and more:
            found[key] = overlay(found[key], dict(more))
    return _without_none(found)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value
