"""Small scenarios whose best settings are known by running all combinations of a few knobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Case = tuple[dict[str, Any], dict[str, list[Any]]]
"""The tables of a scenario, and values by knob; the scenario's own value is among them."""


def planted_case(number: int) -> Case:
    """Return the case of a number: the families in turn, each with sizes drawn from the number."""
    return FAMILIES[number % len(FAMILIES)](random.Random(f"planted {number}"))


def _base(rng: random.Random, topology: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario with one job of a small model, whose computing times vary from seed to seed."""
    return {
        "name": "planted",
        "seed": rng.randrange(1, 1000),
        "transport": "dctcp",
        "topology": topology,
        "link": {"rate": rng.choice(["10Gbps", "25Gbps"]), "latency": "1us"},
        "host": {"software_latency": rng.choice(["2us", "10us"])},
        "switch": {"buffer": rng.choice(["128KiB", "256KiB"]), "ecn_threshold": "64KiB"},
        "job": [
            {
                "name": "job",
                "trace": "resnet20",
                "iterations": 8,
                "compute_scale": rng.choice([0.001, 0.002, 0.005]),
                "jitter": 0.02,
                **job,
            }
        ],
    }


def _hot_links(rng: random.Random) -> Case:
    """A ring across racks whose flows collide: a load balancer wins."""
    topology = {"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": rng.choice([2, 4])}
    exchange = {"kind": "ring", "bucket": "512KiB"}
    return _base(rng, topology, {"workers": 8, "placement": "spread", "exchange": exchange}), {
        "load_balancing": ["ecmp", "flowlet", "least_queue", "spray_random"],
        "job.exchange.bucket": ["128KiB", "512KiB", "2MiB"],
        "switch.ecn_threshold": ["16KiB", "32KiB", "64KiB"],
    }


def _order(rng: random.Random) -> Case:
    """Parameter servers that are the bottleneck: scheduling and tags win."""
    topology = {"kind": "star", "hosts": 6}
    job = {"workers": 4, "servers": rng.choice([1, 2]), "exchange": {"kind": "parameter_server", "partition": "256KiB"}}
    return _base(rng, topology, job), {
        "job.order": ["fifo", "layer"],
        "job.tagging.layer_priority": [False, True],
        "job.exchange.partition": ["16KiB", "64KiB", "256KiB"],
        "switch.ecn_threshold": ["16KiB", "64KiB", "100KiB"],
    }


def _incast(rng: random.Random) -> Case:
    """Many workers and one server behind a small buffer: a transport wins."""
    topology = {"kind": "star", "hosts": 9}
    job = {"workers": 8, "servers": 1, "exchange": {"kind": "parameter_server", "partition": "256KiB"}}
    tables = _base(rng, topology, job)
    tables["transport"] = {"kind": "cubic", "min_rto": "1ms"}
    return tables, {
        "transport.kind": ["cubic", "dctcp", "swift"],
        "switch.ecn_threshold": ["8KiB", "16KiB", "32KiB", "64KiB"],
        "job.exchange.partition": ["64KiB", "256KiB", "1MiB"],
    }


def _collective(rng: random.Random) -> Case:
    """All-reduce of small or large buckets on fast or slow hosts: an algorithm wins."""
    tables = _base(rng, {"kind": "star", "hosts": 8}, {"workers": 8, "exchange": {"kind": "ring", "bucket": "256KiB"}})
    tables["host"]["software_latency"] = rng.choice(["2us", "10us", "50us"])
    return tables, {
        "job.exchange.kind": ["ring", "halving_doubling", "double_tree", "transpose"],
        "job.exchange.bucket": ["64KiB", "256KiB", "2MiB"],
        "switch.ecn_threshold": ["16KiB", "64KiB", "100KiB"],
    }


FAMILIES: tuple[Callable[[random.Random], Case], ...] = (_hot_links, _order, _incast, _collective)
